"""A model's profile: latency of every block, bytes across every boundary.

Here: the latency tables that planners read, how parts of a GPU slow each other down, and checks.
Not here: how cells were measured (`flows/preparation/profiling`) or stored (`warehouse`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import LARGEST, check_finite, check_name
from triton_backend.contract.shares import LOADED, SOLO, WHOLE_GPU, share_of_divisor, share_text
from triton_backend.contract.tensors import TensorSpec

MIN_LATENCY_US = 1.0
CONSTANTS = ("c1_l2_self", "c2_l2_other", "c3_dram_self", "c4_dram_other", "c5")  # of interference
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # of its residuals


class ProfileKey(NamedTuple):
    """The device of a table.

    A share (300ths) of a GPU of a class, its neighbours busy or idle.
    """

    gpu_class: str
    share: int
    basis: str = LOADED

    def text(self) -> str:
        """For people."""
        basis = "" if self.share == WHOLE_GPU else f", {self.basis}"
        return f"{share_text(self.share)} of {self.gpu_class}{basis}"

    def settled(self) -> "ProfileKey":
        """The same with one spelling for a whole GPU, which is not shared either way."""
        return self._replace(basis=LOADED) if self.share == WHOLE_GPU else self


class LatencyCell(NamedTuple):
    """One measured cell; `l2` and `dram` as fractions of what the GPU can do, where known."""

    gpu_class: str
    share: int
    basis: str
    block: int
    batch: int
    latency_us: float
    l2: float | None = None
    dram: float | None = None

    @property
    def key(self) -> ProfileKey:
        """Its table."""
        return ProfileKey(self.gpu_class, self.share, self.basis).settled()


class Utilisation(NamedTuple):
    """Utilisation of a GPU by a model alone on a share, as fractions; `block` None: every block."""

    gpu_class: str
    share: int
    block: int | None
    batch: int
    l2: float
    dram: float


class Pair(NamedTuple):
    """Two models that ran side by side on one GPU.

    A latency is None where that side was not measured.
    """

    gpu_class: str
    model_1: str
    batch_1: int
    share_1: int
    model_2: str
    batch_2: int
    share_2: int
    latency_1_us: float | None
    latency_2_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceModel:
    """How parts of one GPU slow each other down, for one GPU class: a linear model.

        factor = c1 l2 + c3 dram + c5                      (its susceptibility)
                 + sum over the other parts of max(0, largest of c2 l2_j + c4 dram_j)  (pressure)

    (gpulets, section 4.4; for two parts the same.) It is at least 1, because a neighbour never
    makes anybody faster; a part that is alone on its GPU has factor 1. l2 and dram are fractions of
    what the GPU can do, at the part's own share.

    Attributes:
        residuals: relative errors (measured - predicted) / predicted at `QUANTILES` on rows that
            were not fitted; empty where they are not known.
    """

    c1_l2_self: float
    c2_l2_other: float
    c3_dram_self: float
    c4_dram_other: float
    c5: float
    residuals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            check_finite(f"interference, {name}", float(getattr(self, name)))
        if self.residuals and len(self.residuals) != len(QUANTILES):
            reason = f"{len(self.residuals)} of them for {len(QUANTILES)} quantiles"
            raise InputError("interference, residuals", reason)

    def susceptibility(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """Factor of a stage of these utilisations without pressure."""
        own, memory = np.asarray(l2, dtype=np.float64), np.asarray(dram, dtype=np.float64)
        return self.c1_l2_self * own + self.c3_dram_self * memory + self.c5

    def pressure(self, l2: ArrayLike, dram: ArrayLike) -> NDArray[np.float64]:
        """The pressure of a stage with these utilisations on others of its GPU."""
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
class ProfileTable:
    """A model on one share of a GPU.

    Attributes:
        latency_us: [blocks, largest batch] float64; row i is block i, column b - 1 is batch b. At
            least 1 µs each. A batch that was not measured has the latency of the next larger one
            that was.
        measured: the batches measured, rising, where not all up to the largest were.
        l2, dram: the same shape: use of the GPU's L2 and of its memory, as fractions; None where
            not known.
    """

    latency_us: NDArray[np.float64]
    measured: tuple[int, ...] = ()
    l2: NDArray[np.float64] | None = None
    dram: NDArray[np.float64] | None = None

    @property
    def largest(self) -> int:
        """Largest batch measured."""
        return int(self.latency_us.shape[1])

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches measured, rising."""
        return self.measured or tuple(range(1, self.largest + 1))

    def stage_latency_us(self, blocks: tuple[int, int]) -> NDArray[np.int64]:
        """Latency of blocks [first, last) at batch 1 .. largest, whole µs rounded up."""
        first, last = blocks
        return self.stage_latencies_us(first)[last - first - 1]

    def stage_latencies_us(self, first: int) -> NDArray[np.int64]:
        """[blocks - first, largest batch] the same of every stage that begins at a block."""
        return np.ceil(np.cumsum(self.latency_us[first:], axis=0) - 1e-6).astype(np.int64)

    def utilisation(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """L2 and DRAM of the whole model by batch, blocks weighed by latency.

        None where not known.
        """
        if self.l2 is None or self.dram is None:
            return None
        total = self.latency_us.sum(axis=0)
        l2, dram = ((self.latency_us * used).sum(axis=0) / total for used in (self.l2, self.dram))
        return l2, dram

    def complaint(self, blocks: int) -> str | None:
        """The fault of the table for a model of so many blocks, if any."""
        if self.latency_us.shape[0] != blocks:
            return f"{self.latency_us.shape[0]} blocks, expected {blocks}"
        if not np.all(np.isfinite(self.latency_us)) or np.any(self.latency_us < MIN_LATENCY_US):
            return "a latency is missing or below 1 µs"
        sizes = self.batches
        rising = list(sizes) == sorted(set(sizes)) and sizes[0] >= 1
        if not rising or sizes[-1] != self.largest:
            return f"measured batches {list(sizes)} do not rise to the largest, {self.largest}"
        for name, used in (("l2", self.l2), ("dram", self.dram)):
            if used is not None and used.shape != self.latency_us.shape:
                return f"{name} of {used.shape} for latencies of {self.latency_us.shape}"
        return None


def loaded(
    latency_us: Mapping[tuple[str, int], NDArray[np.float64]],
) -> dict[ProfileKey, ProfileTable]:
    """Tables measured with v busy copies, from latencies by (GPU class, v)."""
    return {
        ProfileKey(gpu_class, share_of_divisor(divisor)): ProfileTable(latency_us=table)
        for (gpu_class, divisor), table in latency_us.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """Latency and traffic of one model.

    Attributes:
        tables: what was measured, by class, share and basis.
        boundary_bytes: bytes per sample that cross after block i, for i in 0 .. blocks - 2.
        boundaries: the tensors behind those bytes, where known.
        block_memory_bytes: what each block holds always (weights), where known; where
            `block_workspace_bytes` is not known, with what it takes while it runs.
        block_workspace_bytes: what each block takes while it runs, at its largest batch, where
            known; blocks of a stage run one after the other and use the same workspace.
        split: key of the split whose blocks these are, where one was made.
    """

    name: str
    boundary_bytes: tuple[int, ...]
    tables: Mapping[ProfileKey, ProfileTable]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    boundaries: tuple[tuple[TensorSpec, ...], ...] = ()
    block_memory_bytes: tuple[int, ...] = ()
    block_workspace_bytes: tuple[int, ...] = ()
    split: str | None = None

    def __post_init__(self) -> None:
        check_name("profile", self.name)
        for gpu_class in self.classes:
            check_name(f"profile of {self.name!r}, GPU class", gpu_class)
        for name in ("boundaries", "block_memory_bytes", "block_workspace_bytes"):
            known, expected = len(getattr(self, name)), self.blocks - (name == "boundaries")
            if known not in (0, expected):
                raise InputError(f"profile of {self.name!r}", f"{known} {name} for {expected}")
        for key, table in self.tables.items():
            complaint = table.complaint(self.blocks)
            if complaint:
                raise InputError(f"profile of {self.name!r} on {key.text()}", complaint)
        object.__setattr__(self, "tables", {k.settled(): t for k, t in self.tables.items()})

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.boundary_bytes) + 1

    @property
    def classes(self) -> tuple[str, ...]:
        """GPU classes it was measured on, sorted."""
        return tuple(sorted({key.gpu_class for key in self.tables}))

    def slower(self, factor: float) -> Self:
        """The same model with every latency that many times as long; `factor` at least 1."""
        tables = {
            key: replace(table, latency_us=table.latency_us * factor)
            for key, table in self.tables.items()
        }
        return self if factor == 1 else replace(self, tables=tables)

    def table(self, gpu_class: str, share: int, basis: str = LOADED) -> ProfileTable | None:
        """The latencies to plan with on a share of a GPU; None if not measured.

        Where a model was not measured alone on a part, latencies beside busy copies stand in, which
        are no shorter.
        """
        found = self.tables.get(ProfileKey(gpu_class, share, basis))
        if found is None and basis == SOLO:
            found = self.tables.get(ProfileKey(gpu_class, share, LOADED))
        return found

    def utilisation(
        self, gpu_class: str, share: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """L2 and DRAM of the whole model alone on a share, by batch; None where not known.

        Where they are known on a whole GPU only, a part uses its share of that.
        """
        table = self.table(gpu_class, share, SOLO)
        known = None if table is None else table.utilisation()
        whole = self.table(gpu_class, WHOLE_GPU, SOLO)
        if table is None or known is not None or whole is None:
            return known
        used = whole.utilisation()
        if used is None:
            return None
        at = np.minimum(np.arange(table.largest), whole.largest - 1)
        return used[0][at] * share / WHOLE_GPU, used[1][at] * share / WHOLE_GPU

    def cells(self) -> Iterator[LatencyCell]:
        """Every measured cell: by class and share (largest first), then block, then batch."""
        order = sorted(self.tables, key=lambda key: (key.gpu_class, -key.share, key.basis))
        for key in order:
            table = self.tables[key]
            for block in range(self.blocks):
                for batch in table.batches:
                    at = (block, batch - 1)
                    l2, dram = (
                        None if used is None else float(used[at]) for used in (table.l2, table.dram)
                    )
                    yield LatencyCell(*key, block, batch, float(table.latency_us[at]), l2, dram)

    def stage_memory_bytes(self, blocks: tuple[int, int]) -> int:
        """Memory of blocks [first, last): weights plus the largest workspace; 0 if unknown."""
        first, last = blocks
        workspace = max(self.block_workspace_bytes[first:last], default=0)
        return sum(self.block_memory_bytes[first:last]) + workspace


def utilisations_of(profile: ModelProfile) -> list[Utilisation]:
    """A profile's cells, indexed once for every share.

    As it is alone where both are known.
    """
    found = {
        (c.gpu_class, c.share, c.block, c.batch): Utilisation(
            c.gpu_class, c.share, c.block, c.batch, c.l2, c.dram
        )
        for c in profile.cells()  # `solo` comes after `loaded`
        if c.l2 is not None and c.dram is not None
    }
    return list(found.values())


def with_utilisation(
    cells: Iterable[LatencyCell], known: Iterable[Utilisation]
) -> list[LatencyCell]:
    """The cells with what they use, where that is known of them or of every block."""
    used = {row[:4]: (row.l2, row.dram) for row in known}
    found: list[LatencyCell] = []
    for cell in cells:
        for block in (cell.block, None):
            at = (cell.gpu_class, cell.share, block, cell.batch)
            if at in used:
                found.append(cell._replace(l2=used[at][0], dram=used[at][1]))
                break
        else:
            found.append(cell)
    return found


def profile_from_cells(
    name: str,
    cells: Iterable[LatencyCell],
    boundary_bytes: tuple[int, ...],
    **known: Any,
) -> tuple[ModelProfile, list[str]]:
    """Build a profile from cells; a table with gaps or bad cells is left out, never guessed.

    Batches may be left out (1, 2, 4, 8), the same of every block; between two the larger one
    counts.

    Returns:
        the profile, and one warning per table left out or odd (latency falling with batch is kept
        and warned about).

    Raises:
        InputError: nothing usable is left, or a block index lies outside the boundaries given.
    """
    blocks = len(boundary_bytes) + 1
    grouped: dict[ProfileKey, dict[tuple[int, int], LatencyCell]] = {}
    for cell in cells:
        if not 0 <= cell.block < blocks:
            reason = f"block {cell.block} outside 0..{blocks - 1} ({cell})"
            raise InputError(f"profile of {name!r}", reason)
        grouped.setdefault(cell.key, {})[cell.block, cell.batch] = cell
    tables: dict[ProfileKey, ProfileTable] = {}
    warnings: list[str] = []
    for key, values in grouped.items():
        where = f"{name}: {key.text()}"
        table, complaint = _table({at: c.latency_us for at, c in values.items()}, blocks)
        if complaint:
            warnings.append(f"{where} left out: {complaint}")
            continue
        falls = np.argwhere(np.diff(table, axis=1) < 0)
        if len(falls):
            block, batch = int(falls[0][0]), int(falls[0][1]) + 2
            warnings.append(
                f"{where}: a larger batch was faster than a smaller one in {len(falls)} of"
                f" {len(values)} measurements, first batch {batch} of block {block}: noise, or a"
                " better kernel; plans use what was measured"
            )
        used, complaint = _used(values, table.shape)
        if complaint:
            warnings.append(f"{where}: utilisation left out: {complaint}")
        sizes = tuple(sorted({batch for _, batch in values}))
        tables[key] = ProfileTable(
            latency_us=table, measured=sizes if len(sizes) < table.shape[1] else (), **used
        )
    if not tables:
        raise InputError(
            f"profile of {name!r}", "no usable cells" + "".join(f"; {w}" for w in warnings)
        )
    return ModelProfile(name=name, boundary_bytes=boundary_bytes, tables=tables, **known), warnings


def _used(
    values: Mapping[tuple[int, int], LatencyCell], shape: tuple[int, ...]
) -> tuple[dict[str, NDArray[np.float64]], str | None]:
    """L2 and DRAM where they are known of every block.

    A batch has those of the next larger known.
    """
    known = {at: c for at, c in values.items() if c.l2 is not None and c.dram is not None}
    if not known:
        return {}, None
    found = {"l2": np.empty(shape), "dram": np.empty(shape)}
    for block in range(shape[0]):
        sizes = sorted(batch for b, batch in known if b == block)
        if not sizes or sizes[-1] < shape[1]:
            batch = shape[1] if sizes else 1
            return {}, f"not known of block {block}, batch {batch}"
        for batch in range(1, shape[1] + 1):
            cell = known[block, sizes[bisect_left(sizes, batch)]]
            found["l2"][block, batch - 1], found["dram"][block, batch - 1] = cell.l2, cell.dram
    return found, None


def _table(
    values: Mapping[tuple[int, int], float], blocks: int
) -> tuple[NDArray[np.float64], str | None]:
    """The array of one table, or why there is none."""
    batches = max(batch for _, batch in values)
    table = np.full((blocks, batches), np.nan)
    for (block, batch), latency_us in values.items():
        if np.isnan(latency_us):
            return table, f"no latency at block {block}, batch {batch}"
        if not 0 <= latency_us <= LARGEST:
            return table, f"latency {latency_us:g} at block {block}, batch {batch}"
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
