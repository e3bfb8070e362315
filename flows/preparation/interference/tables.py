"""Tables of interference as CSV files: latencies alone, utilisations, pairs; models in and out.

block_latency_us.csv   model,gpu_class,vgpu_percent,batch,latency_us and optionally block
utilisation.csv        model,gpu_class,vgpu_percent,batch,l2_percent,dram_percent and optionally block
pairs.csv              model_1,model_2,batch_1,batch_2,percent_1,percent_2,latency_1_us and optionally
                       latency_2_us and gpu_class
interference.csv       gpu_class,c1_l2_self,c2_l2_other,c3_dram_self,c4_dram_other,c5 and optionally
                       residual_p50 ... residual_p100

Here: reading and joining. Not here: what is fitted (`fit`).
"""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flows.files import write_text
from flows.preparation.interference.fit import PairRows
from flows.preparation.profiling.csv_tables import rows_of, whole
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import CONSTANTS, QUANTILES, InterferenceModel
from triton_backend.contract.shares import MAX_PERCENT

LATENCY_FILE = "block_latency_us.csv"
UTILISATION_FILE = "utilisation.csv"
PAIRS_FILE = "pairs.csv"
MODEL_FILE = "interference.csv"
MAX_BLOCKS = 1_000
MAX_BATCH = 4_096
_RESIDUALS = tuple(f"residual_p{round(100 * quantile)}" for quantile in QUANTILES)

Cell = tuple[str, int, int]  # model, percent, batch
Utilisation = tuple[float, float]  # L2 and DRAM, fractions


def read_solo(path: Path, gpu_class: str | None = None) -> tuple[str, dict[Cell, float]]:
    """The class and its latencies alone (µs), blocks summed.

    Raises:
        InputError: the file cannot be used, or has several classes and none is named.
    """
    found: dict[str, dict[Cell, dict[int, float]]] = {}
    for where, row in rows_of(path, {"model", "gpu_class", "vgpu_percent", "batch", "latency_us"}):
        cell, block = _cell(where, row)
        found.setdefault(row["gpu_class"], {}).setdefault(cell, {})[block] = _positive(
            where, row, "latency_us"
        )
    name = _one_class(path, list(found), gpu_class)
    return name, {cell: math.fsum(blocks.values()) for cell, blocks in found[name].items()}


def read_utilisation(path: Path, gpu_class: str) -> dict[Cell, Utilisation]:
    """Utilisations of a class, blocks averaged.

    Raises:
        InputError: the file cannot be used or knows nothing of the class.
    """
    found: dict[Cell, list[Utilisation]] = {}
    columns = {"model", "gpu_class", "vgpu_percent", "batch", "l2_percent", "dram_percent"}
    for where, row in rows_of(path, columns):
        if row["gpu_class"] != gpu_class:
            continue
        cell, _ = _cell(where, row)
        used = (_percent(where, row, "l2_percent"), _percent(where, row, "dram_percent"))
        found.setdefault(cell, []).append(used)
    if not found:
        raise InputError(str(path), f"has no row of GPU class {gpu_class!r}")
    return {
        cell: (math.fsum(u[0] for u in many) / len(many), math.fsum(u[1] for u in many) / len(many))
        for cell, many in found.items()
    }


def read_pairs(
    path: Path,
    gpu_class: str,
    solo: Mapping[Cell, float],
    utilisation: Mapping[Cell, Utilisation],
) -> tuple[PairRows, int]:
    """Rows of all pairs of a class that both tables know, and how many sides they do not.

    Raises:
        InputError: the file cannot be used, or no row of it can.
    """
    features: list[tuple[float, float, float, float]] = []
    slowdowns: list[float] = []
    pairs: dict[frozenset[tuple[Cell, int]], int] = {}
    groups: dict[Cell, int] = {}
    numbers: list[tuple[int, int]] = []
    names: list[str] = []
    unknown = 0
    columns = {f"{name}_{side}" for name in ("model", "batch", "percent") for side in (1, 2)}
    for where, row in rows_of(path, columns | {"latency_1_us"}):
        if row.get("gpu_class", gpu_class) != gpu_class:
            continue
        cells = [
            (
                row[f"model_{side}"],
                whole(where, row, f"percent_{side}", (1, MAX_PERCENT)),
                whole(where, row, f"batch_{side}", (1, MAX_BATCH)),
            )
            for side in (1, 2)
        ]
        twins = int(cells[0] == cells[1])  # a set would hold two equal sides once
        pair = pairs.setdefault(frozenset((cell, twins) for cell in cells), len(pairs))
        for side, (mine, other) in enumerate((cells, cells[::-1]), start=1):
            if not row.get(f"latency_{side}_us"):
                continue
            if mine not in solo or mine not in utilisation or other not in utilisation:
                unknown += 1
                continue
            own, theirs = utilisation[mine], utilisation[other]
            features.append((own[0], theirs[0], own[1], theirs[1]))
            slowdowns.append(_positive(where, row, f"latency_{side}_us") / solo[mine])
            numbers.append((pair, groups.setdefault(mine, len(groups))))
            names.append(
                f"{mine[0]} batch {mine[2]} at {mine[1]} % beside {other[0]} batch {other[2]}"
            )
    if not slowdowns:
        raise InputError(
            str(path), f"has no pair of {gpu_class!r} that latencies and utilisations know"
        )
    both = np.array(numbers, dtype=np.int64)
    rows = PairRows(
        features=np.array(features),
        slowdown=np.array(slowdowns),
        pair=both[:, 0],
        group=both[:, 1],
        names=tuple(names),
    )
    return rows, unknown


def read_models(path: Path) -> dict[str, InterferenceModel]:
    """Models by GPU class.

    Raises:
        InputError: the file cannot be used.
    """
    found: dict[str, InterferenceModel] = {}
    for where, row in rows_of(path, {"gpu_class", *CONSTANTS}):
        if row["gpu_class"] in found:
            raise InputError(f"{where}, gpu_class", f"{row['gpu_class']!r} stands twice")
        known = [name for name in _RESIDUALS if row.get(name)]
        if known and len(known) < len(_RESIDUALS):
            absent = next(name for name in _RESIDUALS if name not in known)
            raise InputError(f"{where}, {absent}", "is empty, others are not")
        found[row["gpu_class"]] = InterferenceModel(
            **{name: _number(where, row, name) for name in CONSTANTS},
            residuals=tuple(_number(where, row, name) for name in known),
        )
    return found


def write_models(path: Path, models: Mapping[str, InterferenceModel]) -> None:
    """Write models as `read_models` reads them."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["gpu_class", *CONSTANTS, *_RESIDUALS])
    for name, model in models.items():
        residuals = model.residuals or [""] * len(_RESIDUALS)
        out.writerow([name, *(getattr(model, constant) for constant in CONSTANTS), *residuals])
    write_text(path, text.getvalue())


def _one_class(path: Path, classes: list[str], wanted: str | None) -> str:
    if wanted is None and len(classes) == 1:
        return classes[0]
    if wanted not in classes:
        what = "is of several GPU classes" if wanted is None else f"has no GPU class {wanted!r}"
        raise InputError(str(path), f"{what}: {', '.join(classes)}")
    return wanted


def _cell(where: str, row: Mapping[str, str]) -> tuple[Cell, int]:
    if not row["model"]:
        raise InputError(f"{where}, model", "is empty")
    percent = whole(where, row, "vgpu_percent", (1, MAX_PERCENT))
    batch = whole(where, row, "batch", (1, MAX_BATCH))
    block = whole(where, row, "block", (0, MAX_BLOCKS - 1)) if row.get("block") else 0
    return (row["model"], percent, batch), block


def _number(where: str, row: Mapping[str, Any], column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}, {column}", f"{row[column] or ''!r} is no number") from error
    if not math.isfinite(value):
        raise InputError(f"{where}, {column}", f"{value} is no number")
    return value


def _positive(where: str, row: Mapping[str, Any], column: str) -> float:
    value = _number(where, row, column)
    if value <= 0:
        raise InputError(f"{where}, {column}", f"{value:g} is not positive")
    return value


def _percent(where: str, row: Mapping[str, Any], column: str) -> float:
    """A fraction of a column in percents."""
    value = _number(where, row, column)
    if not 0 <= value <= MAX_PERCENT:
        raise InputError(f"{where}, {column}", f"{value:g} is not within 0 and {MAX_PERCENT}")
    return value / MAX_PERCENT
