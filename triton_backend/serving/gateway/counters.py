"""What the gateway counts; published elsewhere, a few times a second."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from triton_backend.serving.deployment import Deployment


class Pool(NamedTuple):
    """The pool of one stage: model, number of the pipeline in the plan, class, number of the stage."""

    model: str
    pipeline: int
    gpu_class: str
    stage: int


@dataclass(slots=True)
class _VGpuUse:
    """What one vGPU of the generation served did."""

    pool: Pool
    stages: int = 0
    busy_us: int = 0


@dataclass(slots=True)
class GatewayCounters:
    """Running totals since the scheduler started. Keys are model names, pools, drop reasons."""

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
    _vgpus: list[_VGpuUse] = field(default_factory=list[_VGpuUse])
    _former_vgpus: list[_VGpuUse] = field(default_factory=list[_VGpuUse])

    def serve(self, deployment: Deployment) -> None:
        """From now on vGPUs are those of this generation."""
        stages, busy_us = self.stages, self.busy_us
        self._former_vgpus = [_VGpuUse(pool, n, busy_us[pool]) for pool, n in stages.items()]
        self._vgpus = [
            _VGpuUse(
                Pool(
                    deployment.model_of(vgpu.index).name,
                    deployment.place_of(vgpu.index).pipeline,
                    deployment.pool_of(vgpu.index).gpu_class,
                    deployment.place_of(vgpu.index).stage,
                )
            )
            for vgpu in deployment.vgpus
        ]

    def dispatched(self, model: str, samples: int) -> None:
        """A batch of `samples` left the queue of a model."""
        self.batches[model] += 1
        self.samples[model] += samples

    def stage_ran(self, vgpu: int, stage_us: int) -> None:
        """A vGPU was busy for `stage_us` with a stage."""
        use = self._vgpus[vgpu]
        use.stages += 1
        use.busy_us += stage_us

    @property
    def stages(self) -> Counter[Pool]:
        """Runs by pool, of the pools that ran at all."""
        return self._by_pool("stages")

    @property
    def busy_us(self) -> Counter[Pool]:
        """Time the vGPUs of a pool were busy, by pool."""
        return self._by_pool("busy_us")

    def _by_pool(self, what: Literal["stages", "busy_us"]) -> Counter[Pool]:
        total = Counter[Pool]()
        for use in self._former_vgpus + self._vgpus:
            if use.stages:
                total[use.pool] += getattr(use, what)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for the status answer."""
        return {
            "offered": dict(self.offered),
            "dropped": {f"{model}/{reason}": n for (model, reason), n in self.dropped.items()},
            "batches": dict(self.batches),
            "samples": dict(self.samples),
            "stage_runs": {"/".join(map(str, pool)): n for pool, n in self.stages.items()},
            "stage_busy_us": {"/".join(map(str, pool)): n for pool, n in self.busy_us.items()},
            "batches_failed": self.batches_failed,
            "batches_lost": self.batches_lost,
            "workers_lost": self.workers_lost,
            "workers_drained": self.workers_drained,
            "frames_refused": self.frames_refused,
            "internal_errors": self.internal_errors,
            "decisions": self.decisions,
            "decision_mean_us": self.decision_us / max(self.decisions, 1),
        }
