"""Sparse programs by name, and the integer program of a plan.

Here: a small builder from arrays to one column-wise sparse matrix, and the planner's program.
Not here: any solver; `solve` takes what is built here, whichever solver it is.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flows.planning.solver.arrays import Floats, Ints
from triton_backend.contract.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Maximise cost · x subject to matrix · x ≤ upper, lower ≤ x ≤ upper, some x whole.

    The matrix is column-wise sparse: `starts`, `rows`, `values`.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    whole: NDArray[np.bool_]
    row_upper: Floats
    starts: NDArray[np.int32]
    rows: NDArray[np.int32]
    values: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and variables."""
        return len(self.row_upper), len(self.cost)


@dataclass(slots=True)
class ProgramBuilder:
    """Collects families of variables, rows and entries; `build` turns them into one `Program`."""

    _names: list[str] = field(default_factory=list[str])
    _row_names: list[str] = field(default_factory=list[str])
    _variables: list[Floats] = field(default_factory=list[Floats])
    _row_upper: list[Floats] = field(default_factory=list[Floats])
    _entries: list[Floats] = field(default_factory=list[Floats])

    def variables(
        self,
        name: str,
        shape: int | tuple[int, ...],
        *,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        cost: ArrayLike = 0.0,
        whole: ArrayLike = False,
    ) -> Ints:
        """Add a family of variables of a shape; returns their numbers."""
        block = np.empty((4, *np.ravel(shape)))
        block[0], block[1], block[2], block[3] = lower, upper, cost, whole
        self._variables.append(block.reshape(4, -1))
        return _numbered(self._names, name, block[0])

    def rows(self, name: str, shape: int | tuple[int, ...], *, upper: ArrayLike) -> Ints:
        """Add a family of rows `… ≤ upper` of a shape; returns their numbers."""
        block = np.empty(shape)
        block[...] = upper
        self._row_upper.append(block.ravel())
        return _numbered(self._row_names, name, block)

    def entries(self, rows: ArrayLike, variables: ArrayLike, values: ArrayLike) -> None:
        """Set matrix entries, those that are not 0; the three are broadcast to one shape."""
        block = np.empty((3, *np.broadcast(rows, variables, values).shape))
        block[0], block[1], block[2] = variables, rows, values
        self._entries.append(block.reshape(3, -1))

    def build(self) -> Program:
        """The program."""
        lower, upper, cost, whole = np.concatenate(self._variables, axis=1)
        entries = np.concatenate(self._entries, axis=1)
        variables, rows, values = entries[:, entries[2] != 0]
        order = np.lexsort((rows, variables))
        again = (np.diff(variables[order]) == 0) & (np.diff(rows[order]) == 0)
        if np.any(again):  # solvers corrupt their memory over an entry that is given twice
            first = order[1:][again][0]
            row, variable = self._row_names[int(rows[first])], self._names[int(variables[first])]
            raise InvariantError(f"an entry of {variable!r} in rows {row!r} is given twice")
        starts = np.searchsorted(variables[order], np.arange(len(cost) + 1))
        return Program(
            cost=cost,
            lower=lower,
            upper=upper,
            whole=whole.astype(np.bool_),
            row_upper=np.concatenate(self._row_upper),
            starts=starts.astype(np.int32),
            rows=rows[order].astype(np.int32),
            values=values[order],
        )


def _numbered(names: list[str], name: str, family: Floats) -> Ints:
    """The numbers of a family, whose name is noted for each."""
    first = len(names)
    names += [name] * family.size
    return np.arange(first, len(names), dtype=np.int64).reshape(family.shape)
