"""Admission: a request is refused where not even an ideal server could answer it in time.

The scheduler reserves ahead: at several times the planned rate every head of a queue is at the
brink of its deadline, only small batches still fit, and small batches serve less than large ones,
so goodput would fall as the offer rises. While the offer of a model is above its capacity, a
request is therefore refused at once when the work admitted before it already fills its time.
Admission follows an ideal server: it does not see the backlog that a stall leaves behind, and only
a policy that drops heads for the sake of whole batches (`reservation-ahead`) gets rid of that.

One rule for the gateway and the simulator, over one row of numbers per queue.
Not here: anything at rates that the plan can carry; there the scheduler alone decides.
"""

from collections.abc import Sequence
from math import exp

import numpy as np

from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import Records, entry
from triton_backend.scheduler.policies.registry import queue_policies

# An offer is an overload when its mean over the last SLOs exceeds the capacity. At full load that
# happens by chance, and hardly matters: then the work admitted seldom fills a request's time.
OVERLOAD_FACTOR = 1.0
MEMORY_SLOS = 3
LEAST_RPS = 1e-6
# Share of the time between arrival and deadline, beyond the run itself, that may be queued work.
FILLED_SHARE = 0.75

ADMISSION = np.dtype(
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


def new_admission(plan: Plan, policy: str | None = None, *, late_too: bool = False) -> Records:
    """`ADMISSION` rows [queue], nothing offered yet.

    Nothing is refused for models of late binding, whose rule for heads keeps batches whole.

    Args:
        plan: what is served.
        policy: of all models; None: what the plan says of each.
        late_too: refuse for models of late binding nevertheless.
    """
    policies = queue_policies(plan, policy)
    rows = [
        (
            US_PER_S / max(capacity_rps(plan, model, pipelines), LEAST_RPS),
            min((p.latency_us for p in pipelines), default=0),
            MEMORY_SLOS * entry.budget_us,
            (late_too or policies[number].rules is None)
            and max((p.batch for p in pipelines), default=1) > 1,
            0.0,
            0.0,
            0.0,
        )
        for number, model in enumerate(plan.models)
        for entry in model.queues
        for pipelines in [[p for p in model.pipelines if p.entry in {None, entry.name}]]
    ]
    return np.asarray(rows, dtype=ADMISSION)


def no_admission() -> Records:
    """No rows: everything is admitted."""
    return np.zeros(0, dtype=ADMISSION)


@entry
def admits(rows: Records, queue: int, samples: int, deadline_us: int, now_us: int) -> bool:
    """Whether a request is handed to the scheduler; it counts as work from then on.

    `rows` [queue] are of `new_admission`; `now_us` is the instant of arrival and never goes back.
    """
    row = rows[queue]
    gap_us = max(now_us - row["last_us"], 0.0)
    row["last_us"] = now_us
    row["offered"] = row["offered"] * exp(-gap_us / row["memory_us"]) + samples
    row["work_us"] = max(row["work_us"] - gap_us, 0.0)
    slack_us = max(deadline_us - now_us - row["path_us"], 0.0)
    offered_us = row["offered"] * row["sample_us"]
    # Batches of one lose nothing when they are late, so nothing is gained by refusing them.
    overloaded = row["batching"] > 0 and offered_us > OVERLOAD_FACTOR * row["memory_us"]
    if overloaded and row["work_us"] > FILLED_SHARE * slack_us:
        return False
    if row["work_us"] <= slack_us:  # else the scheduler will drop it, or another in its place
        row["work_us"] += samples * row["sample_us"]
    return True


def best_finish_us(rows: Records, queue: int, now_us: int) -> int:
    """When a request that arrives now would be done at best."""
    return now_us + round(float(rows[queue]["work_us"] + rows[queue]["path_us"]))


def capacity_rps(
    plan: Plan, model: ModelPlan, pipelines: Sequence[Pipeline] | None = None
) -> float:
    """Samples per second that the vGPUs of a model can run in whole batches, links apart.

    Of all its pipelines, and at least what the plan promises; or of some.

    Of a pool that several stages share, a stage has the part that its promised work is of all.
    """
    work: dict[str, float] = {}
    stages: dict[str, int] = {}
    for _, pipeline, stage, pool in plan.placed_stages():
        work[pool.name] = work.get(pool.name, 0.0) + _work(pipeline, stage)
        stages[pool.name] = stages.get(pool.name, 0) + 1

    def vgpus(pipeline: Pipeline, stage: Stage) -> float:
        pool = plan.pool_of(stage)
        if stages[pool.name] == 1 or not work[pool.name]:
            return pool.vgpus / stages[pool.name]
        return pool.vgpus * _work(pipeline, stage) / work[pool.name]

    by_stages = sum(
        min(
            vgpus(pipeline, stage)
            * pipeline.batch
            * US_PER_S
            / stage.latency_us_by_batch[pipeline.batch - 1]
            for stage in pipeline.stages
        )
        for pipeline in (model.pipelines if pipelines is None else pipelines)
    )
    if pipelines is None or len(pipelines) == len(model.pipelines):
        return max(by_stages, model.throughput_rps)
    return max(by_stages, sum(p.throughput_rps for p in pipelines))


def _work(pipeline: Pipeline, stage: Stage) -> float:
    """Time (µs) of a vGPU that a stage's promised rate takes a second."""
    return pipeline.throughput_rps * stage.latency_us / pipeline.batch
