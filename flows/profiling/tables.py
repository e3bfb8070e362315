"""Profile tables as CSV files: `block_latency_us.csv` and `boundary_bytes.csv`, in and out.

Pure files to and from core types; the warehouse's import and the benchmarks share it.
Not here: measuring cells, and storing them.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triton_backend.core.errors import InputError
from triton_backend.core.profiles import LatencyCell, ModelProfile, profile_from_cells

LATENCY_FILE = "block_latency_us.csv"
BOUNDARY_FILE = "boundary_bytes.csv"


@dataclass(slots=True)
class _Raw:
    """What the two files say of one model."""

    cells: list[LatencyCell] = field(default_factory=list[LatencyCell])
    bytes_after: dict[int, int] = field(default_factory=dict[int, int])


def read_tables(folder: Path) -> tuple[dict[str, ModelProfile], list[str]]:
    """Profiles of every model in a folder, and warnings about what was left out or odd.

    Latencies are microseconds, boundaries bytes per sample. An empty or unreadable latency cell
    counts as missing, so that its class is left out with a warning.

    Raises:
        InputError: a file is absent, lacks a column, or a model has nothing usable.
    """
    raw: dict[str, _Raw] = {}
    for where, row in _rows(folder / LATENCY_FILE, set(LatencyCell._fields) | {"model"}):
        cell = LatencyCell(
            gpu_class=row["gpu_class"],
            vgpu_divisor=_whole(where, row, "vgpu_divisor"),
            block=_whole(where, row, "block"),
            batch=_whole(where, row, "batch"),
            latency_us=_number(row["latency_us"]),
        )
        raw.setdefault(row["model"], _Raw()).cells.append(cell)
    for where, row in _rows(folder / BOUNDARY_FILE, {"model", "after_block", "bytes_per_sample"}):
        entry = raw.setdefault(row["model"], _Raw())
        size = _whole(where, row, "bytes_per_sample")
        if size < 0:
            raise InputError(f"{where}, bytes_per_sample", f"{size} is negative")
        entry.bytes_after[_whole(where, row, "after_block")] = size
    return _profiles(folder, raw)


def write_tables(folder: Path, profiles: Mapping[str, ModelProfile]) -> tuple[Path, Path]:
    """Write the two files for these profiles, as `read_tables` reads them; returns their paths.

    Raises:
        InputError: the folder cannot be written.
    """
    latency, boundary = folder / LATENCY_FILE, folder / BOUNDARY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with latency.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["model", *LatencyCell._fields])
            for name, profile in profiles.items():
                for (gpu_class, divisor), table in sorted(profile.latency_us.items()):
                    for (block, batch), value in np.ndenumerate(table):
                        out.writerow([name, gpu_class, divisor, block, batch + 1, float(value)])
        with boundary.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["model", "after_block", "bytes_per_sample"])
            for name, profile in profiles.items():
                out.writerows([name, i, size] for i, size in enumerate(profile.boundary_bytes))
    except OSError as error:
        raise InputError(str(folder), f"cannot be written: {error.strerror}") from error
    return latency, boundary


def _profiles(folder: Path, raw: Mapping[str, _Raw]) -> tuple[dict[str, ModelProfile], list[str]]:
    profiles: dict[str, ModelProfile] = {}
    warnings: list[str] = []
    for name, entry in raw.items():
        blocks = max((cell.block for cell in entry.cells), default=-1) + 1
        if not blocks:
            warnings.append(f"{name} left out: boundaries but no latencies")
            continue
        missing = [i for i in range(blocks - 1) if i not in entry.bytes_after]
        if missing:
            raise InputError(
                f"{folder / BOUNDARY_FILE}, model {name!r}", f"no bytes after block {missing[0]}"
            )
        sizes = tuple(entry.bytes_after[i] for i in range(blocks - 1))
        profiles[name], complaints = profile_from_cells(name, entry.cells, sizes)
        warnings.extend(complaints)
    return profiles, warnings


def _rows(path: Path, columns: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each row with where it stands, for messages."""
    if not path.is_file():
        raise InputError(str(path), "no such file")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        absent = columns - set(reader.fieldnames or ())
        if absent:
            raise InputError(str(path), f"column {min(absent)!r} is missing")
        return [(f"{path}, line {reader.line_num}", row) for row in reader]


def _whole(where: str, row: Mapping[str, str], column: str) -> int:
    try:
        return int(row[column])
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}, {column}", f"{row[column]!r} is no whole number") from error


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
