"""Outcomes per model of the running system, read from its metrics endpoint, and judged."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flows.clock import Stopwatch
from flows.release.rollout.options import RolloutOptions
from flows.system_metrics import Labels, Metrics, MetricsError, by_label, read_all_metrics
from triton_backend.contract.decisions import DropReason

READ_SECONDS = 10
ENOUGH_REQUESTS = 50  # fewer say nothing about an attainment of 99 %
_NAMED = 3
Seen = TypeVar("Seen")
_OUTCOMES = ("served", "late", "dropped", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Requests by outcome since the fronts were loaded, and the sum of latencies (ms)."""

    served: int = 0
    late: int = 0
    dropped: int = 0
    failed: int = 0
    latency_sum_ms: float = 0.0

    @property
    def ended(self) -> int:
        """Requests that were answered, one way or another."""
        return self.served + self.late + self.dropped + self.failed

    @property
    def attainment(self) -> float:
        """Served in time / ended; 1 where nothing ended."""
        return self.served / self.ended if self.ended else 1.0

    def since(self, before: "Outcomes") -> "Outcomes":
        """The increase since `before`; a reloaded front counts from zero."""
        if self.ended < before.ended:
            return self
        return Outcomes(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__slots__}
        )


def looks(look: Callable[[], Seen], seconds: float, poll_seconds: float) -> Iterator[Seen]:
    """Every sight of a running system until this time is over.

    A look that fails is passed over, because the next one sees as much. The last one has no next
    one: it is taken once more.

    Raises:
        MetricsError: the end was not seen.
    """
    watch, missed = Stopwatch(), seconds > 0
    while watch.seconds() < seconds:
        time.sleep(min(poll_seconds, seconds))
        try:
            seen = look()
        except MetricsError:
            missed = True
        else:
            missed = False
            yield seen
    if missed:
        yield look()


def read_outcomes(metrics_urls: Sequence[str]) -> dict[str, Outcomes]:
    """Outcomes per model from the Prometheus endpoints of a system, one per gateway.

    Raises:
        MetricsError: none answers, or one not to the end.
    """
    return outcomes_of(read_all_metrics(metrics_urls, READ_SECONDS))


def outcomes_of(metrics: Metrics) -> dict[str, Outcomes]:
    """Outcomes per model from what a metrics endpoint says; no plan is judged by client quotas."""
    series = {name: _not_over_quota(metrics.get(f"requests_{name}", {})) for name in _OUTCOMES}
    counts = {name: by_label(values, "model") for name, values in series.items()}
    seconds = by_label(metrics.get("latency_seconds_sum", {}), "model")
    models = {key for values in (*counts.values(), seconds) for key in values}
    return {
        key[0]: Outcomes(
            **{name: int(values.get(key, 0)) for name, values in counts.items()},
            latency_sum_ms=1e3 * seconds.get(key, 0.0),
        )
        for key in sorted(models)
    }


def _not_over_quota(series: Mapping[Labels, float]) -> dict[Labels, float]:
    """Without requests that their client's quota refused, of which the plan can serve none."""
    refused = ("reason", DropReason.QUOTA.text)
    return {labels: count for labels, count in series.items() if refused not in labels}


def shared_outcomes_of(metrics: Metrics) -> dict[tuple[str, str], Outcomes]:
    """Outcomes per model and entry, where entries share a model's requests; without latencies."""
    series = by_label(metrics.get("shared_requests", {}), "model", "entry", "outcome")
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (model, entry, outcome), count in series.items():
        if outcome in _OUTCOMES:
            found.setdefault((model, entry), {})[outcome] = int(count)
    return {key: Outcomes(**counts) for key, counts in found.items()}


def breach_of(name: str, slo_ms: float, seen: Outcomes, options: RolloutOptions) -> str | None:
    """Why what was seen of a model is not good enough, or None."""
    if seen.ended < ENOUGH_REQUESTS:
        return None
    if seen.attainment < options.attainment_target:
        return (
            f"{name} attains {seen.attainment:.2%} of {seen.ended} requests, under"
            f" {options.attainment_target:.2%}"
        )
    mean_ms = seen.latency_sum_ms / max(seen.served + seen.late, 1)
    if mean_ms > options.latency_factor * slo_ms:
        return f"{name} takes {mean_ms:.1f} ms on average, over {options.latency_factor:g} SLOs"
    return None


def judgement(seen: Mapping[str, Outcomes], seconds: float) -> str:
    """How a plan without a breach did in this time, and the models whose requests were too few."""
    few = [f"{n} {each.ended}" for n, each in seen.items() if each.ended < ENOUGH_REQUESTS]
    held = f"attained its targets for {seconds:g} s"
    if not few:
        return held
    if len(few) == len(seen):
        held = f"in force for {seconds:g} s"
    names = ", ".join(few[:_NAMED]) + (f" and {len(few) - _NAMED} more" if few[_NAMED:] else "")
    return f"{held}; too few requests to judge (under {ENOUGH_REQUESTS}): {names}"
