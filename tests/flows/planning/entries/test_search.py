"""Searches for the cheapest plan of entries: the least of all subsets, and what is proven."""

import numpy as np
import pytest

from flows.planning.entries import search as module
from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.pooling import Pooled, ways_to
from flows.planning.entries.pricer import Groups
from flows.planning.entries.search import MOST_ITEMS, cheapest
from flows.planning.entries.seats import SeatRoute, opened_ways, seated
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import brute_force, by_subsets, case, field_of

EXACTLY = Limits(relative_gap=0.0, nodes=10_000)


def served(plan: Pooled) -> list[int]:
    """Numbers of the entries that a plan serves."""
    return sorted(member for chain in plan.chains for member in chain.item.members)


@pytest.mark.parametrize("rates", [(5,), (30,), (200,), (5, 30)])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_ends_at_the_least_of_all_subsets(seed: int, rates: tuple[float, ...]) -> None:
    field = field_of(case(seed, 8, rates=rates, classes=("G", "H")[: 1 + seed % 2]))
    least = sum(group.cost for group in by_subsets(field))
    plan, bound = cheapest(field, Watch(), gap=0.0, step=5.0)
    assert bound <= least + 1e-6
    assert bound == pytest.approx(plan.cost)
    assert served(plan) == list(range(8))


@pytest.mark.parametrize("seed", range(3))
def test_few_entries_of_one_rate_cost_what_brute_force_finds(seed: int) -> None:
    problem = case(40 + seed, 5, rates=(30,), loose=6)
    plan, _ = cheapest(field_of(problem), Watch(), gap=0.0, step=5.0)
    assert plan.cost == pytest.approx(brute_force(problem, whole=True))


@pytest.mark.parametrize("seed", range(4))
def test_ways_of_a_better_plan_are_not_left_out(seed: int) -> None:
    field = field_of(case(70 + seed, 9, rates=(30,), loose=6))
    pricer = Groups(field)
    least = sum(group.cost for group in by_subsets(field))
    pi = field.parts().min(axis=0)
    open_ = least - float(pi.sum()) + 1e-6
    roots = np.flatnonzero(pricer.least(pi) <= open_)
    ways = set[SeatRoute]().union(*(ways_to(field, root) for root in roots.tolist()))
    taken, bound = seated(field, ways, EXACTLY)
    assert set(taken) <= set(ways)
    assert bound <= least + 1e-6


@pytest.mark.parametrize("rates", [(30,), (5, 12.5, 30, 0.1)])
def test_without_alignment_stages_groups_are_those_of_subsets(rates: tuple[float, ...]) -> None:
    field = field_of(case(3, 9, rates=rates), most_stages=1)
    plan, bound = cheapest(field, Watch(), gap=0.0, step=5.0)
    least = sum(group.cost for group in by_subsets(field))
    assert plan.cost == pytest.approx(least)
    assert bound == pytest.approx(least)


@pytest.mark.parametrize("rates", [(30,), (5, 30)])
@pytest.mark.parametrize("prove", [False, True])
def test_what_is_not_proven_is_bounded(prove: bool, rates: tuple[float, ...]) -> None:
    field = field_of(case(2, 24, blocks=4, rates=rates))
    plan, bound = cheapest(field, Watch(), gap=0.0, step=5.0, prove=prove)
    assert bound <= plan.cost
    assert bound >= 0.85 * plan.cost or not prove
    assert served(plan) == list(range(24))


@pytest.mark.long
def test_entries_of_several_rates_cost_no_more_than_in_parts() -> None:
    field = field_of(case(6, 100, blocks=6, rates=(5, 12, 30, 60)))
    parts = [GroupingProblem(field.table, field.items[number::4]) for number in range(4)]
    found = [cheapest(one, Watch(limit_s=5), gap=0.01, step=5.0, prove=False)[0] for one in parts]
    plan, bound = cheapest(field, Watch(limit_s=5), gap=0.01, step=5.0, prove=False)
    assert bound <= plan.cost <= sum(one.cost for one in found)
    assert bound >= field.parts().min(axis=0).sum() - 1e-6
    assert served(plan) == list(range(100))


@pytest.mark.parametrize("rates", [(30,), (5, 30)])
def test_any_plan_up_to_what_is_wanted_ends_the_search(rates: tuple[float, ...]) -> None:
    field = field_of(case(2, 20, blocks=4, rates=rates))
    best, least = cheapest(field, Watch(), gap=0.0, step=5.0)
    some, bound = cheapest(field, Watch(), gap=0.0, step=5.0, wanted=2 * best.cost)
    assert bound <= best.cost <= some.cost <= 2 * best.cost
    _, beyond = cheapest(field, Watch(), gap=0.0, step=5.0, wanted=0.5 * least)
    assert beyond > 0.5 * least


@pytest.mark.parametrize("rates", [(30,), (5, 30)])
def test_items_that_one_stage_may_not_carry_together_are_apart(rates: tuple[float, ...]) -> None:
    field = field_of(case(4, 14, rates=rates), own={"max_instances": 1})
    plan, bound = cheapest(field, Watch(), gap=0.01, step=5.0)
    assert {vgpus for _, vgpus in plan.pools} == {1}
    assert bound <= plan.cost
    assert served(plan) == list(range(14))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_hundred_entries_are_served_near_their_bound(seed: int) -> None:
    field = field_of(case(seed, 110, blocks=4, rates=(30,)))
    plan, bound = cheapest(field, Watch(), gap=0.01, step=5.0)
    assert served(plan) == list(range(110))
    assert bound <= plan.cost <= 1.1 * bound


@pytest.mark.long
@pytest.mark.parametrize("rates", [(30,), (5, 30)])
@pytest.mark.parametrize("seed", range(2))
def test_many_entries_are_served_near_a_bound(seed: int, rates: tuple[float, ...]) -> None:
    count = MOST_ITEMS + 50
    plan, bound = cheapest(
        field_of(case(seed, count, blocks=4, rates=rates)), Watch(), gap=0.01, step=5.0
    )
    assert served(plan) == list(range(count))
    assert bound <= plan.cost <= 1.25 * bound


def test_the_bound_of_many_is_below_the_least_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = case(61, 5, rates=(30,))
    monkeypatch.setattr(module, "MOST_ITEMS", 4)
    plan, bound = cheapest(field_of(problem), Watch(), gap=0.0, step=5.0)
    assert bound <= brute_force(problem, whole=True) + 1e-6 <= plan.cost + 2e-6


@pytest.mark.parametrize("instances", [1, 2])
def test_those_that_stand_for_many_are_as_many_as_stages_can_carry(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS", 8)
    field = field_of(case(4, 24, rates=(60,)), own={"max_instances": instances})
    plan, bound = cheapest(field, Watch(), gap=0.01, step=5.0)
    assert served(plan) == list(range(24))
    assert bound <= plan.cost <= sum(field.best([item]).cost for item in range(24))


@pytest.mark.parametrize("count", [60, MOST_ITEMS + 1])
def test_a_search_ends_with_its_time(count: int) -> None:
    watch = Watch()
    watch.stop()
    plan, bound = cheapest(
        field_of(case(1, count, blocks=4, rates=(30,))), watch, gap=0.0, step=5.0
    )
    assert served(plan) == list(range(count))
    assert 0 < bound <= plan.cost


def test_ways_for_many_are_opened_until_time_is_over() -> None:
    over = Watch()
    over.stop()
    field = field_of(case(1, 30, blocks=4, rates=(5, 30)))
    assert opened_ways(field, Watch())
    assert opened_ways(field, over) == set()


@pytest.mark.parametrize("seed", range(6))
def test_every_batch_fills_the_shared_batch_that_it_boards(seed: int) -> None:
    problem = case(seed, 14, rates=(40.0, 160.0), blocks=4, loose=10)
    plan, _ = cheapest(field_of(problem), Watch(), gap=0.01, step=5.0)
    for chain in plan.chains:
        assert chain.steps[-1].batch % chain.steps[0].batch == 0
        assert sum(step.time_us for step in chain.steps) <= chain.item.limit_us
