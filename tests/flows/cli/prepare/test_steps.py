"""`steps` on the command line."""

from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command

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


def test_a_step_has_no_layers(folder: Path, poolpipe: Command) -> None:
    assert poolpipe(*STEPS).code == 0
    ran = poolpipe("heads", "export", "scale", "-o", str(folder / "heads"))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
