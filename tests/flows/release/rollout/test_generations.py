"""Plans that a serve folder keeps, of which one was prepared and never served."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.release.rollout import generations
from flows.release.rollout.generations import (
    is_same_plan,
    note_never_served,
    plan_in_force,
    plan_served_before,
)
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.plan import Plan

FIRST, UNDONE, SECOND = (
    replace(plan(two_stage("line")), plan_id=name) for name in ("first", "undone", "second")
)


def with_artifacts(kept: Plan) -> Plan:
    """The same decisions, carried out by other artifacts."""
    (model,) = kept.models
    (line, *others) = model.pipelines
    stages = tuple(replace(stage, artifact="another") for stage in line.stages)
    pipelines = (replace(line, stages=stages), *others)
    return replace(kept, models=(replace(model, pipelines=pipelines),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Generation 4 is in force, a plan of 1 with other artifacts; 2 was undone."""
    kept = (FIRST, UNDONE, SECOND, with_artifacts(FIRST))
    for number, one in enumerate(kept, start=1):
        place = tmp_path / "generations" / str(number)
        place.mkdir(parents=True)
        (place / "plan.json").write_text(json.dumps(one.to_dict()))
    note_never_served(tmp_path, 2)
    note_never_served(tmp_path, 9)  # failed before it was written

    class State:
        def control(self, _action: str) -> dict[str, int]:
            return {"generation": 4}

    def running(_folder: Path) -> State:
        return State()

    monkeypatch.setattr(generations, "read_state", running)
    return tmp_path


def test_a_plan_is_the_same_with_the_same_artifacts_alone() -> None:
    assert is_same_plan(FIRST, FIRST)
    assert not is_same_plan(FIRST, with_artifacts(FIRST))
    assert not is_same_plan(FIRST, SECOND)


def test_plans_before_are_those_that_were_in_force(folder: Path) -> None:
    assert is_same_plan(plan_in_force(folder), with_artifacts(FIRST))
    before = plan_served_before(folder, "first")
    assert before is not None
    assert is_same_plan(before, FIRST)
    assert plan_served_before(folder, "undone") is None
