"""A program that columns join, against scipy on the same columns."""

import numpy as np
import pytest
from scipy.optimize import linprog

from flows.planning.solver.warm import WarmProgram


def test_every_step_is_an_optimum_of_the_columns_so_far() -> None:
    rng = np.random.default_rng(5)
    rows, steps, each = 6, 8, 5
    need = rng.integers(1, 9, rows).astype(np.float64)
    program = WarmProgram(need, np.full(rows, np.inf))
    costs, columns = np.zeros(0), np.zeros((rows, 0))
    for _ in range(steps):
        cost, dense = rng.random(each) + 0.1, rng.integers(0, 4, (rows, each)).astype(np.float64)
        costs, columns = np.concatenate([costs, cost]), np.hstack([columns, dense])
        starts = np.arange(each + 1) * rows
        program.add(
            cost,
            np.full(each, np.inf),
            (starts, np.tile(np.arange(rows), each), dense.T.ravel()),
        )
        found, other = program.solve(), linprog(costs, A_ub=-columns, b_ub=-need)
        assert (found is None) == (other.status == 2)  # infeasible
        if found is not None:
            value, counts, duals = found
            assert value == pytest.approx(other.fun)
            assert duals @ need == pytest.approx(value)  # strong duality
            assert (columns @ counts >= need - 1e-7).all()


def test_a_program_without_columns_has_an_optimum_if_its_rows_ask_for_nothing() -> None:
    empty = WarmProgram(np.zeros(2), np.full(2, np.inf)).solve()
    assert empty is not None
    assert empty[2].tolist() == [0.0, 0.0]
    assert WarmProgram(np.ones(2), np.full(2, np.inf)).solve() is None
