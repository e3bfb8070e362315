"""Plans as earlier versions stored them are read, verified and written as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.planning.verify.numbers import verify_plan
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import GATHERING, MARGIN, TURN

STORED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "stored_plans.json").read_text()
)
MEANT = {
    "pool": (GATHERING, None),
    "subclusters": (TURN, None),
    "gpulets": (MARGIN, None),
    "applications": (GATHERING, "tc-padded"),
    "entries": (MARGIN, None),
    "format 1": (GATHERING, None),
}


@pytest.mark.parametrize("name", MEANT)
def test_a_stored_plan_still_holds_by_the_accounting_that_its_options_tell(name: str) -> None:
    plan = Plan.from_dict(STORED[name])
    assert verify_plan(plan) == []
    assert plan.waits is None
    assert tuple(plan.accounting) == MEANT[name]


@pytest.mark.parametrize("name", [name for name in MEANT if name != "format 1"])
def test_a_stored_plan_is_written_as_it_was_read(name: str) -> None:
    assert Plan.from_dict(STORED[name]).to_dict() == STORED[name]


def test_a_plan_of_format_1_is_the_same_plan_in_format_2() -> None:
    old, new = Plan.from_dict(STORED["format 1"]), Plan.from_dict(STORED["pool"])
    assert old.gpus() == new.gpus()
    assert [m.pipelines for m in old.models] == [m.pipelines for m in new.models]
