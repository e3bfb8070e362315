"""The best groups at prices.

What is said of a group holds when its stages are put together.
"""

import math

import numpy as np
import pytest

from flows.planning.engine.pricing import Duals
from flows.planning.entries import pricer as module
from flows.planning.entries.groups import Group, GroupingProblem
from flows.planning.entries.pooling import pooled
from flows.planning.entries.pricer import Groups
from flows.planning.entries.subsets import MOST_TOGETHER, members_of
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
    pricer, pi = Groups(field), np.random.default_rng(seed).uniform(0, 60, 6)
    least = pricer.least(pi)
    every = [members_of(subset) for subset in range(1, 1 << 6)]
    for root, found in enumerate(least[::3].tolist()):
        best = min(reduced(field, 3 * root, items, pi) for items in every)
        assert found == pytest.approx(min(best, field.root_price[3 * root]))


@pytest.mark.parametrize("rates", RATES)
def test_groups_at_prices_cost_what_they_are_said_to(rates: tuple[float, ...]) -> None:
    field = field_of(case(3, 14, blocks=4, rates=rates))
    pricer, pi = Groups(field), np.random.default_rng(3).uniform(0, 60, 14)
    priced = pricer.price(Duals(demand=pi, resource=np.zeros(0)), pi)
    assert len(priced.columns)
    for group, number in zip(priced.columns.source, priced.columns.group.tolist(), strict=True):
        assert number == group.root
        assert group.cost - pi[list(group.items)].sum() == pytest.approx(priced.least[number])
        assert pooled(field, [group], joined=True).cost <= group.cost + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_a_crowded_start_are_bounded(seed: int) -> None:
    field = field_of(case(seed, 36, rates=(5, 30)))
    assert np.bincount(field.block).max() > MOST_TOGETHER
    pricer, pi = Groups(field), np.random.default_rng(seed).uniform(0, 60, 36)
    least, random = pricer.least(pi), np.random.default_rng(seed)
    for root, bound in enumerate(least.tolist()):
        some = tuple(np.flatnonzero(random.random(36) < random.random()).tolist())
        if some:
            assert bound <= reduced(field, root, some, pi) + 1e-9


def falling(field: GroupingProblem, seed: int) -> np.ndarray:
    """Prices that do not rise with limits, as a search has them."""
    pi = np.random.default_rng(seed).uniform(0, 60, len(field.items))
    for block in np.unique(field.block):
        own = np.flatnonzero(field.block == block)
        pi[own[np.argsort(field.limit[own])]] = np.sort(pi[own])[::-1]
    return pi


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_runs_of_neighbours_gain_as_much_as_all_subsets(
    seed: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = field_of(case(seed, 12, blocks=4, rates=(30,), classes=("G", "H")), stages)
    pi = falling(field, seed)
    known = Groups(field).least(pi)
    monkeypatch.setattr(module, "MOST_TOGETHER", 0)
    assert Groups(field).least(pi) == pytest.approx(known)


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_runs_cost_what_they_are_said_to(seed: int) -> None:
    field = field_of(case(seed, 40, rates=(30,)))
    assert np.bincount(field.block).max() > MOST_TOGETHER
    pricer, pi = Groups(field), falling(field, seed)
    priced = pricer.price(Duals(demand=pi, resource=np.zeros(0)), pi)
    assert len(priced.columns)
    for group, number in zip(priced.columns.source, priced.columns.group.tolist(), strict=True):
        assert number == group.root
        assert group.cost - pi[list(group.items)].sum() == pytest.approx(priced.least[number])
        assert pooled(field, [group], joined=True).cost == pytest.approx(group.cost)
