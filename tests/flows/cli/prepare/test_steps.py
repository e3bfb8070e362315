"""`steps` on the command line."""

from pathlib import Path

import pytest

from tests.flows.cli.conftest import WAREHOUSE, Command
from warehouse.db import open_warehouse

WORKLOAD = """
models: [{name: scale, slo_ms: 100}]
steps:
  - {name: scale, python: "shop:run", package: ./shop.py, inputs: {x: FP32 3}, outputs: {y: FP32 3}}
"""
STEPS = ("steps", "--workload", "steps.yaml")
PLAN = ("plan", "--cluster", "cluster.yaml", "--workload", "steps.yaml")


@pytest.fixture
def folder(project: Path) -> Path:
    (project / "shop.py").write_text("def run(x):\n    return x * 2")
    (project / "steps.yaml").write_text(WORKLOAD)
    return project


@pytest.mark.usefixtures("folder")
def test_steps_are_prepared_once(poolpipe: Command) -> None:
    ran = poolpipe(*STEPS, "--json")
    assert ran.code == 0
    assert (Path(ran.document["scale"]["folder"]) / "split.json").is_file()
    assert not ran.document["scale"]["reused"]
    again = poolpipe(*STEPS, "scale")
    assert again.code == 0
    assert "shop:run" in again.out
    assert "reused" in again.out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((*STEPS, "other"), "steps.yaml: has no step 'other'; its steps: scale"),
        (("steps", "--workload", "workload.yaml"), "workload.yaml: has no `steps`"),
        ((*STEPS, "--time-limit", "0"), "--time-limit: 0 is not within 0.1 and 1000000"),
    ],
)
def test_what_is_wrong_is_named_in_a_line(
    poolpipe: Command, words: tuple[str, ...], reason: str
) -> None:
    ran = poolpipe(*words)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert reason in ran.err


def test_a_step_that_never_ends_is_given_up_after_the_time_limit(
    folder: Path, poolpipe: Command
) -> None:
    (folder / "shop.py").write_text("def run(x):\n    while True: pass")
    ran = poolpipe(*STEPS, "--time-limit", "0.2")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "poolpipe: step 'scale': has not ended after 0.2 s; --time-limit gives more\n"


def test_a_step_that_was_not_prepared_is_pointed_to_its_command(
    folder: Path, poolpipe: Command
) -> None:
    assert poolpipe(*STEPS).code == 0
    other = WORKLOAD.replace("name: scale", "name: other")
    (folder / "steps.yaml").write_text(other)
    ran = poolpipe(*PLAN)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "steps.yaml, steps[0].name: model 'other'" in ran.err
    assert "`poolpipe steps` prepares it" in ran.err


AROUND = WORKLOAD.replace(
    "models: [{name: scale, slo_ms: 100}]",
    "models: [{name: photos, slo_ms: 100, model: net, before: scaler}]",
)


def test_a_name_before_a_model_that_nothing_has_is_refused_where_it_stands(
    folder: Path, poolpipe: Command
) -> None:
    (folder / "steps.yaml").write_text(AROUND)
    ran = poolpipe(*STEPS)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "poolpipe: steps.yaml, 'photos', before: 'scaler' is no step of the file and no model that"
        " was split; steps: scale; models: none\n"
    )
    (folder / "steps.yaml").write_text(AROUND.replace("before: scaler", "before: scale"))
    assert poolpipe(*STEPS).code == 0
    (folder / "steps.yaml").write_text(AROUND)
    ran = poolpipe(*PLAN)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("poolpipe: steps.yaml, 'photos', before: model 'scaler': is not in")
    assert "it has scale;" in ran.err
    assert ran.err.endswith("; steps of the file: scale\n")


def test_a_size_that_was_not_split_is_named_with_its_file_and_option(
    project: Path, poolpipe: Command
) -> None:
    open_warehouse(project / WAREHOUSE).close()
    text = "models: [{name: net, slo_ms: 9, sizes: [{input_shapes: {x: 3x4}}]}]"
    (project / "steps.yaml").write_text(text)
    ran = poolpipe(*PLAN)
    assert ran.code == 2
    assert ran.err.startswith("poolpipe: steps.yaml, model 'net@3x4': is not in")
    assert ran.err.endswith("`poolpipe split FILE --name net --input-shape INPUT=3x4` adds it\n")


def test_a_step_has_no_layers(folder: Path, poolpipe: Command) -> None:
    assert poolpipe(*STEPS).code == 0
    ran = poolpipe("heads", "export", "scale", "-o", str(folder / "heads"))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
