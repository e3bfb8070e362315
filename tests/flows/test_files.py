import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import yaml

from flows.device_class import DeviceClass
from flows.file_forms import ClusterForm, FileForm, WorkloadForm, form_in, inner_kind
from flows.files import (
    read_cluster,
    read_device_classes,
    read_plan,
    read_workload,
    read_yaml,
    write_plan,
    write_text,
)
from flows.planning import make_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError

CLUSTER = """
gpu_classes:
  L4: {vgpu_divisors: [1, 2], memory_gib: 24}
  P4:
nodes:
  - {count: 2, gpu_class: L4, gpus: 1, nic_gbps: 10}
  - {count: 1, gpu_class: P4, gpus: 4, nic_gbps: 1e1}
"""


def written(folder: Path, text: str, name: str = "lab.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_cluster_takes_the_name_of_its_file_and_defaults_for_what_is_left_out(
    tmp_path: Path,
) -> None:
    found = read_cluster(written(tmp_path, CLUSTER))
    assert found.name == "lab"
    assert found.gpu_class("P4").vgpu_divisors == (1,)
    assert found.gpus("P4") == 4
    assert found.nic_gbps("P4") == 10


def test_a_merge_key_gives_what_a_mapping_does_not_state_itself(tmp_path: Path) -> None:
    text = (
        "gpu_classes: {L4: , P4: , A2: }\n"
        "nodes:\n"
        "  - &node {count: 2, gpu_class: L4, gpus: 1, nic_gbps: 10}\n"
        "  - &other {<<: *node, gpu_class: P4, gpus: 4}\n"
        "  - {<<: [*other, *node], gpu_class: A2}\n"
    )
    found = read_cluster(written(tmp_path, text))
    assert [found.gpus(name) for name in ("L4", "P4", "A2")] == [2, 8, 8]
    twice = written(tmp_path, text.replace("gpu_class: A2", "gpus: 1, gpus: 2"))
    with pytest.raises(InputError, match="line 5: not YAML: 'gpus' is given twice"):
        read_cluster(twice)


def test_a_mapping_that_another_takes_in_before_it_is_built_is_not_given_twice(
    tmp_path: Path,
) -> None:
    text = "deep: {er: {a: &a {x: 1}, b: &b {<<: *a, x: 2}}}\nc: {<<: *b}\n"
    path = written(tmp_path, text)
    assert read_yaml(path) == {"deep": {"er": {"a": {"x": 1}, "b": {"x": 2}}}, "c": {"x": 2}}


def test_a_class_may_be_cut_into_percents(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "gpu_classes:\n"
        "  MIG: {vgpu_percents: [20, 40, 80], partitions: [[20, 80], [40, 40]],"
        " process_memory_gib: 0.5}\n"
        "  MPS: {vgpu_percents: {step: 25, least: 50}, max_vgpus_per_gpu: 3}\n"
        "nodes: [{count: 1, gpu_class: MIG, gpus: 1, nic_gbps: 10}]\n"
    )
    mig, mps = read_cluster(path).gpu_classes
    assert (mig.vgpu_divisors, mig.vgpu_percents, mig.most_vgpus) == ((), (20, 40, 80), 2)
    assert (mig.partitions, mig.process_memory_gib) == (((20, 80), (40, 40)), 0.5)
    assert (mps.vgpu_percents, mps.most_vgpus) == ((50, 75, 100), 3)
    path.write_text(path.read_text().replace("{step: 25,", "{stride: 25,"))
    with pytest.raises(InputError, match=r"vgpu_percents\.step: is missing"):
        read_cluster(path)


def test_a_runtime_makes_a_device_class_and_stays_out_of_the_cluster(tmp_path: Path) -> None:
    text = CLUSTER.replace("  P4:", "  P4: {runtime: {cores: [0], stretch: 4.0}}")
    path = written(tmp_path, text)
    assert "runtime" not in json.dumps(read_cluster(path).to_dict())
    classes = read_device_classes(path)
    assert list(classes) == ["P4"]
    assert classes["P4"].to_options() == {"cores": [0], "threads": 1, "stretch": 4.0}


def test_a_runtime_may_ask_for_a_gpu(tmp_path: Path) -> None:
    text = CLUSTER.replace("  P4:", "  P4: {runtime: {kind: onnxruntime, provider: cuda}}")
    classes = read_device_classes(written(tmp_path, text))
    assert classes == {"P4": DeviceClass(name="P4", provider="cuda")}
    assert DeviceClass.from_options("P4", classes["P4"].to_options()) == classes["P4"]


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        ("{provider: cuda, cores: [0]}", "cores is of provider cpu alone"),
        ("{provider: cuda, stretch: 2}", "stretch is of provider cpu alone"),
        ("{}", "cores is missing"),
        ("{provider: rocm, cores: [0]}", "'cpu' or 'cuda'"),
        ("{kind: tensorrt}", "'onnxruntime'"),
    ],
)
def test_a_runtime_that_cannot_be_is_named(tmp_path: Path, runtime: str, reason: str) -> None:
    path = written(tmp_path, CLUSTER.replace("  P4:", f"  P4: {{runtime: {runtime}}}"))
    with pytest.raises(InputError, match=reason) as refused:
        read_device_classes(path)
    assert "P4" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (("gpus: 4", "gpus: zero"), "nodes[1].gpus", "'zero' is no whole number"),
        (("gpus: 4", "gpu: 4"), "nodes[1].gpus", "is missing (and nodes[1].gpu: no such"),
        (("count: 2", "count: 0"), "nodes[0].count", "0 is not above 0"),
        (("count: 2", "count: true"), "nodes[0].count", "true is no number"),
        (("gpu_class: P4", "gpu_class: T4"), "nodes[1].gpu_class", "'T4' is not one of"),
        (("[1, 2]", "[1, 9]"), "gpu_classes.L4.vgpu_divisors", "from 1 to 4"),
        (("memory_gib", "memory"), "gpu_classes.L4.memory", "no such field"),
        (("  P4:", "  L4:"), "line 4", "'L4' is given twice"),
        (("[1, 2]", "[1, 2"), "line 3", "not YAML"),
        (("count: 2", "count: {{ n }}"), "line 6", "not YAML: a key is no text or number"),
        (("  P4:", "  ? [P4, L4]\n  :"), "line 4", "not YAML: a key is no text or number"),
        (("count: 2", "count: 2026-13-45"), "line 6", "not YAML: '2026-13-45' is no timestamp"),
        (("count: 2", "count: 0x_"), "line 6", "not YAML: '0x_' is no int"),
        (("count: 2", "count: !!bool two"), "line 6", "not YAML: 'two' is no bool"),
        (("[1, 2]", "[" * 3000), "lab.yaml", "not YAML: nested too deeply"),
        (("{count: 2", "{<<: 2"), "line 6", "not YAML: expected a mapping"),
        ((CLUSTER, ""), "lab.yaml", "is empty"),
    ],
)
def test_a_wrong_cluster_is_refused_in_one_line_with_file_field_and_reason(
    tmp_path: Path, change: tuple[str, str], field: str, reason: str
) -> None:
    path = written(tmp_path, CLUSTER.replace(*change))
    with pytest.raises(InputError) as caught:
        read_cluster(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert field in message
    assert reason in message
    assert "\n" not in message


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "model.onnx"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, reason in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "Is a directory"),
        (binary, "is not a text file"),
    ):
        with pytest.raises(InputError, match=reason):
            read_workload(path)


def test_a_workload_is_read_with_what_it_states_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "models: [{name: a, slo_ms: 12.5, rate_rps: 3}, {name: b, slo_ms: 1}]")
    models = read_workload(path).models
    assert [(m.name, m.slo_us, m.weight, m.rate_rps) for m in models] == [
        ("a", 12_500, None, 3),
        ("b", 1_000, None, None),
    ]


def test_a_number_may_have_an_exponent_and_no_dot(tmp_path: Path) -> None:
    app = "{name: a, slo_ms: 4e2, rate_rps: 1E+3, modules: [{name: m, model: net}]}"
    (found,) = read_workload(written(tmp_path, f"applications: [{app}]")).applications
    assert (found.slo_us, found.rate_rps) == (400_000, 1000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models: []", "models: is empty; at least 1 must be listed"),
        ("models: [{name: a}]", r"models\[0\].slo_ms: is missing"),
        ("models: [{name: a, slo_ms: .nan}]", r"models\[0\].slo_ms: nan is no finite number"),
        ("models: [{name: a, slo_ms: 1}, {name: a, slo_ms: 1}]", "listed twice"),
        ("models: [{name: a, slo: 20}]", r"slo_ms: is missing \(and models\[0\].slo: no such"),
        ("[1, 2]", "holds no fields, as NAME: VALUE"),
    ],
)
def test_a_wrong_workload_is_refused_with_field_and_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read_workload(written(tmp_path, text))


WRONG = (None, True, "x", -3, 1.5, [], {}, [[]], {3: 3}, {"x": []}, float("nan"))


def places(form: type[FileForm], *way: int | str) -> list[tuple[int | str, ...]]:
    """The ways to all fields of a form and of those in it; 0 stands for an item of a list."""
    found: list[tuple[int | str, ...]] = []
    for name, field in form.model_fields.items():
        found.append((*way, name))
        if (inner := form_in(field.annotation)) is not None:
            item = (part for part in (0, "net") if inner_kind(field.annotation, part) is not None)
            found += places(inner, *way, name, *item)
    return found


@pytest.mark.parametrize(
    ("form", "read"), [(WorkloadForm, read_workload), (ClusterForm, read_cluster)]
)
def test_no_value_of_any_field_is_refused_in_the_words_of_a_library(
    tmp_path: Path, form: type[FileForm], read: Callable[[Path], object]
) -> None:
    refused: list[str] = []
    for way in places(form):
        for value in WRONG:
            data: Any = value
            for part in reversed(way):
                data = [data] if part == 0 else {part: data}
            path = written(tmp_path, yaml.safe_dump(data))
            try:
                read(path)
            except InputError as error:
                refused.append(str(error).removeprefix(str(path)))
    foreign = r"Input|should|valid|Value error|function-|\[key|Form"
    assert [said for said in refused if re.search(foreign, said)] == []
    assert len(refused) > len(places(form))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [{name: a, slo_ms: fast}]", "models[0].slo_ms: 'fast' is no number"),
        ("models: [{name: a, slo_ms: [1]}]", "models[0].slo_ms: a list is no number"),
        ("models: [{name: a, slo_ms: }]", "models[0].slo_ms: nothing is no number"),
        ("models: [{name: 3, slo_ms: 1}]", "models[0].name: 3 is no text"),
        ("models: {a: 1}", "models: a table is no list"),
        ("models: [{name: a, slo_ms: 1, accuracy: 3}]", "accuracy: 3 is not at most 1"),
        (
            "models: [{name: a, slo_ms: 1, input_shapes: {x: 1.5}}]",
            "models[0].input_shapes.x: 1.5 is no text or whole number",
        ),
        (
            "models: [{name: a, slo_ms: 1, input_shapes: {x: -3}}]",
            "models[0].input_shapes.x: -3 is not above 0",
        ),
        (
            "models: [{name: a, slo_ms: 1, input_shapes: {3: x}}]",
            "models[0].input_shapes: 3 is no text",
        ),
        (
            "models: [{name: a, slo_ms: 1, versions: [{version: a, name: b}]}]",
            "models[0].versions[0].version: 'a' is no whole number",
        ),
        (
            "models: [{name: a, slo_ms: 1, accuracy: 1, variants: [{name: a, accuracy: 1}]}]",
            "workload model 'a', variants: 'a' is the model itself",
        ),
        (
            "models: [{name: b, slo_ms: 1}, {name: a, slo_ms: 1}, {name: a, slo_ms: 2}]",
            "workload, models: 'a' is listed twice",
        ),
    ],
)
def test_a_value_of_another_kind_is_named_with_what_it_should_be(
    tmp_path: Path, text: str, said: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as refused:
        read_workload(path)
    assert str(refused.value).startswith(str(path))
    assert str(refused.value).endswith(said)


def test_a_size_of_a_list_or_of_steps_is_named_without_the_names_of_types(tmp_path: Path) -> None:
    path = written(tmp_path, CLUSTER.replace("[1, 2]", "[1], vgpu_percents: {step: a}"))
    with pytest.raises(InputError, match=r"L4.vgpu_percents.step: 'a' is no whole number"):
        read_cluster(path)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = make_plan({"net": profile()}, cluster(), workload())
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    assert read_plan(path).to_dict() == plan.to_dict()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "{",
            "plan.json: is no plan: not JSON at line 1, column 2; `poolpipe plan -o` writes plans$",
        ),
        ("models: []", "is no plan: not JSON"),
        ("[]", "holds no object"),
        ("{}", "models: is missing"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_plan(written(tmp_path, text, "plan.json"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (("solve_secs",), "solve_secs: no such field; did you mean solve_seconds?"),
        (("objective", "bound"), "objective.bound: no such field"),
        (("pools", 0, "placement", 0, "node_name"), "pools[0].placement[0].node_name: no such"),
        (("models", 0, "pipelines", 0, "stages", 0, "batches"), "stages[0].batches: no such"),
        (("cluster", "node"), "cluster.node: no such field; did you mean nodes?"),
        (("cluster", "gpu_classes", "fast", "memory"), "cluster.gpu_classes.fast.memory: no such"),
        (("cluster", "nodes", 1, "nic"), "cluster.nodes[1].nic: no such field"),
        (("workload", "model"), "workload.model: no such field; did you mean models?"),
        (("workload", "models", 0, "slo"), "models[0].slo: no such field; did you mean slo_ms?"),
    ],
)
def test_a_field_that_no_plan_has_is_refused_with_its_place(
    tmp_path: Path, path: tuple[str | int, ...], reason: str
) -> None:
    document: Any = make_plan({"net": profile()}, cluster(), workload()).to_dict()
    *way, name = path
    place = document
    for step in way:
        place = place[step]
    place[name] = 1
    with pytest.raises(InputError, match=re.escape(reason)):
        read_plan(written(tmp_path, json.dumps(document), "plan.json"))


def test_a_plan_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    plan = make_plan({"net": profile()}, cluster(), workload())
    with pytest.raises(InputError, match="cannot be written"):
        write_plan(tmp_path / "none" / "plan.json", plan)


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("before")
    path.chmod(0o640)
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \udcff")
    assert path.read_text() == "before"
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_text(link, "after")
    assert (link.is_symlink(), path.read_text(), path.stat().st_mode & 0o777) == (
        True,
        "after",
        0o640,
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "plan.json"]
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "anything")


def test_threads_that_write_the_same_file_at_once_leave_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, target = Barrier(2, timeout=30), tmp_path / "plan.json"
    replace = Path.replace

    def together(path: Path, other: Path) -> Path:
        both.wait()  # both are written before either takes its place
        return replace(path, other)

    monkeypatch.setattr(Path, "replace", together)
    texts = ["a" * 100_000, "b" * 100_000]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write_text, target, text) for text in texts]:
            done.result()
    assert target.read_text() in texts
    assert list(tmp_path.iterdir()) == [target]
    (tmp_path / "plain").write_text("")
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode


NODE = {"count": 1, "gpu_class": "L4", "gpus": 1, "nic_gbps": 10}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"node": []}, "node: no such field; did you mean nodes?"),
        ({"gpu_classes": {"L4": {"vgpu_divisor": [1]}}},
         "L4.vgpu_divisor: no such field; did you mean vgpu_divisors?"),
        ({"gpu_classes": {"L4": {"runtime": {"core": [0]}}}},
         "runtime.core: no such field; did you mean cores?"),
        ({"gpu_classes": {"L4": {"vgpu_percents": {"step": 5, "lest": 5}}}},
         "lest: no such field; did you mean least?"),
        ({"nodes": [NODE | {"hosts": "a"}]}, "nodes[0].hosts: no such field; did you mean host?"),
        ({"colour": "red"}, "colour: no such field"),
    ],
)  # fmt: skip
def test_a_field_that_no_form_has_names_the_one_that_is_near(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps({"gpu_classes": {"L4": None}, "nodes": [NODE]} | change))
    with pytest.raises(InputError) as raised:
        read_cluster(path)
    assert str(raised.value).endswith(told)
