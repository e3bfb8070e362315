"""A repository becomes the project's models and two files."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flows.files import read_workload
from flows.operations.adoption.comparison import gpus_seen, gpus_today, smaller_requests
from flows.operations.adoption.repository import (
    Objectives,
    split_models,
    without_broken_ensembles,
    workload_of,
)
from flows.preparation.splitting.stored_split import read_split
from flows.preparation.steps.given import read_steps
from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    MODEL,
    Found,
    read_repository,
)
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.preparation.splitting.test_inputs import picture_net
from tests.flows.preparation.triton_repository.repositories import (
    add_cleaned,
    digest,
    write_repository,
)
from tests.triton_backend.serving.small_plans import BATCH, model, plan, stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload


@pytest.fixture
def found(tmp_path: Path) -> tuple[Found, ...]:
    return read_repository(write_repository(tmp_path / "models"))


def test_objectives_come_from_options_then_from_timeouts(found: tuple[Found, ...]) -> None:
    asked = Objectives(slo_us={"*": 90_000, "plain": 40_000}, rate_rps={"classify": 30.0})
    workload = Workload.from_dict(workload_of(found, asked))
    slos_us = {demand.name: demand.slo_us for demand in workload.models}
    assert slos_us == {
        "classify": 90_000,
        "classify@1": 90_000,
        "plain": 40_000,
        "sharpen": 250_000,
    }
    assert [demand.rate_rps for demand in workload.models] == [30.0, None, None, None]
    (application,) = workload.applications
    assert application.name == "pipeline"
    assert [module.model for module in application.modules] == ["sharpen", "classify"]


def test_a_name_that_is_not_planned_is_refused(found: tuple[Found, ...]) -> None:
    (chat,) = (each for each in found if each.name == "chat")
    with pytest.raises(InputError) as refused:
        workload_of(found, Objectives(slo_us={"*": 1_000, "chat": 5}, rate_rps={}))
    assert str(refused.value) == f"--slo: 'chat' is left beside the plan: {chat.reason}"
    with pytest.raises(InputError, match="--rate: 'none' is not among those to plan: classify"):
        workload_of(found, Objectives(slo_us={"*": 1_000}, rate_rps={"none": 5.0}))


def test_a_repository_without_a_model_to_plan_is_refused_with_reasons(
    found: tuple[Found, ...],
) -> None:
    (chat,) = (each for each in found if each.name == "chat")
    others = [replace(chat, name=f"chat{number}") for number in range(4)]
    with pytest.raises(InputError) as refused:
        workload_of([chat, *others], Objectives(slo_us={"*": 1_000}, rate_rps={}))
    shown = "; ".join(f"{name}: {chat.reason}" for name in ("chat", "chat0", "chat1"))
    reason = f"the repository: has no model that can be planned: {shown}; 2 more"
    assert str(refused.value) == reason


def test_a_model_that_cannot_be_split_is_left_beside_with_its_ensembles(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    (folder / "sharpen" / "1" / "model.onnx").write_bytes(b"no model")
    before = digest(folder)
    work = Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")
    out = tmp_path / "out"
    after = {e.name: e for e in split_models(work, read_repository(folder), blocks=2, output=out)}
    assert (after["plain"].kind, after["sharpen"].kind) == (MODEL, BESIDE)
    assert "model.onnx" in after["sharpen"].reason
    assert (after["pipeline"].kind, after["pipeline"].reason) == (
        BESIDE,
        "its step sharpen is not planned",
    )
    assert digest(folder) == before


READER = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ %s ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4, -1, -1 ] } ]
"""


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ("4, 8, 16", ""),
        (
            "4, 8, -1",
            (
                "open sizes in x [batch, 4, height, width]; give --input-shape x=4xSIZExSIZE"
                " (height and width: multiples of 2) to `poolpipe split --name reader`:"
                " config.pbtxt leaves them open too; several sizes go under `sizes` in"
                " workload.yaml"
            ),
        ),
        ("4, 8", "x [batch, 4, height, width] takes 3 sizes beside the batch, not 4x8"),
    ],
)
def test_a_model_of_open_sizes_is_split_for_the_one_that_its_configuration_states(
    tmp_path: Path, dims: str, reason: str
) -> None:
    folder = tmp_path / "models" / "reader"
    (folder / "1").mkdir(parents=True)
    picture_net(folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(READER % dims)
    work = Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")
    (found,) = split_models(work, read_repository(folder.parent), blocks=1, output=tmp_path)
    assert found.kind == (BESIDE if reason else MODEL)
    assert found.reason.partition("model.onnx")[2].partition(": ")[2] == reason


@pytest.mark.long
def test_a_python_model_of_an_ensemble_becomes_a_step(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    add_cleaned(folder)
    before = digest(folder)
    work = Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")
    out = tmp_path / "out"
    found = split_models(work, read_repository(folder), blocks=2, output=out)
    document = workload_of(found, Objectives(slo_us={"*": 90_000}, rate_rps={}))
    (out / "workload.yaml").write_text(yaml.safe_dump(document))
    (step,) = read_steps(out / "workload.yaml").values()
    assert (step.name, step.source) == ("clean", out / "steps" / "step_clean")
    workload = read_workload(out / "workload.yaml")
    by_name = {each.name: each for each in workload.applications}
    assert [module.model for module in by_name["cleaned"].modules] == ["clean", "classify"]
    assert read_split(work, "clean").step
    after = {each.name: each for each in found}
    assert (after["clean"].kind, after["cleaned"].kind) == (BESIDE, APPLICATION)
    assert "a copy of it runs as a step" in after["clean"].reason
    assert digest(folder) == before


@pytest.mark.long
def test_a_python_model_that_fails_is_left_beside_with_its_ensemble(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    add_cleaned(folder)
    file = folder / "clean" / "1" / "model.py"
    file.write_text(file.read_text().replace("import json", "import a_package_of_theirs"))
    work = Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")
    out = tmp_path / "out"
    found = split_models(work, read_repository(folder), blocks=2, output=out)
    after = {each.name: each for each in found}
    assert "does not run as a step: " in after["clean"].reason
    assert "a_package_of_theirs" in after["clean"].reason
    assert (after["cleaned"].kind, after["pipeline"].kind) == (BESIDE, APPLICATION)
    assert "steps" not in workload_of(found, Objectives(slo_us={"*": 90_000}, rate_rps={}))


def test_an_ensemble_whose_tensors_do_not_fit_is_left_beside(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    config = folder / "pipeline" / "config.pbtxt"
    config.write_text(config.read_text().replace('value: "sharp" }', 'value: "blunt" }', 1))
    after = {each.name: each for each in without_broken_ensembles(read_repository(folder))}
    assert after["pipeline"].kind == BESIDE
    assert "no step gives 'sharp'" in after["pipeline"].reason
    assert after["sharpen"].kind == MODEL


@pytest.mark.parametrize(
    ("given", "wrong", "reason"),
    [
        (
            'input_map { key: "x" value: "sharp"',
            'input_map { key: "z" value: "sharp"',
            "input 'z': x",
        ),
        ('output_map { key: "y" value: "SC', 'output_map { key: "z" value: "SC', "output 'z': y"),
    ],
)
def test_an_ensemble_that_names_a_tensor_its_model_lacks_is_left_beside(
    tmp_path: Path, given: str, wrong: str, reason: str
) -> None:
    folder = write_repository(tmp_path / "models")
    config = folder / "pipeline" / "config.pbtxt"
    assert given in config.read_text()
    config.write_text(config.read_text().replace(given, wrong))
    after = {each.name: each for each in without_broken_ensembles(read_repository(folder))}
    assert after["pipeline"].kind == BESIDE
    assert after["pipeline"].reason == f"its step classify has no {reason}"


def test_gpus_of_today_are_those_that_instances_are_on(found: tuple[Found, ...]) -> None:
    assert gpus_seen(found, 8) == 2  # classify names GPU 1
    assert gpus_today(found, 2) == 2
    sharpen = [each for each in found if each.name == "sharpen"]
    assert gpus_today(sharpen, 2) == 1


def test_models_whose_requests_hold_fewer_samples_than_today_are_named(
    found: tuple[Found, ...],
) -> None:
    planned = [
        model(name, (stage((0, 10), "FAST", 0),)) for name in ("classify", "classify@1", "sharpen")
    ]
    assert smaller_requests(found, plan(*planned)) == {
        "sharpen": f"a request may hold {BATCH} samples, its max_batch_size is 8 today"
    }


def test_a_complaint_about_an_ensemble_names_its_folder(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "models")
    config = folder / "pipeline" / "config.pbtxt"
    config.write_text(config.read_text().replace('value: "PICTURE"', 'value: "SCORES"'))
    with pytest.raises(InputError, match=r"application 'pipeline', .* runs in a circle"):
        workload_of(read_repository(folder), Objectives(slo_us={"*": 1_000}, rate_rps={}))
