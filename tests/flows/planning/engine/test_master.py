"""The master program.

Its optimum and prices, infeasible covers, the whole program against a second solver.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns
from flows.planning.engine.master import (
    Cover,
    Free,
    Master,
    level_column,
    missed_prices,
    whole_program,
)
from flows.planning.solver.record import recorded
from flows.planning.solver.solve import Limits, solve_integer
from tests.flows.planning.engine.problems import meets, some

EXACT = Limits(relative_gap=0.0, nodes=100_000)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 39))
def test_the_prices_of_the_linear_optimum_prove_it(number: int) -> None:
    problem = some(number)
    cover, columns = problem.cover, problem.pricer.all()
    half = len(columns) // 2
    master = Master(cover)
    first = columns.take(np.arange(half))
    master.add(first)
    before = master.solve()
    master.add(columns.take(np.arange(half, len(columns))))
    mixed = master.solve()
    assert before is not None
    assert mixed is not None
    assert mixed.value <= before.value + 1e-7
    assert mixed.duals.demand.min() >= 0
    assert mixed.duals.resource.min(initial=0.0) >= 0
    worth = mixed.duals.demand @ cover.need - mixed.duals.resource @ cover.capacity
    assert worth == pytest.approx(mixed.value)
    assert mixed.duals.reduced(columns.capped(cover.caps)).min() >= -1e-6
    paid = columns.cost @ mixed.counts + cover.missed @ mixed.missed
    assert paid == pytest.approx(mixed.value)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 39))
def test_the_whole_program_over_all_capped_columns_has_the_optimum(number: int) -> None:
    problem = some(number)
    columns = problem.pricer.all()
    most = np.full(len(columns), problem.cover.need.max())
    program = whole_program(problem.cover, columns, most)
    answer = solve_integer(program, EXACT)
    if np.isinf(problem.best):
        assert answer.values is None
        assert answer.status == "infeasible"
        return
    assert answer.values is not None
    counts = np.rint(answer.values[: len(columns)]).astype(np.int64)
    assert columns.cost @ counts == pytest.approx(problem.best)
    assert meets(problem.cover, columns, counts)


def test_what_cannot_be_met_is_missed_or_has_no_optimum() -> None:
    one = Columns.dense(
        np.ones(1), np.array([[1.0, 0.0]]), np.ones((1, 1)), np.zeros(1, np.int64), [""]
    )
    cover = Cover(
        need=np.array([3.0, 2.0]),
        capacity=np.array([1.0]),
        cap=np.full(2, np.inf),
        missed=missed_prices(1.0, np.array([3.0, 2.0])),
    )
    master = Master(cover)
    master.add(one)
    mixed = master.solve()
    assert mixed is not None
    assert mixed.missed.tolist() == [2.0, 2.0]
    strict = Master(replace(cover, missed=np.full(2, np.inf)))
    strict.add(one)
    assert strict.solve() is None


def test_no_columns_and_nothing_needed() -> None:
    cover = Cover(
        need=np.zeros(2), capacity=np.array([1.0]), cap=np.zeros(2), missed=np.full(2, np.inf)
    )
    mixed = Master(cover).solve()
    assert mixed is not None
    assert (mixed.value, len(mixed.counts)) == (0.0, 0)
    program = whole_program(cover, Columns.none(), np.zeros(0))
    assert program.shape == (3, 0)


def test_free_columns_keep_their_bounds() -> None:
    lent = Columns.dense(
        np.array([5.0]), np.zeros((1, 1)), -np.ones((1, 1)), np.zeros(1, np.int64), [""]
    )
    own = Columns.dense(np.ones(1), np.ones((1, 1)), np.ones((1, 1)), np.zeros(1, np.int64), [""])
    cover = Cover(
        need=np.array([4.0]),
        capacity=np.array([1.0]),
        free=Free(columns=lent, upper=np.array([2.0])),
        cap=np.array([4.0]),
        missed=np.array([100.0]),
    )
    master = Master(cover)
    master.add(own)
    mixed = master.solve()
    assert mixed is not None
    assert (mixed.counts[0], mixed.free[0], mixed.missed[0]) == (3.0, 2.0, 1.0)
    assert mixed.value == pytest.approx(3 + 10 + 100)


def test_free_columns_of_two_kinds_stand_in_order() -> None:
    none, one = np.zeros((1, 1)), np.ones((1, 1))
    lent = Free.dense(np.array([5.0]), none, -one, 2.0, np.array([True]))
    both = lent.and_these(level_column(np.array([3.0]), 1))
    assert both.columns.cost.tolist() == [5.0, -1.0]
    assert both.columns.matrix(2).tolist() == [[0.0, -1.0], [-3.0, 0.0]]
    assert both.upper.tolist() == [2.0, np.inf]
    assert both.rounded(np.array([1.2, 1.2])).tolist() == [1.0, 1.2]


def test_the_solver_of_a_linear_program_is_noted() -> None:
    problem = some(0)
    with recorded() as record:
        Master(problem.cover).solve()
    assert record.named() == "highs"
