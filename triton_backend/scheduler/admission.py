"""Admission: a request is refused where not even an ideal server could answer it in time.

The scheduler reserves ahead: at several times the planned rate every head of a queue is at the
brink of its deadline, only small batches still fit, and small batches serve less than large ones,
so goodput would fall as the offer rises. While the offer of a model is above its capacity, a
request is therefore refused at once when the work admitted before it already fills its time.
Admission follows an ideal server: it does not see the backlog that a stall leaves behind, and only
a policy that drops heads for the sake of whole batches (`reservation-ahead`) gets rid of that.

One rule for the gateway and the simulator, over one row of numbers per queue. A job of an
application is refused by the scarcest of its modules, before any of them takes it. A queue that
jobs enter refuses a growing share of all that is offered to it, by any client, as its work grows:
at one threshold, those with more time would fill it up to where the others never get in, and a job
that has to get in at several would hardly ever. Not here: anything at rates that the plan can
carry; there the scheduler alone decides.
"""

from collections.abc import Callable, Sequence
from math import exp, inf

import numpy as np

from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import Record, Records, entry, inlined
from triton_backend.scheduler.policies.registry import queue_policies

# An offer is an overload when its mean over the last SLOs exceeds the capacity. At full load that
# happens by chance, and hardly matters: then the work admitted seldom fills a request's time.
OVERLOAD_FACTOR = 1.0
MEMORY_SLOS = 3
LEAST_RPS = 1e-6
# Share of the time between arrival and deadline, beyond the run itself, that may be queued work.
FILLED_SHARE = 0.75
# Where jobs enter, none is refused until the work fills this share.
ALL_SHARE = 0.25
# The ideal server of a queue that jobs enter is so much slower than its vGPUs. What waits there
# beyond its belief melts away then; else it would stay, and eat the time that the modules to come
# need for whole batches.
JOBS_SLOWNESS = 1.05

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
            # where jobs enter: time for others' work of the one that the plan leaves least; else
            # inf
            "common_us",
            "credit",  # of a request, where a share is let in
            "slowness",  # of the ideal server, whose vGPUs take 1
        )
    ]
)


WORK = np.dtype(
    [
        ("application", np.int64),
        ("queue", np.int64),
        ("rows", np.float64),  # expected per sample of a job
        ("beside_us", np.float64),  # the least way through the modules before and after it
        ("credit", np.float64),  # of a job, at its first module
    ]
)


def new_admission(
    plan: Plan,
    policy: str | None = None,
    *,
    late_too: bool = False,
    guard_us: Callable[[int], int] = lambda _: 0,
) -> Records:
    """`ADMISSION` rows [queue], nothing offered yet.

    Nothing is refused for models of late binding, whose rule for heads keeps batches whole.

    Args:
        plan: what is served.
        policy: of all models; None: what the plan says of each.
        late_too: refuse for models of late binding nevertheless.
        guard_us: what of an SLO is kept back from the deadlines that are announced.
    """
    policies = queue_policies(plan, policy)
    rows = [
        (
            US_PER_S / max(capacity_rps(plan, model, pipelines, alone=True), LEAST_RPS),
            min((p.latency_us for p in pipelines), default=0),
            MEMORY_SLOS * entry.budget_us,
            (late_too or policies[number].rules is None)
            and max((p.batch for p in pipelines), default=1) > 1,
            0.0,
            0.0,
            0.0,
            inf,
            0.0,
            1.0,
        )
        for number, model in enumerate(plan.models)
        for entry in model.queues
        for pipelines in [[p for p in model.pipelines if p.entry in {None, entry.name}]]
    ]
    made = np.asarray(rows, dtype=ADMISSION)
    _share_with_jobs(made, plan, guard_us)
    return made


def _share_with_jobs(rows: Records, plan: Plan, guard_us: Callable[[int], int]) -> None:
    """Slow down the queues that jobs enter.

    Their `common_us` is of the one that the plan leaves least, or one batch's.
    """
    entries = [(model, entry) for model in plan.models for entry in model.queues]
    for work in job_work(plan):
        slo_us = plan.applications[int(work["application"])].application.slo_us
        model, entry = entries[int(work["queue"])]
        row = rows[work["queue"]]
        times_us = (
            slo_us - guard_us(slo_us) - work["beside_us"],
            entry.budget_us - guard_us(entry.budget_us),
        )
        batch_us = max((p.batch for p in model.pipelines), default=1) * row["sample_us"]
        least_us = max(min(times_us) - row["path_us"], batch_us)
        row["common_us"] = min(row["common_us"], least_us)
    rows["slowness"][rows["common_us"] < inf] = JOBS_SLOWNESS


def no_admission() -> Records:
    """No rows: everything is admitted."""
    return np.zeros(0, dtype=ADMISSION)


def job_work(plan: Plan) -> Records:
    """`WORK` rows [module]: what a job of each application brings to every queue."""
    queues = {
        model.name: numbers[0] for model, numbers in zip(plan.models, plan.queues(), strict=True)
    }
    rows: list[tuple[int, int, float, float, float]] = []
    for number, planned in enumerate(plan.applications):
        application = planned.application
        least = {
            module.name: 0
            if module.optional
            else min((p.latency_us for p in plan.model(module.model).pipelines), default=0)
            for module in application.modules
        }
        heads, tails = application.heads(least), application.tails(least)
        rows += [
            (number, queues[m.model], m.rows_per_request, heads[m.name] + tails[m.name], 0.0)
            for m in application.modules
        ]
    return np.asarray(rows, dtype=WORK)


@entry
def admits_job(
    rows: Records, work: Records, first: int, samples: int, deadline_us: int, now_us: int
) -> bool:
    """True if a job is handed to the scheduler.

    Whether the scarcest of its modules' queues admits it. It counts as work of every one of them
    then, as many rows as are expected; refused, of none. `first` is the row of its first module in
    `work`.
    """
    end = first
    while end < len(work) and work[end]["application"] == work[first]["application"]:
        end += 1
    admitted, share = True, 1.0
    for module in range(first, end):
        row, brings = rows[work[module]["queue"]], work[module]["rows"] * samples
        slack_us = _offer(row, brings, now_us, deadline_us - work[module]["beside_us"])
        if _refuses(row, slack_us):
            admitted = False
        share = min(share, _share(row))
    if admitted and _has_credit(work[first], share):
        for module in range(first, end):
            row, brings = rows[work[module]["queue"]], work[module]["rows"] * samples
            slack_us = max(deadline_us - work[module]["beside_us"] - now_us - row["path_us"], 0.0)
            if row["work_us"] <= slack_us:
                row["work_us"] += brings * row["sample_us"]
        return True
    return False


@entry
def admits(rows: Records, queue: int, samples: int, deadline_us: int, now_us: int) -> bool:
    """True if a request is handed to the scheduler; it counts as work from then on.

    `rows` [queue] are of `new_admission`; `now_us` is the instant of arrival and never goes back.
    """
    row = rows[queue]
    slack_us = _offer(row, samples, now_us, deadline_us)
    if _refuses(row, slack_us) or not _has_credit(row, _share(row)):
        return False
    if row["work_us"] <= slack_us:  # else the scheduler will drop it, or another in its place
        row["work_us"] += samples * row["sample_us"]
    return True


@inlined
def _offer(row: Record, samples: float, now_us: int, deadline_us: float) -> float:
    """Samples are offered to a queue; returns how much of the time left may be others' work."""
    gap_us = max(now_us - row["last_us"], 0.0)
    row["last_us"] = now_us
    row["offered"] = row["offered"] * exp(-gap_us / row["memory_us"]) + samples
    row["work_us"] = max(row["work_us"] - gap_us / row["slowness"], 0.0)
    return max(deadline_us - now_us - row["path_us"], 0.0)


@inlined
def _refuses(row: Record, slack_us: float) -> bool:
    """True if a queue is overloaded and the work before a request already fills its time."""
    return _overloaded(row) and row["work_us"] > FILLED_SHARE * slack_us


@inlined
def _overloaded(row: Record) -> bool:
    """True if more is offered than a queue's vGPUs carry."""
    offered_us = row["offered"] * row["sample_us"]
    # Batches of one lose nothing when they are late, so nothing is gained by refusing them.
    return row["batching"] > 0 and offered_us > OVERLOAD_FACTOR * row["memory_us"]


@inlined
def _share(row: Record) -> float:
    """Share of what is offered that a queue lets in where jobs enter it.

    All at little work, none at much.
    """
    if row["common_us"] == inf or not _overloaded(row):
        return 1.0
    filled = row["work_us"] / row["common_us"]
    return min(max((FILLED_SHARE - filled) / (FILLED_SHARE - ALL_SHARE), 0.0), 1.0)


@inlined
def _has_credit(row: Record, share: float) -> bool:
    """True if this one is let in of those of its kind, of which this share is, evenly spread."""
    row["credit"] = min(row["credit"] + share, 1.0)
    if row["credit"] < 1.0:
        return False
    row["credit"] -= 1.0
    return True


def best_finish_us(rows: Records, queue: int, now_us: int) -> int:
    """When a request that arrives now would be done at best."""
    return now_us + round(float(rows[queue]["work_us"] + rows[queue]["path_us"]))


def capacity_rps(
    plan: Plan,
    model: ModelPlan,
    pipelines: Sequence[Pipeline] | None = None,
    *,
    alone: bool = False,
) -> float:
    """Samples per second that the vGPUs of a model can run in whole batches, links apart.

    Of all its pipelines, and at least what the plan promises; or of some.

    Of a pool that several stages share, a stage has the part that its promised work is of all. A
    variant that answers `alone` for its name has the parts of all of them.
    """
    work: dict[str, float] = {}
    of_name: dict[str, float] = {}
    stages: dict[str, int] = {}
    variants = _variants(plan, model.name) if alone else set[str]()
    for placed, pipeline, stage, pool in plan.placed_stages():
        work[pool.name] = work.get(pool.name, 0.0) + _work(pipeline, stage)
        stages[pool.name] = stages.get(pool.name, 0) + 1
        if placed.name in variants:
            of_name[pool.name] = of_name.get(pool.name, 0.0) + _work(pipeline, stage)

    def vgpus(pipeline: Pipeline, stage: Stage) -> float:
        pool = plan.pool_of(stage)
        if stages[pool.name] == 1 or not work[pool.name]:
            return pool.vgpus / stages[pool.name]
        own = of_name[pool.name] if variants else _work(pipeline, stage)
        return pool.vgpus * own / work[pool.name]

    by_stages = sum(
        min(
            vgpus(pipeline, stage)
            * _batch(pipeline, stage)
            * US_PER_S
            / stage.latency_us_by_batch[_batch(pipeline, stage) - 1]
            for stage in pipeline.stages
        )
        for pipeline in (model.pipelines if pipelines is None else pipelines)
    )
    if pipelines is None or len(pipelines) == len(model.pipelines):
        return max(by_stages, model.throughput_rps)
    return max(by_stages, sum(p.throughput_rps for p in pipelines))


def _variants(plan: Plan, model: str) -> set[str]:
    """All that answer for the name that a model answers for; none where it is the only one."""
    name = plan.workload.variant_of.get(model, model)
    return {demand.name for demand in plan.workload.variants.get(name, ())}


def _work(pipeline: Pipeline, stage: Stage) -> float:
    """Time (µs) of a vGPU that a stage's promised rate takes a second."""
    return pipeline.throughput_rps * stage.latency_us / _batch(pipeline, stage)


def _batch(pipeline: Pipeline, stage: Stage) -> int:
    """The planned batch of a stage: its own where batches of several pipelines run together."""
    return stage.batch or pipeline.batch
