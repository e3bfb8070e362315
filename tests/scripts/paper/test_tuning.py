"""The search for the best configuration of a side."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flows.operations.adoption.triton_alone import DELAYS, MARGINS
from flows.planning.registry import product_planners
from scripts.paper import tuning
from scripts.paper.tuning import (
    LOADS,
    OURS,
    Demand,
    automatic,
    configurations,
    highest,
    tuned,
)
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.papers.triton import TRITON
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def demand() -> Demand:
    return Demand(
        profiles={"net": profile()},
        cluster=cluster(2, 2),
        workload=workload(ModelDemand(name="net", slo_us=40_000)),
        seconds=1.0,
    )


@pytest.mark.parametrize("carries", [0, 1, 2, 37, len(LOADS) - 1, len(LOADS)])
@pytest.mark.parametrize("above", [0, 5, len(LOADS)])
def test_halving_finds_the_highest_load_that_holds(
    monkeypatch: pytest.MonkeyPatch, carries: int, above: int
) -> None:
    def holds(configuration: object, load: float, seeds: Sequence[int]) -> bool:
        del configuration, seeds
        return LOADS.index(load) < carries

    monkeypatch.setattr(tuning, "holds", holds)
    assert highest(None, (0,), above) == max(carries, above)  # type: ignore[arg-type]


@pytest.mark.long
def test_each_side_is_tried_with_every_margin_and_what_is_its_own() -> None:
    problem = demand()
    reference = problem.reference()
    theirs = list(configurations(problem, TRITON, reference))
    assert {one.plan.planner for one in theirs} == {"no-partitioning"}
    assert {one.options.batch_timeout_share for one in theirs} == set(DELAYS)
    assert {one.options.policy for one in theirs} == {TRITON}
    assert {one.margin for one in theirs} == set(MARGINS)
    alone = [one for one in theirs if one.whole]
    assert 0 < len(alone) < len(theirs)
    assert {pool.share for one in alone for pool in one.plan.pools} == {300}
    ours = list(configurations(problem, OURS, reference))
    assert {one.options.policy for one in ours} == set(tuning.POLICIES)
    assert all(one.options.reference is reference for one in (*theirs, *ours))
    assert len({one.name for one in (*theirs, *ours)}) == len(theirs) + len(ours)


@pytest.mark.long
def test_what_is_reported_holds_on_arrivals_that_it_was_not_chosen_on() -> None:
    problem = demand()
    reference = problem.reference()
    found = [tuned(problem, side, reference) for side in (TRITON, OURS)]
    for one in (*found, automatic(problem, reference)):
        assert one.configuration is not None
        assert one.load > 0
        assert tuning.holds(one.configuration, one.load, tuning.REPORTED)
    assert automatic(problem, reference).name in product_planners()


@pytest.mark.long
def test_the_choice_is_that_of_whole_runs_of_every_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = demand()
    reference = problem.reference()
    sides = (TRITON, OURS)
    fast = [tuned(problem, side, reference) for side in sides]
    steps: list[int] = []

    def whole(plan: Plan, options: SimOptions) -> SimResult:
        result = simulate(plan, replace(options, give_up_below=None))
        steps.append(result.steps)
        return result

    monkeypatch.setattr(tuning, "simulate", whole)
    monkeypatch.setattr(tuning, "unlike", iter)
    slow = [tuned(problem, side, reference) for side in sides]
    assert [(one.name, one.load) for one in fast] == [(one.name, one.load) for one in slow]
    tried = len(steps)
    monkeypatch.undo()
    monkeypatch.setattr(tuning, "simulate", whole)
    for side in sides:
        tuned(problem, side, reference)
    assert len(steps) - tried < tried
