"""Cheap columns made of items, against trying every number of every item."""

from dataclasses import dataclass
from itertools import product
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.planning.pool.at_prices import covering
from flows.planning.pool.at_prices.covering import STEPS
from flows.planning.solver.arrays import Floats, Ints

Kinds = list[tuple[tuple[int, int], float]]  # vector, rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Items of several blocks, sorted by block, then by rate, the highest first."""

    start: Ints
    vector: Ints
    rate: Floats

    def cheapest(self, price: Floats, demand: Floats) -> list[Ints]:
        """A cheap column for every block at prices of resources."""
        return covering.cheapest(self.start, self.vector @ price, self.rate, demand)

    def total(self, parts: Ints) -> tuple[Ints, float]:
        """The resources of items, and their rate."""
        return self.vector[parts].sum(axis=0), float(self.rate[parts].sum())


@st.composite
def items(draw: st.DrawFn) -> Kinds:
    """One to three items on two resources."""
    kind = st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any), st.floats(1.0, 9.0)
    )
    return draw(st.lists(kind, min_size=1, max_size=3))


def packed(kinds: list[Kinds]) -> Items:
    """Items of several blocks as arrays, the fastest first."""
    ordered = [sorted(own, key=lambda k: -k[1]) for own in kinds]
    flat = [kind for own in ordered for kind in own]
    return Items(
        start=np.cumsum([0, *map(len, ordered)]),
        vector=np.array([vector for vector, _ in flat], dtype=np.int64),
        rate=np.array([rate for _, rate in flat]),
    )


def cheapest(kinds: Kinds, price: tuple[float, float], rate: float) -> float:
    """The least cost by trying every number of items."""
    most = [range(ceil(rate / speed) + 1) for _, speed in kinds]
    best = inf
    for counts in product(*most):
        if sum(n * speed for n, (_, speed) in zip(counts, kinds, strict=True)) >= rate:
            cost = sum(
                n * (a * price[0] + b * price[1])
                for n, ((a, b), _) in zip(counts, kinds, strict=True)
            )
            best = min(best, cost)
    return best


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    kinds=st.lists(items(), min_size=1, max_size=3),
    price=st.tuples(st.floats(0.1, 2.0), st.floats(0.1, 2.0)),
    demand=st.floats(1.0, 20.0),
)
def test_a_cover_delivers_the_rate_at_nearly_the_least_cost(
    kinds: list[Kinds], price: tuple[float, float], demand: float
) -> None:
    table = packed(kinds)
    rates = np.full(len(kinds), demand)
    columns = table.cheapest(np.array(price), rates)
    for block, own in enumerate(kinds):
        parts = columns[block]
        vector, served = table.total(parts)
        cost = float(vector @ np.array(price))
        assert np.all((parts >= table.start[block]) & (parts < table.start[block + 1]))
        assert served >= demand * (1 - 1e-9)
        least = cheapest(own, price, demand * (1 - 1e-9))  # as near as a rate is held
        assert least * (1 - 1e-9) <= cost
        # Rounding to steps costs at most a step for every item taken.
        more = cheapest(own, price, demand * (1 + (len(parts) + 1) / STEPS))
        assert cost <= more * (1 + 1e-9)


def test_a_block_without_bricks_has_no_column() -> None:
    table = packed([[((1, 0), 2.0)], []])
    columns = table.cheapest(np.ones(2), np.array([3.0, 3.0]))
    assert [parts.tolist() for parts in columns] == [[0, 0], []]


def test_the_compiled_kernel_does_what_its_source_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    table = packed([
        [((int(a), int(b)), float(r)) for a, b, r in zip(*draw, strict=True)]
        for draw in (
            (rng.integers(0, 4, 9), rng.integers(1, 4, 9), rng.uniform(1, 9, 9)) for _ in range(4)
        )
    ])  # fmt: skip
    rates, price = np.array([3.0, 17.0, 40.0, 5.5]), np.array([0.7, 1.1])
    compiled = table.cheapest(price, rates)
    plain = getattr(covering._cover, "py_func", covering._cover)
    monkeypatch.setattr(covering, "_cover", plain)
    again = table.cheapest(price, rates)
    assert [p.tolist() for p in compiled] == [p.tolist() for p in again]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    kinds=st.lists(items(), min_size=1, max_size=3),
    price=st.tuples(st.floats(0.1, 2.0), st.floats(0.1, 2.0)),
    times=st.floats(1.0, 30.0),
)
@example(kinds=[[((0, 3), 6.0), ((1, 1), 3.5)]], price=(1.5, 1.0), times=7.0)
@example(kinds=[[((2, 2), 8.96), ((1, 1), 5.22)]], price=(1.0, 1.0), times=5.0)
def test_a_rate_of_more_bricks_than_steps_is_delivered(
    kinds: list[Kinds], price: tuple[float, float], times: float
) -> None:
    demand = times * STEPS  # items deliver 1 to 9
    table = packed(kinds)
    columns = table.cheapest(np.array(price), np.full(len(kinds), demand))
    for block, own in enumerate(kinds):
        vector, served = table.total(columns[block])
        assert served >= demand * (1 - 1e-9)
        cost = float(vector @ np.array(price))
        costs = [vector[0] * price[0] + vector[1] * price[1] for vector, _ in own]
        relaxed = demand * min(each / rate for each, (_, rate) in zip(costs, own, strict=True))
        assert relaxed * (1 - 1e-9) <= cost
        assert cost <= (relaxed + max(costs)) * (1 + 1e-9)
