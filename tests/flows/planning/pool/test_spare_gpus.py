"""Promises of plans, and GPUs that the optimum does not need."""

import math
from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.spare_gpus import HEADROOM
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile
from triton_backend.contract.plan import Plan, Pool
from triton_backend.contract.workload import ModelDemand, Workload

PROFILES = {"net": profile(), "other": profile("other", fast_us=(700, 900, 1300))}


def demands(**rates: float) -> Workload:
    return Workload(
        models=tuple(
            ModelDemand(
                name=name,
                slo_us=12_000,
                weight=1.0,
                batch_building_rate_rps=1e9,
                rate_rps=rates.get(name),
            )
            for name in ("net", "other")
        )
    )


def pools(plan: Plan) -> list[Pool]:
    """The pools of `pool_rps`."""
    return [pool for _, p, _, pool in plan.placed_stages() if p.throughput_rps]


def pool_rps(plan: Plan) -> list[tuple[float, float, str]]:
    """(planned rate, what the pool can serve, class) of every pool but overflow.

    Boundaries are tiny here.
    """
    return [
        (p.throughput_rps, pool.vgpus * p.batch / s.latency_us * 1e6, pool.gpu_class)
        for _, p, s, pool in plan.placed_stages()
        if p.throughput_rps
    ]


def test_every_model_is_promised_its_share_of_the_objective_and_no_more() -> None:
    plan = make_plan(PROFILES, cluster(3, 7), demands())
    assert [m.throughput_rps for m in plan.models] == pytest.approx([plan.objective.value] * 2)
    for model in plan.models:
        total = math.fsum(p.throughput_rps for p in model.pipelines)
        assert total == pytest.approx(model.throughput_rps)
    assert all(served >= planned * (1 - 1e-9) for planned, served, _ in pool_rps(plan))
    assert verify_plan(plan, PROFILES) == []


def test_gpus_left_over_widen_the_pools_of_their_class_up_to_the_headroom() -> None:
    plan = make_plan(PROFILES, cluster(4, 200), demands())
    assert 0 < plan.gpus_used["slow"] < 200
    slow = [served / planned for planned, served, name in pool_rps(plan) if name == "slow"]
    assert slow
    assert min(slow) >= 1 + HEADROOM
    one_less = [
        served * (pool.vgpus - 1) / pool.vgpus / planned
        for (planned, served, name), pool in zip(pool_rps(plan), pools(plan), strict=True)
        if name == "slow"
    ]
    assert max(one_less) < 1 + HEADROOM
    assert verify_plan(plan, PROFILES) == []


def test_a_plan_of_least_cost_takes_no_gpu_for_slack() -> None:
    priced = cluster(4, 8, fast_hourly_cost=3.0, slow_hourly_cost=1.0)
    plan = make_plan(
        PROFILES, priced, demands(net=200.0, other=200.0), PlanOptions(objective="cost")
    )
    assert [m.throughput_rps for m in plan.models] == pytest.approx([200.0, 200.0])
    cost = 3.0 * plan.gpus_used["fast"] + plan.gpus_used["slow"]
    assert plan.objective.value == pytest.approx(cost)


def test_a_promise_beyond_what_pools_deliver_is_found() -> None:
    plan = make_plan(PROFILES, cluster(3, 7), demands())
    first = plan.models[0]
    more = replace(
        first,
        throughput_rps=first.throughput_rps * 1.5,
        pipelines=tuple(replace(p, throughput_rps=p.throughput_rps * 1.5) for p in first.pipelines),
    )
    found = verify_plan(replace(plan, models=(more, *plan.models[1:])))
    assert any("throughput_rps" in line for line in found)
