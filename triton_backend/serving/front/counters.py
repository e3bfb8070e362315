"""Counters of a front; published elsewhere, a few times a second."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from triton_backend.contract.units import US_PER_S
from triton_backend.serving.buckets import Buckets

# Latencies are counted in steps of 19 % (a quarter of a doubling) from SLO / 32 to 4 x SLO.
STEPS_PER_DOUBLING = 4
SIZE_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
DOUBLINGS_BELOW_SLO, DOUBLINGS_ABOVE_SLO = 5, 2


def latency_bounds_s(slo_us: int) -> tuple[float, ...]:
    """Upper bounds of the latency buckets of a model, one of them its SLO, in seconds."""
    steps = range(
        -DOUBLINGS_BELOW_SLO * STEPS_PER_DOUBLING, DOUBLINGS_ABOVE_SLO * STEPS_PER_DOUBLING + 1
    )
    return tuple(slo_us / US_PER_S * 2.0 ** (step / STEPS_PER_DOUBLING) for step in steps)


@dataclass
class FrontCounters:
    """Running totals since the front was loaded; offered = the sum of all others at rest.

    Those of `low` are apart; those of `shares` are counted here too.

    Attributes:
        internal_errors: errors of ours that a loop of the front survived.
        bounds_s: of the buckets of times.
        latencies: of answered requests (µs).
        deferred: how long the first request of a batch of late binding waited (µs).
        sizes: samples of those batches.
        guard_us: what is kept back of a request that allows the model's SLO.
        shares: of requests by the name of the entry that took them, where entries share them.
    """

    bounds_s: tuple[float, ...]
    offered: int = 0
    served: int = 0
    late: int = 0
    failed: int = 0
    refused: int = 0
    frames_refused: int = 0
    internal_errors: int = 0
    guard_us: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    shares: dict[str, "FrontCounters"] = field(default_factory=dict[str, "FrontCounters"])
    latencies: Buckets = field(init=False)
    deferred: Buckets = field(init=False)
    sizes: Buckets = field(default_factory=lambda: Buckets(SIZE_BOUNDS))

    def __post_init__(self) -> None:
        self.latencies = Buckets(self.bounds_s, US_PER_S)
        self.deferred = Buckets(self.bounds_s, US_PER_S)

    @cached_property
    def low(self) -> "FrontCounters":
        """Of low requests, which count nowhere else."""
        return FrontCounters(self.bounds_s)

    def of_share(self, name: str) -> "FrontCounters":
        """Of the requests that an entry takes by its share."""
        if name not in self.shares:
            self.shares.setdefault(name, FrontCounters(self.bounds_s))
        return self.shares[name]

    def answered(self, latency_us: int, late: bool) -> None:  # noqa: FBT001  # a fact, not a mode
        """A request was answered with its outputs."""
        if late:
            self.late += 1
        else:
            self.served += 1
        self.latencies.observe(latency_us)

    def gathered(self, samples: int, waited_us: int) -> None:
        """A batch of late binding was gathered; its first request had waited so long."""
        self.sizes.observe(samples)
        self.deferred.observe(waited_us)
