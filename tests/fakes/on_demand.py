"""Plans made by hand whose stages are loaded on demand: models of one stage on one pool."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import BYTES_PER_GIB, ModelPlan, PlacementRun, Plan, StageMemory

MIB = 1 << 20
LOAD_GIB_PER_S = 4.0


def load_us(mib: int) -> int:
    """Time of a load of so many MiB on these plans' class, rounded up."""
    return -(-mib * MIB * 1_000_000 // int(LOAD_GIB_PER_S * BYTES_PER_GIB))


def on_demand_plan(
    sizes_mib: Sequence[int],
    room_mib: int,
    run_us: Sequence[int] = (5_000, 6_000),
    *,
    slo_us: int = 400_000,
    rate_rps: float = 1.0,
    vgpus: int = 1,
    pinned: Sequence[int] = (),
    plan_id: str = "on-demand",
    **fields: Any,
) -> Plan:
    """Models m0, m1, ... of so many MiB; those `pinned` are always there, beside the room."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    loads = [0 if at in pinned else load_us(size) for at, size in enumerate(sizes_mib)]
    models = [
        hand_model(
            f"m{at}",
            hand_pipeline(
                hand_stage(
                    (0, 1),
                    "GPU",
                    place,
                    [load + run for run in run_us],
                    batch=1,
                    memory=StageMemory(static=size * MIB, dynamic=0),
                ),
                batch=1,
                rate_rps=rate_rps,
            ),
            slo_us=slo_us,
            policy="eager",
            **fields,
        )
        for at, (size, load) in enumerate(zip(sizes_mib, loads, strict=True))
    ]
    plan = hand_plan(
        *models,
        nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=vgpus, nic_gbps=10.0)],
        plan_id=plan_id,
    )
    held_mib = room_mib + sum(sizes_mib[at] for at in pinned)
    (kind,) = plan.cluster.gpu_classes
    kind = replace(kind, memory_gib=held_mib / 1024, load_gib_per_s=LOAD_GIB_PER_S)
    loaded = tuple(
        with_load(model, load or None) for model, load in zip(plan.models, loads, strict=True)
    )
    return replace(plan, cluster=replace(plan.cluster, gpu_classes=(kind,)), models=loaded)


def with_load(model: ModelPlan, load: int | None) -> ModelPlan:
    """A model of one stage, loaded on demand in so many µs."""
    (pipeline,) = model.pipelines
    (stage,) = pipeline.stages
    stages = (replace(stage, load_us=load),)
    return replace(model, pipelines=(replace(pipeline, stages=stages),))
