"""What the running system counts, read from its metrics endpoint: outcomes per model."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from triton_backend.contract.errors import PoolPipeError

READ_SECONDS = 10
ENOUGH_REQUESTS = 50  # fewer say nothing about an attainment of 99 %
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
        """What came after `before`; a front that was loaded anew counts from zero."""
        if self.ended < before.ended:
            return self
        return Outcomes(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__slots__}
        )


def read_outcomes(metrics_url: str) -> dict[str, Outcomes]:
    """Outcomes per model from a Prometheus endpoint.

    Raises:
        PoolPipeError: it does not answer.
    """
    try:
        with urllib.request.urlopen(metrics_url, timeout=READ_SECONDS) as answer:  # noqa: S310 - an address of our own state file
            return parse_outcomes(answer.read().decode())
    except (OSError, urllib.error.URLError) as error:
        raise PoolPipeError(f"no metrics from {metrics_url}: {error}") from error


def parse_outcomes(text: str) -> dict[str, Outcomes]:
    """Outcomes per model from the text of a Prometheus page."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, model = sample.name.removesuffix("_total"), sample.labels.get("model")
            kind = name.removeprefix("poolpipe_requests_")
            if model is None:
                continue
            if name == "poolpipe_latency_ms_sum":
                kind = "latency_sum_ms"
            if kind in {*_OUTCOMES, "latency_sum_ms"}:
                row = found.setdefault(model, {})
                row[kind] = row.get(kind, 0.0) + sample.value
    return {model: _outcomes(row) for model, row in found.items()}


def _outcomes(row: Mapping[str, float]) -> Outcomes:
    counts = {name: int(row.get(name, 0)) for name in _OUTCOMES}
    return Outcomes(**counts, latency_sum_ms=row.get("latency_sum_ms", 0.0))
