"""Groups of entries of one rate.

Equal to all subsets where these are few, never below what is proven.
"""

import pytest

from flows.planning import PlanOptions
from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.partition import by_subsets
from flows.planning.entries.pooling import pooled
from flows.planning.entries.seats import SeatRoute, seated
from flows.planning.entries.shared_stages import SharedStages, by_shared_stages
from flows.planning.entries.tables import read_tables
from flows.planning.registry import Inputs
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import Case, brute_force, case


def field_of(problem: Case, most_stages: int = 2) -> GroupingProblem:
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    options = PlanOptions(
        objective="share", slo_margin=0.5, max_partitions=most_stages, own={"phases": "even"}
    )
    table = read_tables(inputs, options)[0]
    return GroupingProblem(table, items_of(table))


@pytest.mark.parametrize("rate", [5, 30, 200])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_ends_at_the_least_of_all_subsets(seed: int, rate: float) -> None:
    field = field_of(case(seed, 8, rates=(rate,), classes=("G", "H")[: 1 + seed % 2]))
    least = by_subsets(field)[1].value
    found = by_shared_stages(field, Watch(), gap=0.0, step=5.0, prove=True)
    assert found.value == pytest.approx(least)
    assert found.bound == pytest.approx(least)
    assert sorted(i for g in found.groups for i in g.items) == list(range(8))
    assert pooled(field, found.groups, joined=True).cost <= least + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_few_entries_of_one_rate_cost_what_brute_force_finds(seed: int) -> None:
    problem = case(40 + seed, 5, rates=(30,), loose=6)
    found = by_shared_stages(field_of(problem), Watch(), gap=0.0, step=5.0, prove=True)
    assert found.value == pytest.approx(brute_force(problem))


@pytest.mark.parametrize("seed", range(4))
def test_ways_of_a_better_plan_are_not_left_out(seed: int) -> None:
    field = field_of(case(70 + seed, 9, rates=(30,), loose=6))
    pricing = SharedStages(field)
    least = by_subsets(field)[1].value
    pi = field.parts().min(axis=0)
    open_ = least - float(pi.sum()) + 1e-6
    stages = pricing.stages[pricing.least(pricing.stages, pi)[0] <= open_]
    ways = set[SeatRoute]().union(*map(pricing.ways_of_stage, stages.tolist()))
    taken, bound = seated(field, ways, Limits(relative_gap=0.0, nodes=10_000))
    assert set(taken) <= set(ways)
    assert bound == pytest.approx(least)


def test_without_alignment_stages_groups_are_those_of_subsets() -> None:
    field = field_of(case(3, 9, rates=(30,)), most_stages=1)
    found = by_shared_stages(field, Watch(), gap=0.0, step=5.0, prove=True)
    assert found.value == pytest.approx(by_subsets(field)[1].value)


@pytest.mark.parametrize("prove", [False, True])
def test_what_is_not_proven_is_bounded(prove: bool) -> None:
    field = field_of(case(2, 24, blocks=4, rates=(30,)))
    found = by_shared_stages(field, Watch(), gap=0.0, step=5.0, prove=prove)
    assert found.bound <= found.value
    assert 0.9 * found.value <= found.bound
    assert sorted(i for g in found.groups for i in g.items) == list(range(24))


def test_a_plan_that_is_known_is_a_cutoff() -> None:
    field = field_of(case(1, 8, rates=(30,)))
    least = by_shared_stages(field, Watch(), gap=0.0, step=5.0, prove=True).value
    known = by_shared_stages(field, Watch(), gap=0.0, step=5.0, prove=True, known=least)
    assert known.bound == pytest.approx(least)


@pytest.mark.parametrize("seed", range(2))
def test_a_hundred_entries_are_served_near_their_bound(seed: int) -> None:
    field = field_of(case(seed, 110, blocks=4, rates=(30,)))
    found = by_shared_stages(field, Watch(), gap=0.01, step=5.0, prove=True)
    assert sorted(i for g in found.groups for i in g.items) == list(range(110))
    assert found.bound <= found.value <= 1.1 * found.bound
    assert pooled(field, found.groups, joined=True).cost <= found.value + 1e-9
