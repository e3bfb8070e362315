"""Small problems with round numbers, shared by the planner's tests."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flows.planning.inputs import Problem, build_problem
from flows.planning.registry import Inputs, PlanOptions
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload


def profile(
    name: str = "net",
    fast_us: tuple[float, ...] = (1000, 1000, 1000),
    slowdown: float = 3.0,
    boundary_bytes: tuple[int, ...] = (1000, 1000),
) -> ModelProfile:
    """Blocks on classes `fast` (whole and halves) and `slow` (whole), batches 1 to 4."""
    batches = np.array([1.0, 1.5, 2.0, 2.5])
    base = np.outer(np.array(fast_us, dtype=np.float64), batches)
    return ModelProfile(
        name=name,
        boundary_bytes=boundary_bytes,
        tables=loaded(
            {
                ("fast", 1): base,
                ("fast", 2): base[:, :2] * 1.8,
                ("slow", 1): base * slowdown,
            }
        ),
    )


def cluster(fast: int = 2, slow: int = 4, **known: float) -> Cluster:
    """Nodes of one GPU each; `known` adds costs or watts as `fast_hourly_cost=…`."""

    def of(name: str) -> dict[str, Any]:
        return {k.removeprefix(f"{name}_"): v for k, v in known.items() if k.startswith(name)}

    return Cluster(
        name="small",
        gpu_classes=(
            GpuClass(name="fast", vgpu_divisors=(1, 2), **of("fast")),
            GpuClass(name="slow", vgpu_divisors=(1,), **of("slow")),
        ),
        nodes=(
            NodeGroup(count=fast, gpu_class="fast", gpus=1, nic_gbps=10),
            NodeGroup(count=slow, gpu_class="slow", gpus=1, nic_gbps=10),
        ),
    )


def problem_of(
    profiles: Mapping[str, ModelProfile],
    on: Cluster,
    asked: Workload,
    options: PlanOptions,
    **how: Any,
) -> Problem:
    """Inputs as arrays."""
    inputs = Inputs(profiles=profiles, cluster=on, workload=asked, options=options)
    return build_problem(inputs, **how)


def workload(*models: ModelDemand) -> Workload:
    """The given demands, or one model with a 15 ms SLO that fills batches at once."""
    default = ModelDemand(name="net", slo_us=15_000, weight=1.0, batch_building_rate_rps=1e9)
    return Workload(models=models or (default,))
