"""Triton alone beside a plan, simulated at the same rates."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.operations.adoption import triton_alone
from flows.operations.adoption.triton_alone import (
    LOADS,
    NO_PLAN,
    TUNED_ON,
    Choice,
    beside_triton,
    beside_triton_of,
    choices,
)
from flows.planning import PlanOptions, make_plan
from flows.reporting.data import BesideTriton
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

pytestmark = pytest.mark.long
PROFILES = {"net": profile(fast_us=(2000, 2000, 2000))}
SLO_US = 30_000  # the slow class takes 18 ms for the whole model


@pytest.fixture(scope="module")
def plan() -> Plan:
    demand = workload(ModelDemand(name="net", slo_us=SLO_US))
    return make_plan(PROFILES, cluster(2, 2), demand, PlanOptions())


@pytest.fixture(scope="module")
def found(plan: Plan) -> BesideTriton:
    made = beside_triton(plan, PROFILES)
    assert made is not None
    return made


def test_both_sides_are_shown_at_the_same_loads(plan: Plan, found: BesideTriton) -> None:
    assert [point.load for point in found.plan] == [p.load for p in found.triton] == list(LOADS)
    assert found.rate_rps == pytest.approx(plan.models[0].throughput_rps)
    assert min(point.in_time for point in found.plan if point.load <= 0.7) >= ATTAINMENT
    assert found.triton[-1].in_time < ATTAINMENT


def test_the_configuration_that_holds_the_highest_load_is_chosen(
    plan: Plan, found: BesideTriton
) -> None:
    base = SimOptions(reference=plan, duration_s=found.duration_s, seed=TUNED_ON, keep_uses=False)

    def holds(one: Choice) -> float:
        kept = 0.0
        for load in LOADS:
            run = simulate(one.plan, replace(one.served(base), load_factor=load))
            if run.least_attainment < ATTAINMENT:
                break
            kept = load
        return kept

    held = {
        one.name: holds(one)
        for one in choices(
            lambda options, place: make_plan(PROFILES, place, plan.workload, options),
            plan.cluster,
        )
    }
    assert len(held) > 4
    assert held[found.configuration] == max(held.values()) > min(held.values())


def test_where_no_whole_model_has_a_plan_triton_answers_nothing_in_time(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> tuple[Choice, ...]:
        return ()

    monkeypatch.setattr(triton_alone, "choices", none)
    alone = beside_triton(plan, PROFILES)
    assert alone is not None
    assert alone.configuration == NO_PLAN
    assert {point.in_time for point in alone.triton} == {0.0}


def test_applications_and_plans_without_profiles_have_no_comparison(
    plan: Plan, tmp_path: Path
) -> None:
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    assert beside_triton_of(work, plan) is None
    graph = with_applications(plan, hand_application("app", [hand_module("only", "net")]))
    assert beside_triton_of(work, graph) is None
