"""Pinned models keep their pools; the others are planned on what is left."""

from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.placement import uses_of
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand

PROFILES = {name: profile(name) for name in ("net", "other")}
TINY = cluster(4, 8, fast_hourly_cost=2.0, slow_hourly_cost=1.0)


def demand(name: str, **known: Any) -> ModelDemand:
    usual: dict[str, Any] = {"slo_us": 15_000, "batch_building_rate_rps": 1e9}
    return ModelDemand(name=name, **usual | known)


def planned(*demands: ModelDemand, **options: Any) -> Plan:
    plan = make_plan(PROFILES, TINY, workload(*demands), PlanOptions(**options))
    assert verify_plan(plan, PROFILES) == []
    return plan


PREVIOUS = planned(demand("net", weight=1.0), demand("other", weight=1.0))


def pools(plan: Plan, model: str) -> list[tuple[int, list[tuple[object, ...]]]]:
    """Batch, blocks, classes and vGPUs of every pipeline."""
    return sorted(
        (
            p.batch,
            [
                (s.blocks, pool.gpu_class, pool.share, pool.vgpus)
                for s in p.stages
                for pool in (plan.pool_of(s),)
            ],
        )
        for p in plan.model(model).pipelines
    )


def test_a_pinned_model_keeps_pools_and_gpus_whatever_becomes_of_the_others() -> None:
    changed = (demand("net", weight=1.0), demand("other", weight=3.0, slo_us=9_000))
    plan = planned(*changed, previous=PREVIOUS, pinned_models=("net",))
    assert pools(plan, "net") == pools(PREVIOUS, "net")
    before, after = uses_of(PREVIOUS, TINY), uses_of(plan, TINY)
    kept = {gpu for gpu, use in before.items() if use.model == "net"}
    assert {gpu for gpu, use in after.items() if use.model == "net"} == kept
    free = planned(*changed)
    assert plan.objective.value <= free.objective.upper_bound
    assert plan.options["pinned_models"] == ["net"]


def test_cost_counts_pinned_gpus_too() -> None:
    asked = (demand("net", rate_rps=1.0), demand("other", rate_rps=100.0))
    plan = planned(*asked, objective="cost", previous=PREVIOUS, pinned_models=("net",))
    assert pools(plan, "net") == pools(PREVIOUS, "net")
    assert plan.objective.value > planned(*asked, objective="cost").objective.value


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"previous": None}, "needs the plan in force"),
        ({"pinned_models": ("absent",)}, "'absent': is not in plan"),
        ({"pinned_models": ("net", "other")}, "none is left to plan"),
        ({"excluded_classes": {"net": ("fast",)}}, "'net': its pipeline of batch"),
        ({"minimum_rps": {"net": 1e6}}, "'net': its pools deliver"),
        ({"planner": "no-partitioning"}, "plans every model again"),
    ],
)
def test_what_cannot_be_pinned_is_said(change: dict[str, Any], reason: str) -> None:
    options = {"previous": PREVIOUS, "pinned_models": ("net",), "slo_margin": 0.4} | change
    with pytest.raises(InputError, match=reason):
        planned(demand("net", weight=1.0), demand("other", weight=1.0), **options)


def test_pinned_pools_need_the_gpus_they_ran_on() -> None:
    smaller = replace(TINY, nodes=(replace(TINY.nodes[0], count=1), TINY.nodes[1]))
    asked = workload(demand("net", weight=1.0), demand("other", weight=1.0))
    options = PlanOptions(previous=PREVIOUS, pinned_models=("net",))
    with pytest.raises(InputError, match="GPUs of class fast, 1 exist"):
        make_plan(PROFILES, smaller, asked, options)
