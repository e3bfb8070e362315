"""Outcomes of every request, and their sums.

Here: the record array of a run, its file form, counts, latency percentiles and histogram. Latency
runs from the *intended* send time, so that a stalled sender or server is not forgiven
(coordinated omission). Not here: sending and receiving.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.units import US_PER_MS, us_to_ms, us_to_s

RECORD = np.dtype(
    [
        ("model", np.int16),
        ("entry", np.int16),  # number in its model
        ("outcome", np.uint8),
        ("intended_us", np.int64),
        ("sent_us", np.int64),
        ("done_us", np.int64),
    ]
)
HISTOGRAM_EDGES_MS = np.logspace(-1, 5, 6 * 20 + 1)  # 0.1 ms .. 100 s, 20 bins a decade
MESSAGES_KEPT = 5


class RequestOutcome(IntEnum):
    """The outcome of a request; offered = served + late + dropped + failed."""

    SERVED = 1  # answered within its deadline
    LATE = 2  # answered after it
    DROPPED = 3  # answered that its deadline cannot be met, or, a little after it, was not
    FAILED = 4  # any other error, a wrong answer, or none


@dataclass(slots=True, kw_only=True)
class Checks:
    """Answers compared with the expected ones.

    `without_optional` of them go without an optional module.
    """

    responses: int = 0
    wrong: int = 0
    without_optional: int = 0
    max_relative_error: float = 0.0


@dataclass(slots=True, kw_only=True)
class LoadRun:
    """A finished (or interrupted) run.

    Attributes:
        records: one row of `RECORD` per request sent; times in µs since the run's start.
        deadline_us: per model, what `late` was judged by where its entries have no budgets.
        entries: names of a model's entries, where it has some.
        started_monotonic_us: the run's start on the host's monotonic clock.
        messages: text of errors and how often each came.
        sent_again: how often a request was sent once more.
    """

    models: tuple[str, ...]
    deadline_us: tuple[int, ...]
    records: NDArray[np.void]
    started_monotonic_us: int
    duration_us: int
    messages: Counter[str] = field(default_factory=Counter[str])
    checks: Mapping[str, Checks] = field(default_factory=dict[str, Checks])
    sent_again: int = 0
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def save(self, path: Path) -> None:
        """Write records, model names and deadlines as a compressed `.npz`, or no file.

        Raises:
            OSError: it cannot be written.
        """
        # Not into the file: numpy adds `.npz` to a name that lacks it, and what it leaves half
        # written where a disk is full complains once more when it is collected.
        whole = BytesIO()
        np.savez_compressed(
            whole,
            records=self.records,
            models=np.asarray(self.models),
            deadline_us=np.asarray(self.deadline_us),
            started_monotonic_us=np.asarray(self.started_monotonic_us),
        )
        try:
            path.write_bytes(whole.getbuffer())
        except OSError:
            if path.is_file():
                path.unlink()
            raise

    def summary(self) -> dict[str, Any]:
        """The object of `load --json`."""
        lag_us = self.records["sent_us"] - self.records["intended_us"]
        wall_us = int(self.records["done_us"].max()) if len(self.records) else 0
        return {
            "models": {
                name: _model_summary(self.records[self.records["model"] == number])
                | _check_summary(self.checks.get(name))
                for number, name in enumerate(self.models)
            },
            "entries": {
                name: {
                    entry: _model_summary(self._of_entry(self.models.index(name), number))
                    for number, entry in enumerate(entries)
                }
                for name, entries in self.entries.items()
            },
            "duration_s": us_to_s(self.duration_us),
            "offered_rps": len(self.records) / us_to_s(self.duration_us),
            "wall_seconds": us_to_s(wall_us),
            "send_lag_ms": _percentiles(lag_us) | {"max": us_to_ms(int(lag_us.max(initial=0)))},
            "sent_again": self.sent_again,
            "messages": dict(self.messages.most_common(MESSAGES_KEPT)),
        }

    def _of_entry(self, model: int, entry: int) -> NDArray[np.void]:
        chosen = (self.records["model"] == model) & (self.records["entry"] == entry)
        return self.records[chosen]


def _model_summary(rows: NDArray[np.void]) -> dict[str, Any]:
    counts = {o.name.lower(): int(np.sum(rows["outcome"] == o)) for o in RequestOutcome}
    answered = rows[np.isin(rows["outcome"], [RequestOutcome.SERVED, RequestOutcome.LATE])]
    latency_us = answered["done_us"] - answered["intended_us"]
    offered = len(rows)
    return {
        "offered": offered,
        **counts,
        "attainment": counts["served"] / offered if offered else None,
        "latency_ms": _percentiles(latency_us),
        "histogram": _histogram(latency_us),
    }


def _percentiles(values_us: NDArray[np.int64]) -> dict[str, float | None]:
    if len(values_us) == 0:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(values_us, [50, 99])
    return {"p50": us_to_ms(float(p50)), "p99": us_to_ms(float(p99))}


def _histogram(latency_us: NDArray[np.int64]) -> dict[str, list[float]]:
    """Counts between `edges_ms`, without the empty bins at either end."""
    edges_ms = HISTOGRAM_EDGES_MS
    inside = np.clip(latency_us / US_PER_MS, edges_ms[0], edges_ms[-1])
    counts, _ = np.histogram(inside, bins=edges_ms)
    used = np.flatnonzero(counts)
    if len(used) == 0:
        return {"edges_ms": [], "counts": []}
    first, last = int(used[0]), int(used[-1]) + 1
    return {
        "edges_ms": [round(float(edge), 4) for edge in edges_ms[first : last + 1]],
        "counts": [int(count) for count in counts[first:last]],
    }


def _check_summary(checks: Checks | None) -> dict[str, Any]:
    if checks is None:
        return {}
    return {
        "checked": {
            "responses": checks.responses,
            "wrong": checks.wrong,
            "without_optional": checks.without_optional,
            "max_relative_error": checks.max_relative_error,
        }
    }
