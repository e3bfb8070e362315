"""Plans that take turns as a fault.

The same models and answers, other stages, applications that count as others.
"""

import threading
from pathlib import Path

import pytest

from flows.release.server.running import ServerError
from scripts.benchmarks.applications.plans import faulty_application
from scripts.benchmarks.served import Served
from scripts.faults import changes
from scripts.faults.changes import following
from scripts.faults.plans import wide_plan
from triton_backend.contract.plan import Plan


def cuts(plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    return [tuple(s.blocks for s in m.pipelines[0].stages) for m in plan.models]


def test_the_next_plan_is_cut_a_block_away_and_the_one_after_it_as_the_first() -> None:
    first = wide_plan("faults", quick=True)
    second, third = (following(first, number) for number in (1, 2))
    assert cuts(first) == [((0, 5), (5, 10)), ((0, 5), (5, 10)), ((0, 10),)]
    assert cuts(second) == [((0, 4), (4, 10)), ((0, 4), (4, 10)), ((0, 10),)]
    assert cuts(third) == cuts(first)
    assert [second.plan_id, third.plan_id] == ["faults-1", "faults-2"]
    assert second.pools == first.pools
    assert [m.inputs for m in second.models] == [m.inputs for m in first.models]


def test_an_application_is_another_one_in_the_next_plan() -> None:
    first = faulty_application()
    second, third = (following(first, number) for number in (1, 2))
    (was,), (other,), (back,) = (p.applications for p in (first, second, third))
    assert other.application.slo_us == was.application.slo_us + 1_000
    assert back == was
    assert second.workload.applications == (other.application,)


def test_a_change_that_a_fault_took_back_is_told_and_the_next_one_follows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enough = threading.Event()
    undone: list[Path] = []
    outcomes = iter((1.5, ServerError("a worker is gone"), 2.5))

    def change(_: Served) -> float:
        outcome = next(outcomes, 3.5)
        if isinstance(outcome, ServerError):
            raise outcome
        if outcome == 3.5:
            enough.set()
        return outcome

    monkeypatch.setattr(changes, "change", change)
    monkeypatch.setattr(changes, "finish_or_undo_change", undone.append)
    served = Served(wide_plan("pauses"), 18_000, within=tmp_path)
    every = changes.Changes(served, 0.001)
    every.start()
    assert enough.wait(10)
    every.end()
    rows = [{k: v for k, v in row.items() if k != "at_us"} for row in every.rows]
    assert rows[:3] == [{"seconds": 1.5}, {"failed": "a worker is gone"}, {"seconds": 2.5}]
    assert undone == [served.folder]
