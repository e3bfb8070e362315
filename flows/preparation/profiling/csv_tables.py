"""Profile tables as CSV files, in and out.

    block_latency_us.csv   latency of every block per class, share (vgpu_divisor, vgpu_percent or
                           vgpu_mig) and batch; where stated, by basis (else divisors are `loaded`,
                           the others `solo`); without a column `block` there is one block
    boundary_bytes.csv     bytes per sample that cross after every block but the last; may be empty
    block_memory.csv       where known: weights of every block, and its workspace (GiB)
    utilisation.csv        where known: use of the GPU's L2 and DRAM (percent), by model or by block

Pure files to and from core types; the warehouse's import and the benchmarks share it.
Not here: measuring cells, and storing them.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

from flows.files import write_text
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import LARGEST, check_name
from triton_backend.contract.profiles import (
    LatencyCell,
    ModelProfile,
    Utilisation,
    profile_from_cells,
    utilisations_of,
    with_utilisation,
)
from triton_backend.contract.shares import (
    BASES,
    LOADED,
    MAX_DIVISOR,
    MAX_PERCENT,
    PER_PERCENT,
    SOLO,
    divisor_of,
    mig_cell,
    share_of_divisor,
    share_of_mig,
    share_of_percent,
    share_text,
)
from triton_backend.simulator.offered import text_lines

LATENCY_FILE = "block_latency_us.csv"
BOUNDARY_FILE = "boundary_bytes.csv"
MEMORY_FILE = "block_memory.csv"
UTILISATION_FILE = "utilisation.csv"
SIZES = ("vgpu_divisor", "vgpu_percent", "vgpu_mig")
GIB = 1 << 30
MAX_BLOCKS = 1_000
MAX_BATCH = 4_096
_Key = TypeVar("_Key")
_Value = TypeVar("_Value", int, float)


@dataclass(slots=True)
class _Raw:
    """The content of the files for one model."""

    cells: list[LatencyCell] = field(default_factory=list[LatencyCell])
    latencies: dict[LatencyCell, float] = field(default_factory=dict[LatencyCell, float])
    bytes_after: dict[int, int] = field(default_factory=dict[int, int])
    memory: dict[int, int] = field(default_factory=dict[int, int])
    workspace: dict[int, int] = field(default_factory=dict[int, int])


def read_tables(folder: Path) -> tuple[dict[str, ModelProfile], list[str]]:
    """Profiles of every model in a folder, and warnings about what was left out or odd.

    Latencies are microseconds, boundaries bytes per sample. An empty latency cell counts as
    missing, so that its class is left out with a warning.

    Raises:
        InputError: a file is absent, lacks a column, has a value that cannot be, or a model has
            nothing usable.
    """
    raw: dict[str, _Raw] = {}
    for where, row in rows_of(folder / LATENCY_FILE, {"model", "gpu_class", "batch", "latency_us"}):
        share, basis = _part(where, row)
        cell = LatencyCell(
            gpu_class=_name(where, row, "gpu_class"),
            share=share,
            basis=basis,
            block=_block(where, row) or 0,
            batch=whole(where, row, "batch", (1, MAX_BATCH)),
            latency_us=_latency(where, row),
        )
        entry = raw.setdefault(_name(where, row, "model"), _Raw())
        key = cell._replace(latency_us=0.0)
        _state(f"{where}, latency_us", entry.latencies, key, cell.latency_us)
        entry.cells.append(cell)
    used = read_utilisation(folder) if (folder / UTILISATION_FILE).exists() else {}
    columns = {"model", "after_block", "bytes_per_sample"}
    for where, row in _boundary_rows(folder / BOUNDARY_FILE, columns, raw):
        entry = raw.setdefault(_name(where, row, "model"), _Raw())
        block = whole(where, row, "after_block", (0, MAX_BLOCKS - 1))
        size = whole(where, row, "bytes_per_sample", (0, LARGEST))
        _state(f"{where}, bytes_per_sample", entry.bytes_after, block, size)
    if (folder / MEMORY_FILE).exists():
        for where, row in rows_of(folder / MEMORY_FILE, {"model", "block", "memory_gib"}):
            entry = raw.setdefault(_name(where, row, "model"), _Raw())
            block = whole(where, row, "block", (0, MAX_BLOCKS - 1))
            entry.memory[block] = _bytes(where, row, "memory_gib")
            if row.get("workspace_gib"):
                entry.workspace[block] = _bytes(where, row, "workspace_gib")
    for name, entry in raw.items():
        entry.cells = with_utilisation(entry.cells, used.get(name, ()))
    return _profiles(folder, raw)


def _state(where: str, known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Note a value, which a row before may have stated, too.

    Raises:
        InputError: another one was stated.
    """
    before = known.setdefault(key, value)
    if before != value and not (isnan(before) and isnan(value)):
        raise InputError(where, f"{value}, but {before} is stated before")


def _boundary_rows(
    path: Path, columns: set[str], raw: Mapping[str, _Raw]
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of the file; models of one block have none, so where all are, there need be no file."""
    if not path.exists() and all(cell.block == 0 for entry in raw.values() for cell in entry.cells):
        return []
    return rows_of(path, columns, may_be_empty=True)


def read_utilisation(folder: Path) -> dict[str, list[Utilisation]]:
    """Utilisation of GPUs, by model.

    Raises:
        InputError: the file cannot be used.
    """
    found: dict[str, list[Utilisation]] = {}
    columns = {"model", "gpu_class", "batch", "l2_percent", "dram_percent"}
    for where, row in rows_of(folder / UTILISATION_FILE, columns):
        used = Utilisation(
            gpu_class=_name(where, row, "gpu_class"),
            share=_part(where, row)[0],
            block=_block(where, row),
            batch=whole(where, row, "batch", (1, MAX_BATCH)),
            l2=_fraction(where, row, "l2_percent"),
            dram=_fraction(where, row, "dram_percent"),
        )
        found.setdefault(_name(where, row, "model"), []).append(used)
    return found


def _part(where: str, row: Mapping[str, str]) -> tuple[int, str]:
    """Share (300ths) and basis of a row: one of the two sizes, and the basis that goes with it."""
    known = [name for name in SIZES if row.get(name)]
    if len(known) != 1:
        what = (
            f"both {' and '.join(known)} are given" if known else f"neither {' nor '.join(SIZES)}"
        )
        raise InputError(where, f"{what}; one of them is needed")
    if known == ["vgpu_divisor"]:
        share, basis = share_of_divisor(whole(where, row, SIZES[0], (1, MAX_DIVISOR))), LOADED
    elif known == ["vgpu_mig"]:
        share, basis = share_of_mig(row["vgpu_mig"].strip()), SOLO
    else:
        share, basis = share_of_percent(whole(where, row, SIZES[1], (1, MAX_PERCENT))), SOLO
    stated = row.get("basis") or basis
    if stated not in BASES:
        raise InputError(f"{where}, basis", f"{stated!r} is none of {', '.join(BASES)}")
    return share, stated


def _block(where: str, row: Mapping[str, str]) -> int | None:
    """Its block; None where it states none."""
    return whole(where, row, "block", (0, MAX_BLOCKS - 1)) if row.get("block") else None


def write_tables(folder: Path, profiles: Mapping[str, ModelProfile]) -> tuple[Path, ...]:
    """Write the files for these profiles, as `read_tables` reads them; returns their paths.

    That of memory is written where it is known of a model.

    Raises:
        InputError: the folder cannot be written.
    """
    cells = [(name, cell) for name, profile in profiles.items() for cell in profile.cells()]
    sized = _sizes((cell.share, cell.basis) for _, cell in cells)
    rows = [
        [name, cell.gpu_class, *size, cell.block, cell.batch, cell.latency_us]
        for (name, cell), size in zip(cells, sized.rows, strict=True)
    ]
    sizes = [
        [name, block, size]
        for name, profile in profiles.items()
        for block, size in enumerate(profile.boundary_bytes)
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), f"cannot be written: {error.strerror}") from error
    latency, boundary = folder / LATENCY_FILE, folder / BOUNDARY_FILE
    head = ["model", "gpu_class", *sized.columns, "block", "batch", "latency_us"]
    write_text(latency, csv_text(head, rows))
    write_text(boundary, csv_text(["model", "after_block", "bytes_per_sample"], sizes))
    memory = [
        [name, block, weights / GIB, *_workspace_gib(profile, block)]
        for name, profile in profiles.items()
        for block, weights in enumerate(profile.block_memory_bytes)
    ]
    written = [latency, boundary]
    if memory:
        head = ["model", "block", "memory_gib", "workspace_gib"]
        write_text(folder / MEMORY_FILE, csv_text(head, memory))
        written.append(folder / MEMORY_FILE)
    used = [(name, row) for name, profile in profiles.items() for row in utilisations_of(profile)]
    if used:
        sized = _sizes((row.share, SOLO) for _, row in used)
        rows = [
            [name, row.gpu_class, *size, row.block, row.batch, 100 * row.l2, 100 * row.dram]
            for (name, row), size in zip(used, sized.rows, strict=True)
        ]
        columns = [c for c in sized.columns if c != "basis"]
        head = ["model", "gpu_class", *columns, "block", "batch", "l2_percent", "dram_percent"]
        write_text(folder / UTILISATION_FILE, csv_text(head, rows))
        written.append(folder / UTILISATION_FILE)
    return tuple(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Columns that say a share and a basis, and their values row by row."""

    columns: tuple[str, ...]
    rows: list[list[int | str | None]]


def _sizes(parts: Iterable[tuple[int, str]]) -> _Sizes:
    """A share as a divisor, as percents (measured alone or no 1/v), or as a MIG slice."""
    spelled: list[tuple[int | None, int | None, str | None, str]] = []
    for share, basis in parts:
        divisor = divisor_of(share)
        if mig_cell(share) is not None:
            spelled.append((None, None, share_text(share), basis))
        elif share % PER_PERCENT == 0 and (basis == SOLO or divisor is None):
            spelled.append((None, share // PER_PERCENT, None, basis))
        else:
            spelled.append((divisor, None, None, basis))
    columns = [name for at, name in enumerate(SIZES) if any(row[at] is not None for row in spelled)]
    odd = any((basis == SOLO) == (divisor is not None) for divisor, _, _, basis in spelled)
    kept = [*(SIZES.index(name) for name in columns), *([len(SIZES)] if odd else [])]
    return _Sizes(
        columns=(*columns, *(["basis"] if odd else [])),
        rows=[[row[at] for at in kept] for row in spelled],
    )


def _workspace_gib(profile: ModelProfile, block: int) -> list[float | None]:
    """One cell, empty where it is not known."""
    return [profile.block_workspace_bytes[block] / GIB if profile.block_workspace_bytes else None]


def csv_text(head: list[str], rows: list[list[Any]]) -> str:
    """Rows below their head as the text of a CSV file."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(head)
    out.writerows(rows)
    return text.getvalue()


def _profiles(folder: Path, raw: Mapping[str, _Raw]) -> tuple[dict[str, ModelProfile], list[str]]:
    profiles: dict[str, ModelProfile] = {}
    warnings: list[str] = []
    for name, entry in raw.items():
        blocks = max((cell.block for cell in entry.cells), default=-1) + 1
        if not blocks:
            warnings.append(f"{name} left out: boundaries or memory but no latencies")
            continue
        missing = [i for i in range(blocks - 1) if i not in entry.bytes_after]
        if missing:
            raise InputError(
                f"{folder / BOUNDARY_FILE}, model {name!r}", f"no bytes after block {missing[0]}"
            )
        sizes = tuple(entry.bytes_after[i] for i in range(blocks - 1))
        profiles[name], complaints = profile_from_cells(
            name,
            entry.cells,
            sizes,
            block_memory_bytes=_of_blocks(folder, name, entry.memory, blocks),
            block_workspace_bytes=_of_blocks(folder, name, entry.workspace, blocks),
        )
        if len(entry.bytes_after) >= blocks:
            reason = f"bytes after block {max(entry.bytes_after)}, of {blocks} blocks"
            raise InputError(f"{folder / BOUNDARY_FILE}, model {name!r}", reason)
        warnings.extend(complaints)
    return profiles, warnings


def _of_blocks(folder: Path, name: str, known: Mapping[int, int], blocks: int) -> tuple[int, ...]:
    """Bytes of every block; none where nothing is known."""
    if known and set(known) != set(range(blocks)):
        odd = min(set(known) ^ set(range(blocks)))
        reason = f"has no row of block {odd}" if odd < blocks else f"there is no block {odd}"
        raise InputError(f"{folder / MEMORY_FILE}, model {name!r}", reason)
    return tuple(known[block] for block in sorted(known))


def _latency(where: str, row: Mapping[str, str]) -> float:
    """Microseconds; NaN where the cell is empty."""
    given = _number(row["latency_us"])
    if (row["latency_us"] or "").strip() and not 0 < given <= LARGEST:
        raise InputError(f"{where}, latency_us", f"{row['latency_us']!r} is no latency in µs")
    return given


def _bytes(where: str, row: Mapping[str, str], column: str) -> int:
    given = _number(row[column])
    if not 0 <= given <= LARGEST / GIB:
        raise InputError(f"{where}, {column}", f"{row[column] or ''!r} is no number of GiB")
    return round(given * GIB)


def _fraction(where: str, row: Mapping[str, str], column: str) -> float:
    """Percents of a column as a fraction."""
    given = _number(row[column])
    if not 0 <= given <= MAX_PERCENT:
        reason = f"{row[column] or ''!r} is not within 0 and {MAX_PERCENT}"
        raise InputError(f"{where}, {column}", reason)
    return given / MAX_PERCENT


def rows_of(
    path: Path, columns: set[str], *, may_be_empty: bool = False
) -> list[tuple[str, dict[str, Any]]]:
    """Each row of a CSV file with where it stands, for messages.

    Raises:
        InputError: the file cannot be read, lacks a column, has a row with more cells than its
            head, or has no row and must have one.
    """
    reader = csv.DictReader(text_lines(path))
    try:
        absent = columns - set(reader.fieldnames or ())
        if absent:
            raise InputError(str(path), f"column {min(absent)!r} is missing")
        rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}", f"not CSV: {error}") from error
    head = len(reader.fieldnames or ())
    for where, row in rows:
        if any(row.get(None, ())):  # as where a number has a comma
            raise InputError(where, f"{head + len(row[None])} cells, the head has {head}")
    if not rows and not may_be_empty:
        raise InputError(str(path), "has no row")
    return rows


def _name(where: str, row: Mapping[str, str], column: str) -> str:
    check_name(f"{where}, {column}", row[column])
    return row[column]


def whole(where: str, row: Mapping[str, str], column: str, bounds: tuple[int, int]) -> int:
    """A whole number of a row, within bounds.

    Raises:
        InputError: it is none, or out of bounds.
    """
    try:
        value = int(row[column])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{where}, {column}", f"{row[column] or ''!r} is no whole number"
        ) from error
    if not bounds[0] <= value <= bounds[1]:
        reason = f"{value:.4g} is not within {bounds[0]} and {bounds[1]}"
        raise InputError(f"{where}, {column}", reason)
    return value


def _number(text: str | None) -> float:
    """NaN where there is none."""
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
