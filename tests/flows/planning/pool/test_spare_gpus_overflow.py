"""Free GPUs run whole models beside the plan: more than it promises, beyond its margin."""

from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.spare_gpus import MARGIN_SHARE, MOST
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Pipeline, Plan
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

# Whole models take 9 ms on `slow`: too long with a margin of 0.4, fast enough with 0.1.
PROFILES = {"net": profile(), "other": profile("other")}
DEMANDS = tuple(
    ModelDemand(name=name, slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
    for name in PROFILES
)


def planned(slow: int = 200, slo_us: int = 12_000, *, wanted: bool = True, **options: Any) -> Plan:
    demands = (replace(demand, slo_us=slo_us) for demand in DEMANDS)
    own = {"overflow": wanted}
    asked = PlanOptions(own=own, **options)
    plan = make_plan(PROFILES, cluster(4, slow), workload(*demands), asked)
    assert verify_plan(plan, PROFILES) == []
    return plan


def overflow(plan: Plan) -> list[Pipeline]:
    return [p for model in plan.models for p in model.pipelines if not p.throughput_rps]


def served_rps(plan: Plan, pipeline: Pipeline) -> float:
    return min(plan.pool_of(s).vgpus * pipeline.batch / s.latency_us * 1e6 for s in pipeline.stages)


def test_free_gpus_raise_what_every_model_can_serve_and_change_no_promise() -> None:
    plan = planned()
    assert overflow(plan)
    for model in plan.models:
        assert model.throughput_rps == pytest.approx(plan.objective.value)
        level = sum(served_rps(plan, p) for p in model.pipelines) / model.throughput_rps
        assert level >= 1 + MOST
        assert model.pipelines[-1].throughput_rps == 0.0
    assert any("promise nothing" in note for note in plan.certificate["notes"])


def test_without_being_asked_for_every_pipeline_keeps_the_margin() -> None:
    assert not overflow(planned(wanted=False))


@pytest.mark.parametrize(
    "other", [{"objective": "cost"}, {"planner": "no-partitioning"}, {"planner": "dart-r"}]
)
def test_overflow_where_it_has_no_meaning_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="option overflow"):
        planned(**other)


def test_overflow_leaves_a_quarter_of_the_margin() -> None:
    least_us = round(9_000 / (1 - MARGIN_SHARE * 0.4))
    assert overflow(planned(slo_us=least_us))
    assert not overflow(planned(slo_us=least_us - 1))


def test_a_simulation_serves_more_than_the_plan_promises() -> None:
    plan = planned()
    result = simulate(plan, SimOptions(load_factor=1.25, duration_s=5.0))
    assert result.attainment >= 0.99
    assert sum(model.late for model in result.models) == 0


def test_a_pinned_model_keeps_its_overflow() -> None:
    before = planned()
    plan = planned(previous=before, pinned_models=("net",))
    assert plan.model("net").pipelines[-1].stages == before.model("net").pipelines[-1].stages
    assert plan.model("net").pipelines[-1].throughput_rps == 0.0


def test_a_pinned_model_gives_its_overflow_back_where_none_is_wanted() -> None:
    plan = planned(previous=planned(), pinned_models=("net",), wanted=False)
    assert not overflow(plan)


def test_a_pipeline_beyond_the_margin_is_found_where_none_was_wanted() -> None:
    plan = planned()
    options = {name: value for name, value in plan.options.items() if name != "overflow"}
    found = verify_plan(replace(plan, options=options))
    assert any("SLO less margin" in line for line in found)


def test_a_pipeline_beyond_the_margin_that_promises_something_is_found() -> None:
    plan = planned()
    model = plan.models[0]
    last = replace(model.pipelines[-1], throughput_rps=1.0)
    edited = replace(model, pipelines=(*model.pipelines[:-1], last))
    found = verify_plan(replace(plan, models=(edited, *plan.models[1:])))
    assert any("SLO less margin" in line for line in found)
