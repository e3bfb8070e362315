"""Pools of groups: equal stages together, alignment stages shared where that costs less."""

import numpy as np
import pytest

from flows.planning.entries.groups import Group, GroupingProblem
from flows.planning.entries.pooling import pooled, pooled_ways, ways_of
from flows.planning.entries.seats import seated
from flows.planning.solver.solve import Limits
from tests.flows.planning.entries.entry_cases import (
    by_subsets,
    case,
    entry,
    field_of,
    made,
    profile,
)


def drawn(count: int, seed: int = 0) -> GroupingProblem:
    return field_of(case(seed, count, rates=(5, 30)))


def likely(field: GroupingProblem) -> list[Group]:
    """Groups of neighbours by start and limit."""
    items = range(len(field.items))
    return [field.best(items[at : at + 3]) for at in items[::3]]


def test_equal_stages_are_one_pool_unless_they_stay_apart() -> None:
    problem = made(profile(7), [entry(f"c{n}", 1, 40, 3) for n in range(4)])
    field = field_of(problem)
    alone = [field.best([item]) for item in range(4)]
    assert len(pooled(field, alone).pools) == 1
    assert len(pooled(field, alone, apart=True).pools) == 4
    assert pooled(field, alone, apart=True).cost == sum(group.cost for group in alone)


@pytest.mark.parametrize("seed", range(5))
def test_sharing_alignment_stages_never_costs_more(seed: int) -> None:
    field = drawn(14, seed)
    groups = likely(field)
    plain, shared = pooled(field, groups), pooled(field, groups, joined=True)
    assert shared.cost <= sum(group.cost for group in groups) + 1e-9
    assert plain.cost <= sum(group.cost for group in groups) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_ways_of_a_plan_serve_all_at_no_more(seed: int) -> None:
    field = drawn(12, seed)
    groups = likely(field)
    exactly = Limits(relative_gap=0.0, nodes=10_000)
    again, _ = seated(field, ways_of(field, groups), exactly)
    assert pooled_ways(field, again).cost <= pooled(field, groups, joined=True).cost + 1e-9


def test_rates_and_times_of_pools_are_kept() -> None:
    field = drawn(10)
    found = pooled(field, by_subsets(field), joined=True)
    load = np.zeros(len(found.pools))
    for chain in found.chains:
        assert [s.key for s in chain.steps] == [found.pools[p][0] for p in chain.pools]
        assert chain.steps[0].key[0] == chain.item.block
        for step, number in zip(chain.steps, chain.pools, strict=True):
            load[number] += chain.item.rate_rps * step.work
    assert all(load <= np.array([vgpus for _, vgpus in found.pools]) * (1 + 1e-9))
