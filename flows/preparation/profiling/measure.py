"""Measuring a model's cells one by one, so that an interruption loses at most one.

A cell is one (model, block, GPU class, share, basis, batch). As many equal copies as the device has
room for run while one of them is measured (`loaded`), or it is alone (`solo`). The caller that
stores the cells is the caller's business.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.statistics import LatencySummary, summarise
from flows.progress import Say
from triton_backend.contract.profiles import ProfileKey
from triton_backend.contract.shares import SOLO, WHOLE_GPU, Part


class CellKey(NamedTuple):
    """The key of a cell."""

    model: str
    block: int
    gpu_class: str
    share: int
    basis: str
    batch: int

    @property
    def part(self) -> ProfileKey:
        """Where it is measured."""
        return ProfileKey(self.gpu_class, self.share, self.basis)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """One cell and what was measured."""

    key: CellKey
    artifact: str
    latency: LatencySummary


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLimits:
    """When a cell is measured well enough.

    Attributes:
        warm_up: runs that do not count.
        min_runs: runs at least.
        max_runs: runs at most.
        max_seconds: time after which no further run begins (but `min_runs` are made).
        interval: relative half-width of the 95 % confidence interval that is narrow enough.
    """

    warm_up: int = 2
    min_runs: int = 5
    max_runs: int = 100
    max_seconds: float = 0.5
    interval: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTarget:
    """One built block of a model for one GPU class.

    Attributes:
        artifact: its folder.
        parts: shares (300ths) to measure, and how.
        batches: batch sizes to measure.
    """

    model: str
    block: int
    gpu_class: str
    artifact: Path
    parts: tuple[Part, ...]
    batches: tuple[int, ...]


Store = Callable[[MeasuredCell], None]
Progress = Callable[[int, int, CellKey], None]
"""Called before each cell with cells done, cells in all, and the cell that comes."""


def cells_of(targets: Sequence[ProfileTarget]) -> list[CellKey]:
    """Every cell of the targets, in the order they are measured."""
    return [
        CellKey(t.model, t.block, t.gpu_class, share, basis, batch)
        for t in targets
        for share, basis in t.parts
        for batch in t.batches
    ]


def measure_cells(
    targets: Sequence[ProfileTarget],
    *,
    done: Collection[CellKey],
    store: Store,
    progress: Progress | None = None,
    limits: MeasureLimits | None = None,
    environment: Mapping[str, str] | None = None,
    processes: Copies | None = None,
) -> int:
    """Measure every cell that is not among `done`, handing each to `store` at once.

    Args:
        targets: blocks to measure, with their batches.
        done: cells to leave out.
        store: takes each cell.
        progress: called before each.
        limits: of a cell.
        environment: of the processes.
        processes: left running, for several models one after the other; None starts some and ends
            them.

    Returns:
        how many cells were measured.

    Raises:
        InputError: an artifact cannot be loaded.
    """
    by_artifact = {(t.model, t.block, t.gpu_class): t.artifact for t in targets}
    total = cells_of(targets)
    missing = [key for key in total if key not in done]
    asked = asdict(limits or MeasureLimits())
    finished = len(total) - len(missing)
    with Copies(environment) if processes is None else nullcontext(processes) as copies:
        for stage, keys in groupby(missing, key=lambda key: key[:5]):
            folder, share = by_artifact[stage[:3]], stage[3]
            copies.load(folder, share, 1 if stage[4] == SOLO else WHOLE_GPU // share)
            for key in keys:
                if progress is not None:
                    progress(finished, len(total), key)
                latency = summarise(copies.measure(key.batch, asked))
                store(MeasuredCell(key=key, artifact=folder.name, latency=latency))
                finished += 1
    return len(missing)


def cell_progress(say: Say, *, every: int = 40) -> Callable[[int, int, CellKey], None]:
    """Progress of profiling: a bar on a terminal, else a line now and then."""

    def on_terminal(done: int, total: int, key: CellKey) -> None:
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        end = "\r" if done + 1 < total else "\r\033[K"
        text = f"  [{bar}] {done}/{total} {key.part.text()} block {key.block}"
        sys.stderr.write(f"{text:<79}{end}")
        sys.stderr.flush()

    def in_lines(done: int, total: int, key: CellKey) -> None:
        if done % every == 0:
            say(f"  cell {done} of {total} ({key.gpu_class}, block {key.block})")

    return on_terminal if sys.stderr.isatty() else in_lines
