"""When requests come: arrival processes drawn from an explicit generator, and traces of requests.

Here: the processes that the simulator and the load generator share, so that both can offer the very
same load, and the text of traces: lines in, arrays out, or an `InputError` that names line and
column. Processes return sorted int64 microseconds in [0, duration_us), and raise `InputError` for a
rate, shape or trace that cannot be offered.
Not here: opening files (the callers do, `.gz` too), rates of a plan.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_MS, US_PER_S

Instants = NDArray[np.int64]
MOST_REQUESTS = 50_000_000  # of one model in one run: 4 GB of records
MOST_INTERVALS = 50_000_000  # of counts in one run: 400 MB

ANY_MODEL = ""  # the series of a trace that names no model
MOST = 1e12  # seconds since 1970, or microseconds: what is larger is no instant
MOST_COUNT = 1e12
MOST_SAMPLES = 1_000_000  # of one request
Row = TypeVar("Row")


def poisson_us(rate_rps: float, duration_us: int, rng: np.random.Generator) -> Instants:
    """A Poisson process of `rate_rps`."""
    return gamma_us(rate_rps, duration_us, 1.0, rng)


def gamma_us(rate_rps: float, duration_us: int, shape: float, rng: np.random.Generator) -> Instants:
    """Gamma-distributed gaps of mean 1 / rate; their CV is 1 / sqrt(shape).

    Shape 1 is Poisson, below 1 is burstier. The first request comes one gap after 0.
    """
    if not 0 < shape < float("inf"):
        raise InputError("arrivals", f"gamma shape {shape} is not a positive number")
    if not _offers(rate_rps, duration_us):
        return _none()
    mean_gap_us = US_PER_S / rate_rps
    expected = duration_us / mean_gap_us
    likely = expected + 6 * np.sqrt(expected / shape) + 16
    _check_count(likely)
    draw = int(likely)
    times = np.cumsum(rng.gamma(shape, mean_gap_us / shape, draw))
    while times[-1] < duration_us:
        _check_count(len(times) + draw)  # gaps of a tiny shape are nearly all 0
        more = np.cumsum(rng.gamma(shape, mean_gap_us / shape, draw))
        times = np.concatenate([times, times[-1] + more])
    return times[times < duration_us].astype(np.int64)


def deterministic_us(rate_rps: float, duration_us: int) -> Instants:
    """One request every 1 / rate, the first at 0."""
    if not _offers(rate_rps, duration_us):
        return _none()
    gap_us = US_PER_S / rate_rps
    count = int(np.ceil(duration_us / gap_us))
    times = (np.arange(count) * gap_us).astype(np.int64)
    return times[times < duration_us]


def with_end(trace_us: Instants) -> Instants:
    """A trace and the instant at which it starts over: its mean gap after its last request.

    Without a pause the last request of a round would be the first one of the next.
    """
    if len(trace_us) <= 1:
        return trace_us
    return np.append(trace_us, trace_us[-1] + round(float(np.diff(trace_us).mean())))


def replay_us(trace_us: Instants, rate_rps: float, duration_us: int) -> Instants:
    """A trace's own bursts at a stated mean rate.

    Takes the first `rate x duration` requests (the trace starts over where it is shorter, at its
    last instant: `with_end`) and stretches their time so that they fill the duration: the count is
    right whatever the trace's own rate, the pattern of gaps is the trace's. Requests of one instant
    stay so.
    """
    if not _offers(rate_rps, duration_us):
        return _none()
    count = round(rate_rps * duration_us / US_PER_S)
    gaps = np.diff(np.asarray(trace_us, dtype=np.float64))
    if len(gaps) == 0 or gaps.sum() <= 0:
        raise InputError("arrivals", f"a trace of {len(trace_us)} requests spans no time")
    times = np.concatenate([[0.0], np.cumsum(np.resize(gaps, count))])
    stretch = duration_us / times[count] if times[count] > 0 else 0.0
    return (times[:count] * stretch).astype(np.int64)


def gaps_us(gaps: NDArray[np.float64], duration_us: int) -> Instants:
    """Stated gaps, over and over: the first request at 0, the next after `gaps[0]`."""
    total = float(gaps.sum())
    if len(gaps) == 0 or gaps.min() < 0 or total <= 0:
        raise InputError("arrivals", f"{len(gaps)} gaps that last {total} µs together")
    rounds = int(duration_us // total) + 1
    _check_count(rounds * len(gaps))
    times = np.concatenate([[0.0], np.cumsum(np.tile(gaps, rounds))])
    return times[times < duration_us].astype(np.int64)


def counts_us(
    counts: NDArray[np.float64], interval_us: int, duration_us: int, rng: np.random.Generator
) -> Instants:
    """A Poisson process whose rate steps: `counts[i]` requests expected in interval i.

    The counts start over where they are shorter than the duration.
    """
    if len(counts) == 0 or interval_us < 1:
        raise InputError("arrivals", f"{len(counts)} counts of {interval_us} µs each")
    intervals = -(-duration_us // interval_us)
    rounds, rest = divmod(intervals, len(counts))
    _check_count(float(rounds * counts.sum() + counts[:rest].sum()))
    if intervals > MOST_INTERVALS:
        raise InputError("arrivals", f"{intervals:,} intervals, more than {MOST_INTERVALS:,}")
    expected = np.resize(counts, intervals)
    drawn = rng.poisson(expected)
    starts = np.repeat(np.arange(intervals) * interval_us, drawn)
    times = np.sort(starts + rng.random(len(starts)) * interval_us).astype(np.int64)
    return times[times < duration_us]


def scaled_counts(
    counts: NDArray[np.float64], interval_us: int, rate_rps: float
) -> NDArray[np.float64]:
    """Counts with the same shape over time and a mean rate of `rate_rps`."""
    mean = float(counts.mean()) if len(counts) else 0.0
    if mean <= 0:
        raise InputError("arrivals", "a trace without requests cannot be scaled to a rate")
    return counts * (rate_rps * interval_us / US_PER_S / mean)


def _offers(rate_rps: float, duration_us: int) -> bool:
    if not 0 <= rate_rps < float("inf"):
        raise InputError("arrivals", f"rate {rate_rps} is not a number of requests per second")
    _check_count(rate_rps * duration_us / US_PER_S)
    return rate_rps > 0 and duration_us > 0


def _check_count(expected: float) -> None:
    if not expected <= MOST_REQUESTS:
        raise InputError("arrivals", f"{expected:.3g} requests, more than {MOST_REQUESTS:,}")


def _none() -> Instants:
    return np.empty(0, dtype=np.int64)


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
        model_column: which model a request is for; None = one series under the key `ANY_MODEL`.
        names: trace's name to model's name; others are left out. None = as they stand.

    Returns:
        sorted microseconds per model, the earliest request of the whole trace at 0.
    """
    series: dict[str, list[float]] = {}
    for number, row in enumerate(_rows(lines, [time_column, model_column]), start=2):
        name = row[model_column] if model_column else ANY_MODEL
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


class StatedRequests(NamedTuple):
    """Requests with instants of their own, in the order of a file.

    Attributes:
        arrival_us: [request] not sorted.
        deadline_us: [request] from arrival on; -1 where the model's own budget holds.
        samples: [request].
        models: [request] `ANY_MODEL` where the trace names none.
        entries: [request] empty where the trace names none.
    """

    arrival_us: Instants
    deadline_us: Instants
    samples: Instants
    models: tuple[str, ...]
    entries: tuple[str, ...]


def parse_stated(
    lines: Iterable[str],
    *,
    time_column: str = "arrival_s",
    model_column: str | None = None,
    names: Mapping[str, str] | None = None,
) -> StatedRequests:
    """One row per request, with its own deadline, samples and entry where those columns are there.

    Args:
        lines: CSV text with a header; optional columns are `deadline_ms` (from arrival on),
            `samples` and `entry`, each with empty cells where it does not apply.
        time_column: seconds from the start of the run, in any order.
        model_column: which model a request is for; None = the column `model` where there is one.
        names: trace's name to model's name; others are left out. None = as they stand.
    """
    reader = csv.DictReader(lines)
    header = _header(reader)
    model_column = model_column or ("model" if "model" in header else None)
    found: list[tuple[int, int, int, str, str]] = []
    for number, row in enumerate(_named_rows(reader, [time_column, model_column]), start=2):
        name = row[model_column] if model_column else ANY_MODEL
        if names is not None and model_column:
            if name not in names:
                continue
            name = names[name]
        seconds = _number(row[time_column], number, time_column)
        deadline_us, samples = -1, 1
        if row.get("deadline_ms"):
            deadline_ms = _number(row["deadline_ms"], number, "deadline_ms")
            deadline_us = round(deadline_ms * US_PER_MS)
            if deadline_us < 1:
                raise InputError(
                    f"trace line {number}", f"deadline_ms {deadline_ms} is not positive"
                )
        if row.get("samples"):
            given = _number(row["samples"], number, "samples")
            samples = int(given)
            if samples != given or not 1 <= samples <= MOST_SAMPLES:
                raise InputError(f"trace line {number}", f"samples {given:g} is no number of them")
        at_us = round(seconds * US_PER_S)
        if at_us < 0:
            raise InputError(f"trace line {number}", f"{time_column} {seconds} is before the start")
        found.append((at_us, deadline_us, samples, name, row.get("entry") or ""))
    if not found:
        raise InputError("trace", "no requests in it" + (" for these models" if names else ""))
    numbers = np.asarray([row[:3] for row in found], dtype=np.int64)
    return StatedRequests(
        *(np.ascontiguousarray(numbers[:, k]) for k in range(3)),
        models=tuple(row[3] for row in found),
        entries=tuple(row[4] for row in found),
    )


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
    for column in sorted(chosen):
        if column not in header[1:]:
            raise InputError("trace", f"no column {column!r}; it has {', '.join(header[1:])}")
        if header[1:].count(column) > 1:
            raise InputError("trace", f"column {column!r} is there twice")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(f"trace line {line}", f"{len(row)} columns, not {len(header)}")
    found: dict[str, NDArray[np.float64]] = {}
    for column, name in chosen.items():
        at = header.index(column, 1)
        counts = np.asarray([_count(row[at], line, column) for line, row in rows[1:]])
        found[name] = found[name] + counts if name in found else counts
    return found


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
    """True if a file that begins so holds bare intervals rather than a table."""
    return first_line.strip().isdecimal()


def _rows(lines: Iterable[str], needed: list[str | None]) -> Iterable[dict[str, str]]:
    return _named_rows(csv.DictReader(lines), needed)


def _named_rows(
    reader: "csv.DictReader[str]", needed: list[str | None]
) -> Iterable[dict[str, str]]:
    header = _header(reader)
    for column in needed:
        if column is not None and column not in header:
            has = ", ".join(header) or "none at all"
            raise InputError("trace", f"no column {column!r}; it has {has}")
    return _read(reader)


def _header(reader: "csv.DictReader[str]") -> list[str]:
    try:
        return list(reader.fieldnames or [])
    except csv.Error as error:
        raise InputError("trace", f"not CSV: {error}") from error


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
