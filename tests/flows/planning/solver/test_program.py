import numpy as np
import pytest

from flows.planning.solver.program import ProgramBuilder
from triton_backend.contract.errors import InvariantError


def test_entries_in_any_order_become_columns() -> None:
    builder = ProgramBuilder()
    a = builder.variables("a", 2, upper=[1.0, 2.0], cost=[5.0, 6.0], whole=True)
    b = builder.variables("b", 1, lower=-1.0)
    rows = builder.rows("row", 2, upper=[7.0, 8.0])
    builder.entries(rows[[1, 0]], b[[0, 0]], [4.0, 3.0])
    builder.entries(rows, a, [1.0, 2.0])
    made = builder.build()
    dense = np.zeros(made.shape)
    for column in range(made.shape[1]):
        part = slice(made.starts[column], made.starts[column + 1])
        dense[made.rows[part], column] = made.values[part]
        assert np.all(np.diff(made.rows[part]) > 0)
    assert dense.tolist() == [[1.0, 0.0, 3.0], [0.0, 2.0, 4.0]]
    assert made.lower.tolist() == [0.0, 0.0, -1.0]
    assert made.upper.tolist() == [1.0, 2.0, np.inf]
    assert made.cost.tolist() == [5.0, 6.0, 0.0]
    assert made.whole.tolist() == [True, True, False]
    assert made.row_upper.tolist() == [7.0, 8.0]


def test_an_entry_that_is_given_twice_is_named() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 1)
    for name in ("once", "twice"):
        row = builder.rows(name, 1, upper=1.0)
        builder.entries(row, x, 1.0)
    builder.entries(row, x, 1.0)
    with pytest.raises(InvariantError, match="'x' in rows 'twice' is given twice"):
        builder.build()
