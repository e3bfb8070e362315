"""What is refused at the door because not even an ideal server could answer it in time.

The scheduler reserves ahead: at several times the planned rate every head of the line is at the
brink of its deadline, only small batches still fit, and small batches serve less than large ones,
so goodput would fall as the offer rises. While the offer of a model is above its capacity, a
request is therefore refused when the work admitted before it already fills its time, and told so at
once. The door follows an ideal server: a backlog that a stall leaves behind it does not see, and only
a policy that drops heads for the sake of whole batches (`reservation-ahead`) gets rid of it.

One rule for the gateway and the simulator, over one row of numbers per model.
Not here: anything at rates that the plan can carry; there the scheduler alone decides.
"""

from collections.abc import Iterable
from math import exp

import numpy as np

from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import Records, entry

# An offer is an overload when its mean over the last SLOs exceeds the capacity. At full load that
# happens by chance, and hardly matters: then the work admitted seldom fills a request's time.
OVERLOAD_FACTOR = 1.0
MEMORY_SLOS = 3
# Share of the time between arrival and deadline, beyond the run itself, that may be queued work.
FILLED_SHARE = 0.75

DOOR = np.dtype(
    [
        (name, np.float64)
        for name in (
            "sample_us",  # an ideal server takes for one sample
            "path_us",  # the shortest run of a request
            "memory_us",
            "batching",  # 1 where batches may hold more than one sample
            "offered",  # samples in the memory, faded
            "work_us",  # admitted and not yet done, as an ideal server would do it
            "last_us",
        )
    ]
)


def new_doors(models: Iterable[ModelPlan]) -> Records:
    """One `DOOR` row per model, nothing offered yet."""
    rows = [
        (
            US_PER_S / capacity_rps(model),
            min(p.latency_us for p in model.pipelines),
            MEMORY_SLOS * model.slo_us,
            max(p.batch for p in model.pipelines) > 1,
            0.0,
            0.0,
            0.0,
        )
        for model in models
    ]
    return np.asarray(rows, dtype=DOOR)


@entry
def admits(doors: Records, model: int, samples: int, deadline_us: int, now_us: int) -> bool:
    """Whether a request is handed to the scheduler; it counts as work from then on.

    `now_us` is the instant of its arrival and never goes back.
    """
    door = doors[model]
    gap_us = max(now_us - door["last_us"], 0.0)
    door["last_us"] = now_us
    door["offered"] = door["offered"] * exp(-gap_us / door["memory_us"]) + samples
    door["work_us"] = max(door["work_us"] - gap_us, 0.0)
    slack_us = max(deadline_us - now_us - door["path_us"], 0.0)
    offered_us = door["offered"] * door["sample_us"]
    # Batches of one lose nothing when they are late, so nothing is gained by refusing them.
    overloaded = door["batching"] > 0 and offered_us > OVERLOAD_FACTOR * door["memory_us"]
    if overloaded and door["work_us"] > FILLED_SHARE * slack_us:
        return False
    if door["work_us"] <= slack_us:  # else the scheduler will drop it, or another in its place
        door["work_us"] += samples * door["sample_us"]
    return True


def best_finish_us(doors: Records, model: int, now_us: int) -> int:
    """When a request that arrives now would be done at best."""
    return now_us + round(float(doors[model]["work_us"] + doors[model]["path_us"]))


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
