"""Plans made by hand: for tests, small enough to reason about; for benchmarks, served as they are.

`hand_stage`, `hand_pipeline`, `hand_model` and `hand_plan` fill in what a planner would decide and
a test does not care about; `make_plan`, `two_stages`, `make_boarding_plan` and `two_tails` are
plans for the scheduler alone, of pools that have nodes of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import (
    ModelPlan,
    Objective,
    Pipeline,
    PlacementRun,
    Plan,
    Pool,
    Stage,
)
from triton_backend.contract.shares import share_of_divisor
from triton_backend.contract.units import transfer_us
from triton_backend.contract.workload import ModelDemand, Workload

NIC_GBPS = 8.0  # 1,000 bytes per µs
BLOCKS = 4  # of every model; the last stage takes what is left
DIVISORS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandStage:
    """A stage and the pool that it names."""

    stage: Stage
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandPipeline:
    """A pipeline and the pools that its stages name."""

    pipeline: Pipeline
    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandModel:
    """A model and the pools that its stages name."""

    model: ModelPlan
    pools: tuple[Pool, ...]

    def replaced(self, **fields: Any) -> "HandModel":
        """The same with other fields of the model."""
        return replace(self, model=replace(self.model, **fields))


def hand_stage(
    blocks: tuple[int, int],
    gpu_class: str,
    place: PlacementRun,
    latency_us_by_batch: Sequence[int],
    *,
    batch: int | None = None,
    vgpu_divisor: int = 1,
    **fields: Any,
) -> HandStage:
    """A stage on a pool of one run of vGPUs.

    Its planned batch is the largest unless `batch` is given. That is the pipeline's, or, where it
    boards, its own.

    Stages at one place share its pool.
    """
    pool = Pool(
        name=f"{gpu_class.lower()}-{place.node}.{place.gpu}.{place.slot}",
        gpu_class=gpu_class,
        share=share_of_divisor(vgpu_divisor),
        vgpus=place.vgpus,
        placement=(place,),
    )
    values: dict[str, Any] = {"transfer_us": 0, "boundary_bytes_per_sample": 0, **fields}
    stage = Stage(
        blocks=blocks,
        pool=pool.name,
        latency_us=latency_us_by_batch[(batch or len(latency_us_by_batch)) - 1],
        latency_us_by_batch=tuple(latency_us_by_batch),
        batch=batch if values.get("boards") else None,
        **values,
    )
    return HandStage(stage=stage, pool=pool)


def hand_pipeline(
    *stages: HandStage, batch: int, rate_rps: float | None = None, entry: str | None = None
) -> HandPipeline:
    """A pipeline that promises what its slowest pool delivers, unless `rate_rps` is given."""
    delivers_rps = min(1e6 * batch * s.pool.vgpus / s.stage.latency_us for s in stages)
    pipeline = Pipeline(
        batch=batch,
        throughput_rps=delivers_rps if rate_rps is None else rate_rps,
        latency_us=sum(s.stage.latency_us + s.stage.transfer_us for s in stages),
        stages=tuple(s.stage for s in stages),
        entry=entry,
    )
    return HandPipeline(pipeline=pipeline, pools=tuple(s.pool for s in stages))


def hand_model(name: str, *pipelines: HandPipeline, slo_us: int, **fields: Any) -> HandModel:
    """A model that promises what its pipelines do, by default under policy `reservation`."""
    fields = {"policy": "reservation", **fields}
    model = ModelPlan(
        name=name,
        slo_us=slo_us,
        throughput_rps=sum(p.pipeline.throughput_rps for p in pipelines),
        pipelines=tuple(p.pipeline for p in pipelines),
        **fields,
    )
    return HandModel(model=model, pools=tuple(pool for p in pipelines for pool in p.pools))


def hand_plan(*models: HandModel, nodes: Sequence[NodeGroup], plan_id: str = "by-hand") -> Plan:
    """A plan of these models on these nodes, with the demands and GPUs they imply."""
    classes = dict.fromkeys(group.gpu_class for group in nodes)
    pools = {pool.name: pool for model in models for pool in model.pools}
    planned = [model.model for model in models]
    plan = Plan(
        plan_id=plan_id,
        planner="by hand",
        objective=Objective(name="throughput", value=1.0, upper_bound=1.0, gap=0.0),
        solver="none",
        cluster=Cluster(
            name="by-hand",
            gpu_classes=tuple(GpuClass(name=name, vgpu_divisors=DIVISORS) for name in classes),
            nodes=tuple(nodes),
        ),
        workload=Workload(models=tuple(ModelDemand(name=m.name, slo_us=m.slo_us) for m in planned)),
        gpus_used={},
        pools=tuple(pools.values()),
        models=tuple(planned),
    )
    return plan.counted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One stage on a pool of its own.

    Latency per batch size, GPUs, bytes per sample to the next stage.
    """

    latency_us: tuple[int, ...]
    gpus: int = 1
    bytes_out: int = 0
    divisor: int = 1
    gpus_per_node: int = 1


def make_plan(
    *models: Sequence[Sequence[Own]],
    slo_us: int = 100_000,
    nic_gbps: float = NIC_GBPS,
    plan_id: str = "by-hand",
    names: Sequence[str] | None = None,
) -> Plan:
    """A plan of models (sequences of pipelines, which are sequences of pools).

    Every pool has nodes of its own; the batch of a pipeline is the longest its tables know.
    """
    nodes: list[NodeGroup] = []

    def stage(pool: Own, batch: int, number: int, count: int) -> HandStage:
        last = number == count - 1
        return hand_stage(
            (number, BLOCKS if last else number + 1),
            "GPU",
            _nodes_of(pool, nodes, nic_gbps),
            pool.latency_us,
            batch=batch,
            vgpu_divisor=pool.divisor,
            transfer_us=0 if last else transfer_us(batch * pool.bytes_out, nic_gbps),
            boundary_bytes_per_sample=pool.bytes_out,
        )

    def pipeline(pools: Sequence[Own]) -> HandPipeline:
        batch = min(len(pool.latency_us) for pool in pools)
        stages = [stage(pool, batch, number, len(pools)) for number, pool in enumerate(pools)]
        return hand_pipeline(*stages, batch=batch)

    names = names or [f"m{number}" for number in range(len(models))]
    plans = [
        hand_model(name, *map(pipeline, pipelines), slo_us=slo_us)
        for name, pipelines in zip(names, models, strict=True)
    ]
    return hand_plan(*plans, nodes=nodes, plan_id=plan_id)


def _nodes_of(pool: Own, nodes: list[NodeGroup], nic_gbps: float) -> PlacementRun:
    """Nodes of its own for a pool, added to those that there are."""
    first = sum(group.count for group in nodes)
    count = pool.gpus // pool.gpus_per_node
    nodes.append(
        NodeGroup(
            count=count,
            gpu_class="GPU",
            gpus=pool.gpus_per_node,
            nic_gbps=nic_gbps,
            name=f"n{len(nodes)}",
        )
    )
    return PlacementRun(
        node=first, gpu=0, slot=0, nodes=count, gpus=pool.gpus_per_node, slots=pool.divisor
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The pools that requests of one entry pass, by their numbers, with budget and rate."""

    pools: tuple[int, ...]
    budget_us: int = 100_000
    rate_rps: float = 10.0


def make_boarding_plan(
    pools: Sequence[tuple[tuple[int, int], Own]],
    *ways: Way,
    nic_gbps: float = NIC_GBPS,
    policy: str = "reservation-ahead",
    plan_id: str = "boarding",
) -> Plan:
    """One model with an entry per way.

    Stages of pools (blocks and what runs them) with several ways board.
    """
    nodes: list[NodeGroup] = []
    places = [_nodes_of(pool, nodes, nic_gbps) for _, pool in pools]
    used = [number for way in ways for number in way.pools]

    def pipeline(number: int, way: Way) -> HandPipeline:
        first = len(pools[way.pools[0]][1].latency_us)
        stages = [
            hand_stage(
                pools[k][0],
                "GPU",
                places[k],
                pools[k][1].latency_us,
                vgpu_divisor=pools[k][1].divisor,
                boundary_bytes_per_sample=0 if k == way.pools[-1] else pools[k][1].bytes_out,
                boards=used.count(k) > 1,
            )
            for k in way.pools
        ]
        for k, made in enumerate(stages):
            own = replace(made.stage, batch=made.stage.largest)
            stages[k] = replace(made, stage=own)
        return hand_pipeline(*stages, batch=first, rate_rps=way.rate_rps, entry=f"e{number}")

    made = [pipeline(number, way) for number, way in enumerate(ways)]
    entries = tuple(
        Entry(
            name=f"e{number}",
            block=made[number].pipeline.first_block,
            budget_us=way.budget_us,
            rate_rps=way.rate_rps,
        )
        for number, way in enumerate(ways)
    )
    slo_us = max(way.budget_us for way in ways)
    model = hand_model("net", *made, slo_us=slo_us, entries=entries, policy=policy)
    return hand_plan(model, nodes=nodes, plan_id=plan_id)


def two_tails(capacity: int = 4, vgpus: int = 1) -> Plan:
    """Two entries that meet in a shared stage of 4 ms alone and 1 ms for each sample more.

    The first aligns for 3 ms, on two vGPUs, and moves 1 ms a sample; the second begins at the
    junction.
    """
    shared = Own(latency_us=tuple(4_000 + 1_000 * n for n in range(capacity)), gpus=vgpus)
    align = Own(latency_us=(3_000,), gpus=2, bytes_out=1_000_000)
    return make_boarding_plan(
        [((0, 2), align), ((2, 4), shared)], Way(pools=(0, 1)), Way(pools=(1,))
    )


def two_stages(slo_us: int = 100_000) -> Plan:
    """One model, one pipeline of batch 4.

    4 vGPUs of 8 ms, then 2 of 4 ms, 1 ms a sample between.
    """
    first = Own(latency_us=(3_000, 5_000, 6_500, 8_000), gpus=4, bytes_out=1_000_000)
    second = Own(latency_us=(2_000, 2_700, 3_400, 4_000), gpus=2)
    return make_plan([[first, second]], slo_us=slo_us)
