"""Columns of models, chosen and priced: against every choice of columns."""

from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Generation
from flows.planning.engine.pricing import Duals
from flows.planning.engine.rounding import Incumbent, Tools, restricted
from flows.planning.pool.at_prices.blocks import Least
from flows.planning.pool.at_prices.pricer import ModelPricer, columns_of, cover_at, served_rps
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Allocation
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch

MODELS, CLASSES = 3, 2
PRICE = np.array([3.0, 1.0])
LIMITS = Limits(relative_gap=0.0, nodes=1000)
Known = list[tuple[int, tuple[int, int], float]]


def known_columns() -> st.SearchStrategy[Known]:
    one = st.tuples(
        st.integers(0, MODELS - 1),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.floats(1.0, 3.0),
    )
    return st.lists(one, min_size=1, max_size=9)


def goal(fixed: bool) -> Goal:
    return Goal(
        weight=np.full(MODELS, 2.0),
        minimum_rps=np.zeros(MODELS),
        price=PRICE if fixed else np.zeros(CLASSES),
        fixed=fixed,
    )


def columns(known: Known, price: Floats) -> Columns:
    return columns_of(
        MODELS,
        price,
        np.array([model for model, _, _ in known]),
        np.array([vector for _, vector, _ in known]),
        np.array([rate for _, _, rate in known]),
        cast("Any", known),
    )


@dataclass
class NoItems:
    """Models that no item serves, and whose programs find one allocation."""

    steps: int = 1
    found: Least | None = None
    cutoff: float = np.nan

    def propose(self, price: Floats, rate: Floats) -> list[Ints]:
        del price
        return [np.zeros(0, dtype=np.int64)] * len(rate)

    def floor(self, price: Floats, rate: Floats) -> Floats:
        return price.sum() * rate

    def served(self, allocation: Allocation) -> tuple[Ints, float]:
        del allocation
        return np.array([0, 2]), 2.5

    def least(self, block: int, price: Floats, rate: float, cutoff: float, step: int) -> Least:
        del block, price, rate, step
        self.cutoff = cutoff
        assert self.found is not None
        return self.found


def pricer(known: Known, price: Floats, blocks: NoItems | None = None) -> ModelPricer:
    pool = Pool()
    pool.add(columns(known, price))
    return ModelPricer(
        blocks=cast("Any", blocks or NoItems()),
        numbers=np.arange(10, 20),
        gpu_cost=price,
        need=np.full(MODELS, 2.0),
        known=pool,
    )


@pytest.mark.long
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    known=known_columns(),
    fixed=st.booleans(),
    room=st.tuples(st.integers(1, 7), st.integers(1, 7)),
)
def test_the_best_choice_is_taken_and_never_beats_the_relaxation(
    known: Known, fixed: bool, room: tuple[int, int]
) -> None:
    gpus, asked = np.array(room), goal(fixed)
    cover, own = cover_at(asked, gpus, 1.0), pricer(known, asked.price)
    every = own.known.columns
    choice = cover.undominated(every.take(own.serving(every)))
    able = [[w for w in known if w[0] == m and w[2] >= 2.0] for m in range(MODELS)]
    assert (len(np.unique(choice.group)) == MODELS) == all(able)
    if not all(able):
        return
    values: list[float] = []
    for picked in product(*able):
        used = np.sum([vector for _, vector, _ in picked], axis=0)
        if fixed and np.any(used > gpus):
            continue
        values.append(float(PRICE @ used) if fixed else float(np.max(used / gpus)))
    found = Incumbent(judge=lambda of, n, free: float(of.cost @ n) + float(free.sum()))
    restricted(cover, choice, found, LIMITS, Tools())
    assert np.isfinite(found.cost) == bool(values)
    pool = Pool()
    pool.add(choice)
    relaxed = Generation(cover, own, pool, Watch()).run()
    if values:
        assert np.isclose(found.cost, min(values))
        assert relaxed.value <= found.cost + 1e-7
        # The bound counts a choice of every model, the relaxation may leave demand unmet instead.
        assert relaxed.bound <= found.cost + 1e-7


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    known=known_columns(),
    price=st.tuples(st.floats(0, 5), st.floats(0, 5)),
    worth=st.floats(0.0, 2.0),
)
def test_the_least_reduced_cost_is_that_of_all_known_columns_that_serve_enough(
    known: Known, price: tuple[float, float], worth: float
) -> None:
    duals = Duals(demand=np.full(MODELS, worth), resource=np.array(price))
    own = pricer(known, PRICE)
    priced = own.price(duals, np.full(MODELS, np.inf))
    assert len(priced.columns) == 0
    for model in range(MODELS):
        costs = [
            float((np.array(price) + PRICE) @ np.array(vector)) - 2.0 * worth
            for m, vector, rate in known
            if m == model and rate >= 2.0
        ]
        least = priced.least[model]
        assert np.isclose(least, min(costs)) if costs else np.isinf(least)


def test_a_program_is_asked_for_costs_and_answers_with_reduced_ones() -> None:
    """Two requests/s at 0.25 each are worth 0.5."""
    allocation = np.array([3, 4]), np.array([[1, 0], [2, 1]])
    blocks = NoItems(found=(1.5, 7, allocation))
    own = pricer([(0, (1, 1), 2.0)], np.zeros(CLASSES), blocks)
    duals = Duals(demand=np.full(MODELS, 0.25), resource=np.array([1.0, 0.75]))
    reduced, columns, effort = own.least(1, duals, 2.0, 0)
    assert (reduced, effort, blocks.cutoff) == (1.0, 7, 2.5)
    assert columns.matrix(MODELS + CLASSES).tolist() == [[0.0, 2.5, 0.0, 0.0, 2.0]]
    assert served_rps(columns).tolist() == [2.5]
    numbers, vgpus = columns.source[0]
    assert numbers.tolist() == [13, 14]  # of all configurations
    assert vgpus.tolist() == allocation[1].tolist()
    assert own.floor(duals).tolist() == [3.0, 3.0, 3.0]
