"""A plan as people look at it: rates, slack and shares worked out once for every picture.

Here: numbers derived from a plan for the terminal, the report, the page and the diff.
Not here: how they are drawn; whether they are right (`flows.planning.verify`).

Of a pool that several stages share, a stage has the *part* that its promised work is of all work
promised there (equal parts where nothing is).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan, Pool, StageRow, slot_table
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import BITS_PER_BYTE, US_PER_S, us_to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool and the models on it.

    Attributes:
        share: of a GPU that each vGPU is, in 300ths.
        parts: (model number, part of the pool's time) of every model on it, in order of models;
            the parts sum to 1.
    """

    number: int
    name: str
    gpu_class: str
    share: int
    vgpus: int
    parts: tuple[tuple[int, float], ...]

    @property
    def gpus(self) -> float:
        """GPUs' worth of vGPUs."""
        return self.vgpus * self.share / WHOLE_GPU

    @property
    def models(self) -> tuple[int, ...]:
        """Numbers of the models on it."""
        return tuple(model for model, _ in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """One stage on its pool.

    Attributes:
        part: of the pool's time that is this stage's.
        rate_rps: what the pool's vGPUs can do for it in that part.
        slack: rate / pipeline's rate - 1.
    """

    number: int
    pool: PoolView
    blocks: tuple[int, int]
    latency_ms: float
    transfer_ms: float
    boundary_bytes: int
    part: float
    rate_rps: float
    slack: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """One pipeline and how it spends its budget.

    The entry's, or the SLO where the model lists none.
    """

    number: int
    entry: str | None
    budget_ms: float
    batch: int
    rate_rps: float
    latency_ms: float
    gathering_ms: float
    input_ms: float
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
class CutView:
    """GPUs that are cut in the same way: the pools of their vGPUs, in order of slots."""

    gpus: int
    pools: tuple[PoolView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """One GPU class: GPUs there are, and GPUs' worth of vGPUs of each model (by number).

    `cuts` are the ways in which the GPUs used are cut, in order of pools.
    """

    name: str
    gpus: int
    used: int
    by_model: tuple[float, ...]
    cuts: tuple[CutView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """All of it."""

    models: tuple[ModelView, ...]
    pools: tuple[PoolView, ...]
    classes: tuple[ClassView, ...]


def view_of(plan: Plan) -> PlanView:
    """Derive everything that is shown of a plan."""
    parts = _parts(plan)
    pools = _pools(plan, parts)
    models = tuple(_model(plan, number, pools, parts) for number in range(len(plan.models)))
    cuts = _cuts(plan, pools)
    classes = tuple(
        ClassView(
            name=c.name,
            gpus=plan.cluster.gpus(c.name),
            used=plan.gpus_used.get(c.name, 0),
            by_model=_gpus_by_model([p for p in pools if p.gpu_class == c.name], len(models)),
            cuts=tuple(cut for cut in cuts if cut.pools[0].gpu_class == c.name),
        )
        for c in plan.cluster.gpu_classes
    )
    return PlanView(models=models, pools=pools, classes=classes)


def _parts(plan: Plan) -> dict[StageRow, float]:
    """Of every stage the part of its pool's time that is its own."""
    work = {
        row: pipeline.throughput_rps * stage.latency_us / (stage.batch or pipeline.batch)
        for row, (_, pipeline, stage, _) in zip(
            plan.stage_rows(), plan.placed_stages(), strict=True
        )
    }
    total = [0.0] * len(plan.pools)
    stages = [0] * len(plan.pools)
    for row, own in work.items():
        total[row.pool] += own
        stages[row.pool] += 1
    return {
        row: own / total[row.pool] if total[row.pool] else 1 / stages[row.pool]
        for row, own in work.items()
    }


def _pools(plan: Plan, parts: Mapping[StageRow, float]) -> tuple[PoolView, ...]:
    by_model: list[dict[int, float]] = [{} for _ in plan.pools]
    for row, part in parts.items():
        by_model[row.pool][row.model] = by_model[row.pool].get(row.model, 0.0) + part
    return tuple(
        PoolView(
            number=number,
            name=pool.name,
            gpu_class=pool.gpu_class,
            share=pool.share,
            vgpus=pool.vgpus,
            parts=tuple(by_model[number].items()),
        )
        for number, pool in enumerate(plan.pools)
    )


def _gpus_by_model(pools: Sequence[PoolView], models: int) -> tuple[float, ...]:
    gpus = [0.0] * models
    for pool in pools:
        for model, part in pool.parts:
            gpus[model] += pool.gpus * part
    return tuple(gpus)


def _cuts(plan: Plan, pools: tuple[PoolView, ...]) -> tuple[CutView, ...]:
    """How the GPUs that are used are cut, and how many are cut so.

    Works on arrays, because plans have up to 10^5 vGPUs: vGPUs sorted by GPU and slot, one span of
    pool numbers per GPU.
    """
    tables = [slot_table(pool.placement) for pool in plan.pools]
    slots = np.concatenate(tables)
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    order = np.lexsort(slots.T[::-1])
    slots, owner = slots[order], owner[order]
    ends = np.flatnonzero((np.diff(slots[:, :2], axis=0) != 0).any(axis=1)) + 1
    counted = Counter(tuple(span.tolist()) for span in np.split(owner, ends))
    return tuple(
        CutView(gpus=counted[cut], pools=tuple(pools[number] for number in cut))
        for cut in sorted(counted)
    )


def _link_rps(pool: Pool, bytes_per_sample: int, cluster: Cluster) -> float:
    """Samples/s through one vGPU's share of its node's link, either way."""
    of_node = pool.share / WHOLE_GPU / cluster.max_gpus_per_node(pool.gpu_class)
    bits_per_s = cluster.nic_gbps(pool.gpu_class) * 1e9
    return bits_per_s / (BITS_PER_BYTE * bytes_per_sample) * of_node


def _model(
    plan: Plan, number: int, pools: Sequence[PoolView], parts: Mapping[StageRow, float]
) -> ModelView:
    model = plan.models[number]
    demand = next((d for d in plan.workload.models if d.name == model.name), None)
    rows = [row for row in parts if row.model == number]
    budgets_us = {entry.name: entry.budget_us for entry in model.entries}
    return ModelView(
        number=number,
        name=model.name,
        slo_ms=us_to_ms(model.slo_us),
        rate_rps=model.throughput_rps,
        pipelines=tuple(
            PipelineView(
                number=p,
                entry=pipeline.entry,
                budget_ms=us_to_ms(budgets_us.get(pipeline.entry or "", model.slo_us)),
                batch=pipeline.batch,
                rate_rps=pipeline.throughput_rps,
                latency_ms=us_to_ms(pipeline.latency_us),
                gathering_ms=us_to_ms(demand.gathering_us(pipeline.batch)) if demand else 0.0,
                input_ms=us_to_ms(pipeline.input_transfer_us),
                stages=tuple(
                    _stage(plan, row, pools[row.pool], parts[row])
                    for row in rows
                    if row.pipeline == p
                ),
            )
            for p, pipeline in enumerate(model.pipelines)
        ),
    )


def _stage(plan: Plan, row: StageRow, pool: PoolView, part: float) -> StageView:
    pipeline = plan.models[row.model].pipelines[row.pipeline]
    stage = pipeline.stages[row.stage]
    rate_rps = part * _pool_rate_rps(plan, row)
    return StageView(
        number=row.stage,
        pool=pool,
        blocks=stage.blocks,
        latency_ms=us_to_ms(stage.latency_us),
        transfer_ms=us_to_ms(stage.transfer_us),
        boundary_bytes=stage.boundary_bytes_per_sample,
        part=part,
        rate_rps=rate_rps,
        slack=rate_rps / pipeline.throughput_rps - 1 if pipeline.throughput_rps else 0.0,
    )


def _pool_rate_rps(plan: Plan, row: StageRow) -> float:
    """Requests/s of a pool that ran one stage only.

    vGPUs x min(batch / latency, uplink's share, downlink's share).
    """
    pipeline = plan.models[row.model].pipelines[row.pipeline]
    stage, pool = pipeline.stages[row.stage], plan.pools[row.pool]
    rates = [(stage.batch or pipeline.batch) / stage.latency_us * US_PER_S]
    if row.stage + 1 < len(pipeline.stages) and stage.boundary_bytes_per_sample:
        rates.append(_link_rps(pool, stage.boundary_bytes_per_sample, plan.cluster))
    entering = pipeline.input_bytes_per_sample
    if row.stage:
        entering = pipeline.stages[row.stage - 1].boundary_bytes_per_sample
    if entering:
        rates.append(_link_rps(pool, entering, plan.cluster))
    return pool.vgpus * min(rates)
