"""Transfers between modules: planned where modules lie on several nodes, verified, bounded."""

from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import profile
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import Workload

FLOATS = 25_000  # 100 kB a row: 800 µs at 1 Gbit/s


def known(name: str, floats: int = FLOATS) -> ModelProfile:
    """A model whose rows are read and given as so many floats."""
    taken = (TensorSpec(name="x", dtype="FP32", shape=(-1, floats)),)
    given = (TensorSpec(name="y", dtype="FP32", shape=(-1, floats)),)
    return replace(profile(name, (1000, 1000, 1000)), inputs=taken, outputs=given)


def nodes(count: int, gpus: int, nic_gbps: float = 1.0) -> Cluster:
    """Nodes of `gpus` whole GPUs each."""
    return Cluster(
        name="pair",
        gpu_classes=(GpuClass(name="fast", vgpu_divisors=(1,), hourly_cost=1.0),),
        nodes=(NodeGroup(count=count, gpu_class="fast", gpus=gpus, nic_gbps=nic_gbps),),
    )


def chain(slo_ms: float, rate_rps: float = 400.0, *, bound: bool = True) -> Workload:
    second: dict[str, Any] = {"name": "two", "model": "b", "after": ["one"]}
    first: dict[str, Any] = {"name": "one", "model": "a"}
    if bound:
        first["inputs"] = {"x": "request.x"}
        second["inputs"] = {"x": "one.y"}
    for given in (first, second):
        given["batch_building_rate_rps"] = 1e9
    app = {"name": "app", "slo_ms": slo_ms, "rate_rps": rate_rps, "modules": [first, second]}
    return Workload.from_dict({"applications": [app]})


def made(workload: Workload, on: Cluster, floats: int = FLOATS, **options: Any) -> Plan:
    profiles = {name: known(name, floats) for name in ("a", "b")}
    plan = make_plan(profiles, on, workload, PlanOptions(slo_margin=0.1, **options))
    assert verify_plan(plan, profiles) == []
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    return plan


def inputs_us(plan: Plan) -> dict[str, set[int]]:
    return {m.name: {p.input_transfer_us for p in m.pipelines} for m in plan.models}


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_between_nodes_a_batch_takes_the_time_of_its_bytes_at_the_links_rate(
    objective: str,
) -> None:
    """100 kB a row at 1 Gbit/s are 800 µs, for each row of the batch."""
    plan = made(chain(20.0), nodes(4, 1), objective=objective)
    assert inputs_us(plan)["a"] == {0}
    for pipeline in plan.model("b").pipelines:
        assert pipeline.input_bytes_per_sample == 4 * FLOATS
        assert pipeline.input_transfer_us == 800 * pipeline.batch
        assert pipeline.latency_us == 800 * pipeline.batch + pipeline.stages[0].latency_us


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_on_one_node_and_without_bindings_nothing_is_counted(objective: str) -> None:
    """The plan is that of links that take no time."""
    near = made(chain(20.0), nodes(1, 2), objective=objective)
    fast = made(chain(20.0), nodes(1, 2, nic_gbps=1e6), objective=objective)
    unsaid = made(chain(20.0, bound=False), nodes(2, 1), objective=objective)
    for plan in (near, fast, unsaid):
        assert inputs_us(plan) == {"a": {0}, "b": {0}}
        assert "input_transfer_us" not in str(plan.to_dict())
    assert near.objective == fast.objective
    assert near.models == fast.models


def test_an_slo_that_only_free_transfers_keep_is_refused() -> None:
    made(chain(7.0), nodes(1, 2), objective="throughput")
    with pytest.raises(InfeasibleError, match="transfers between modules"):
        made(chain(7.0), nodes(2, 1), objective="throughput")


def test_links_bound_what_modules_give_each_other() -> None:
    """400 kB a row: a link of 1 Gbit/s carries 312.5 rows/s, whatever GPUs could run."""
    plan = made(chain(60.0), nodes(2, 1), floats=100_000, objective="throughput")
    assert plan.applications[0].application.rate_rps == pytest.approx(312.5, rel=1e-6)
    wide = made(chain(60.0), nodes(2, 1, nic_gbps=10), floats=100_000, objective="throughput")
    assert (wide.applications[0].application.rate_rps or 0) > 400


@pytest.mark.parametrize("changed", [0, 799, 10_000])
def test_verify_derives_bytes_and_times(changed: int) -> None:
    plan = made(chain(20.0), nodes(2, 1), objective="throughput")

    def forged(**fields: int) -> list[str]:
        models = tuple(
            replace(m, pipelines=tuple(replace(p, **fields) for p in m.pipelines))
            if m.name == "b"
            else m
            for m in plan.models
        )
        return verify_plan(replace(plan, models=models))

    assert any("input_transfer_us" in text for text in forged(input_transfer_us=changed))
    other = forged(input_bytes_per_sample=changed)
    assert any("input_" in text for text in other)
