"""Measured request rates over time: one row per interval, one column per model.

Here: the table and its windows. Not here: where it comes from (the warehouse's minute statistics,
or a trace file, which `read_counts` reads).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.arrivals import parse_counts
from triton_backend.contract.errors import InputError
from triton_backend.simulator.offered import text_lines

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RateHistory:
    """Mean rate of every model in every interval.

    Attributes:
        names: of what clients ask for (`demands`), in column order.
        interval_s: length of one interval; a day is a whole number of them.
        rps: array [intervals, models], requests per second; NaN where nothing was measured.
    """

    names: tuple[str, ...]
    interval_s: int
    rps: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.interval_s < 1 or SECONDS_PER_DAY % self.interval_s:
            raise InputError("rate history", f"a day is not a whole number of {self.interval_s} s")
        if self.rps.ndim != 2 or self.rps.shape[1] != len(self.names):  # noqa: PLR2004 - a table
            raise InputError("rate history", f"shape {self.rps.shape} for {len(self.names)} models")
        if np.any(self.rps < 0):
            raise InputError("rate history", "a rate is negative")

    @property
    def per_day(self) -> int:
        """Intervals in a day."""
        return SECONDS_PER_DAY // self.interval_s

    def scaled_to_peak(self, peak_rps: Mapping[str, float]) -> "RateHistory":
        """The same shape with each model's highest rate set to the one given."""
        factors = [
            peak_rps[name] / highest if (highest := np.nanmax(self.rps[:, i])) > 0 else 0.0
            for i, name in enumerate(self.names)
        ]
        return RateHistory(
            names=self.names, interval_s=self.interval_s, rps=self.rps * np.array(factors)
        )


def read_counts(path: Path, *, interval_s: int, series: Mapping[str, Sequence[str]]) -> RateHistory:
    """Read a table of counts per interval (`.csv`, `.csv.gz`).

    Args:
        path: one row per interval in time order, one count column per series.
        interval_s: length of an interval.
        series: model name to the columns whose counts together are its requests.

    Raises:
        InputError: no such file or column, or a cell that is no count.
    """
    columns = {column: column for own in series.values() for column in own}
    try:
        counts = parse_counts(text_lines(path), names=columns)
    except InputError as error:
        raise error if error.where == str(path) else InputError(str(path), str(error)) from error
    together = [np.sum([counts[column] for column in own], axis=0) for own in series.values()]
    rps = np.stack(together, axis=1) / interval_s
    return RateHistory(names=tuple(series), interval_s=interval_s, rps=rps)
