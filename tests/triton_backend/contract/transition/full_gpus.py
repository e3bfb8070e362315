"""Plans whose GPUs are full, or nearly so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.fakes.plans import (
    HandModel,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
)
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan, StageMemory

GIB = 1 << 30
ROOM_GIB = 8


def with_memory(plan: Plan, memory_gib: float, process_gib: float | None = None) -> Plan:
    classes = tuple(
        replace(c, memory_gib=memory_gib, process_memory_gib=process_gib)
        for c in plan.cluster.gpu_classes
    )
    return replace(plan, cluster=replace(plan.cluster, gpu_classes=classes))


def full_gpus(where: Mapping[str, Sequence[int]], gib: Mapping[str, int], *, plan_id: str) -> Plan:
    """Models on whole GPUs of one node, a worker of so many GiB on each of theirs."""
    models: list[HandModel] = []
    for name, gpus in where.items():
        pipelines = [
            hand_pipeline(
                hand_stage(
                    (0, 4),
                    "GPU",
                    PlacementRun(node=0, gpu=gpu, slot=0),
                    (10,),
                    memory=StageMemory(static=gib[name] * GIB, dynamic=0),
                ),
                batch=1,
            )
            for gpu in gpus
        ]
        models.append(hand_model(name, *pipelines, slo_us=100))
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=4, nic_gbps=1.0, name="n")]
    return with_memory(hand_plan(*models, nodes=nodes, plan_id=plan_id), ROOM_GIB)
