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

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flows.planning.gpulets.tables import Cell, ClassTable, Tables
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.contract.shares import mig_cell

MOST_OPTIONS = 100_000  # of one share
LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that a part may do; n options of up to K seats, unused seats padded.

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

    @property
    def count(self) -> int:
        """Number of options."""
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


def options_of(tables: Tables, table: ClassTable, share: int) -> Options:
    """Every feasible choice of seats for parts of a share."""
    cells = {
        model: kept
        for model, cell in table.cells[share].items()
        if (kept := _usable(cell, float(tables.limit_us[model]))) is not None
    }
    found = _combined(tables, table, share, cells)
    thinned = sum(one.count for one in found) > MOST_OPTIONS
    if thinned:
        on_ladder = {model: _on_ladder(cell) for model, cell in cells.items()}
        found = _combined(tables, table, share, on_ladder)
    joined = {
        name: np.concatenate([getattr(one, name) for one in found])
        for name in Options.__slots__
        if name != "thinned"
    }
    return Options(**joined, thinned=thinned)


def _combined(
    tables: Tables, table: ClassTable, share: int, cells: Mapping[int, Cell]
) -> list[Options]:
    """Options of every set of models."""
    slice_ = mig_cell(share)
    alone = slice_ is not None and slice_.processes > 1
    most = 1 if alone else max(1, min(tables.most_models, len(cells)))
    found = [
        _seats(tables, table, share, models, [cells[m] for m in models], most)
        for count in range(1, most + 1)
        for models in combinations(sorted(cells), count)
    ]
    return found or [_empty(most)]


def _on_ladder(cell: Cell) -> Cell:
    return cell.take(np.flatnonzero(np.isin(cell.batches, [*LADDER, int(cell.batches[-1])])))


def _usable(cell: Cell, limit_us: float) -> Cell | None:
    """The batches that keep the limit alone."""
    count = int(np.searchsorted(cell.turn_us, limit_us / 2, side="right"))
    return cell.take(np.arange(count)) if count else None


def _seats(
    tables: Tables,
    table: ClassTable,
    share: int,
    models: tuple[int, ...],
    cells: list[Cell],
    most: int,
) -> Options:
    """Options of one set of models."""
    numbers = list(models)
    memory = (
        table.process_gib
        + float(tables.static_gib[numbers].sum())
        + float(tables.dynamic_gib[numbers].max())
    )
    limit = tables.limit_us[numbers]
    grid = np.meshgrid(*(np.arange(len(cell.batches)) for cell in cells), indexing="ij")
    picked = np.stack(
        [axis.ravel() for axis in grid], axis=1
    )  # [combination, seat] row of its cell
    turns = np.stack([cell.turn_us[picked[:, i]] for i, cell in enumerate(cells)], axis=1)
    fits = (turns.sum(axis=1)[:, None] + turns <= limit).all(axis=1)
    room = min(table.part_memory_gib[share], table.memory_gib)
    if memory > room * (1 + 1e-9):
        fits[:] = False
    picked, turns = picked[fits], turns[fits].astype(np.float64)

    def padded(values: Floats, fill: float = 0.0) -> Floats:
        out = np.full((len(picked), most), fill)
        out[:, : len(cells)] = values
        return out

    def column(name: str) -> Floats:
        rows = [getattr(c, name)[picked[:, i]] for i, c in enumerate(cells)]
        return np.stack(rows, axis=1).astype(np.float64)

    return Options(
        model=padded(
            np.broadcast_to(np.array(numbers, dtype=np.float64), picked.shape), -1.0
        ).astype(np.int64),
        batch=padded(column("batches")).astype(np.int64),
        turn_us=padded(turns),
        susceptibility=padded(column("susceptibility")),
        limit_us=padded(np.broadcast_to(limit, picked.shape), np.inf),
        pressure=column("pressure").max(axis=1),
        memory_gib=np.full(len(picked), memory),
    )


def _empty(most: int) -> Options:
    wide = np.zeros((0, most))
    return Options(
        model=wide.astype(np.int64),
        batch=wide.astype(np.int64),
        turn_us=wide,
        susceptibility=wide,
        limit_us=wide,
        pressure=np.zeros(0),
        memory_gib=np.zeros(0),
    )
