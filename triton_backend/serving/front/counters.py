"""What a front counts; published elsewhere, a few times a second."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from triton_backend.contract.units import US_PER_S

# Latencies are counted in steps of 19 % (a quarter of a doubling) from SLO / 32 to 4 x SLO.
STEPS_PER_DOUBLING = 4
DOUBLINGS_BELOW_SLO, DOUBLINGS_ABOVE_SLO = 5, 2


def latency_bounds_s(slo_us: int) -> tuple[float, ...]:
    """Upper bounds of the latency buckets of a model, one of them its SLO, in seconds."""
    steps = range(
        -DOUBLINGS_BELOW_SLO * STEPS_PER_DOUBLING, DOUBLINGS_ABOVE_SLO * STEPS_PER_DOUBLING + 1
    )
    return tuple(slo_us / US_PER_S * 2.0 ** (step / STEPS_PER_DOUBLING) for step in steps)


@dataclass(slots=True)
class FrontCounters:
    """Running totals since the front was loaded; offered = the sum of all others at rest.

    Attributes:
        internal_errors: errors of ours that a loop of the front survived.
        bounds_s: of the latency buckets; there is one bucket more, for what lies above them all.
        answered_by_latency: answered requests by bucket; `latency_us` the sums of their latencies.
    """

    bounds_s: tuple[float, ...]
    offered: int = 0
    served: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0
    frames_refused: int = 0
    internal_errors: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    answered_by_latency: list[int] = field(init=False)
    latency_us: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.answered_by_latency = [0] * (len(self.bounds_s) + 1)
        self.latency_us = [0] * (len(self.bounds_s) + 1)

    def answered(self, latency_us: int, late: bool) -> None:  # noqa: FBT001  # a fact, not a mode
        """A request was answered with its outputs."""
        if late:
            self.late += 1
        else:
            self.served += 1
        bucket = bisect_left(self.bounds_s, latency_us / US_PER_S)
        self.answered_by_latency[bucket] += 1
        self.latency_us[bucket] += latency_us
