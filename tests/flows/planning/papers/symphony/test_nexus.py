"""The planner `nexus`: a plan of duty cycles that verifies and can be simulated."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.subclusters.test_plan import cluster, demands, models
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PROFILES = models(4)
WEIGHTS = demands(4, weight=[1.0, 2.0, 1.0, 0.5])


def nexus() -> Plan:
    plan = make_plan(PROFILES, cluster(6), WEIGHTS, PlanOptions(planner="nexus"))
    assert verify_plan(plan, PROFILES) == []
    return plan


def test_a_plan_states_turns_and_serves_less_than_sub_clusters() -> None:
    plan = nexus()
    assert {model.policy for model in plan.models} == {"turns"}
    assert all(stage.duty_cycle_us for _, _, stage, _ in plan.placed_stages())
    assert plan.gpus_used["fast"] <= 6
    shared = make_plan(
        PROFILES,
        cluster(6),
        WEIGHTS,
        PlanOptions(planner="subclusters", own={"utilisation": 1.0}),
    )
    assert plan.objective.value < shared.objective.value
    assert plan.objective.gap == 0
    half = simulate(plan, SimOptions(load_factor=0.5, duration_s=2.0))
    assert half.policy == "turns"
    assert half.attainment > 0.95


def test_given_rates_take_as_many_gpus_as_the_packing_needs() -> None:
    rates = demands(4, rate_rps=[300.0, 200.0, 100.0, 50.0])
    options = PlanOptions(planner="nexus", objective="gpus")
    plan = make_plan(PROFILES, cluster(8), rates, options)
    assert verify_plan(plan, PROFILES) == []
    assert plan.objective.value == plan.gpus_used["fast"] == len(plan.vgpus())
    with pytest.raises(InputError, match=r"needs \d+ GPUs of class fast, 1 exist"):
        make_plan(PROFILES, cluster(1), rates, options)


def test_it_is_defined_for_one_class() -> None:
    with pytest.raises(InputError, match="option planner: nexus is defined for one GPU class"):
        make_plan(PROFILES, cluster(4, 4), WEIGHTS, PlanOptions(planner="nexus"))


def test_verify_sees_a_duty_cycle_that_is_too_long_or_too_short() -> None:
    plan = nexus()
    model = plan.models[0]
    pipeline = model.pipelines[0]
    for duty_us, complaint in ((30_000, "duty cycle and turn take"), (1, "of a duty cycle of 1")):
        stage = replace(pipeline.stages[0], duty_cycle_us=duty_us)
        changed = replace(
            model, pipelines=(replace(pipeline, stages=(stage,)), *model.pipelines[1:])
        )
        wrong = replace(plan, models=(changed, *plan.models[1:]))
        assert any(complaint in text for text in verify_plan(wrong, PROFILES))
