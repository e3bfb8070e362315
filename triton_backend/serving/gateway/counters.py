"""Counters of the gateway; published elsewhere, a few times a second."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan, StagePlace, StageRow
from triton_backend.serving.buckets import Buckets

if TYPE_CHECKING:  # fronts publish too, and need no scheduler and its compiler
    from triton_backend.scheduler.scheduler import Times


class StageLabels(NamedTuple):
    """A stage on its pool: model, number of the pipeline in the plan, number of the stage."""

    model: str
    pipeline: int
    gpu_class: str
    stage: int
    pool: str


def stage_labels(plan: Plan) -> dict[StageRow, StageLabels]:
    """How every stage of a plan is called among metrics."""
    labels: dict[StageRow, StageLabels] = {}
    for row in plan.stage_rows():
        pool = plan.pools[row.pool]
        model = plan.models[row.model].name
        labels[row] = StageLabels(model, row.pipeline, pool.gpu_class, row.stage, pool.name)
    return labels


@dataclass(slots=True)
class StageUse:
    """Counters of one stage.

    Attributes:
        times: of its runs.
        planned_us: time that these runs take by the plan's profile.
    """

    times: Buckets = field(default_factory=Buckets.of_times)
    planned_us: float = 0.0

    @property
    def runs(self) -> int:
        """Batches run."""
        return sum(self.times.counts)

    @property
    def busy_us(self) -> int:
        """Time that vGPUs were busy with it."""
        return sum(self.times.sums)


@dataclass(slots=True)
class StageRuns:
    """Runs of one stage under one plan: noted when they are reported, counted when asked for.

    Args:
        use: where they are counted.
        planned_us: times of batches of 1, 2, ... samples by the plan's profile.
    """

    use: StageUse
    planned_us: Sequence[float]
    _noted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def ran(self, samples: int, busy_us: int) -> None:
        """A vGPU was busy for `busy_us` with a batch of so many samples."""
        self._noted.append((samples, busy_us))

    def count(self) -> None:
        """Count what was noted."""
        if self._noted:
            noted, self._noted = self._noted, []
            self.use.times.observe_all([busy_us for _, busy_us in noted])
            self.use.planned_us += sum(self.planned_us[samples - 1] for samples, _ in noted)


@dataclass(slots=True)
class GatewayCounters:
    """Running totals since the scheduler started. Keys are model names, stages, drop reasons.

    Of stages and entries only those of the plan in force and the one before it, of which batches
    may still run.

    Attributes:
        bad: requests that more GPUs might have answered in time: dropped, failed or late ones, but
            those without a waiter and those of models that have gone.
        shared_batches: joint runs, by model; so `shared_batch_members`, `shared_batch_samples` and
            `shared_batch_entries`, the batches, samples and different entries in them.
        entries: requests offered by model and entry.
        asked: requests of clients, by model or application: without rows of modules.
        module_rows: rows that a module was to run, by application and module; `module_samples` of
            the requests that it was to run them for.
        module_drops: jobs that were dropped, or went on without it, for the sake of a module.
        waits: of batches by model, from the first request's arrival to the dispatch.
        module_times: of tasks by application and module, from their rows' being there to the end.
        loads: of stages on demand, by stage; `evictions` likewise.
    """

    offered: Counter[str] = field(default_factory=Counter[str])
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    bad: Counter[str] = field(default_factory=Counter[str])
    batches: Counter[str] = field(default_factory=Counter[str])
    samples: Counter[str] = field(default_factory=Counter[str])
    shared_batches: Counter[str] = field(default_factory=Counter[str])
    shared_batch_members: Counter[str] = field(default_factory=Counter[str])
    shared_batch_samples: Counter[str] = field(default_factory=Counter[str])
    shared_batch_entries: Counter[str] = field(default_factory=Counter[str])
    entries: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    asked: Counter[str] = field(default_factory=Counter[str])
    module_rows: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    module_samples: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    module_drops: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    waits: dict[str, Buckets] = field(default_factory=dict[str, Buckets])
    module_times: dict[tuple[str, str], Buckets] = field(
        default_factory=dict[tuple[str, str], Buckets]
    )
    loads: Counter[StageLabels] = field(default_factory=Counter[StageLabels])
    evictions: Counter[StageLabels] = field(default_factory=Counter[StageLabels])
    batches_failed: int = 0
    batches_lost: int = 0
    jobs_begun_anew: int = 0
    workers_lost: int = 0
    workers_drained: int = 0
    frames_refused: int = 0
    internal_errors: int = 0
    decisions: int = 0
    decision_us: int = 0
    _uses: dict[StageLabels, StageUse] = field(default_factory=dict[StageLabels, StageUse])
    _runs: dict[StagePlace, StageRuns] = field(default_factory=dict[StagePlace, StageRuns])
    _former_runs: dict[StagePlace, StageRuns] = field(default_factory=dict[StagePlace, StageRuns])
    _plan: Plan | None = None

    def serve(self, plan: Plan, time_stretch: float = 1.0) -> dict[StagePlace, StageRuns]:
        """Runs of a plan's stages; counters of the same name in the plan before go on.

        Args:
            plan: in force from now on.
            time_stretch: every run lasts so many times as long here as in the plan's profile.
        """
        self.count()
        plans = [plan] if self._plan is None else [self._plan, plan]
        self._plan = plan
        rows = stage_labels(plan)
        labels = {one for served in plans for one in stage_labels(served).values()}
        self._uses = {one: self._uses.get(one) or StageUse() for one in labels}
        entries = {(m.name, e.name) for served in plans for m in served.models for e in m.entries}
        for gone in self.entries.keys() - entries:
            del self.entries[gone]
        names = {model.name for served in plans for model in served.models}
        self.waits = {name: self.waits.get(name) or Buckets.of_times() for name in names}
        modules = {
            (one.name, module.name)
            for served in plans
            for one in served.applications
            for module in one.application.modules
        }
        times = self.module_times
        self.module_times = {name: times.get(name) or Buckets.of_times() for name in modules}
        self._former_runs = self._runs
        self._runs = {
            row.place: StageRuns(self._uses[one], _planned_us(plan, row, time_stretch))
            for row, one in rows.items()
        }
        return self._runs

    def count(self) -> None:
        """Count the runs noted so far."""
        for runs in (*self._former_runs.values(), *self._runs.values()):
            runs.count()

    def took(self, times: "Times") -> None:
        """Count what the core counted of the plan served last."""
        for name, counted in times.waits.items():
            self.waits[name].add(*counted)
        for module, counted in times.modules.items():
            self.module_times[module].add(*counted)

    def dropped_for(self, model: str, reason: DropReason) -> None:
        """A request of a model is not served."""
        self.dropped[model, reason.text] += 1
        if reason not in {DropReason.CANCELLED, DropReason.MODEL_REMOVED}:
            self.bad[model] += 1

    def dispatched(self, model: str, samples: int) -> None:
        """A batch of `samples` left the queue of a model."""
        self.batches[model] += 1
        self.samples[model] += samples

    def ran_together(self, model: str, *, batches: int, samples: int, entries: int) -> None:
        """Batches of a model ran together, of so many entries."""
        self.shared_batches[model] += 1
        self.shared_batch_members[model] += batches
        self.shared_batch_samples[model] += samples
        self.shared_batch_entries[model] += entries

    @property
    def stages(self) -> dict[StageLabels, StageUse]:
        """Counters of the stages that ran."""
        self.count()
        return {labels: use for labels, use in self._uses.items() if use.runs}

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for the status answer."""
        stages = {"/".join(map(str, labels)): use for labels, use in self.stages.items()}
        return {
            "offered": dict(self.offered),
            "dropped": {f"{model}/{reason}": n for (model, reason), n in self.dropped.items()},
            "batches": dict(self.batches),
            "samples": dict(self.samples),
            "shared_batches": dict(self.shared_batches),
            "shared_batch_members": dict(self.shared_batch_members),
            "shared_batch_samples": dict(self.shared_batch_samples),
            "shared_batch_entries": dict(self.shared_batch_entries),
            "entries": {"/".join(key): n for key, n in self.entries.items()},
            "asked": dict(self.asked),
            "module_samples": {"/".join(key): n for key, n in self.module_samples.items()},
            "module_rows": {"/".join(key): n for key, n in self.module_rows.items()},
            "module_drops": {"/".join(key): n for key, n in self.module_drops.items()},
            "stage_runs": {name: use.runs for name, use in stages.items()},
            "stage_busy_us": {name: use.busy_us for name, use in stages.items()},
            "stage_loads": {"/".join(map(str, labels)): n for labels, n in self.loads.items()},
            "batches_failed": self.batches_failed,
            "batches_lost": self.batches_lost,
            "jobs_begun_anew": self.jobs_begun_anew,
            "workers_lost": self.workers_lost,
            "workers_drained": self.workers_drained,
            "frames_refused": self.frames_refused,
            "internal_errors": self.internal_errors,
            "decisions": self.decisions,
            "decision_mean_us": self.decision_us / max(self.decisions, 1),
        }


def _planned_us(plan: Plan, row: StageRow, time_stretch: float) -> list[float]:
    """Times of batches of 1, 2, ... samples at a stage."""
    stage = plan.models[row.model].pipelines[row.pipeline].stages[row.stage]
    return [max(us * time_stretch, 1.0) for us in stage.latency_us_by_batch]
