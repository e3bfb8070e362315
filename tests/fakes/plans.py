"""Plans made by hand, small enough to reason about."""

from collections.abc import Sequence
from dataclasses import dataclass

from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.plan import ModelPlan, Objective, Pipeline, PlacementRun, Plan, Stage
from triton_backend.contract.units import transfer_us
from triton_backend.contract.workload import ModelDemand, Workload

NIC_GBPS = 8.0  # 1,000 bytes per µs
BLOCKS = 4  # of every model; the last stage takes what is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One stage: latency per batch size, GPUs, bytes per sample to the next stage."""

    latency_us: tuple[int, ...]
    gpus: int = 1
    bytes_out: int = 0
    divisor: int = 1
    gpus_per_node: int = 1


def make_plan(
    *models: Sequence[Sequence[Pool]],
    slo_us: int = 100_000,
    nic_gbps: float = NIC_GBPS,
    plan_id: str = "by-hand",
    names: Sequence[str] | None = None,
) -> Plan:
    """A plan of models (sequences of pipelines, which are sequences of pools).

    Every pool has nodes of its own; the batch of a pipeline is the longest its tables know.
    """
    groups: list[NodeGroup] = []
    plans: list[ModelPlan] = []
    node = 0
    names = names or [f"m{number}" for number in range(len(models))]
    for name, pipelines in zip(names, models, strict=True):
        made: list[Pipeline] = []
        for pools in pipelines:
            batch = min(len(pool.latency_us) for pool in pools)
            stages: list[Stage] = []
            for number, pool in enumerate(pools):
                last = number == len(pools) - 1
                nodes = pool.gpus // pool.gpus_per_node
                groups.append(
                    NodeGroup(
                        count=nodes,
                        gpu_class="GPU",
                        gpus=pool.gpus_per_node,
                        nic_gbps=nic_gbps,
                        name=f"n{len(groups)}",
                    )
                )
                stages.append(
                    Stage(
                        blocks=(number, BLOCKS if last else number + 1),
                        gpu_class="GPU",
                        vgpu_divisor=pool.divisor,
                        vgpus=pool.gpus * pool.divisor,
                        latency_us=pool.latency_us[batch - 1],
                        transfer_us=0 if last else transfer_us(batch * pool.bytes_out, nic_gbps),
                        latency_us_by_batch=pool.latency_us,
                        boundary_bytes_per_sample=pool.bytes_out,
                        placement=(
                            PlacementRun(
                                node=node,
                                gpu=0,
                                slot=0,
                                nodes=nodes,
                                gpus=pool.gpus_per_node,
                                slots=pool.divisor,
                            ),
                        ),
                    )
                )
                node += nodes
            rate_rps = min(1e6 * batch * s.vgpus / s.latency_us for s in stages)
            made.append(
                Pipeline(
                    batch=batch,
                    throughput_rps=rate_rps,
                    latency_us=sum(s.latency_us + s.transfer_us for s in stages),
                    stages=tuple(stages),
                )
            )
        plans.append(
            ModelPlan(
                name=name,
                slo_us=slo_us,
                throughput_rps=sum(pipeline.throughput_rps for pipeline in made),
                pipelines=tuple(made),
            )
        )
    return Plan(
        plan_id=plan_id,
        planner="by-hand",
        options={},
        objective=Objective(name="throughput", value=1.0, upper_bound=1.0, gap=0.0),
        solver="none",
        solve_seconds=0.0,
        cluster=Cluster(
            name="by-hand",
            gpu_classes=(GpuClass(name="GPU", vgpu_divisors=(1, 2, 3, 4)),),
            nodes=tuple(groups),
        ),
        workload=Workload(models=tuple(ModelDemand(name=n, slo_us=slo_us) for n in names)),
        gpus_used={},
        models=tuple(plans),
    )


def two_stages(slo_us: int = 100_000) -> Plan:
    """One model, one pipeline of batch 4: 4 vGPUs of 8 ms, then 2 of 4 ms, 1 ms a sample between."""
    first = Pool(latency_us=(3_000, 5_000, 6_500, 8_000), gpus=4, bytes_out=1_000_000)
    second = Pool(latency_us=(2_000, 2_700, 3_400, 4_000), gpus=2)
    return make_plan([[first, second]], slo_us=slo_us)
