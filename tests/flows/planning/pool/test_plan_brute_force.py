from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.brute import best_throughput, least_price
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload

EXACT = PlanOptions(gap=0.0, slo_margin=0.0)
SLOW_INSTANCES = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, ModelProfile], Cluster, Workload]:
    """One or two models of two or three blocks on two classes with few GPUs."""
    halves = draw(st.booleans())
    cluster = Cluster(
        name="tiny",
        gpu_classes=(
            GpuClass(
                name="a", vgpu_divisors=(1, 2) if halves else (1,), hourly_cost=3.0, power_w=70.0
            ),
            GpuClass(name="b", vgpu_divisors=(1,), hourly_cost=1.0, power_w=50.0),
        ),
        nodes=(
            NodeGroup(count=1, gpu_class="a", gpus=draw(st.integers(1, 2)), nic_gbps=8.0),
            NodeGroup(count=draw(st.integers(1, 2)), gpu_class="b", gpus=1, nic_gbps=4.0),
        ),
    )
    profiles: dict[str, ModelProfile] = {}
    demands: list[ModelDemand] = []
    for name in ("m", "n")[: draw(st.integers(1, 2))]:
        blocks = draw(st.integers(2, 3))
        kinds = [("a", 1), ("b", 1)] + ([("a", 2)] if halves else [])
        tables = {
            kind: np.array(
                draw(
                    st.lists(
                        st.lists(st.integers(50, 900), min_size=2, max_size=2),
                        min_size=blocks,
                        max_size=blocks,
                    )
                ),
                dtype=np.float64,
            )
            for kind in kinds
        }
        sizes = tuple(draw(st.integers(0, 200_000)) for _ in range(blocks - 1))
        profiles[name] = ModelProfile(name=name, boundary_bytes=sizes, tables=loaded(tables))
        demands.append(
            ModelDemand(
                name=name,
                slo_us=draw(st.integers(600, 4000)),
                weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
                batch_building_rate_rps=draw(st.sampled_from([1500.0, 1e9])),
            )
        )
    return profiles, cluster, Workload(models=tuple(demands))


@pytest.mark.long
@SLOW_INSTANCES
@given(problem=problems(), stages=st.integers(1, 3))
def test_no_plan_of_a_small_problem_is_better(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], stages: int
) -> None:
    best = best_throughput(*problem, stages)
    try:
        plan = make_plan(*problem, replace(EXACT, max_partitions=stages))
    except InfeasibleError:
        assert best == 0.0
        return
    assert plan.objective.value == pytest.approx(best, rel=1e-6)
    assert plan.objective.upper_bound >= best * (1 - 1e-9)
    assert verify_plan(plan, problem[0]) == []


@pytest.mark.long
@SLOW_INSTANCES
@given(
    problem=problems(),
    rate_rps=st.sampled_from([200.0, 1000.0, 3000.0]),
    objective=st.sampled_from(["cost", "power"]),
)
def test_no_plan_of_a_small_problem_is_cheaper(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], rate_rps: float, objective: str
) -> None:
    profiles, cluster, workload = problem
    demands = tuple(
        ModelDemand(
            name=m.name,
            slo_us=m.slo_us,
            rate_rps=rate_rps,
            batch_building_rate_rps=m.batch_building_rate_rps,
        )
        for m in workload.models
    )
    asked = Workload(models=demands)
    prices = {"a": 3.0, "b": 1.0} if objective == "cost" else {"a": 70.0, "b": 50.0}
    least = least_price(profiles, cluster, asked, 2, prices)
    try:
        plan = make_plan(profiles, cluster, asked, replace(EXACT, objective=objective))
    except InfeasibleError:
        assert least == float("inf")
        return
    assert plan.objective.value == pytest.approx(least)
    assert plan.objective.upper_bound <= least * (1 + 1e-9)
    assert verify_plan(plan, profiles) == []
