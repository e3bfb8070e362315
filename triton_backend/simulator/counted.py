"""Figures of a run, counted from its records: by model, name, entry, application and pool."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import us_to_s
from triton_backend.scheduler.compiled import NONE, Integers, Records
from triton_backend.scheduler.handover import Numbering
from triton_backend.scheduler.plan_rows import pipelines_by_queue
from triton_backend.simulator.results import (
    HIGH,
    LOW,
    ApplicationResult,
    EntryResult,
    ModelResult,
    ModuleResult,
    Outcome,
    PoolResult,
    Quantiles,
    SharedBatchFill,
    SimResult,
    VariantResult,
)
from triton_backend.simulator.world import (
    DROPPED,
    LATE,
    SERVED,
)

_BATCHED = np.dtype([("batch_id", np.int64), ("batch_samples", np.int64)])
_OUTCOMES = {SERVED: "served", LATE: "late", DROPPED: "dropped"}


def model_results(plan: Plan, requests: Records, tasks: Records) -> tuple[ModelResult, ...]:
    """Figures per model of the plan: of its own requests, but batches of its tasks too."""
    models = task_models(plan, requests, tasks)
    return tuple(
        _model_result(model.name, requests[requests["model"] == number], tasks[models == number])
        for number, model in enumerate(plan.models)
    )


def variant_results(plan: Plan, requests: Records) -> dict[str, VariantResult]:
    """Figures per name that several models of the plan answer; low requests apart."""
    numbers = {model.name: number for number, model in enumerate(plan.models)}
    found: dict[str, VariantResult] = {}
    for name, demands in plan.workload.variants.items():
        known = [demand for demand in demands if demand.name in numbers]
        models = [numbers[demand.name] for demand in known]
        rows = requests[np.isin(requests["model"], models) & (requests["low"] == 0)]
        served = rows["model"][rows["outcome"] == SERVED]
        shares = {
            d.name: float((served == numbers[d.name]).sum()) / max(len(served), 1) for d in known
        }
        accuracy = sum(shares[d.name] * (d.accuracy or 0.0) for d in known)
        found[name] = VariantResult(
            outcome=Outcome.of(rows), accuracy=accuracy if len(served) else None, shares=shares
        )
    return found


def task_models(plan: Plan, requests: Records, tasks: Records) -> Integers:
    """[task] the number of its model in the plan whose applications the requests number."""
    names = [model.name for model in plan.models]
    found = np.full(len(tasks), NONE, dtype=np.int64)
    application = requests["application"][tasks["request"]]
    for number, planned in enumerate(plan.applications):
        for place, module in enumerate(planned.application.modules):
            mine = (application == number) & (tasks["module"] == place)
            found[mine] = names.index(module.model)
    return found


def _model_result(name: str, both: Records, tasks: Records) -> ModelResult:
    rows, low = both[both["low"] == 0], both[both["low"] == 1]
    answered = rows[(rows["outcome"] == SERVED) | (rows["outcome"] == LATE)]
    fields = ["batch_id", "batch_samples"]
    batched = np.concatenate([records[fields].astype(_BATCHED) for records in (both, tasks)])
    batched = batched[batched["batch_id"] != NONE]
    _, first = np.unique(batched["batch_id"], return_index=True)
    sizes, counts = np.unique(batched["batch_samples"][first], return_counts=True)
    return ModelResult(
        name=name,
        outcome=Outcome.of(rows),
        latency_ms=Quantiles.of(answered["finish_us"] - answered["arrival_us"]),
        queueing_ms=Quantiles.of(answered["dispatch_us"] - answered["arrival_us"]),
        batches=dict(zip(sizes.tolist(), counts.tolist(), strict=True)),
        low=Outcome.of(low) if len(low) else None,
    )


def entry_results(
    plan: Plan, requests: Records, queues: Integers
) -> dict[str, dict[str, EntryResult]]:
    """Figures per entry of every model that lists entries; `queues` as in `World`."""

    def result(queue: int) -> EntryResult:
        rows = requests[(requests["queue"] == queue) & (requests["low"] == 0)]
        answered = rows[(rows["outcome"] == SERVED) | (rows["outcome"] == LATE)]
        return EntryResult(
            outcome=Outcome.of(rows),
            latency_ms=Quantiles.of(answered["finish_us"] - answered["arrival_us"]),
            shared_batch_fill=SharedBatchFill.of(queues[queue]),
        )

    return {
        model.name: {
            entry.name: result(queue) for entry, queue in zip(model.entries, own, strict=True)
        }
        for model, own in zip(plan.models, plan.queues(), strict=True)
        if model.entries
    }


def application_results(
    plans: Sequence[Plan], requests: Records, tasks: Records
) -> dict[str, ApplicationResult]:
    """Figures per application of the first plan.

    Of modules, under plans that have the very same.
    """
    found: dict[str, ApplicationResult] = {}
    application = requests["application"]
    of_task = application[tasks["request"]]
    for number, planned in enumerate(plans[0].applications):
        rows = requests[application == number]
        answered = rows[(rows["outcome"] == SERVED) | (rows["outcome"] == LATE)]
        same = [
            n
            for n, plan in enumerate(plans)
            if planned.application.modules
            in [a.application.modules for a in plan.applications if a.name == planned.name]
        ]
        mine = tasks[(of_task == number) & np.isin(tasks["plan"], same)]
        found[planned.name] = ApplicationResult(
            outcome=Outcome.of(rows),
            latency_ms=Quantiles.of(answered["finish_us"] - answered["arrival_us"]),
            modules={
                module.name: _module_result(mine[mine["module"] == place])
                for place, module in enumerate(planned.application.modules)
            },
        )
    return found


def _module_result(tasks: Records) -> ModuleResult:
    done = tasks[tasks["finish_us"] != NONE]
    return ModuleResult(
        tasks=len(tasks),
        rows=int(tasks["rows"].sum()),
        done=len(done),
        latency_ms=Quantiles.of(done["finish_us"] - done["ready_us"]),
        queueing_ms=Quantiles.of(done["dispatch_us"] - done["ready_us"]),
    )


def pool_results(
    plan: Plan,
    requests: Records,
    queues: Integers,
    busy_us: Integers,
    span_us: int,
    loads: Integers | None = None,
) -> dict[str, PoolResult]:
    """Figures per pool.

    Args:
        plan: in force for all of the span.
        requests: that came in it, tasks of jobs among them (`with_tasks`). Low ones count nothing.
        queues: [queue of the requests] its number in the plan, NONE where it has none.
        busy_us: [resource] time in use, vGPUs first, but for batches of low requests alone.
        span_us: length of the span.
        loads: [resource] of stages on demand, where the plan has some.
    """
    users: dict[str, set[int]] = {pool.name: set() for pool in plan.pools}
    for row in pipelines_by_queue(plan):
        for stage in row.pipeline.stages:
            users[stage.pool].add(row.queue)
    loading = {s.pool for _, _, s, _ in plan.placed_stages() if s.load_us is not None}
    count = sum(len(model.queues) for model in plan.models)
    requests = requests[(requests["queue"] != NONE) & (requests["low"] == 0)]
    queue = queues[requests["queue"]]
    bad = np.isin(requests["outcome"], (LATE, DROPPED))
    offered_of = np.bincount(queue[queue != NONE], minlength=count)
    bad_of = np.bincount(queue[bad & (queue != NONE)], minlength=count)
    found: dict[str, PoolResult] = {}
    first = 0
    for pool in plan.pools:
        own = sorted(users[pool.name])
        busy = busy_us[first : first + pool.vgpus] / max(span_us, 1)  # 0: it took over at the end
        found[pool.name] = PoolResult(
            gpus=pool.vgpus * pool.share / WHOLE_GPU,
            busy_by_vgpu=tuple(busy.tolist()),
            offered=int(offered_of[own].sum()),
            bad=int(bad_of[own].sum()),
            loads=None
            if loads is None or pool.name not in loading
            else int(loads[first : first + pool.vgpus].sum()),
        )
        first += pool.vgpus
    return found


def with_tasks(plan: Plan, requests: Records, tasks: Records) -> Records:
    """Requests of models, and tasks as such: what did not end in time for its job is late.

    `plan` is the one whose models and applications the requests number.
    """
    rows = np.zeros(len(tasks), dtype=requests.dtype)
    models = task_models(plan, requests, tasks)
    rows["model"] = models
    rows["queue"] = np.asarray([queues[0] for queues in plan.queues()])[models]
    rows["arrival_us"] = tasks["ready_us"]
    in_time = tasks["finish_us"] <= requests["deadline_us"][tasks["request"]]
    in_time &= tasks["finish_us"] != NONE
    rows["outcome"] = np.where(in_time, SERVED, LATE)
    return np.concatenate([requests[requests["application"] == NONE], rows])


def class_seconds(plan: Plan, busy_us: Records) -> dict[str, float]:
    """Busy GPU-seconds per class; a vGPU is as much of a GPU as its share says."""
    seconds = {gpu_class.name: 0.0 for gpu_class in plan.cluster.gpu_classes}
    for vgpu in plan.vgpus():
        pool = plan.pools[vgpu.pool]
        part = pool.share / WHOLE_GPU
        seconds[pool.gpu_class] += us_to_s(float(busy_us[vgpu.index])) * part
    return seconds


def former_batch_seconds(
    plans: Sequence[Plan], numbering: Numbering, busy_us: Records, first: int
) -> dict[str, float]:
    """The same for vGPUs of earlier plans only, whose resources are numbered from `first` on."""
    seconds: dict[str, float] = {}
    seen: set[int] = set()
    for number, earlier in numbering.earlier.items():
        for vgpu in plans[number].vgpus():
            resource = int(earlier.vgpus[vgpu.index])
            if resource < first or resource in seen:
                continue
            seen.add(resource)
            pool = plans[number].pools[vgpu.pool]
            busy = us_to_s(float(busy_us[resource])) * pool.share / WHOLE_GPU
            seconds[pool.gpu_class] = seconds.get(pool.gpu_class, 0.0) + busy
    return seconds


def utilisation(cluster: Cluster, seconds: dict[str, float], span_us: int) -> dict[str, float]:
    """Busy GPU-seconds / GPU-seconds of all GPUs of a class in the cluster."""
    return {
        name: busy / (cluster.gpus(name) * us_to_s(span_us)) if busy else 0.0
        for name, busy in seconds.items()
        if name in {gpu_class.name for gpu_class in cluster.gpu_classes}
    }


def request_columns(result: SimResult) -> dict[str, NDArray[Any]]:
    """One row per request, by arrival.

    Returns:
        `request` (its number), `model` (empty of a job), `entry` (empty where its model lists
        none), `application` (of a job, else empty), `samples`, `arrival_us`, `deadline_us`,
        `dispatch_us` (its first stage began), `finish_us` (of the answer, or of the drop),
        `batch_id`, `batch_samples`, `outcome` (served, late, dropped), `reason` (of a drop, else
        empty) and `priority` (high, low). Instants count from the run's start.
    """
    rows = result.requests
    # number -1, the last, is of no model, entry or application
    names = np.asarray([*(model.name for model in result.plan.models), ""], dtype=object)
    applications = np.asarray([*(a.name for a in result.plan.applications), ""], dtype=object)
    entries = np.asarray(
        [
            entry.name if model.entries else ""
            for model in result.plan.models
            for entry in model.queues
        ]
        + [""],
        dtype=object,
    )
    outcomes = np.asarray(["", *(_OUTCOMES[k] for k in sorted(_OUTCOMES))], dtype=object)
    reasons = np.asarray([reason.text for reason in DropReason], dtype=object)
    dropped = rows["outcome"] == DROPPED
    columns: dict[str, NDArray[Any]] = {
        "request": np.arange(len(rows)),
        "model": names[rows["model"]],
        "entry": entries[rows["queue"]],
        "application": applications[rows["application"]],
        "samples": rows["samples"],
        "arrival_us": rows["arrival_us"],
        "deadline_us": rows["deadline_us"],
        "dispatch_us": rows["dispatch_us"],
        "finish_us": rows["finish_us"],
        "batch_id": rows["batch_id"],
        "batch_samples": np.where(dropped, -1, rows["batch_samples"]),
        "outcome": outcomes[rows["outcome"]],
        "reason": np.where(dropped, reasons[rows["reason"]], ""),
        "priority": np.where(rows["low"] == 1, LOW, HIGH).astype(object),
    }
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}
