"""What is refused at the door because not even an ideal server could answer it in time.

The scheduler reserves ahead: at several times the planned rate every head of the line is at the
brink of its deadline, only small batches still fit, and small batches serve less than large ones,
so goodput would fall as the offer rises. While the offer of a model is above its capacity, a
request is therefore refused when the work admitted before it already fills its time.

Not here: anything at rates that the plan can carry; there the scheduler alone decides.
"""

from dataclasses import dataclass
from math import exp

from triton_backend.core.plan import ModelPlan

# An offer is an overload when its mean over the last SLOs exceeds the capacity. At full load that
# happens by chance, and hardly matters: then the work admitted seldom fills a request's time.
OVERLOAD_FACTOR = 1.0
MEMORY_SLOS = 3
# Share of the time between arrival and deadline, beyond the run itself, that may be queued work.
FILLED_SHARE = 0.75
US_PER_S = 1e6
OVERLOAD = "overload"  # how such drops are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request the core was never told of, for the event file; `model` is its number."""

    now_us: int
    model: int
    deadline_us: int
    samples: int


class Admission:
    """The work of one model that is admitted and not yet done, as an ideal server would do it."""

    def __init__(self, model: ModelPlan) -> None:
        self._sample_us = US_PER_S / capacity_rps(model)
        self._path_us = min(p.latency_us for p in model.pipelines)
        self._memory_us = MEMORY_SLOS * model.slo_us
        self._batching = max(p.batch for p in model.pipelines) > 1
        self._offered = 0.0  # samples in the memory, faded
        self._work_us = 0.0
        self._last_us = 0

    def admits(self, samples: int, deadline_us: int, now_us: int) -> bool:
        """Whether a request is handed to the scheduler; it counts as work from then on.

        Args:
            samples: in the request.
            deadline_us: as the scheduler would be told it.
            now_us: the instant of its arrival; never goes back.
        """
        gap_us = max(now_us - self._last_us, 0)
        self._last_us = now_us
        self._offered = self._offered * exp(-gap_us / self._memory_us) + samples
        self._work_us = max(self._work_us - gap_us, 0.0)
        free_us = FILLED_SHARE * (deadline_us - now_us - self._path_us)
        if self._overloaded() and self._work_us > max(free_us, 0.0):
            return False
        self._work_us += samples * self._sample_us
        return True

    def _overloaded(self) -> bool:
        """Batches of one lose nothing when they are late, so nothing is gained by refusing them."""
        offered_us = self._offered * self._sample_us
        return self._batching and offered_us > OVERLOAD_FACTOR * self._memory_us

    def best_finish_us(self, now_us: int) -> int:
        """When a request that arrives now would be done at best."""
        return now_us + round(self._work_us) + self._path_us


def capacity_rps(model: ModelPlan) -> float:
    """Samples per second that the vGPUs of a model can run in whole batches, links apart."""
    by_stages = sum(
        min(
            stage.vgpus * pipeline.batch * US_PER_S / stage.latency_us_by_batch[pipeline.batch - 1]
            for stage in pipeline.stages
        )
        for pipeline in model.pipelines
    )
    return max(by_stages, model.throughput_rps)
