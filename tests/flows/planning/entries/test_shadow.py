"""Shadow pools.

Every cut open, the cheapest that is fast enough, verified, and in its place from plan to plan.
"""

import math
from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.entries.entry_cases import Case, case, entry, made, profile, stages
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.memory import transition


def planned(
    problem: Case, planner: str = "pool", previous: Plan | None = None, **own: float
) -> Plan:
    own_options = {"phases": "even"} | own
    options = PlanOptions(planner=planner, objective="share", own=own_options, previous=previous)
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    assert verify_plan(plan, problem.profiles) == []
    return plan


@pytest.mark.parametrize("planner", ["pool", "graft", "static-plus"])
@pytest.mark.parametrize("seed", range(4))
def test_every_block_is_open_and_the_pool_is_the_cheapest(seed: int, planner: str) -> None:
    problem = case(seed, 3)
    without = planned(problem, planner)
    plan = planned(problem, planner, shadow_rps=40.0, shadow_ms=9.0)
    (shadow,) = [pool for pool in plan.pools if pool.starts_anywhere]
    least = min(
        percent * math.ceil(40 * latency / 1e6)
        for _, percent, batch, latency in stages(problem, 0, 3)
        if batch == 1 and latency <= 9_000
    )
    assert shadow.share // 3 * shadow.vgpus == least
    assert plan.objective.value == pytest.approx(without.objective.value + least)
    model = plan.models[0]
    assert {e.block for e in model.entries} == {0, 1, 2}
    assert {s.blocks for s in plan.stages_of(plan.pools.index(shadow))} == {(0, 3), (1, 3), (2, 3)}
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()


def test_a_shadow_pool_and_what_stays_keep_their_places() -> None:
    net = profile(7)
    some = made(net, [entry("a", 0, 40, 30), entry("b", 1, 25, 30)])
    more = made(net, [entry("a", 0, 40, 30), entry("b", 1, 25, 30), entry("c", 2, 9, 60)])
    plan = planned(some, "gslice", shadow_rps=30.0)
    then = planned(more, "gslice", plan, shadow_rps=30.0)
    change = transition(plan, then)
    assert len(change.inherited) == len(plan.vgpus())
    assert not change.ends
    assert len(change.starts) == len(then.vgpus()) - len(plan.vgpus())


def test_a_pool_that_cannot_be_fast_enough_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        InfeasibleError, match=r"'net', shadow_ms: its pool has 0\.100 ms, .* needs"
    ):
        planned(case(0, 2), shadow_rps=1.0, shadow_ms=0.1)


def test_a_pool_without_a_tail_does_not_verify() -> None:
    problem = case(0, 1)
    plan = planned(problem, shadow_rps=30.0)
    model = plan.models[0]
    last = next(p for p in model.pipelines if (p.entry or "").startswith("cut-"))
    kept = tuple(p for p in model.pipelines if p is not last)
    entries = tuple(e for e in model.entries if e.name != last.entry)
    rate = model.throughput_rps - last.throughput_rps
    bad = replace(model, pipelines=kept, entries=entries, throughput_rps=rate)
    found = verify_plan(replace(plan, models=(bad,)), problem.profiles)
    assert "starts anywhere: 1 models, tails from blocks" in found[0]
