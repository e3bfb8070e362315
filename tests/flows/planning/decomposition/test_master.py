"""The master program against every choice of columns."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.decomposition.blocks import Demands
from flows.planning.decomposition.master import BlockColumns, choose, relax
from flows.planning.solver.solve import Limits

BLOCKS, RESOURCES = 3, 2
LIMITS = Limits(relative_gap=0.0, nodes=1000)
Known = list[tuple[int, tuple[int, int], float]]


def known_ways() -> st.SearchStrategy[Known]:
    one = st.tuples(
        st.integers(0, BLOCKS - 1),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.floats(1.0, 3.0),
    )
    return st.lists(one, min_size=1, max_size=9)


def kept(known: Known) -> BlockColumns:
    columns = BlockColumns(RESOURCES)
    for block, vector, rate in known:
        if columns.better(block, np.array(vector), rate):
            columns.add(block, np.array(vector), rate, (block, vector, rate))
    return columns


def demands(fixed: bool, room: tuple[int, int]) -> Demands:
    return Demands(
        capacity=np.array(room),
        weight=np.full(BLOCKS, 2.0),
        minimum=np.zeros(BLOCKS),
        price=np.array([3.0, 1.0]) if fixed else np.zeros(RESOURCES),
        fixed=fixed,
    )


@pytest.mark.long
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    known=known_ways(), fixed=st.booleans(), room=st.tuples(st.integers(1, 7), st.integers(1, 7))
)
def test_the_best_choice_is_taken_and_never_beats_the_relaxation(
    known: Known,
    fixed: bool,
    room: tuple[int, int],
) -> None:
    columns, asked = kept(known), demands(fixed, room)
    rates = asked.at(1.0)
    choice = columns.delivering(rates)
    able = [[w for w in known if w[0] == b and w[2] >= rates[b]] for b in range(BLOCKS)]
    assert choice.complete() == all(able)
    if not choice.complete():
        return
    values: list[float] = []
    for picked in product(*able):
        used = np.sum([vector for _, vector, _ in picked], axis=0)
        if np.all(used <= asked.capacity):
            taken = float(np.max(used / asked.capacity))
            values.append(float(asked.price @ used) if fixed else taken)
    chosen = choose(choice, asked, LIMITS)
    assert (chosen is None) == (not values)
    if chosen is None:
        return
    used = np.sum([columns.vector[row] for row in chosen], axis=0)
    value = float(asked.price @ used) if fixed else float(np.max(used / asked.capacity))
    assert np.isclose(value, min(values))
    assert relax(choice, asked).value <= value + 1e-7


@settings(max_examples=100, deadline=None, derandomize=True)
@given(known=known_ways(), price=st.tuples(st.floats(0, 5), st.floats(0, 5)))
def test_the_cheapest_way_known_is_that_of_all_that_deliver(
    known: Known, price: tuple[float, float]
) -> None:
    rates = np.full(BLOCKS, 2.0)
    least = kept(known).cheapest(np.array(price), rates)
    for block in range(BLOCKS):
        costs = [
            float(np.array(price) @ np.array(vector))
            for b, vector, rate in known
            if b == block and rate >= rates[block]
        ]
        assert np.isclose(least[block], min(costs)) if costs else np.isinf(least[block])
