import ast
import json
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as untyped

from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError, read_state, status
from tests.fakes.unequal_shares import example
from tests.triton_backend.serving.one_name.sized_plans import NAME, SIZES, sized_plan
from tests.triton_backend.serving.served_applications import (
    application,
    module,
    one_stage,
    with_applications,
)
from tests.triton_backend.serving.small_plans import model, plan, stage, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder import repository
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.names import check_name
from triton_backend.serve_folder.repository import (
    CONTROL_MODEL,
    OFFLOAD_MODEL,
    STANDBY_MODEL,
    GenerationNames,
    front_ports,
    node_model,
    read_workers,
    remove_model,
    remove_old_generations,
    render_control,
    render_generation,
    render_node_generations,
    render_repository,
    rendered_generations,
    used_nodes,
)
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment

model_config_pb2: Any = untyped  # generated


def bare() -> Plan:
    """A plan made from latency tables: no tensor has a name."""
    return plan(model("bare", (stage((0, 5), "FAST", 0), stage((5, 10), "SLOW", 1))))


def test_a_repository_has_a_front_per_model_the_scheduler_and_the_nodes(tmp_path: Path) -> None:
    render_repository(tmp_path, plan(two_stage("one"), two_stage("two")), ServeOptions())
    models = {entry.name for entry in (tmp_path / "repository").iterdir()}
    nodes = {node_model("FAST"), node_model("SLOW")}
    assert models == {"one", "two", CONTROL_MODEL, STANDBY_MODEL} | nodes
    for name in models:
        code = (tmp_path / "repository" / name / "1" / "model.py").read_text()
        compile(code, name, "exec")
        assert f'name: "{name}"' in (tmp_path / "repository" / name / "config.pbtxt").read_text()


def test_the_last_generations_stay_and_those_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of the last began with the second, and a node still has workers of the fourth."""
    monkeypatch.setattr(repository, "KEPT_GENERATIONS", 3)
    served = plan(two_stage())
    render_repository(tmp_path, served, ServeOptions())
    nodes = used_nodes(served)
    workers = read_workers(tmp_path, 1)
    for number in range(2, 10):
        origins = tuple(origin._replace(generation=2) for origin in workers.origins)
        names = GenerationNames({}, replace(workers, origins=origins if number == 9 else ()))
        render_generation(tmp_path, served, number, nodes=nodes, names=names)
    for name in ("10.partial", ".nfs0001", "\u00b2"):
        (tmp_path / "generations" / name).touch()
    render_node_generations(tmp_path, nodes, [4, 9])
    remove_old_generations(tmp_path, 9)
    assert rendered_generations(tmp_path) == [2, 4, 7, 8, 9]
    assert (tmp_path / "generations" / ".nfs0001").exists()


def test_only_a_plan_with_entries_has_the_model_that_clients_ask_for_cuts(tmp_path: Path) -> None:
    render_repository(tmp_path / "whole", plan(two_stage()), ServeOptions())
    assert not (tmp_path / "whole" / "repository" / OFFLOAD_MODEL).exists()
    render_repository(tmp_path / "cuts", Plan.from_dict(example()), ServeOptions())
    place = tmp_path / "cuts" / "repository" / OFFLOAD_MODEL
    compile((place / "1" / "model.py").read_text(), OFFLOAD_MODEL, "exec")
    assert f'name: "{OFFLOAD_MODEL}"' in (place / "config.pbtxt").read_text()


def test_asked_for_there_is_a_model_per_open_cut_with_the_tensors_of_that_cut(
    tmp_path: Path,
) -> None:
    served = Plan.from_dict(example())
    render_repository(tmp_path, served, ServeOptions(cut_models=True))
    made = {p.name for p in (tmp_path / "repository").iterdir() if "_cut_" in p.name}
    assert made == {"a_cut_0", "a_cut_4"}
    place = tmp_path / "repository" / "a_cut_4"
    compile((place / "1" / "model.py").read_text(), "a_cut_4", "exec")
    config = (place / "config.pbtxt").read_text()
    assert 'input { name: "cut_4" data_type: TYPE_UINT8 dims: [-1, 64] }' in config
    assert config.count("input {") == 1
    assert "optional" not in config
    taken: dict[str, Any] = json.loads(json.dumps(example()).replace('"b"', '"a_cut_4"'))
    with pytest.raises(InputError, match=r"'a_cut_4': is the name of a cut's model"):
        render_repository(tmp_path / "taken", Plan.from_dict(taken), ServeOptions(cut_models=True))
    render_repository(tmp_path / "free", Plan.from_dict(taken), ServeOptions())


def test_the_front_declares_the_tensors_of_its_model(tmp_path: Path) -> None:
    render_repository(tmp_path, plan(two_stage()), ServeOptions())
    config = (tmp_path / "repository" / "pair" / "config.pbtxt").read_text()
    assert 'input { name: "image" data_type: TYPE_FP32 dims: [-1, 3, 16] }' in config
    assert 'input { name: "mask" data_type: TYPE_UINT8 dims: [-1, 4] }' in config
    assert 'output { name: "scores" data_type: TYPE_FP32 dims: [-1, 10] }' in config


def test_the_settings_are_private_and_read_by_the_servers_side(tmp_path: Path) -> None:
    render_repository(tmp_path, bare(), ServeOptions(policy="reservation", noise=0.25))
    path = tmp_path / "settings.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    settings = ServeSettings.read(path)
    assert (settings.noise, settings.emulate_links, settings.folder) == (0.25, True, tmp_path)


def test_a_plan_without_tensors_is_completed_by_sizes(tmp_path: Path) -> None:
    render_repository(tmp_path, bare(), ServeOptions())
    deployment = Deployment.read(ServeSettings.read(tmp_path / "settings.json"), 1)
    (first,), (last,) = deployment.rows_of(0), deployment.rows_of(1)
    (boundary,) = deployment.inputs_of(last)
    assert (boundary.dtype, boundary.bytes_per_sample) == ("UINT8", 4096)
    assert deployment.outputs_of(first) == deployment.inputs_of(last)
    assert deployment.outputs_of(last) == deployment.plan.models[0].outputs


def test_two_starts_never_share_a_name_or_a_token(tmp_path: Path) -> None:
    seen: set[str] = set()
    for _ in range(2):
        render_repository(tmp_path, bare(), ServeOptions())
        data = json.loads((tmp_path / "settings.json").read_text())
        seen |= {data["instance"], data["token"]}
    assert len(seen) == 4


def served(*names: str) -> Plan:
    return plan(*(two_stage(name) for name in names))


@pytest.mark.long
def test_every_front_has_a_port_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    """Eighteen names get eighteen ports: two fronts cannot listen on one."""
    names = [f"model-{number}" for number in range(200)]
    settings = ServeSettings.begin(tmp_path, served(*names), ServeOptions(base_port=20_000))
    first = front_ports(served(*names), settings)
    assert sorted(first.values()) == list(range(20_001, 20_201))
    # 0 to 99 go, and still listen while the new ones begin to.
    second = front_ports(served(*names[100:], "added", "another"), settings, first)
    assert second == {name: first[name] for name in names[100:]} | {
        "added": 20_201,
        "another": 20_202,
    }
    third = front_ports(served("added", "again"), settings, second)
    assert third == {"added": 20_201, "again": 20_001}


@pytest.mark.long
def test_ports_that_are_not_there_are_refused_before_anything_starts(tmp_path: Path) -> None:
    far = ServeOptions(base_port=64_533, hosts={"SLOW": "10.0.0.2"})
    with pytest.raises(InputError, match=r"base port 64533: workers would need ports to 65538"):
        render_repository(tmp_path, plan(two_stage()), far)
    many = served(*(f"m{number}" for number in range(901)))
    with pytest.raises(InputError, match="more than 900 models"):
        render_repository(tmp_path, many, ServeOptions())


def test_an_application_is_a_model_of_its_own(tmp_path: Path) -> None:
    models = plan(one_stage("m_a"), one_stage("m_b"))
    chain = application("chain", module("first", model="m_a"), module("then", "first", model="m_b"))
    made = with_applications(models, chain)
    render_repository(tmp_path, made, ServeOptions())
    config = (tmp_path / "repository" / "chain" / "config.pbtxt").read_text()
    assert 'input { name: "input" data_type: TYPE_UINT8' in config
    assert 'output { name: "then.output" data_type: TYPE_UINT8' in config
    assert not (tmp_path / "repository" / "m_a").exists()


def test_two_nodes_are_never_one_model(tmp_path: Path) -> None:
    twins = plan(two_stage())
    groups = (
        replace(g, name=name) for g, name in zip(twins.cluster.nodes, ("a@b", "a_b"), strict=True)
    )
    twins = replace(twins, cluster=replace(twins.cluster, nodes=tuple(groups)))
    with pytest.raises(InputError, match="nodes 'a@b' and 'a_b': would be one Triton model"):
        render_repository(tmp_path, twins, ServeOptions())


@pytest.mark.parametrize("name", ["poolpipe_control", "a/b", "", "..", "a b"])
def test_names_that_triton_cannot_serve_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"model name.*(cannot be served|is no name|is empty)"):
        check_name(name)


def test_nodes_without_vgpus_are_not_served(tmp_path: Path) -> None:
    one = plan(model("one", (stage((0, 10), "SLOW", 1),)))
    assert used_nodes(one) == ("SLOW",)
    render_repository(tmp_path, one, ServeOptions())
    remove_model(tmp_path, node_model("SLOW"))
    assert not (tmp_path / "repository" / node_model("SLOW")).exists()


def test_a_folder_that_serves_nothing_says_so(tmp_path: Path) -> None:
    for ask in (read_state, status):
        with pytest.raises(InputError, match="nothing is being served"):
            ask(tmp_path)
    assert not stop(tmp_path)


@pytest.mark.slow
def test_starting_without_settings_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a settings file"):
        start(tmp_path, Endpoints(http=18010, grpc=18011, metrics=18012))
    assert not (tmp_path / "state.json").exists()


@pytest.mark.slow
def test_a_triton_that_ends_is_a_failure_and_not_the_callers_fault(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    render_repository(folder, plan(two_stage()), ServeOptions())
    (folder / "repository" / CONTROL_MODEL / "config.pbtxt").write_text("no configuration")
    # With 1, or by a signal: Triton may crash where it ends while other models still load.
    with pytest.raises(ServerError, match=r"triton\.log: tritonserver ended with "):
        start(folder, Endpoints(http=18013, grpc=18014, metrics=18015))
    assert not (folder / "state.json").exists()


def test_a_policy_or_links_that_are_not_there_are_named_before_anything_starts() -> None:
    with pytest.raises(InputError, match="policy: 'fifo' is none of reservation"):
        ServeOptions(policy="fifo")
    with pytest.raises(InputError, match="nic: 'both' is none of shared, isolated"):
        ServeOptions(nic="both")


def test_a_port_given_twice_is_named() -> None:
    with pytest.raises(InputError, match="--metrics-port 8000: is --http-port too"):
        Endpoints(metrics=8000)


def test_folders_may_have_any_name_and_nodes_any_legal_one(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b" \\c'
    odd = plan(two_stage())
    groups = tuple(
        replace(group, name=f"n{number}@rack.+-_") for number, group in enumerate(odd.cluster.nodes)
    )
    odd = replace(odd, cluster=replace(odd.cluster, nodes=groups))
    render_repository(folder, odd, ServeOptions())
    for model_folder in (folder / "repository").iterdir():
        text = (model_folder / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert config.name == model_folder.name
        assert config.parameters["settings"].string_value == str(folder / "settings.json")
        if "node" in config.parameters:
            assert config.parameters["node"].string_value in used_nodes(odd)
        code = ast.parse((model_folder / "1" / "model.py").read_text())
        gives_way = ["ImportFrom", "ImportFrom", "If"] if "node" in config.parameters else []
        lines = [type(line).__name__ for line in code.body]
        assert lines == ["Expr", *gives_way, "ImportFrom", "Assign"]


@pytest.mark.long
def test_a_configuration_that_is_written_anew_is_never_seen_unfinished(tmp_path: Path) -> None:
    """The keeper reads it whenever a gateway dies, also in the middle of a rollout."""
    render_repository(tmp_path, plan(two_stage()), ServeOptions())
    config = tmp_path / "repository" / CONTROL_MODEL / "config.pbtxt"
    whole = config.read_text()
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            render_control(tmp_path, 1, standby=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert {config.read_text() for _ in range(5_000)} == {whole}
    finally:
        over.set()
        writer.join()


def test_a_front_takes_all_sizes_of_its_model(tmp_path: Path) -> None:
    render_repository(tmp_path, sized_plan(), ServeOptions())
    models = {entry.name for entry in (tmp_path / "repository").iterdir()}
    assert NAME in models
    assert not models & set(SIZES)
    config = text_format.Parse(
        (tmp_path / "repository" / NAME / "config.pbtxt").read_text(),
        model_config_pb2.ModelConfig(),
    )
    dims = [[list(one.dims) for one in several] for several in (config.input, config.output)]
    assert dims == [[[-1, -1, -1]], [[-1, -1]]]


def test_sizes_that_requests_cannot_be_told_apart_by_are_refused(tmp_path: Path) -> None:
    served = sized_plan()
    first, second = served.models
    same = replace(served, models=(first, replace(second, inputs=first.inputs)))
    with pytest.raises(InputError, match="size 'reader@3x64': has the inputs of 'reader@3x32'"):
        render_repository(tmp_path, same, ServeOptions())
    (given,) = first.inputs
    other = replace(served, models=(replace(first, inputs=(replace(given, name="z"),)), second))
    with pytest.raises(InputError, match="has other tensors than 'reader@3x32', beside their"):
        render_repository(tmp_path, other, ServeOptions())
