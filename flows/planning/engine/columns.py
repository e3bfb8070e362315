"""Columns: ways to supply demands that use up resources, as arrays.

A column j costs cost_j, supplies a_dj of demands d and uses u_rj of resources r. A master program
has D + R rows, demands first; a column is sparse in them:

    rows     0 … D - 1    demands      a_dj ≥ 0
             D … D + R-1  resources    u_rj ≥ 0

Here: the arrays, a pool that keeps each column once, and which rows of values others dominate. Not
here: where columns come from (`pricing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.solver.arrays import Floats, Ints
from triton_backend.scheduler.compiled import entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """n columns.

    Attributes:
        cost: [n].
        starts: [n + 1] where the entries of each column begin, and their end.
        rows: [entries] rows, none twice within a column.
        values: [entries] what the column supplies or uses there.
        group: [n] number of the group that each belongs to (`Pricer.fewest`, `Pricer.most`).
        source: [n] what the family needs to know the column again.
    """

    cost: Floats
    starts: Ints
    rows: Ints
    values: Floats
    group: Ints
    source: Sequence[Any]

    def __len__(self) -> int:
        """How many."""
        return len(self.cost)

    @classmethod
    def dense(
        cls, cost: Floats, supply: Floats, use: Floats, group: Ints, source: Sequence[Any]
    ) -> "Columns":
        """From full matrices: supply [n, D], use [n, R]."""
        both = np.hstack([supply, use])
        column, rows = np.nonzero(both)
        starts = np.searchsorted(column, np.arange(len(cost) + 1))
        return cls(
            cost=np.asarray(cost, dtype=np.float64),
            starts=starts.astype(np.int64),
            rows=rows.astype(np.int64),
            values=both[column, rows].astype(np.float64),
            group=group,
            source=source,
        )

    @classmethod
    def none(cls) -> "Columns":
        """No columns."""
        empty, no = np.zeros(0), np.zeros(0, dtype=np.int64)
        return cls(
            cost=empty, starts=np.zeros(1, dtype=np.int64), rows=no, values=empty, group=no,
            source=(),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence["Columns"]) -> "Columns":
        """All of them, in order."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return cls.none()
        if len(parts) == 1:
            return parts[0]
        ends = np.cumsum([0, *(len(part.rows) for part in parts)])
        starts = [part.starts[:-1] + end for part, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            cost=np.concatenate([part.cost for part in parts]),
            starts=np.concatenate([*starts, ends[-1:]]),
            rows=np.concatenate([part.rows for part in parts]),
            values=np.concatenate([part.values for part in parts]),
            group=np.concatenate([part.group for part in parts]),
            source=[source for part in parts for source in part.source],
        )

    def take(self, which: Ints) -> "Columns":
        """Some of them, in the order given."""
        sizes = np.diff(self.starts)[which]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        entries = np.arange(starts[-1]) + np.repeat(self.starts[which] - starts[:-1], sizes)
        return Columns(
            cost=self.cost[which],
            starts=starts,
            rows=self.rows[entries],
            values=self.values[entries],
            group=self.group[which],
            source=[self.source[n] for n in which.tolist()],
        )

    def capped(self, most: Floats) -> "Columns":
        """The same where no column counts for more than most [D + R] in a row.

        More than is asked for is worth nothing.
        """
        return replace(self, values=np.minimum(self.values, most[self.rows]))

    def of_columns(self) -> Ints:
        """[entries] the column of every entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def matrix(self, rows: int) -> Floats:
        """[n, rows] the entries in full."""
        full = np.zeros((len(self), rows))
        full[self.of_columns(), self.rows] = self.values
        return full

    def in_groups(self) -> Floats:
        """[n, most] the entries in full, with a place for every row that a column's group has."""
        if not len(self.rows):
            return np.zeros((len(self), 0))
        of, rows = self.of_columns(), int(self.rows.max()) + 1
        known, number = np.unique(self.group[of] * rows + self.rows, return_inverse=True)
        place = number - np.searchsorted(known, self.group * rows)[of]
        full = np.zeros((len(self), int(place.max()) + 1))
        full[of, place] = self.values
        return full

    def identities(self) -> list[tuple[int, bytes, bytes]]:
        """[n] group and entries: equal where columns differ in no more than their costs."""
        spans = [slice(first, last) for first, last in pairwise(self.starts.tolist())]
        return [
            (group, self.rows[span].tobytes(), self.values[span].tobytes())
            for group, span in zip(self.group.tolist(), spans, strict=True)
        ]

    def priced(self, row_price: Floats) -> Floats:
        """[n] what entries are worth at prices [D + R] of rows."""
        if not len(self.rows):
            return np.zeros(len(self))
        worth = self.values * row_price[self.rows]
        return np.bincount(self.of_columns(), worth, len(self)).astype(np.float64)


@dataclass(slots=True)
class Pool:
    """Columns known so far, each once: one of the same entries is kept if it costs less."""

    _parts: list[Columns] = field(default_factory=list[Columns])
    _cost: dict[tuple[int, bytes, bytes], float] = field(
        default_factory=dict[tuple[int, bytes, bytes], float]
    )
    _all: Columns | None = None

    @property
    def columns(self) -> Columns:
        """All of them, in the order in which they came."""
        if self._all is None:
            self._all = Columns.joined(self._parts)
            self._parts = [self._all]
        return self._all

    def __len__(self) -> int:
        """How many."""
        return sum(map(len, self._parts))

    def add(self, columns: Columns) -> Columns:
        """Keep those that are new, or cost less than what has the same entries; returns these."""
        fresh: list[int] = []
        for n, (cost, key) in enumerate(
            zip(columns.cost.tolist(), columns.identities(), strict=True)
        ):
            if cost < self._cost.get(key, np.inf):
                self._cost[key] = cost
                fresh.append(n)
        if not fresh:
            return Columns.none()
        kept = columns if len(fresh) == len(columns) else columns.take(np.array(fresh))
        self._parts.append(kept)
        self._all = None
        return kept


def undominated(values: Floats, group: Ints | None = None) -> NDArray[np.bool_]:
    """[n] whether no other row of values [n, k] is at least as high everywhere; of equals, one.

    Rows of a group [n] are compared with each other only; without groups, all with all.
    """
    group = np.zeros(len(values), dtype=np.int64) if group is None else group
    order = np.lexsort((-values.sum(axis=1), group))
    kept = np.empty(len(order), dtype=np.int64)
    count = keep_undominated(np.ascontiguousarray(values), group, order, kept)
    found = np.zeros(len(values), dtype=np.bool_)
    found[kept[:count]] = True
    return found


@entry
def keep_undominated(values: Floats, group: Ints, order: Ints, kept: Ints) -> int:
    """Put rows [n, k] that no row of their group before them equals or exceeds into `kept`.

    How many. `order` has the rows, group by group.
    """
    count, first, last = 0, 0, -1
    for row in order:
        if group[row] != last:
            first, last = count, group[row]
        beaten = False
        for i in range(first, count):
            beaten = True
            for k in range(values.shape[1]):
                if values[kept[i], k] < values[row, k]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            kept[count] = row
            count += 1
    return count
