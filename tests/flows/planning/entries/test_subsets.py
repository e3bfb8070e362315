"""Groups by subsets: the cheapest of few entries, and the best ones at prices.

What is said of a group holds when its stages are put together.
"""

import math

import numpy as np
import pytest

from flows.planning.engine.pricing import Duals
from flows.planning.entries.groups import Group, GroupingProblem
from flows.planning.entries.pooling import pooled
from flows.planning.entries.subsets import (
    MOST_TOGETHER,
    Subsets,
    by_subsets,
    cheapest_cut,
    members_of,
)
from flows.planning.solver.arrays import FAR
from tests.flows.planning.entries.entry_cases import case, field_of

RATES = [(30,), (5, 12.5, 30, 0.1), (7.3, 11.1, 29.9)]


def reduced(field: GroupingProblem, root: int, items: tuple[int, ...], pi: np.ndarray) -> float:
    """The cost of a group less prices of its items; infinite where one cannot come in time."""
    if np.isinf(field.beside[root, list(items)]).any():
        return math.inf
    group = Group(items=items, root=root, cost=0.0)
    return pooled(field, [group], joined=True).cost - float(pi[list(items)].sum())


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("seed", range(2))
def test_the_best_group_of_a_root_is_found(seed: int, rates: tuple[float, ...]) -> None:
    field = field_of(case(seed, 6, rates=rates, classes=("G", "H")))
    pricer, pi = Subsets(field), np.random.default_rng(seed).uniform(0, 60, 6)
    least = pricer.least(pi, 0.0)
    every = [members_of(subset) for subset in range(1, 1 << 6)]
    for root, found in zip(pricer.roots[::3].tolist(), least[::3].tolist(), strict=True):
        best = min(reduced(field, root, items, pi) for items in every)
        assert found == pytest.approx(min(best, field.root_price[root]))


@pytest.mark.parametrize("rates", RATES)
def test_groups_at_prices_cost_what_they_are_said_to(rates: tuple[float, ...]) -> None:
    field = field_of(case(3, 14, blocks=4, rates=rates))
    pricer, pi = Subsets(field), np.random.default_rng(3).uniform(0, 60, 14)
    priced = pricer.price(Duals(demand=pi, resource=np.zeros(0)), pi, thorough=True)
    assert len(priced.columns)
    for group, number in zip(priced.columns.source, priced.columns.group.tolist(), strict=True):
        assert pricer.roots[number] == group.root
        assert group.cost - pi[list(group.items)].sum() == pytest.approx(priced.least[number])
        assert pooled(field, [group], joined=True).cost <= group.cost + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_a_crowded_start_are_bounded(seed: int) -> None:
    field = field_of(case(seed, 36, rates=(5, 30)))
    assert np.bincount(field.block).max() > MOST_TOGETHER
    pricer, pi = Subsets(field), np.random.default_rng(seed).uniform(0, 60, 36)
    least, random = pricer.least(pi, 0.0), np.random.default_rng(seed)
    for number, root in enumerate(pricer.roots.tolist()):
        some = tuple(np.flatnonzero(random.random(36) < random.random()).tolist())
        if some:
            assert least[number] <= reduced(field, root, some, pi) + 1e-9


def test_the_cheapest_cut_takes_no_group_that_cannot_be() -> None:
    cost = np.array([0.0, 3.0, 3.0, 4.0, 3.0, FAR, 7.0, FAR])
    assert sorted(cheapest_cut(cost)) == [3, 4]


@pytest.mark.parametrize("seed", range(4))
def test_subsets_serve_everyone_at_no_more_than_each_alone(seed: int) -> None:
    field = field_of(case(seed, 10, blocks=4, classes=("G", "H")))
    groups = by_subsets(field)
    assert sorted(i for group in groups for i in group.items) == list(range(10))
    alone = sum(field.best([item]).cost for item in range(10))
    assert sum(group.cost for group in groups) <= alone + 1e-9
