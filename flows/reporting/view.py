"""A plan as people look at it: rates, slack and shares worked out once for every picture.

Here: numbers derived from a plan for the terminal, the report, the page and the diff.
Not here: how they are drawn; whether they are right (`flows.planning.verify`).
"""

from dataclasses import dataclass

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.units import BITS_PER_BYTE, US_PER_S, us_to_ms
from triton_backend.contract.workload import ModelDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """One pool. `rate_rps` is what its vGPUs can do, `slack` = rate / pipeline's rate - 1."""

    number: int
    gpu_class: str
    divisor: int
    vgpus: int
    blocks: tuple[int, int]
    latency_ms: float
    transfer_ms: float
    boundary_bytes: int
    rate_rps: float
    slack: float

    @property
    def gpus(self) -> float:
        """GPUs' worth of vGPUs."""
        return self.vgpus / self.divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """One pipeline and how it spends the SLO."""

    number: int
    batch: int
    rate_rps: float
    latency_ms: float
    gathering_ms: float
    stages: tuple[StageView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model."""

    number: int
    name: str
    slo_ms: float
    rate_rps: float
    pipelines: tuple[PipelineView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """One GPU class: GPUs there are, and GPUs' worth of vGPUs of each model (by number)."""

    name: str
    gpus: int
    used: int
    by_model: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """All of it."""

    models: tuple[ModelView, ...]
    classes: tuple[ClassView, ...]


def view_of(plan: Plan) -> PlanView:
    """Derive everything that is shown of a plan."""
    models = tuple(_model(plan, i, model) for i, model in enumerate(plan.models))
    classes = tuple(
        ClassView(
            name=c.name,
            gpus=plan.cluster.gpus(c.name),
            used=plan.gpus_used.get(c.name, 0),
            by_model=tuple(_gpus_of(model, c.name) for model in models),
        )
        for c in plan.cluster.gpu_classes
    )
    return PlanView(models=models, classes=classes)


def _link_rps(stage: Stage, bytes_per_sample: int, cluster: Cluster) -> float:
    """Samples/s through one vGPU's share of its node's link, either way."""
    share = cluster.max_gpus_per_node(stage.gpu_class) * stage.vgpu_divisor
    bits_per_s = cluster.nic_gbps(stage.gpu_class) * 1e9
    return bits_per_s / (BITS_PER_BYTE * bytes_per_sample) / share


def _model(plan: Plan, number: int, model: ModelPlan) -> ModelView:
    demand = next((d for d in plan.workload.models if d.name == model.name), None)
    return ModelView(
        number=number,
        name=model.name,
        slo_ms=us_to_ms(model.slo_us),
        rate_rps=model.throughput_rps,
        pipelines=tuple(
            _pipeline(plan.cluster, i, pipeline, demand)
            for i, pipeline in enumerate(model.pipelines)
        ),
    )


def _pipeline(
    cluster: Cluster, number: int, pipeline: Pipeline, demand: ModelDemand | None
) -> PipelineView:
    return PipelineView(
        number=number,
        batch=pipeline.batch,
        rate_rps=pipeline.throughput_rps,
        latency_ms=us_to_ms(pipeline.latency_us),
        gathering_ms=us_to_ms(demand.gathering_us(pipeline.batch)) if demand else 0.0,
        stages=tuple(_stage(cluster, pipeline, i) for i in range(len(pipeline.stages))),
    )


def _stage(cluster: Cluster, pipeline: Pipeline, number: int) -> StageView:
    stage = pipeline.stages[number]
    rate_rps = _pool_rate_rps(cluster, pipeline, number)
    return StageView(
        number=number,
        gpu_class=stage.gpu_class,
        divisor=stage.vgpu_divisor,
        vgpus=stage.vgpus,
        blocks=stage.blocks,
        latency_ms=us_to_ms(stage.latency_us),
        transfer_ms=us_to_ms(stage.transfer_us),
        boundary_bytes=stage.boundary_bytes_per_sample,
        rate_rps=rate_rps,
        slack=rate_rps / pipeline.throughput_rps - 1 if pipeline.throughput_rps else 0.0,
    )


def _pool_rate_rps(cluster: Cluster, pipeline: Pipeline, number: int) -> float:
    """Requests/s of a pool: vGPUs x min(batch / latency, uplink's share, downlink's share)."""
    stage = pipeline.stages[number]
    rates = [pipeline.batch / stage.latency_us * US_PER_S]
    if number + 1 < len(pipeline.stages) and stage.boundary_bytes_per_sample:
        rates.append(_link_rps(stage, stage.boundary_bytes_per_sample, cluster))
    entering = pipeline.stages[number - 1].boundary_bytes_per_sample if number else 0
    if entering:
        rates.append(_link_rps(stage, entering, cluster))
    return stage.vgpus * min(rates)


def _gpus_of(model: ModelView, gpu_class: str) -> float:
    return sum(
        stage.gpus
        for pipeline in model.pipelines
        for stage in pipeline.stages
        if stage.gpu_class == gpu_class
    )
