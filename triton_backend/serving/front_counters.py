"""What a front counts; published elsewhere, a few times a second."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(slots=True)
class FrontCounters:
    """Running totals since the front was loaded; offered = the sum of all others at rest."""

    offered: int = 0
    served: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0
    frames_refused: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    latency_sum_ms: float = 0.0

    def answered(self, latency_us: int, late: bool) -> None:  # noqa: FBT001  # a fact, not a mode
        """A request was answered with its outputs."""
        if late:
            self.late += 1
        else:
            self.served += 1
        latency_ms = latency_us / 1000
        self.latency[bisect_left(LATENCY_BOUNDS_MS, latency_ms)] += 1
        self.latency_sum_ms += latency_ms
