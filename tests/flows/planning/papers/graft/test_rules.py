"""Rules that Graft is compared with.

Never below the exact plan, limits kept, one code for four names.
"""

import math
from dataclasses import replace

import pytest

from flows.planning.registry import planner_named
from tests.flows.planning.entries.entry_cases import case, entry, one, planned
from triton_backend.contract.errors import InfeasibleError, InputError

ALONE = ("gslice", "gslice-plus", "static", "static-plus")
RULES = (*ALONE, "graft-optimal")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [9, 25])
def test_none_is_below_the_exact_one(seed: int, count: int) -> None:
    problem = case(seed, count, blocks=4, rates=(5, 30))
    values = [planned(problem, name).objective.value for name in (RULES if count <= 9 else ALONE)]
    assert min(values) >= planned(problem).objective.value - 1e-9
    assert planned(problem, "graft").objective.value <= values[0]  # gslice


@pytest.mark.parametrize("objective", ["cost", "gpus", "throughput"])
@pytest.mark.parametrize("planner", ["gslice-plus", "graft-optimal"])
def test_other_objectives_are_verified_too(planner: str, objective: str) -> None:
    plan = planned(case(1, 8), planner, objective)
    assert plan.objective.value > 0
    assert plan.options["billing"] == "share"


@pytest.mark.parametrize("planner", RULES)
def test_headroom_sizes_pools_for_more_than_is_promised(planner: str) -> None:
    problem = case(1, 8, rates=(30,))
    plain = planned(problem, planner)
    roomy = planned(problem, planner, own={"headroom": 20.0})
    busier = planned(case(1, 8, rates=(600,)), planner)
    assert roomy.objective.value == busier.objective.value > plain.objective.value
    assert {e.rate_rps for e in roomy.models[0].entries} == {30}


@pytest.mark.parametrize("planner", RULES)
def test_a_budget_below_the_least_latency_names_entry_and_numbers(planner: str) -> None:
    problem = one(entry("fine", 1, 40, 30), entry("hasty", 0, 1.5, 30))
    least = min(math.ceil(t.latency_us[:, 0].sum() - 1e-6) for t in problem.profile.tables.values())
    said = rf"entry hasty: .*0\.750 ms of 1\.500 ms, its least latency is {least / 1e3:.3f} ms"
    with pytest.raises(InfeasibleError, match=said):
        planned(problem, planner)


def test_no_stage_has_more_instances_than_allowed() -> None:
    problem = one(*(entry(f"c{n}", n % 3, 45, 120) for n in range(6)))
    plan = planned(problem, "gslice", own={"max_instances": 1})
    assert max(pool.vgpus for pool in plan.pools) == 1
    with pytest.raises(InfeasibleError, match="need more than 1 vGPUs"):
        planned(one(entry("much", 0, 60, 1e5)), "gslice", own={"max_instances": 1})


def test_budgets_of_one_ms_but_not_one_microsecond_are_uniform_for_the_paper_alone() -> None:
    problem = one(entry("a", 0, 20.2, 30), entry("b", 0, 20.9, 30))
    assert len(planned(problem, "gslice").pools) == 2
    merged = planned(problem, "gslice-plus")
    assert len(merged.pools) == 1
    for pipeline in merged.models[0].pipelines:
        assert pipeline.latency_us <= 10_100


@pytest.mark.parametrize(("name", "same"), [("static", "gslice"), ("static-plus", "gslice-plus")])
def test_static_plans_are_those_of_gslice(name: str, same: str) -> None:
    problem = case(3, 12)
    one_way, other = planned(problem, name), planned(problem, same)
    assert one_way.pools == other.pools
    assert replace(one_way.models[0]) == other.models[0]


def test_every_grouping_is_looked_at_for_a_few_fragments_alone() -> None:
    problem = one(*(entry(f"c{n}", 0, 40 + n, 30) for n in range(20)))
    with pytest.raises(InputError, match="20 fragments after merging; every grouping is looked at"):
        planned(problem, "graft-optimal")


def test_half_of_every_budget_pays_for_waiting() -> None:
    assert {planner_named(name).slo_margin for name in RULES} == {0.5}
