"""Small plans written by hand, for servers that must start in seconds."""

from typing import Any

from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.plan import ModelPlan, Objective, Pipeline, PlacementRun, Plan, Stage
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import ModelDemand, Workload

BATCH = 4
SLO_US = 400_000


def tensor(name: str, *dims: int, dtype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *dims))


def stage(blocks: tuple[int, int], gpu_class: str, node: int, **fields: Any) -> Stage:
    vgpus = int(fields.pop("vgpus", 1))
    latencies = tuple(int(us) for us in (2_000, 3_000, 4_000, 5_000))
    values: dict[str, Any] = {
        "latency_us": latencies[BATCH - 1],
        "latency_us_by_batch": latencies,
        "boundary_bytes_per_sample": 4096,
        "transfer_us": 0,
        **fields,
    }
    return Stage(
        blocks=blocks,
        gpu_class=gpu_class,
        vgpu_divisor=1,
        vgpus=vgpus,
        placement=(PlacementRun(node=node, gpu=0, slot=0, gpus=vgpus),),
        **values,
    )


def model(name: str, stages: tuple[Stage, ...], slo_us: int = SLO_US, **fields: Any) -> ModelPlan:
    pipeline = Pipeline(
        batch=BATCH,
        throughput_rps=100.0,
        latency_us=sum(s.latency_us + s.transfer_us for s in stages),
        stages=stages,
    )
    return ModelPlan(
        name=name,
        slo_us=slo_us,
        throughput_rps=100.0,
        pipelines=(pipeline,),
        **fields,
    )


def plan(*models: ModelPlan, plan_id: str = "test-plan", gpus: int = 2) -> Plan:
    return Plan(
        plan_id=plan_id,
        planner="by hand",
        options={},
        objective=Objective(name="throughput", value=1.0, upper_bound=1.0, gap=0.0),
        solver="none",
        solve_seconds=0.0,
        cluster=Cluster(
            name="pair",
            gpu_classes=(GpuClass(name="FAST"), GpuClass(name="SLOW")),
            nodes=(
                NodeGroup(count=1, gpu_class="FAST", gpus=gpus, nic_gbps=10.0),
                NodeGroup(count=1, gpu_class="SLOW", gpus=gpus, nic_gbps=10.0),
            ),
        ),
        workload=Workload(models=tuple(ModelDemand(name=m.name, slo_us=m.slo_us) for m in models)),
        gpus_used={"FAST": gpus, "SLOW": gpus},
        models=models,
    )


def two_stage(name: str = "pair", **fields: Any) -> ModelPlan:
    stages = (
        stage((0, 5), "FAST", 0, boundary=(tensor("middle", 8, 16),)),
        stage((5, 10), "SLOW", 1, vgpus=2),
    )
    inputs = (tensor("image", 3, 16), tensor("mask", 4, dtype="UINT8"))
    return model(name, stages, inputs=inputs, outputs=(tensor("scores", 10),), **fields)
