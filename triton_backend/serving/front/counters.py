"""What a front counts; published elsewhere, a few times a second."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from triton_backend.contract.units import us_to_ms

# Latencies are counted in steps of 19 % (a quarter of a doubling) from SLO / 32 to 4 x SLO.
STEPS_PER_DOUBLING = 4
DOUBLINGS_BELOW_SLO, DOUBLINGS_ABOVE_SLO = 5, 2


def latency_bounds_ms(slo_us: int) -> tuple[float, ...]:
    """Upper bounds of the latency buckets of a model, one of them its SLO, in milliseconds."""
    steps = range(
        -DOUBLINGS_BELOW_SLO * STEPS_PER_DOUBLING, DOUBLINGS_ABOVE_SLO * STEPS_PER_DOUBLING + 1
    )
    return tuple(us_to_ms(slo_us) * 2.0 ** (step / STEPS_PER_DOUBLING) for step in steps)


@dataclass(slots=True)
class FrontCounters:
    """Running totals since the front was loaded; offered = the sum of all others at rest.

    Attributes:
        bounds_ms: of the latency buckets; `latency` has one more, for what lies above them all.
    """

    bounds_ms: tuple[float, ...]
    offered: int = 0
    served: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0
    frames_refused: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    latency: list[int] = field(init=False)
    latency_sum_ms: float = 0.0

    def __post_init__(self) -> None:
        self.latency = [0] * (len(self.bounds_ms) + 1)

    def answered(self, latency_us: int, late: bool) -> None:  # noqa: FBT001  # a fact, not a mode
        """A request was answered with its outputs."""
        if late:
            self.late += 1
        else:
            self.served += 1
        latency_ms = us_to_ms(latency_us)
        self.latency[bisect_left(self.bounds_ms, latency_ms)] += 1
        self.latency_sum_ms += latency_ms
