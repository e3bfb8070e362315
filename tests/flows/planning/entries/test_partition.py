"""Partitions by generated groups.

Never below their bound, never above what is simple, the bound never too high.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.partition import (
    by_columns,
    by_subsets,
    cheapest_cut,
    classes_of,
    fill,
    fill_greedily,
    in_pools,
)
from flows.planning.entries.tables import read_tables
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import FAR
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import EVEN, Case, case


def field_of(problem: Case) -> GroupingProblem:
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    table = read_tables(inputs, EVEN)[0]
    return GroupingProblem(table, items_of(table))


@pytest.mark.parametrize("rates", [(30,), (5, 12.5, 30, 0.1), (7.3, 11.1, 29.9)])
@pytest.mark.parametrize("seed", range(4))
def test_generated_groups_bound_the_least_partition(seed: int, rates: tuple[float, ...]) -> None:
    field = field_of(case(seed, 10, blocks=4, rates=rates, classes=("G", "H")))
    least = by_subsets(field)[0].value
    found = by_columns(field, Watch(), gap=1e-4, step=1.0)
    assert found.bound <= least + 1e-6
    assert least <= found.value + 1e-6
    assert sorted(i for g in found.groups for i in g.items) == list(range(10))
    assert found.value <= 1.1 * least


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_pools_is_below_groups_that_share_alignment_stages(seed: int) -> None:
    field = field_of(case(seed, 8, rates=(5, 30)))
    least = by_subsets(field)[1].value
    bound, near = in_pools(field, Watch(), 1.0)
    assert bound <= least + 1e-6
    assert {i for group in near for i in group.items} == set(range(8))
    assert least <= by_subsets(field)[0].value + 1e-6


@pytest.mark.long
def test_many_items_are_put_in_classes_that_bound_and_serve_all() -> None:
    field = field_of(case(5, 300, blocks=4, rates=(30,)))
    classes = classes_of(field)
    assert len(classes) <= 130
    assert sorted(i for items in classes for i in items) == list(range(300))
    found = by_columns(field, Watch(), gap=1e-4, step=1.0)
    assert sorted(i for g in found.groups for i in g.items) == list(range(300))
    assert 0.85 * found.value <= found.bound <= found.value


def test_groups_near_a_partition_cost_what_they_are_said_to() -> None:
    field = field_of(case(3, 14, rates=(5, 30)))
    near = by_columns(field, Watch(), gap=1e-4, step=1.0).near
    assert near
    for group in near:
        assert field.best(group.items).cost <= group.cost + 1e-9


def test_the_cheapest_cut_takes_no_group_that_cannot_be() -> None:
    cost = np.array([0.0, 3.0, 3.0, 4.0, 3.0, FAR, 7.0, FAR])
    assert sorted(cheapest_cut(cost)) == [3, 4]


def test_filling_an_option_finds_the_least_reduced_cost() -> None:
    gain, units = np.array([5.0, 4.0, 3.0, -1.0]), np.array([3, 2, 2, 1])
    room = np.zeros(9), np.zeros((4, 9), dtype=np.int8)
    chosen = np.zeros(4, dtype=np.int64)
    # a vGPU of price 4 carries 4 units: the middle two fill one of them
    assert fill(gain, units, 4.0, 0.25, 1.0, *room, chosen) == 4.0 - 7.0
    assert chosen.tolist() == [0, 1, 1, 0]
    # two of them carry all three
    assert fill(gain, units, 4.0, 0.25, 9.0, *room, chosen) == 8.0 - 12.0


@pytest.mark.parametrize("most", [2.0, 9.0])
@pytest.mark.parametrize("seed", range(20))
def test_filling_greedily_bounds_every_group_of_an_option(seed: int, most: float) -> None:
    random = np.random.default_rng(seed)
    rates, counts = 5.0 * random.integers(1, 7, 4), random.integers(1, 3, 4).astype(np.float64)
    pi, beside = random.uniform(0, 12, 4), random.uniform(0, 4, (1, 4))
    price, work = np.array([random.uniform(2, 9)]), np.array([random.uniform(0.02, 0.2)])
    bound, lowest = np.zeros((2, 1))
    number = np.zeros((1, 4), dtype=np.int64)
    room = np.zeros(4), np.zeros(4, dtype=np.int64)
    classes, options = (pi, rates, counts), (beside, price, work)
    fill_greedily(classes, options, (most, 5.0), room, bound, lowest, number)

    def reduced(taken: Sequence[int]) -> float:
        vgpus = max(1.0, np.ceil(np.dot(taken, rates) * work[0] - 1e-9))
        gain = float(np.dot(taken, pi - beside[0]))
        return float(price[0] * vgpus - gain) if vgpus <= most else np.inf

    every = product(*(range(int(count) + 1) for count in counts))
    least = min(reduced(taken) for taken in every)
    assert bound[0] <= least + 1e-9
    assert least <= reduced(number[0].tolist()) + 1e-9
    assert reduced(number[0].tolist()) <= lowest[0] + 1e-9
