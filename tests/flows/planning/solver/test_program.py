import numpy as np
import pytest
from numpy.typing import NDArray

from flows.planning.solver.program import Program, ProgramBuilder
from triton_backend.contract.errors import InvariantError


def dense(made: Program) -> NDArray[np.float64]:
    """The matrix in full; rows of a column rise."""
    full = np.zeros(made.shape)
    for column in range(made.shape[1]):
        part = slice(made.starts[column], made.starts[column + 1])
        full[made.rows[part], column] = made.values[part]
        assert np.all(np.diff(made.rows[part]) > 0)
    return full


def test_entries_in_any_order_become_columns() -> None:
    builder = ProgramBuilder()
    a = builder.variables("a", 2, upper=[1.0, 2.0], cost=[5.0, 6.0], whole=True)
    b = builder.variables("b", 1, lower=-1.0)
    rows = builder.rows("row", 2, upper=[7.0, 8.0])
    builder.entries(rows[[1, 0]], b[[0, 0]], [4.0, 3.0])
    builder.entries(rows, a, [1.0, 2.0])
    made = builder.build()
    assert dense(made).tolist() == [[1.0, 0.0, 3.0], [0.0, 2.0, 4.0]]
    assert made.lower.tolist() == [0.0, 0.0, -1.0]
    assert made.upper.tolist() == [1.0, 2.0, np.inf]
    assert made.cost.tolist() == [5.0, 6.0, 0.0]
    assert made.whole.tolist() == [True, True, False]
    assert made.row_upper.tolist() == [7.0, 8.0]


def test_families_have_shapes_to_which_all_that_is_said_of_them_is_broadcast() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", (2, 3), upper=[1.0, 2.0, 3.0], whole=True)
    z = builder.variables("z", 1)
    rows = builder.rows("row", (2, 1), upper=[[4.0], [5.0]])
    assert (x.shape, z.tolist(), rows.tolist()) == ((2, 3), [6], [[0], [1]])
    builder.entries(rows, x, np.array([[1.0, 0.0, 2.0]]))
    builder.entries(rows, z, -1.0)
    made = builder.build()
    assert dense(made).tolist() == [[1, 0, 2, 0, 0, 0, -1], [0, 0, 0, 1, 0, 2, -1]]
    assert len(made.values) == 6  # a 0 is no entry
    assert made.upper.tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, np.inf]
    assert made.row_upper.tolist() == [4.0, 5.0]


def test_an_entry_that_is_given_twice_is_named() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 1)
    for name in ("once", "twice"):
        row = builder.rows(name, 1, upper=1.0)
        builder.entries(row, x, 1.0)
    builder.entries(row, x, 1.0)
    with pytest.raises(InvariantError, match="'x' in rows 'twice' is given twice"):
        builder.build()
