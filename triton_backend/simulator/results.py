"""The result of a simulation: records per request and use, and the figures made of them.

Conservation: of every model, offered = served + late + dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import s_to_us, us_to_ms, us_to_s
from triton_backend.scheduler.compiled import NONE, Integers, Records
from triton_backend.scheduler.handover import Numbering
from triton_backend.scheduler.plan_rows import pipelines_by_queue
from triton_backend.scheduler.policies.advice import Epoch, bad_rate, change
from triton_backend.simulator.world import (
    DROPPED,
    LATE,
    SERVED,
    SHARED_BATCH_ENTRIES,
    SHARED_BATCH_SAMPLES,
    SHARED_BATCHES,
    TASK_RECORD,
)

LOOKS = 20  # of a run, at whether it may end early

# -1 where a request was in no batch; empty where its model lists no entries, where it is no model's
# or no application's
OPTIONAL = ("model", "entry", "application", "dispatch_us", "batch_id", "batch_samples")
_BATCHED = np.dtype([("batch_id", np.int64), ("batch_samples", np.int64)])
HIGH, LOW = "high", "low"
_OUTCOMES = {SERVED: "served", LATE: "late", DROPPED: "dropped"}


class Changed(NamedTuple):
    """A change of plan as it happened (µs).

    Attributes:
        start_us: when it was asked for; with a flush, from here on nothing was dispatched.
        swap_us: when the new plan took over.
        inherited: vGPUs that went on.
        in_flight: batches that did.
    """

    start_us: int
    swap_us: int
    inherited: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Highest load factor on the grid that held the attainment, and the rate it means."""

    load_factor: float
    rps: float

    def to_dict(self) -> dict[str, float]:
        """Plain form."""
        return {"load_factor": self.load_factor, "rps": self.rps}


class Quantiles(NamedTuple):
    """Of times in ms; None where there is none."""

    p50: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, times_us: NDArray[np.int64]) -> "Quantiles":
        """Of times in µs."""
        if not len(times_us):
            return cls()
        return cls(*(us_to_ms(float(q)) for q in np.percentile(times_us, [50, 99])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcomes of requests."""

    offered: int
    served: int
    late: int
    dropped: int

    @property
    def attainment(self) -> float:
        """Served in time / offered; 1 where nothing was offered."""
        return self.served / self.offered if self.offered else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "offered": self.offered,
            "served": self.served,
            "late": self.late,
            "dropped": self.dropped,
            "attainment": self.attainment,
        }

    @classmethod
    def of(cls, rows: Records) -> "Outcome":
        """Of `REQUEST_RECORD` rows."""
        counts = np.bincount(rows["outcome"], minlength=DROPPED + 1).tolist()
        return cls(
            offered=len(rows), served=counts[SERVED], late=counts[LATE], dropped=counts[DROPPED]
        )


class SharedBatchFill(NamedTuple):
    """Joint runs that requests of an entry sat in, and means of what was in them.

    Attributes:
        shared_batches: how many.
        samples: per run, those of others too.
        entries: per run.
    """

    shared_batches: int
    samples: float
    entries: float

    @classmethod
    def of(cls, row: Integers) -> "SharedBatchFill | None":
        """Of a row of `World.queues`; None where there was no joint run."""
        shared_batches = int(row[SHARED_BATCHES])
        if shared_batches == 0:
            return None
        return cls(
            shared_batches,
            float(row[SHARED_BATCH_SAMPLES] / shared_batches),
            float(row[SHARED_BATCH_ENTRIES] / shared_batches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryResult:
    """Outcomes of an entry's requests, and of their shared batches.

    Times of answered requests.
    """

    outcome: Outcome
    latency_ms: Quantiles
    shared_batch_fill: SharedBatchFill | None

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        fill = self.shared_batch_fill._asdict() if self.shared_batch_fill else None
        latency = self.latency_ms._asdict()
        return self.outcome.to_dict() | {"latency_ms": latency, "shared_batch_fill": fill}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """Outcome of one model's requests but low ones; times of answered requests.

    Attributes:
        low: outcome of its low requests, where it has any.
        queueing_ms: from arrival to the start of the first stage.
        batches: how many batches of which size (in samples) were answered.
    """

    name: str
    outcome: Outcome
    latency_ms: Quantiles
    queueing_ms: Quantiles
    batches: dict[int, int]
    low: Outcome | None = None

    @property
    def offered(self) -> int:
        """Requests."""
        return self.outcome.offered

    @property
    def served(self) -> int:
        """Answered in time."""
        return self.outcome.served

    @property
    def late(self) -> int:
        """Answered late."""
        return self.outcome.late

    @property
    def dropped(self) -> int:
        """Given up."""
        return self.outcome.dropped

    @property
    def attainment(self) -> float:
        """Served in time / offered; 1 where nothing was offered."""
        return self.outcome.attainment

    @property
    def mean_batch(self) -> float | None:
        """Samples per batch; None where there was none."""
        total = sum(self.batches.values())
        return sum(size * count for size, count in self.batches.items()) / total if total else None

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return self.outcome.to_dict() | {
            "latency_ms": self.latency_ms._asdict(),
            "queueing_ms": self.queueing_ms._asdict(),
            "mean_batch": self.mean_batch,
            "batches": {str(size): count for size, count in self.batches.items()},
            **({"low": self.low.to_dict()} if self.low else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """Outcome of the requests for a name that several variants answer.

    Attributes:
        accuracy: mean stated accuracy of answers in time; None where there is none.
        shares: of answers in time, by variant, those of the model of the name first.
    """

    outcome: Outcome
    accuracy: float | None
    shares: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return self.outcome.to_dict() | {"accuracy": self.accuracy, "shares": self.shares}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleResult:
    """Outcomes of a module's tasks; times of those that ended.

    Attributes:
        rows: of all tasks.
        done: tasks that ended, of dropped jobs too.
        latency_ms: from release to the end.
        queueing_ms: from release to the start of the first stage.
    """

    tasks: int
    rows: int
    done: int
    latency_ms: Quantiles
    queueing_ms: Quantiles

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "tasks": self.tasks,
            "rows": self.rows,
            "done": self.done,
            "latency_ms": self.latency_ms._asdict(),
            "queueing_ms": self.queueing_ms._asdict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationResult:
    """Outcome of an application's jobs; times of answered ones, and every module by its name."""

    outcome: Outcome
    latency_ms: Quantiles
    modules: dict[str, ModuleResult]

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return self.outcome.to_dict() | {
            "latency_ms": self.latency_ms._asdict(),
            "modules": {name: module.to_dict() for name, module in self.modules.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """How busy a pool's vGPUs were, and what that advises (Symphony, section 3.5).

    Attributes:
        gpus: that its vGPUs are, in whole GPUs and parts.
        busy_by_vgpu: busy time / time, of every vGPU in order, low requests apart.
        offered, bad: requests of all entries that have a stage on the pool; dropped or late ones.
        loads: of stages that are loaded on demand; None where it has none.
    """

    gpus: float
    busy_by_vgpu: tuple[float, ...]
    offered: int
    bad: int
    loads: int | None = None

    @property
    def idle_fraction(self) -> float:
        """Idle time / time, of all vGPUs."""
        return 1.0 - sum(self.busy_by_vgpu) / len(self.busy_by_vgpu)

    @property
    def bad_rate(self) -> float:
        """Requests dropped or late / requests offered."""
        return bad_rate(self.offered, self.offered - self.bad)

    @property
    def epoch(self) -> Epoch:
        """The inputs of advice."""
        idle = min(1.0, max(0.0, self.idle_fraction))  # a batch may end after the run
        return Epoch(gpus=self.gpus, idle=idle, bad=self.bad_rate)

    @property
    def advice_gpus(self) -> int:
        """GPUs to add (positive) or to take away, by the paper's formulas."""
        return change(self.epoch)

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "vgpus": len(self.busy_by_vgpu),
            "idle_fraction": self.idle_fraction,
            "busy_by_vgpu": list(self.busy_by_vgpu),
            "bad_rate": self.bad_rate,
            "advice_gpus": self.advice_gpus,
            **({} if self.loads is None else {"loads": self.loads}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """Calls into the scheduler that can lead to a decision; times where a clock was handed in.

    Attributes:
        dispatch_p99_us: of those calls that sent a batch.
    """

    count: int
    mean_us: float | None
    p99_us: float | None
    dispatch_p99_us: float | None
    probes_per_dispatch: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "count": self.count,
            "mean_us": self.mean_us,
            "p99_us": self.p99_us,
            "dispatch_p99_us": self.dispatch_p99_us,
            "probes_per_dispatch": self.probes_per_dispatch,
        }


def no_tasks() -> Records:
    """No `TASK_RECORD` rows."""
    return np.zeros(0, dtype=TASK_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """A finished run.

    Attributes:
        requests: `world.REQUEST_RECORD` rows by arrival.
        uses: `world.USE_RECORD` rows: which vGPU ran which batch when, by end.
        entries: by model, of those that list any, and by name.
        variants: by name, of those that several models answer.
        applications: by name.
        tasks: `world.TASK_RECORD` rows in the order in which tasks were released.
        pools: by name, of the plan in force at the end, since it took over.
        utilisation: busy time of a class's GPUs / time of all GPUs of that class in the cluster.
        link_utilisation: busy time / time, per link that carried anything.
        steps: events that happened.
        wall_seconds: of the event loop after warm-up, where a clock was handed in.
        changes: of plan, as they happened; uses number vGPUs and models by their `plan`.
        goodput: `goodput.goodput_report`, where it was asked for.
    """

    plan: Plan
    policy: str
    seed: int
    duration_s: float
    requests: Records
    uses: Records
    models: tuple[ModelResult, ...]
    entries: dict[str, dict[str, EntryResult]]
    pools: dict[str, PoolResult]
    utilisation: dict[str, float]
    link_utilisation: tuple[float, ...]
    decisions: DecisionCost
    steps: int
    wall_seconds: float | None
    applications: dict[str, ApplicationResult] = field(default_factory=dict[str, ApplicationResult])
    variants: dict[str, VariantResult] = field(default_factory=dict[str, VariantResult])
    tasks: Records = field(default_factory=no_tasks)
    changes: tuple[Changed, ...] = ()
    goodput: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def attainment(self) -> float:
        """Served in time / offered, over all models and applications, low requests apart."""
        return Outcome.of(self.requests[self.requests["low"] == 0]).attainment

    @property
    def least_attainment(self) -> float:
        """Of all models and applications that clients ask for, that which attained least."""
        joint = {*self.variants, *self.plan.workload.variant_of}
        found = [model.outcome for model in self.models if model.name not in joint]
        found += [variants.outcome for variants in self.variants.values()]
        found += [application.outcome for application in self.applications.values()]
        return min(outcome.attainment for outcome in found)

    def to_dict(self) -> dict[str, Any]:
        """The object of `simulate --json`."""
        out: dict[str, Any] = {
            "policy": self.policy,
            "seed": self.seed,
            "duration_s": self.duration_s,
            "offered_rps": len(self.requests) / self.duration_s,
            "attainment": self.attainment,
            "models": {model.name: model.to_dict() for model in self.models},
            "entries": {
                model: {name: entry.to_dict() for name, entry in entries.items()}
                for model, entries in self.entries.items()
            },
            **(
                {"variants": {name: of.to_dict() for name, of in self.variants.items()}}
                if self.variants
                else {}
            ),
            "applications": {name: app.to_dict() for name, app in self.applications.items()},
            "pools": {name: pool.to_dict() for name, pool in self.pools.items()},
            "utilisation": self.utilisation,
            "decisions": self.decisions.to_dict(),
            "wall_seconds": self.wall_seconds,
        }
        if self.goodput:
            out["goodput"] = self.goodput
        return out


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


# When a run may end early: some model or application surely attains less than is asked. A request
# that was late or dropped stays so, hence attainment is at most the share of those that were not. A
# run that ended here has served no more than that of it, so its verdict is that of the whole run.


def looks_us(duration_s: float, least: float | None) -> Iterator[int]:
    """Instants at which a run looks whether it may end; none where nothing is asked."""
    if least is not None:
        duration_us = s_to_us(duration_s)
        yield from (duration_us * look // LOOKS for look in range(1, LOOKS))


def surely_below(requests: Records, least: float | None) -> bool:
    """True if what has failed by now keeps a model or an application below.

    Args:
        requests: `world.REQUEST_RECORD` rows of a whole run, with the outcomes so far; low requests
            do not count.
        least: attainment that is asked of each; None: nothing is.
    """
    counted = requests[requests["low"] == 0]
    failed = (counted["outcome"] == LATE) | (counted["outcome"] == DROPPED)
    for column in ("model", "application"):
        known = counted[column] != NONE
        offered = np.bincount(counted[column][known])
        lost = np.bincount(counted[column][known & failed], minlength=len(offered))
        some = offered > 0
        if least is not None and bool(((offered - lost)[some] / offered[some] < least).any()):
            return True
    return False
