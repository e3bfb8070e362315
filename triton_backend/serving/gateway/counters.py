"""What the gateway counts; published elsewhere, a few times a second."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from triton_backend.contract.plan import Plan, StagePlace, StageRow
from triton_backend.serving.deployment import Deployment


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
class _StageUse:
    """What one stage of the generation served did."""

    labels: StageLabels
    runs: int = 0
    busy_us: int = 0


@dataclass(slots=True)
class GatewayCounters:
    """Running totals since the scheduler started. Keys are model names, stages, drop reasons."""

    offered: Counter[str] = field(default_factory=Counter[str])
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    batches: Counter[str] = field(default_factory=Counter[str])
    samples: Counter[str] = field(default_factory=Counter[str])
    batches_failed: int = 0
    batches_lost: int = 0
    workers_lost: int = 0
    workers_drained: int = 0
    frames_refused: int = 0
    internal_errors: int = 0
    decisions: int = 0
    decision_us: int = 0
    _uses: dict[StagePlace, _StageUse] = field(default_factory=dict[StagePlace, _StageUse])
    _former_uses: list[_StageUse] = field(default_factory=list[_StageUse])

    def serve(self, deployment: Deployment) -> None:
        """From now on stages are those of this generation."""
        runs, busy_us = self.stages, self.busy_us
        self._former_uses = [_StageUse(labels, n, busy_us[labels]) for labels, n in runs.items()]
        self._uses = {
            row.place: _StageUse(labels) for row, labels in stage_labels(deployment.plan).items()
        }

    def dispatched(self, model: str, samples: int) -> None:
        """A batch of `samples` left the queue of a model."""
        self.batches[model] += 1
        self.samples[model] += samples

    def stage_ran(self, stage: StagePlace, stage_us: int) -> None:
        """A vGPU was busy for `stage_us` with a stage."""
        use = self._uses[stage]
        use.runs += 1
        use.busy_us += stage_us

    @property
    def stages(self) -> Counter[StageLabels]:
        """Runs by stage, of the stages that ran at all."""
        return self._by_stage("runs")

    @property
    def busy_us(self) -> Counter[StageLabels]:
        """Time that vGPUs were busy with a stage, by stage."""
        return self._by_stage("busy_us")

    def _by_stage(self, what: Literal["runs", "busy_us"]) -> Counter[StageLabels]:
        total = Counter[StageLabels]()
        for use in [*self._former_uses, *self._uses.values()]:
            if use.runs:
                total[use.labels] += getattr(use, what)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for the status answer."""
        return {
            "offered": dict(self.offered),
            "dropped": {f"{model}/{reason}": n for (model, reason), n in self.dropped.items()},
            "batches": dict(self.batches),
            "samples": dict(self.samples),
            "stage_runs": {"/".join(map(str, stage)): n for stage, n in self.stages.items()},
            "stage_busy_us": {"/".join(map(str, stage)): n for stage, n in self.busy_us.items()},
            "batches_failed": self.batches_failed,
            "batches_lost": self.batches_lost,
            "workers_lost": self.workers_lost,
            "workers_drained": self.workers_drained,
            "frames_refused": self.frames_refused,
            "internal_errors": self.internal_errors,
            "decisions": self.decisions,
            "decision_mean_us": self.decision_us / max(self.decisions, 1),
        }
