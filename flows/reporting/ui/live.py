"""The running system now, worked out of samples of its metrics.

Here: totals become rates, attainment, percentiles and utilisation over a short window, and one
row per model and minute for the last day. Counters that start over (a front was reloaded) count
from 0. Not here: fetching samples (`watch`), history from the warehouse (`history`).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.system_metrics import Metrics, by_label

WINDOW_S = 10.0
MINUTE_S = 60
DAY_MINUTES = 24 * 60
WHOLE_MINUTE_S = (50, 70)
OUTCOMES = ("offered", "served", "late", "failed")


@dataclass(frozen=True, slots=True)
class Sample:
    """Metrics at an instant (seconds since 1970)."""

    at_s: float
    metrics: Metrics


@dataclass(slots=True)
class LiveView:
    """Samples of the last seconds, and minutes of the last day."""

    window_s: float = WINDOW_S
    _samples: deque[Sample] = field(default_factory=deque[Sample])
    _minute_start: Sample | None = None
    _minutes: deque[dict[str, Any]] = field(default_factory=deque[dict[str, Any]])

    def add(self, sample: Sample) -> None:
        """Take a sample; instants must not go back."""
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[1].at_s >= self.window_s:  # noqa: PLR2004 - two samples make a rate
            self._samples.popleft()
        if self._minute_start is None:
            self._minute_start = sample
        elif sample.at_s // MINUTE_S > self._minute_start.at_s // MINUTE_S:
            self._close_minute(sample)

    def closed_minutes(self) -> list[dict[str, Any]]:
        """Closed minutes: `minute` (seconds since 1970) and per model its counts and p99."""
        return list(self._minutes)

    def now(self) -> dict[str, Any]:
        """Everything the page shows of this moment; no models before the second sample."""
        if not self._samples:
            return {"models": {}, "pools": {}, "plan": None}
        last, first = self._samples[-1], self._samples[0]
        span_s = last.at_s - first.at_s
        return {
            "at_s": last.at_s,
            "plan": _plan(last.metrics),
            "rollout": _state(last.metrics),
            "workers_up": _single(last.metrics, "workers_up"),
            "in_flight": _single(last.metrics, "in_flight_batches"),
            "models": _models(first.metrics, last.metrics, span_s) if span_s > 0 else {},
            "pools": _pools(first.metrics, last.metrics, span_s) if span_s > 0 else {},
            "drops": _drops(last.metrics),
        }

    def _close_minute(self, sample: Sample) -> None:
        assert self._minute_start is not None
        start, self._minute_start = self._minute_start, sample
        span_s = sample.at_s - start.at_s
        if not WHOLE_MINUTE_S[0] < span_s < WHOLE_MINUTE_S[1]:
            return  # the first minute, or one with a gap in it, would be drawn as a dip or a peak
        models = _models(start.metrics, sample.metrics, span_s)
        minute = int(start.at_s // MINUTE_S) * MINUTE_S
        self._minutes.append({"minute": minute, "models": models})
        while len(self._minutes) > DAY_MINUTES:
            self._minutes.popleft()


def grown(before: Mapping[Any, float], after: Mapping[Any, float]) -> dict[Any, float]:
    """By how much counters grew; one that fell has started over."""
    return {
        key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value
        for key, value in after.items()
    }


def percentile_ms(buckets: Mapping[float, float], share: float) -> float | None:
    """A percentile from cumulative buckets (upper bound in ms: count), interpolated.

    The last bucket has no upper bound: what lies there is given as its lower bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0
    if total <= 0:
        return None
    wanted, low_bound, low_count = share * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted:
            if bound == float("inf"):
                return low_bound
            inside = (wanted - low_count) / (count - low_count) if count > low_count else 1.0
            return low_bound + (bound - low_bound) * inside
        low_bound, low_count = bound, count
    return low_bound


def _of(metrics: Metrics, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return by_label(metrics.get(name, {}), *labels)


def _single(metrics: Metrics, name: str) -> float | None:
    # After a takeover the dead scheduler's series stays until its model is reloaded.
    return max(metrics.get(name, {}).values(), default=None)


def _models(first: Metrics, last: Metrics, span_s: float) -> dict[str, Any]:
    counts = {
        name: grown(_of(first, f"requests_{name}", "model"), _of(last, f"requests_{name}", "model"))
        for name in OUTCOMES
    }
    dropped = grown(_of(first, "requests_dropped", "model"), _of(last, "requests_dropped", "model"))
    latency = grown(
        _of(first, "latency_seconds_bucket", "model", "le"),
        _of(last, "latency_seconds_bucket", "model", "le"),
    )
    latency_s = grown(
        _of(first, "latency_seconds_sum", "model"), _of(last, "latency_seconds_sum", "model")
    )
    queued = _of(last, "queue_requests", "model")
    models: dict[str, Any] = {}
    for key, offered in counts["offered"].items():
        buckets = {
            1e3 * float(le): value for (name, le), value in latency.items() if (name,) == key
        }
        served, late = counts["served"].get(key, 0.0), counts["late"].get(key, 0.0)
        done = served + late + counts["failed"].get(key, 0.0) + dropped.get(key, 0.0)
        models[key[0]] = {
            "offered": offered,
            "served": served,
            "late": late,
            "failed": counts["failed"].get(key, 0.0),
            "dropped": dropped.get(key, 0.0),
            "offered_rps": offered / span_s,
            "served_rps": served / span_s,
            # of those that have ended: what still waits has neither been kept nor missed
            "attainment": served / done if done else None,
            "p50_ms": percentile_ms(buckets, 0.5),
            "p99_ms": percentile_ms(buckets, 0.99),
            "mean_ms": 1e3 * latency_s.get(key, 0.0) / (served + late) if served + late else None,
            "queued": queued.get(key, 0.0),
        }
    return models


def _pools(first: Metrics, last: Metrics, span_s: float) -> dict[str, float]:
    """By "model|pipeline|GPU class|stage".

    Busy time with a stage over the time of its pool's vGPUs.
    """
    labels = ("model", "pipeline", "gpu_class", "stage", "pool")
    busy_s = grown(
        _of(first, "stage_busy_seconds", *labels), _of(last, "stage_busy_seconds", *labels)
    )
    vgpus = _of(last, "pool_vgpus", "pool")
    return {
        "|".join(key[:-1]): min(busy / (vgpus[key[-1:]] * span_s), 1.0)
        for key, busy in busy_s.items()
        if vgpus.get(key[-1:])
    }


def _drops(metrics: Metrics) -> list[dict[str, Any]]:
    """All drops since the fronts were loaded, most frequent first."""
    series = _of(metrics, "requests_dropped", "model", "reason")
    rows = [{"model": m, "reason": r, "count": n} for (m, r), n in series.items() if n]
    return sorted(rows, key=lambda row: -float(row["count"]))


def _plan(metrics: Metrics) -> dict[str, str] | None:
    for (plan_id, generation), value in _of(metrics, "plan", "plan_id", "generation").items():
        if value:
            return {"plan_id": plan_id, "generation": generation}
    return None


def _state(metrics: Metrics) -> str | None:
    states = _of(metrics, "rollout_state", "state")
    return next((state for (state,), value in states.items() if value), None)
