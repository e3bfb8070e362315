"""Options of one part of a GPU: models that take turns there, with their batches.

Seats i of a part: models, all different, each with a batch. Their turns last L_i = ceil(solo_i
f_i), one round d = sum of L_i. It is feasible where d + L_i <= limit_i for all i: a request that
just missed its turn waits d and runs L_i (`turns`). Every seat then carries batch_i / d. A longer
round carries less, so the shortest is always best. Processes that share a MIG slice run one model,
as they were measured.

Where there are too many (`MOST_OPTIONS`), the batches of a ladder stand for all; the certificate
says so.

Here: all feasible seats of a part with factor 1, as arrays. Factors are `patterns`' matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from flows.planning.gpulets.tables import Cell, ClassTable, Tables
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUND_OFF_US, ROUNDING
from flows.planning.watch import Watch
from triton_backend.contract.shares import mig_cell

MOST_OPTIONS = 100_000  # of one share
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Options(NamedTuple):
    """All that a part may do; n options of up to K seats, unused seats padded. Kernels read it.

    Attributes:
        model: [n, K] rising; -1 where there is no seat.
        batch: [n, K] 0 where there is none.
        turn_us: [n, K] alone on the part; 0 where there is none.
        susceptibility: [n, K].
        limit_us: [n, K] infinite where there is none.
        pressure: [n] on the other parts: the largest of the seats.
        memory_gib: [n] weights, the largest workspace, the process.
        thinned: only batches of the ladder, and the largest, were combined.
    """

    model: Ints
    batch: Ints
    turn_us: Floats
    susceptibility: Floats
    limit_us: Floats
    pressure: Floats
    memory_gib: Floats
    thinned: bool = False

    @classmethod
    def joined(cls, every: Sequence["Options"], *, thinned: bool = False) -> "Options":
        """All of them, in order."""
        names = [name for name in cls._fields if name != "thinned"]
        arrays = {name: np.concatenate([getattr(one, name) for one in every]) for name in names}
        return cls(**arrays, thinned=thinned)

    @property
    def number(self) -> int:
        """Of options."""
        return len(self.pressure)

    def turns_us(self, rows: Ints, felt: Floats | float, inflation: float) -> Floats:
        """[row, K] turns beside neighbours that press `felt`, whole µs rounded up."""
        factor = np.maximum(1.0, self.susceptibility[rows] + np.asarray(felt)[..., None])
        return np.ceil(self.turn_us[rows] * (factor * inflation) - ROUND_OFF_US)

    def speed(self, rows: Ints, turns_us: Floats) -> Floats:
        """[row] rounds per second; 0 where a seat would be late."""
        duty = turns_us.sum(axis=1)
        late = (duty[:, None] + turns_us > self.limit_us[rows]).any(axis=1)
        return np.where(late, 0.0, 1e6 / duty)

    def rates_rps(self, rows: Ints, turns_us: Floats, models: int) -> Floats:
        """[row, model] requests/s; none where a seat would be late."""
        speed, every = self.speed(rows, turns_us), np.arange(len(rows))
        found = np.zeros((len(rows), models + 1))  # the last is no model
        for seat in range(self.model.shape[1]):
            found[every, self.model[rows, seat]] += self.batch[rows, seat] * speed
        return found[:, :-1]


def options_of(tables: Tables, table: ClassTable, share: int, watch: Watch) -> Options:
    """Every feasible choice of seats for parts of a share.

    Raises:
        InfeasibleError: the time is over before all are known.
    """
    cells = {
        model: kept
        for model, cell in table.cells[share].items()
        if (kept := _usable(cell, float(tables.limit_us[model]))) is not None
    }
    found, number = list[Options](), 0
    for one in _combined(tables, table, share, cells, watch):
        found.append(one)
        number += one.number
        if number > MOST_OPTIONS:
            on_ladder = {model: _on_ladder(cell) for model, cell in cells.items()}
            thinned = list(_combined(tables, table, share, on_ladder, watch))
            return Options.joined(thinned, thinned=True)
    return Options.joined(found or [_empty(tables.most_models)])


def _combined(
    tables: Tables, table: ClassTable, share: int, cells: Mapping[int, Cell], watch: Watch
) -> Iterator[Options]:
    """Options of every set of models."""
    slice_ = mig_cell(share)
    alone = slice_ is not None and slice_.processes > 1
    for count in range(1, (1 if alone else tables.most_models) + 1):
        for models in combinations(sorted(cells), count):
            if watch.over():
                raise watch.no_plan()
            yield _seats(tables, table, share, models, [cells[m] for m in models])


def _on_ladder(cell: Cell) -> Cell:
    return cell.take(np.flatnonzero(np.isin(cell.batches, [*LADDER, int(cell.batches[-1])])))


def _usable(cell: Cell, limit_us: float) -> Cell | None:
    """The batches that keep the limit alone."""
    count = int(np.searchsorted(cell.turn_us, limit_us / 2, side="right"))
    return cell.take(np.arange(count)) if count else None


def _seats(
    tables: Tables, table: ClassTable, share: int, models: tuple[int, ...], cells: list[Cell]
) -> Options:
    """Options of one set of models."""
    numbers, limit = list(models), tables.limit_us[list(models)]
    memory = (
        table.process_gib
        + float(tables.static_gib[numbers].sum())
        + float(tables.dynamic_gib[numbers].max())
    )
    # [seat, combination] row of its cell
    picked = np.indices([len(cell.batches) for cell in cells]).reshape(len(cells), -1)
    turns = np.stack([cell.turn_us[at] for cell, at in zip(cells, picked, strict=True)], axis=1)
    fits = (turns.sum(axis=1)[:, None] + turns <= limit).all(axis=1)
    room = min(table.part_memory_gib[share], table.memory_gib)
    if memory > room * (1 + ROUNDING):
        fits[:] = False
    picked = picked[:, fits]

    def padded(values: Sequence[Any] | Floats, fill: float = 0.0) -> Floats:
        out = np.full((picked.shape[1], tables.most_models), fill)
        for seat, value in enumerate(values):
            out[:, seat] = value
        return out

    def column(name: str) -> Floats:
        each = [getattr(cell, name)[at] for cell, at in zip(cells, picked, strict=True)]
        return padded(each)

    return Options(
        model=padded(numbers, -1.0).astype(np.int64),
        batch=column("batches").astype(np.int64),
        turn_us=column("turn_us"),
        susceptibility=column("susceptibility"),
        limit_us=padded(limit, np.inf),
        pressure=column("pressure").max(axis=1),
        memory_gib=np.full(picked.shape[1], memory),
    )


def _empty(most: int) -> Options:
    seats, none = np.zeros((0, most)), np.zeros(0)
    whole = seats.astype(np.int64)
    return Options(whole, whole, seats, seats, seats, none, none)
