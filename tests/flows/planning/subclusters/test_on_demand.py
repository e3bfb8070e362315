"""Models that memory does not hold: the hottest are pinned, others are loaded on demand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.fakes.variants import gpus, variant_profiles, variant_workload
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

MIB = 1 << 20
RUN_US = 10_000
SLO_US = 400_000


def profile(name: str, mib: int = 100, workspace_mib: int = 10) -> ModelProfile:
    table = (RUN_US + 2_000 * np.arange(8.0))[None, :]
    return ModelProfile(
        name=name,
        boundary_bytes=(),
        tables=loaded({("gpu", 1): table}),
        block_memory_bytes=(mib * MIB,) if mib else (),
        block_workspace_bytes=(workspace_mib * MIB,) if mib else (),
    )


def cluster(gpus: int, mib: int, **known: Any) -> Cluster:
    known = {"load_gib_per_s": 2.0, "load_ms": 5.0, **known}
    return Cluster(
        name="small",
        gpu_classes=(GpuClass(name="gpu", memory_gib=mib / 1024, **known),),
        nodes=(NodeGroup(count=1, gpu_class="gpu", gpus=gpus, nic_gbps=10),),
    )


def zipf(count: int, total_rps: float) -> list[float]:
    weights = np.arange(1, count + 1) ** -0.9
    return (weights / weights.sum() * total_rps).tolist()


def workload(rates: list[float], **more: Any) -> Workload:
    values: dict[str, Any] = {"slo_us": SLO_US, **more}
    return Workload(
        models=tuple(
            ModelDemand(name=f"m{at}", rate_rps=rate, **values) for at, rate in enumerate(rates)
        )
    )


def planned(on: Cluster, asked: Workload, mib: int = 100, **options: Any) -> Plan:
    profiles = {model.name: profile(model.name, mib) for model in asked.models}
    options = {"objective": "gpus", "own": {"on_demand": True}, **options}
    plan = make_plan(profiles, on, asked, PlanOptions(planner="subclusters", **options))
    assert verify_plan(plan, profiles) == []
    assert Plan.from_dict(plan.to_dict()) == plan
    return plan


def on_demand(plan: Plan) -> list[str]:
    return [m.name for m, _, stage, _ in plan.placed_stages() if stage.load_us is not None]


def test_all_models_are_pinned_where_memory_holds_them() -> None:
    plan = planned(cluster(2, 700), workload(zipf(12, 20)))
    assert on_demand(plan) == []
    assert "all models are pinned" in plan.certificate["notes"][-1]
    as_ever = planned(cluster(2, 700), workload(zipf(12, 20)), own={})
    assert [m.pipelines for m in plan.models] == [m.pipelines for m in as_ever.models]


def test_the_hottest_models_are_pinned_and_the_others_share_a_gpu() -> None:
    rates = zipf(12, 20)
    order = [3, 7, 0, 11, 1, 2, 4, 5, 6, 8, 9, 10]  # the hottest is m3, then m7
    plan = planned(cluster(2, 360), workload([rates[order.index(at)] for at in range(12)]))
    assert {*on_demand(plan)} == {f"m{at}" for at in order[3:]}
    assert {m.policy for m in plan.models if m.name in on_demand(plan)} == {"eager"}
    pinned, loading = plan.pools
    assert {len(plan.stages_of(number)) for number in range(2)} == {3, 9}
    assert (pinned.vgpus, loading.vgpus) == (1, 1)
    number = plan.pools.index(next(p for p in plan.pools if plan.room_bytes(plan.pools.index(p))))
    assert plan.room_bytes(number) == 350 * MIB  # all that the largest workspace leaves
    stage = plan.stages_of(number)[0]
    assert stage.load_us == 48_829 + 5_000  # 100 MiB at 2 GiB/s, rounded up, and 5 ms
    assert stage.latency_us_by_batch[0] == stage.load_us + RUN_US
    assert "3 of 12 models are pinned" in plan.certificate["notes"][-1]
    (details,) = plan.certificate["on_demand"]
    assert details["models"] == 9
    assert plan.objective.space == "its own rule"


def test_models_whose_slo_leaves_no_time_for_a_load_are_pinned_first() -> None:
    asked = workload(zipf(12, 20))
    hurried = replace(asked.models[11], slo_us=50_000)
    plan = planned(cluster(2, 360), replace(asked, models=(*asked.models[:11], hurried)))
    assert "m11" not in on_demand(plan)
    assert len(on_demand(plan)) == 9


def test_models_of_unknown_memory_are_pinned() -> None:
    asked = workload(zipf(12, 20))
    profiles = {m.name: profile(m.name, 0 if m.name == "m9" else 100) for m in asked.models}
    options = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    plan = make_plan(profiles, cluster(2, 360), asked, options)
    assert verify_plan(plan, profiles) == []
    assert "m9" not in on_demand(plan)


def test_every_gpu_may_load_on_demand() -> None:
    plan = planned(cluster(1, 250), workload(zipf(6, 6)))
    assert len(on_demand(plan)) == 6


def test_a_load_that_cannot_be_in_time_is_refused_with_its_numbers() -> None:
    memory = "no sub-clusters were found that hold the models: 1.17 GiB of weights, .*; on demand"
    pinned = "12 models of 1.17 GiB must be pinned and find no room: 'm0' takes 63.829 of 60.000"
    with pytest.raises(InfeasibleError, match=f"{memory}, .*{pinned}"):
        planned(cluster(2, 360), workload(zipf(12, 20), slo_us=60_000))


def test_too_much_loading_is_refused_with_its_numbers() -> None:
    with pytest.raises(InfeasibleError, match=r"on demand would keep .* GPUs loading and running"):
        planned(cluster(2, 360), workload(zipf(12, 100)))


@pytest.mark.parametrize(
    ("on", "options", "complaint"),
    [
        (cluster(2, 360), {"objective": "throughput"}, "on_demand: models are pinned by their"),
        (cluster(2, 360, load_gib_per_s=None, load_ms=None), {}, "no class of the cluster states"),
    ],
)
def test_what_cannot_be_planned_on_demand_is_refused(
    on: Cluster, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        planned(on, workload(zipf(12, 20), weight=1.0), **options)


def test_variants_are_not_planned_on_demand() -> None:
    asked = variant_workload(rate_rps=100.0)
    options = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    with pytest.raises(InputError, match="on_demand: a name with variants needs all of them"):
        make_plan(variant_profiles(), gpus(), asked, options)


def test_a_plan_in_force_keeps_the_gpus_that_load() -> None:
    asked = workload(zipf(12, 20))
    first = planned(cluster(4, 360), asked)
    again = planned(cluster(4, 360), asked, previous=first)
    places = [{pool.name: pool.placement for pool in plan.pools} for plan in (first, again)]
    assert places[0] == places[1]
    assert [m.pipelines for m in first.models] == [m.pipelines for m in again.models]


@pytest.mark.long
def test_what_a_plan_promises_is_kept_in_the_simulator() -> None:
    plan = planned(cluster(2, 360), workload(zipf(12, 20)))
    result = simulate(plan, SimOptions(duration_s=60))
    outcomes = [one.outcome for one in result.models]
    assert sum(one.late for one in outcomes) == 0
    assert min(one.served / one.offered for one in outcomes) >= 0.99


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_plans_hold_for_any_sizes_and_rates(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 10))
    sizes = data.draw(st.lists(st.integers(20, 120), min_size=count, max_size=count))
    rates = data.draw(st.lists(st.floats(0.01, 4.0), min_size=count, max_size=count))
    slos = data.draw(st.lists(st.integers(30_000, 500_000), min_size=count, max_size=count))
    profiles = {f"m{at}": profile(f"m{at}", size) for at, size in enumerate(sizes)}
    asked = Workload(
        models=tuple(
            ModelDemand(name=f"m{at}", slo_us=slo, rate_rps=rate)
            for at, (slo, rate) in enumerate(zip(slos, rates, strict=True))
        )
    )
    on = cluster(data.draw(st.integers(1, 3)), data.draw(st.integers(150, 300)))
    options = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    try:
        plan = make_plan(profiles, on, asked, options)
    except InfeasibleError:
        return
    assert verify_plan(plan, profiles) == []
