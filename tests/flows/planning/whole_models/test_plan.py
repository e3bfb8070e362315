"""The planner `no-partitioning` by hand: fast GPUs, and ones too slow for the whole model."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.workload import ModelDemand

# 15 ms less the margin are 9 ms. Batch 4 takes 5.5 ms on a fast GPU; batch 1 takes 11 ms on a slow
# one.
SHORT_FIRST = {"net": profile(fast_us=(200, 1000, 1000), slowdown=5.0)}


def test_no_partitioning_runs_whole_models_where_they_fit() -> None:
    plan = make_plan(SHORT_FIRST, cluster(), workload(), PlanOptions(planner="no-partitioning"))
    (pipeline,) = plan.model("net").pipelines
    (stage,) = pipeline.stages
    pool = plan.pool_of(stage)
    assert (pipeline.batch, stage.blocks) == (4, (0, 3))
    assert (pool.gpu_class, pool.divisor, pool.vgpus) == ("fast", 1, 2)
    assert plan.objective.value == pytest.approx(2 * 4 / 5.5e-3)
    assert verify_plan(plan, SHORT_FIRST) == []


def gpus_by_model(*building_rates: float) -> dict[str, int]:
    """Of five fast GPUs two models need two each; a model's third needs its batch-building rate."""
    net = SHORT_FIRST["net"]
    profiles = {f"net{n}": replace(net, name=f"net{n}") for n in range(len(building_rates))}
    demands = [
        ModelDemand(name=name, slo_us=15_000, weight=1.0, batch_building_rate_rps=rate)
        for name, rate in zip(profiles, building_rates, strict=True)
    ]
    options = PlanOptions(planner="no-partitioning")
    plan = make_plan(profiles, cluster(fast=5), workload(*demands), options)
    assert verify_plan(plan, profiles) == []
    return {
        model.name: sum(plan.pool_of(p.stages[0]).vgpus for p in model.pipelines)
        for model in plan.models
    }


def test_a_spare_gpu_goes_to_the_model_whose_batches_still_fill() -> None:
    assert gpus_by_model(1_600.0, 1e9) == {"net0": 2, "net1": 3}
    assert gpus_by_model(1e9, 1_600.0) == {"net0": 3, "net1": 2}


def test_a_spare_gpu_stays_unused_where_no_batches_would_fill() -> None:
    assert gpus_by_model(1_600.0, 1_600.0) == {"net0": 2, "net1": 2}
