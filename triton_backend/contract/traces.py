"""Traces of requests as text: one row per request, counts per interval, or bare intervals.

Here: lines in, arrays out, or an `InputError` that names line and column. Not here: opening files (the callers do, `.gz` too), scaling
(`arrivals`).
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_S

ALL = ""  # the series of a trace that names no model
MOST = 1e12  # seconds since 1970, or microseconds: what is larger is no instant
MOST_COUNT = 1e12
Row = TypeVar("Row")


def parse_requests(
    lines: Iterable[str],
    *,
    time_column: str = "arrival_s",
    model_column: str | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """One row per request.

    Args:
        lines: CSV text with a header.
        time_column: seconds, in any order.
        model_column: which model a request is for; None = one series under the key `ALL`.
        names: trace's name to model's name; others are left out. None = as they stand.

    Returns:
        sorted microseconds per model, the earliest request of the whole trace at 0.
    """
    series: dict[str, list[float]] = {}
    for number, row in enumerate(_rows(lines, [time_column, model_column]), start=2):
        name = row[model_column] if model_column else ALL
        if names is not None and model_column:
            if name not in names:
                continue
            name = names[name]
        series.setdefault(name, []).append(_number(row[time_column], number, time_column))
    if not series:
        raise InputError("trace", "no requests in it" + (" for these models" if names else ""))
    start = min(min(times) for times in series.values())
    return {
        name: np.sort((np.asarray(times) - start) * US_PER_S).astype(np.int64)
        for name, times in series.items()
    }


def parse_counts(
    lines: Iterable[str], *, names: Mapping[str, str] | None = None
) -> dict[str, NDArray[np.float64]]:
    """One row per interval: the first column is time (not read), every other one a count.

    An empty cell is a count of 0.

    Args:
        lines: CSV text with a header.
        names: trace's column to model's name; other columns are left out. None = all, as named.
    """
    rows = [(i, row) for i, row in enumerate(_read(csv.reader(lines)), 1) if row]
    if len(rows) < 2 or len(rows[0][1]) < 2:  # noqa: PLR2004 - a header and one row; time and a count
        raise InputError("trace", "needs a header, a time column and at least one count column")
    header = rows[0][1]
    chosen = {column: column for column in header[1:]} if names is None else dict(names)
    missing = sorted(set(chosen) - set(header))
    if missing:
        raise InputError("trace", f"no column {missing[0]!r}; it has {', '.join(header)}")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(f"trace line {line}", f"{len(row)} columns, not {len(header)}")
    return {
        name: np.asarray(
            [_count(row[header.index(column)], line, column) for line, row in rows[1:]]
        )
        for column, name in chosen.items()
    }


def parse_intervals(lines: Iterable[str]) -> NDArray[np.float64]:
    """Gaps between requests in microseconds, one a line (perf_analyzer's `--request-intervals`)."""
    gaps = [
        _number(line.strip(), number, "interval")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not gaps or min(gaps) < 0:
        raise InputError("trace", "needs one interval in microseconds (0 or more) on each line")
    return np.asarray(gaps)


def is_intervals(first_line: str) -> bool:
    """Whether a file that begins so holds bare intervals rather than a table."""
    return first_line.strip().isdecimal()


def _rows(lines: Iterable[str], needed: list[str | None]) -> Iterable[dict[str, str]]:
    reader = csv.DictReader(lines)
    header = list(reader.fieldnames or [])
    for column in needed:
        if column is not None and column not in header:
            has = ", ".join(header) or "none at all"
            raise InputError("trace", f"no column {column!r}; it has {has}")
    return _read(reader)


def _read(rows: Iterable[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except csv.Error as error:
        raise InputError("trace", f"not CSV: {error}") from error


def _count(text: str, line: int, column: str) -> float:
    value = _number(text or "0", line, column)
    if not 0 <= value <= MOST_COUNT:
        raise InputError(f"trace line {line}", f"{column} {text!r} is no count of requests")
    return value


def _number(text: str | None, line: int, column: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not abs(value) <= MOST:
        raise InputError(f"trace line {line}", f"{column} {text!r} is not a number")
    return value
