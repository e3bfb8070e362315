"""Trace files opened: every series of a trace as something that can be played at a rate.

Here: telling the three forms apart and playing them. Not here: parsing and processes
(`contract.arrivals`), whose requests they are (`schedule`).
"""

import gzip
import itertools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract import arrivals
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import s_to_us

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A trace and how to read it.

    Attributes:
        time_column, model_column: of a trace with one row per request (time in seconds).
        interval_s: the trace has one row per interval of that length, a column of counts per model.
        names: trace's name to model's name; None = they are the models' names.
    """

    path: Path
    time_column: str = "arrival_s"
    model_column: str | None = None
    interval_s: float | None = None
    names: Mapping[str, str] | None = None


class Series(Protocol):
    """One series of a trace."""

    def play(self, rate_rps: float | None, duration_us: int, rng: np.random.Generator) -> Instants:
        """Instants in [0, duration_us), at a mean rate, or as recorded where None."""
        ...


@dataclass(frozen=True, slots=True)
class GapSeries:
    """Requests one by one.

    The first at `first_us`, then gap after gap, starting over at the end.
    """

    first_us: int
    gaps: NDArray[np.float64]

    def play(self, rate_rps: float | None, duration_us: int, rng: np.random.Generator) -> Instants:
        """See `Series`; needs no randomness."""
        del rng
        if rate_rps is None:
            return self.first_us + arrivals.gaps_us(self.gaps, max(duration_us - self.first_us, 0))
        instants = np.concatenate([[0.0], np.cumsum(self.gaps)]).astype(np.int64)
        return arrivals.replay_us(instants, rate_rps, duration_us)


@dataclass(frozen=True, slots=True)
class CountSeries:
    """Counts per interval, drawn as a Poisson process of their rate."""

    interval_us: int
    counts: NDArray[np.float64]

    def play(self, rate_rps: float | None, duration_us: int, rng: np.random.Generator) -> Instants:
        """See `Series`."""
        counts = self.counts
        if rate_rps is not None:
            counts = arrivals.scaled_counts(counts, self.interval_us, rate_rps)
        return arrivals.counts_us(counts, self.interval_us, duration_us, rng)


def read_series(trace: TraceFile) -> dict[str, Series]:
    """Every series of a trace by model name; the key `arrivals.ANY_MODEL` where it names no model.

    Raises:
        InputError: the file cannot be read or is none of the forms.
    """
    try:
        with _open(trace.path) as lines:
            return _parse(trace, lines)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(str(trace.path), f"cannot be read as a trace: {error}") from error
    except InputError as error:
        raise InputError(f"{trace.path}: {error.where}", error.reason) from error


def _parse(trace: TraceFile, lines: TextIO) -> dict[str, Series]:
    first = next(lines, "")
    text = itertools.chain([first], lines)
    if arrivals.is_intervals(first):
        return {arrivals.ANY_MODEL: GapSeries(0, arrivals.parse_intervals(text))}
    if trace.interval_s is not None:
        interval_us = s_to_us(trace.interval_s)
        return {
            name: CountSeries(interval_us, counts)
            for name, counts in arrivals.parse_counts(text, names=trace.names).items()
        }
    requests = arrivals.parse_requests(
        text, time_column=trace.time_column, model_column=trace.model_column, names=trace.names
    )
    return {name: _gaps(instants) for name, instants in requests.items()}


def _gaps(instants: Instants) -> GapSeries:
    """Gaps of a recording, the pause before it starts over too."""
    gaps = np.diff(arrivals.with_end(instants)).astype(np.float64)
    return GapSeries(int(instants[0]), gaps)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")
