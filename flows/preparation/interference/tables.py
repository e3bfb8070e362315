"""Tables of interference as CSV files: pairs, and models in and out; pairs beside profiles.

    pairs.csv          model_1,model_2,batch_1,batch_2,percent_1,percent_2,latency_1_us
                       and optionally latency_2_us and gpu_class
    interference.csv   gpu_class,c1_l2_self,c2_l2_other,c3_dram_self,c4_dram_other,c5
                       and optionally residual_p50 ... residual_p100

Here: reading and joining. Not here: what is fitted (`fit`); latencies and utilisations alone
(`profiling.csv_tables`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.files import write_text
from flows.preparation.interference.fit import PairRows
from flows.preparation.profiling.csv_tables import MAX_BATCH, csv_text, rows_of, whole
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_name
from triton_backend.contract.profiles import (
    CONSTANTS,
    QUANTILES,
    InterferenceModel,
    ModelProfile,
    Pair,
)
from triton_backend.contract.shares import (
    MAX_PERCENT,
    SOLO,
    percent_of,
    share_of_percent,
    share_text,
)

PAIRS_FILE = "pairs.csv"
MODEL_FILE = "interference.csv"
_RESIDUALS = tuple(f"residual_p{round(100 * quantile)}" for quantile in QUANTILES)

Cell = tuple[str, int, int]  # model, share (300ths), batch


def read_pairs(path: Path, gpu_class: str | None = None) -> list[Pair]:
    """Pairs of a file; those that do not state their GPU class are of `gpu_class`.

    Raises:
        InputError: the file cannot be used, or a class is needed and not given.
    """
    found: list[Pair] = []
    columns = {f"{name}_{side}" for name in ("model", "batch", "percent") for side in (1, 2)}
    for where, row in rows_of(path, columns | {"latency_1_us"}):
        name = row.get("gpu_class") or gpu_class
        if name is None:
            raise InputError(
                f"{where}, gpu_class", "is missing, and latencies are of several classes"
            )
        check_name(f"{where}, gpu_class", name)
        for side in (1, 2):
            check_name(f"{where}, model_{side}", row[f"model_{side}"])
        sides = [
            (
                row[f"model_{side}"],
                whole(where, row, f"batch_{side}", (1, MAX_BATCH)),
                share_of_percent(whole(where, row, f"percent_{side}", (1, MAX_PERCENT))),
            )
            for side in (1, 2)
        ]
        latencies = [
            _positive(where, row, column) if row.get(column) else None
            for column in ("latency_1_us", "latency_2_us")
        ]
        found.append(Pair(name, *sides[0], *sides[1], *latencies))
    return found


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as `read_pairs` reads them; shares are whole percents."""
    head = ["gpu_class", "model_1", "batch_1", "percent_1", "model_2", "batch_2", "percent_2"]
    rows = [
        [p.gpu_class, *_side(p[1:4]), *_side(p[4:7]), p.latency_1_us, p.latency_2_us] for p in pairs
    ]
    write_text(path, csv_text([*head, "latency_1_us", "latency_2_us"], rows))


def _side(cell: tuple[str, int, int]) -> tuple[str, int, int]:
    """Model, batch and share of a side, in percents."""
    return (cell[0], cell[1], round(percent_of(cell[2])))


def pair_rows(
    pairs: Iterable[Pair], profiles: Mapping[str, ModelProfile], gpu_class: str
) -> tuple[PairRows, int]:
    """Rows of all pairs of a class whose sides were measured alone, and how many sides were not.

    Raises:
        InputError: no row can be used.
    """
    features: list[tuple[float, float, float, float]] = []
    slowdowns: list[float] = []
    known: dict[frozenset[tuple[Cell, int]], int] = {}
    groups: dict[Cell, int] = {}
    numbers: list[tuple[int, int]] = []
    names: list[str] = []
    unknown = 0
    for pair in (p for p in pairs if p.gpu_class == gpu_class):
        cells = (
            (pair.model_1, pair.share_1, pair.batch_1),
            (pair.model_2, pair.share_2, pair.batch_2),
        )
        twins = int(cells[0] == cells[1])  # a set would hold two equal sides once
        number = known.setdefault(frozenset((cell, twins) for cell in cells), len(known))
        alone = [_alone(profiles, gpu_class, cell) for cell in cells]
        for side, latency_us in enumerate((pair.latency_1_us, pair.latency_2_us)):
            if latency_us is None:
                continue
            mine, other = alone[side], alone[1 - side]
            if mine is None or other is None:
                unknown += 1
                continue
            features.append((mine[1], other[1], mine[2], other[2]))
            slowdowns.append(latency_us / mine[0])
            own, beside = cells[side], cells[1 - side]
            numbers.append((number, groups.setdefault(own, len(groups))))
            names.append(
                f"{own[0]} batch {own[2]} at {share_text(own[1])} beside {beside[0]} batch "
                f"{beside[2]}"
            )
    if not slowdowns:
        reason = f"none of class {gpu_class!r} whose sides have latency and utilisation alone"
        raise InputError("pairs", reason)
    both = np.array(numbers, dtype=np.int64)
    rows = PairRows(
        features=np.array(features),
        slowdown=np.array(slowdowns),
        pair=both[:, 0],
        group=both[:, 1],
        names=tuple(names),
    )
    return rows, unknown


def _alone(
    profiles: Mapping[str, ModelProfile], gpu_class: str, cell: Cell
) -> tuple[float, float, float] | None:
    """Latency (µs), L2 and DRAM of a model alone, where that very batch was measured."""
    name, share, batch = cell
    profile = profiles.get(name)
    table = None if profile is None else profile.table(gpu_class, share, SOLO)
    used = None if profile is None else profile.utilisation(gpu_class, share)
    if table is None or used is None or batch not in table.batches:
        return None
    at = batch - 1
    return float(table.latency_us[:, at].sum()), float(used[0][at]), float(used[1][at])


def read_models(path: Path) -> dict[str, InterferenceModel]:
    """Models by GPU class.

    Raises:
        InputError: the file cannot be used.
    """
    found: dict[str, InterferenceModel] = {}
    for where, row in rows_of(path, {"gpu_class", *CONSTANTS}):
        check_name(f"{where}, gpu_class", row["gpu_class"])
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
    rows = [
        [
            name,
            *(getattr(model, constant) for constant in CONSTANTS),
            *(model.residuals or [""] * len(_RESIDUALS)),
        ]
        for name, model in models.items()
    ]
    write_text(path, csv_text(["gpu_class", *CONSTANTS, *_RESIDUALS], rows))


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
