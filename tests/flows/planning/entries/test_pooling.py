"""Pools of groups: equal stages together, alignment stages shared where that costs less."""

import numpy as np
import pytest

from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.partition import by_columns, by_subsets
from flows.planning.entries.pooling import pooled, pooled_ways, ways_of
from flows.planning.entries.seats import seated
from flows.planning.entries.tables import read_tables
from flows.planning.registry import Inputs
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import EVEN, case, entry, made, profile


def field_of(count: int, seed: int = 0) -> GroupingProblem:
    problem = case(seed, count, rates=(5, 30))
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    table = read_tables(inputs, EVEN)[0]
    return GroupingProblem(table, items_of(table))


def test_equal_stages_are_one_pool_unless_they_stay_apart() -> None:
    problem = made(profile(7), [entry(f"c{n}", 1, 40, 3) for n in range(4)])
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    table = read_tables(inputs, EVEN)[0]
    field = GroupingProblem(table, items_of(table))
    alone = [field.best([item]) for item in range(4)]
    assert len(pooled(field, alone).pools) == 1
    assert len(pooled(field, alone, apart=True).pools) == 4
    assert pooled(field, alone, apart=True).cost == sum(group.cost for group in alone)


@pytest.mark.parametrize("seed", range(5))
def test_sharing_alignment_stages_never_costs_more(seed: int) -> None:
    field = field_of(14, seed)
    groups = by_columns(field, Watch(), gap=1e-4, step=1.0).groups
    plain, shared = pooled(field, groups), pooled(field, groups, joined=True)
    assert shared.cost <= sum(group.cost for group in groups) + 1e-9
    assert plain.cost <= sum(group.cost for group in groups) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_ways_of_a_plan_serve_all_at_no_more(seed: int) -> None:
    field = field_of(12, seed)
    groups = by_columns(field, Watch(), gap=1e-4, step=1.0).groups
    exactly = Limits(relative_gap=0.0, nodes=10_000)
    again, _ = seated(field, ways_of(field, groups), exactly, across=True)
    assert pooled_ways(field, again).cost <= pooled(field, groups, joined=True).cost + 1e-9


def test_rates_and_times_of_pools_are_kept() -> None:
    field = field_of(10)
    found = pooled(field, by_subsets(field)[1].groups, joined=True)
    load = np.zeros(len(found.pools))
    for chain, passes in zip(found.chains, found.passes, strict=True):
        assert [s.key for s in chain.steps] == [found.pools[p][0] for p in passes]
        assert chain.steps[0].key[0] == chain.item.block
        for step, number in zip(chain.steps, passes, strict=True):
            load[number] += chain.item.rate_rps * step.work
    assert all(load <= np.array([vgpus for _, vgpus in found.pools]) * (1 + 1e-9))
