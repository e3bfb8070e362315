"""The result of a simulation: records per request and use, and the figures made of them.

Conservation: of every model, offered = served + late + dropped.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.plan import Plan
from triton_backend.contract.units import us_to_ms
from triton_backend.scheduler.compiled import Integers, Records
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

# -1 where a request was in no batch; empty where its model lists no entries, where it is no model's
# or no application's
OPTIONAL = ("model", "entry", "application", "dispatch_us", "batch_id", "batch_samples")
HIGH, LOW = "high", "low"
SPANS = 20  # parts of a run whose means differ by chance


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
    """Outcomes of requests.

    Attributes:
        error: standard error of the attainment, from the means of `SPANS` parts of the run with
            equally many requests (batch means: misses of one burst are not independent).
    """

    offered: int
    served: int
    late: int
    dropped: int
    error: float = field(default=0.0, compare=False)

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
        """Of `REQUEST_RECORD` rows by arrival."""
        counts = np.bincount(rows["outcome"], minlength=DROPPED + 1).tolist()
        return cls(
            offered=len(rows),
            served=counts[SERVED],
            late=counts[LATE],
            dropped=counts[DROPPED],
            error=_error(rows["outcome"] == SERVED),
        )


def _error(in_time: NDArray[np.bool_]) -> float:
    if len(in_time) < SPANS:
        return 0.0
    means = [span.mean() for span in np.array_split(in_time, SPANS)]
    return float(np.std(means, ddof=1)) / SPANS**0.5


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
        return min(self.attained().values())

    def attained(self, errors: float = 0.0) -> dict[str, float]:
        """Attainment less so many standard errors, of all that clients ask for, by name.

        With two, other arrivals of the same rates seldom attain less. Variants count under the name
        for which they answer.
        """
        joint = {*self.variants, *self.plan.workload.variant_of}
        results = {
            **{model.name: model for model in self.models if model.name not in joint},
            **self.variants,
            **self.applications,
        }
        outcomes = {name: result.outcome for name, result in results.items()}
        return {name: o.attainment - errors * o.error for name, o in outcomes.items()}

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
