"""What was measured of a model: latency of every block, bytes across every boundary.

Here: the latency table both planners and simulators read, how parts of a GPU slow each other down, and checks.
Not here: how cells were measured (`flows/profiling`) or stored (`warehouse`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec

MIN_LATENCY_US = 1.0
CONSTANTS = ("c1_l2_self", "c2_l2_other", "c3_dram_self", "c4_dram_other", "c5")  # of interference
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # of its residuals


class LatencyCell(NamedTuple):
    """One measured cell, as in `block_latency_us.csv`."""

    gpu_class: str
    vgpu_divisor: int
    block: int
    batch: int
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceModel:
    """How parts of one GPU slow each other down, for one GPU class: a linear model.

        factor = c1 l2 + c3 dram + c5 + sum over the other parts of max(0, largest of c2 l2_j + c4 dram_j)
                 `---- susceptibility ---'                            `------- pressure of a part --------'

    (gpulets, section 4.4; for two parts the same.) It is at least 1, because a neighbour never makes anybody
    faster; a part that is alone on its GPU has factor 1. l2 and dram are fractions of what the GPU can do,
    at the part's own share.

    Attributes:
        residuals: relative errors (measured - predicted) / predicted at `QUANTILES` on rows that were not
            fitted; empty where they are not known.
    """

    c1_l2_self: float
    c2_l2_other: float
    c3_dram_self: float
    c4_dram_other: float
    c5: float
    residuals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            if not np.isfinite(getattr(self, name)):
                raise InputError(f"interference, {name}", f"{getattr(self, name)} is not a number")
        if self.residuals and len(self.residuals) != len(QUANTILES):
            reason = f"{len(self.residuals)} of them for {len(QUANTILES)} quantiles"
            raise InputError("interference, residuals", reason)

    def susceptibility(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """Factor of a stage of these utilisations where nobody presses."""
        own, memory = np.asarray(l2, dtype=np.float64), np.asarray(dram, dtype=np.float64)
        return self.c1_l2_self * own + self.c3_dram_self * memory + self.c5

    def pressure(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """What a stage of these utilisations adds to the factor of others on its GPU."""
        own, memory = np.asarray(l2, dtype=np.float64), np.asarray(dram, dtype=np.float64)
        return np.maximum(0.0, self.c2_l2_other * own + self.c4_dram_other * memory)

    def inflation(self, quantile: float) -> float:
        """1 + the residual at the least known quantile that is not below the one asked for.

        1 where residuals are not known, and where the model errs on the safe side.
        """
        if not self.residuals:
            return 1.0
        at = min(bisect_left(QUANTILES, quantile), len(QUANTILES) - 1)
        return 1.0 + max(0.0, self.residuals[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloCells:
    """A model alone on a part of a GPU, the rest of which is idle.

    Attributes:
        latency_us: [blocks, largest batch].
        l2, dram: the same shape: use of the GPU's L2 and of its memory, as fractions; None where not known.
    """

    latency_us: NDArray[np.float64]
    l2: NDArray[np.float64] | None = None
    dram: NDArray[np.float64] | None = None

    def whole(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """[batch] of the whole model: latency, whole µs rounded up; L2 and DRAM, weighed by latency."""
        total = self.latency_us.sum(axis=0)

        def mean(used: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
            return None if used is None else (self.latency_us * used).sum(axis=0) / total

        return np.ceil(total - 1e-6).astype(np.int64), mean(self.l2), mean(self.dram)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Latency and traffic of one model.

    Attributes:
        latency_us: per (GPU class, vGPU divisor) an array [blocks, largest batch] of float64
            microseconds; row i is block i, column b - 1 is batch b. At least 1 µs each. A batch that was
            not measured has the latency of the next larger one that was.
        measured: the batches measured there, rising, where not all up to the largest were.
        boundary_bytes: bytes per sample that cross after block i, for i in 0 .. blocks - 2.
        boundaries: the tensors behind those bytes, where known.
        block_memory_bytes: what each block holds always (weights), where known; where
            `block_workspace_bytes` is not known, with what it takes while it runs.
        block_workspace_bytes: what each block takes while it runs, at its largest batch, where known;
            blocks of a stage run one after the other and use the same workspace.
        solo: by (GPU class, share in 300ths) the model alone on a part.
    """

    name: str
    boundary_bytes: tuple[int, ...]
    latency_us: Mapping[tuple[str, int], NDArray[np.float64]]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    boundaries: tuple[tuple[TensorSpec, ...], ...] = ()
    block_memory_bytes: tuple[int, ...] = ()
    block_workspace_bytes: tuple[int, ...] = ()
    measured: Mapping[tuple[str, int], tuple[int, ...]] = field(
        default_factory=dict[tuple[str, int], tuple[int, ...]]
    )
    solo: Mapping[tuple[str, int], SoloCells] = field(
        default_factory=dict[tuple[str, int], SoloCells]
    )

    def __post_init__(self) -> None:
        for name in ("boundaries", "block_memory_bytes", "block_workspace_bytes"):
            known, expected = len(getattr(self, name)), self.blocks - (name == "boundaries")
            if known not in (0, expected):
                raise InputError(f"profile of {self.name!r}", f"{known} {name} for {expected}")
        for (gpu_class, divisor), table in self.latency_us.items():
            where = f"profile of {self.name!r} on {gpu_class}/{divisor}"
            if table.shape[0] != self.blocks:
                raise InputError(where, f"{table.shape[0]} blocks, expected {self.blocks}")
            if not np.all(np.isfinite(table)) or np.any(table < MIN_LATENCY_US):
                raise InputError(where, "a latency is missing or below 1 µs")
            sizes = self.batches(gpu_class, divisor)
            rising = list(sizes) == sorted(set(sizes)) and sizes[0] >= 1
            if not rising or sizes[-1] != table.shape[1]:
                reason = f"{list(sizes)} do not rise to the largest, {table.shape[1]}"
                raise InputError(f"{where}, measured batches", reason)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.boundary_bytes) + 1

    def max_batch(self, gpu_class: str, vgpu_divisor: int) -> int:
        """Largest batch measured there; 0 when the pair was not measured."""
        table = self.latency_us.get((gpu_class, vgpu_divisor))
        return 0 if table is None else int(table.shape[1])

    def batches(self, gpu_class: str, vgpu_divisor: int) -> tuple[int, ...]:
        """Batches measured there, rising."""
        largest = self.max_batch(gpu_class, vgpu_divisor)
        return self.measured.get((gpu_class, vgpu_divisor), tuple(range(1, largest + 1)))

    def cells(self) -> Iterator[LatencyCell]:
        """Every measured cell: by class and divisor, then block, then batch."""
        for (gpu_class, divisor), table in sorted(self.latency_us.items()):
            for block in range(self.blocks):
                for batch in self.batches(gpu_class, divisor):
                    latency_us = float(table[block, batch - 1])
                    yield LatencyCell(gpu_class, divisor, block, batch, latency_us)

    def stage_memory_bytes(self, blocks: tuple[int, int]) -> int:
        """Memory of blocks [first, last): all their weights and the largest workspace; 0 if not known."""
        first, last = blocks
        workspace = max(self.block_workspace_bytes[first:last], default=0)
        return sum(self.block_memory_bytes[first:last]) + workspace

    def stage_latency_us(
        self, gpu_class: str, vgpu_divisor: int, blocks: tuple[int, int]
    ) -> NDArray[np.int64]:
        """Latency of blocks [first, last) at batch 1 .. largest, whole µs rounded up."""
        first, last = blocks
        return self.stage_latencies_us(gpu_class, vgpu_divisor, first)[last - first - 1]

    def stage_latencies_us(
        self, gpu_class: str, vgpu_divisor: int, first: int
    ) -> NDArray[np.int64]:
        """[blocks - first, largest batch] the same of every stage that begins at a block."""
        total = np.cumsum(self.latency_us[gpu_class, vgpu_divisor][first:], axis=0)
        return np.ceil(total - 1e-6).astype(np.int64)


def profile_from_cells(
    name: str,
    cells: Iterable[LatencyCell],
    boundary_bytes: tuple[int, ...],
    **known: Any,
) -> tuple[ModelProfile, list[str]]:
    """Build a profile from cells; a class with gaps or bad cells is left out, never guessed.

    Batches may be left out (1, 2, 4, 8), the same of every block; between two the larger one counts.

    Returns:
        the profile, and one warning per (class, divisor) left out or odd (latency falling with
        batch is kept and warned about).

    Raises:
        InputError: nothing usable is left, or a block index lies outside the boundaries given.
    """
    blocks = len(boundary_bytes) + 1
    grouped: dict[tuple[str, int], dict[tuple[int, int], float]] = {}
    for cell in cells:
        if not 0 <= cell.block < blocks:
            raise InputError(
                f"profile of {name!r}", f"block {cell.block} outside 0..{blocks - 1} ({cell})"
            )
        key = (cell.gpu_class, cell.vgpu_divisor)
        grouped.setdefault(key, {})[cell.block, cell.batch] = cell.latency_us
    tables: dict[tuple[str, int], NDArray[np.float64]] = {}
    measured: dict[tuple[str, int], tuple[int, ...]] = {}
    warnings: list[str] = []
    for key, values in grouped.items():
        table, complaint = _table(values, blocks)
        where = f"{name}: {key[0]}, vGPU 1/{key[1]}"
        if complaint:
            warnings.append(f"{where} left out: {complaint}")
            continue
        falls = np.argwhere(np.diff(table, axis=1) < 0)
        if len(falls):
            block, batch = int(falls[0][0]), int(falls[0][1]) + 2
            warnings.append(
                f"{where}: latency falls with batch in {len(falls)} cells, first at block {block},"
                f" batch {batch}; kept"
            )
        tables[key] = table
        sizes = tuple(sorted({batch for _, batch in values}))
        if len(sizes) < table.shape[1]:
            measured[key] = sizes
    if not tables:
        raise InputError(
            f"profile of {name!r}", "no usable cells" + "".join(f"; {w}" for w in warnings)
        )
    profile = ModelProfile(
        name=name, boundary_bytes=boundary_bytes, latency_us=tables, measured=measured, **known
    )
    return profile, warnings


def _table(
    values: Mapping[tuple[int, int], float], blocks: int
) -> tuple[NDArray[np.float64], str | None]:
    """The array of one (class, divisor), or why there is none."""
    batches = max(batch for _, batch in values)
    table = np.full((blocks, batches), np.nan)
    for (block, batch), latency_us in values.items():
        if not np.isfinite(latency_us) or latency_us < 0:
            return table, f"latency {latency_us} at block {block}, batch {batch}"
        if batch < 1:
            return table, f"batch {batch} at block {block} is not positive"
        table[block, batch - 1] = max(latency_us, MIN_LATENCY_US)
    sizes = sorted({batch for _, batch in values})
    gaps = np.argwhere(np.isnan(table[:, np.asarray(sizes) - 1]))
    if len(gaps):
        block, batch = int(gaps[0][0]), sizes[int(gaps[0][1])]
        return table, f"{len(gaps)} cells missing, first at block {block}, batch {batch}"
    larger = np.searchsorted(sizes, np.arange(1, batches + 1))
    return table[:, np.asarray(sizes)[larger] - 1], None
