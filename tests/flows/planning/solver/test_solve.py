"""Small programs solved, against every solution tried and against duality."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, Relaxation, solve_integer, solve_linear

MOST = 3
EXACT = Limits(relative_gap=0.0, nodes=10_000)
Rows = list[list[int]]


def program(cost: list[int], rows: Rows, room: list[int], *, whole: bool) -> Program:
    """Maximise cost · x under rows · x <= room, 0 <= x <= MOST."""
    builder = ProgramBuilder()
    x = builder.variables("x", len(cost), upper=MOST, cost=cost, whole=whole)
    for number, row in enumerate(rows):
        line = builder.rows("row", 1, upper=room[number])
        builder.entries(np.repeat(line, len(cost)), x, row)
    return builder.build()


small = st.tuples(
    st.lists(st.integers(-3, 9), min_size=3, max_size=3),
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=2, max_size=2),
    st.lists(st.integers(0, 12), min_size=2, max_size=2),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small)
def test_no_whole_solution_is_better(given_program: tuple[list[int], Rows, list[int]]) -> None:
    cost, rows, room = given_program
    tried = [
        np.dot(cost, x)
        for x in itertools.product(range(MOST + 1), repeat=len(cost))
        if all(np.dot(row, x) <= most for row, most in zip(rows, room, strict=True))
    ]
    answer = solve_integer(program(cost, rows, room, whole=True), EXACT)
    assert answer.values is not None
    assert np.dot(cost, answer.values) == pytest.approx(max(tried))
    assert answer.bound >= max(tried) - 1e-6


def test_the_duals_of_a_linear_program_price_its_rows() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 2, cost=[3.0, 2.0])
    rows = builder.rows("row", 2, upper=[4.0, 6.0])
    builder.entries(np.repeat(rows, 2), np.tile(x, 2), [1.0, 1.0, 2.0, 1.0])
    solved = solve_linear(builder.build())
    assert solved is not None
    values, duals = solved
    assert values == pytest.approx([2.0, 2.0])
    assert duals == pytest.approx([1.0, 1.0])
    assert np.dot(duals, [4.0, 6.0]) == pytest.approx(3 * 2 + 2 * 2)


def test_what_cannot_be_has_no_solution() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 1, lower=2.0, upper=3.0, cost=1.0, whole=True)
    builder.entries(builder.rows("row", 1, upper=1.0), x, 1.0)
    assert solve_linear(builder.build()) is None
    assert solve_integer(builder.build(), EXACT).values is None
    assert Relaxation(builder.build()).extreme(0, 1.0) is None


def test_a_relaxation_knows_how_far_every_variable_can_go() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 2, upper=[np.inf, 2.0])
    builder.entries(builder.rows("row", 1, upper=3.0), x[1:], [2.0])
    relaxation = Relaxation(builder.build())
    assert relaxation.extreme(1, 1.0) == pytest.approx(1.5)
    assert relaxation.extreme(1, -1.0) == pytest.approx(0.0)
    assert relaxation.extreme(0, 1.0) == np.inf
    relaxation.bound(1, 0.0, 1.0)
    assert relaxation.extreme(1, 1.0) == pytest.approx(1.0)


def test_a_search_told_of_a_better_score_returns_nothing_below_it() -> None:
    asked = program([2, 1, 1], [[1, 1, 1], [0, 0, 0]], [2, 0], whole=True)
    assert solve_integer(asked, EXACT).bound == pytest.approx(4.0)
    cut = solve_integer(asked, Limits(relative_gap=0.0, nodes=10_000, cutoff=5.0))
    assert cut.values is None
