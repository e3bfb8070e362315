"""The planner `dart-r` by hand.

A model whose first block is short, on fast GPUs and ones five times as slow.
"""

from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand

# 15 ms less the margin are 9 ms. Batch 4 takes 5.5 ms on a fast GPU; batch 1 takes 11 ms on a slow
# one.
SHORT_FIRST = {"net": profile(fast_us=(200, 1000, 1000), slowdown=5.0)}


def pipelines(plan: Plan, model: str = "net") -> list[tuple[Any, ...]]:
    return [
        (
            p.batch,
            [
                (s.blocks, pool.gpu_class, pool.divisor, pool.vgpus)
                for s in p.stages
                for pool in [plan.pool_of(s)]
            ],
        )
        for p in plan.model(model).pipelines
    ]


def test_dart_r_pairs_a_gpu_of_each_class_as_often_as_the_scarcer_class_allows() -> None:
    plan = make_plan(SHORT_FIRST, cluster(), workload(), PlanOptions(planner="dart-r"))
    # Batch 4: 2.5 ms on the slow GPU, 5 ms on the fast one, which sets the rate.
    assert pipelines(plan) == [(4, [((0, 1), "slow", 1, 2), ((1, 3), "fast", 1, 2)])]
    assert plan.objective.value == pytest.approx(2 * 4 / 5e-3)
    assert verify_plan(plan, SHORT_FIRST) == []


def test_dart_r_leaves_gpus_apart_where_a_pair_does_no_more() -> None:
    even = {"net": profile(slowdown=1.5)}
    plan = make_plan(even, cluster(), workload(), PlanOptions(planner="dart-r"))
    # Each alone: 4 in 7.5 ms and 2 in 6.75 ms; a pair gives 4 in 5 ms at most.
    assert pipelines(plan) == [(2, [((0, 3), "slow", 1, 4)]), (4, [((0, 3), "fast", 1, 2)])]
    assert plan.objective.value == pytest.approx(2 * 4 / 7.5e-3 + 4 * 2 / 6.75e-3)


def test_dart_r_shares_unused_gpus_equally_among_models() -> None:
    profiles = SHORT_FIRST | {"other": profile("other", fast_us=(200, 1000, 1000), slowdown=5.0)}
    demands = [
        ModelDemand(name=name, slo_us=15_000, weight=1.0, batch_building_rate_rps=1e9)
        for name in profiles
    ]
    plan = make_plan(profiles, cluster(), workload(*demands), PlanOptions(planner="dart-r"))
    pair = [(4, [((0, 1), "slow", 1, 1), ((1, 3), "fast", 1, 1)])]
    assert [pipelines(plan, name) for name in profiles] == [pair, pair]
