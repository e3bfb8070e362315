"""Shared batches carried out.

Nothing accepted is late, nothing is lost, and joint runs are as full as they should be.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage, two_tails
from tests.flows.planning.entries.entry_cases import case
from tests.triton_backend.scheduler.test_scheduler_properties import boarding_plans
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import POISSON, Deterministic
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import Stepwise, simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED, LATE, REQUEST_RECORD, SERVED


def late(result: SimResult) -> int:
    """Late requests; every request has one end."""
    outcomes = result.requests["outcome"]
    assert np.isin(outcomes, [SERVED, LATE, DROPPED]).all()
    return int((outcomes == LATE).sum())


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    plans=st.tuples(boarding_plans(), boarding_plans("after-0")),
    load=st.sampled_from([0.5, 2.0, 8.0]),
    nic=st.sampled_from(["shared", "isolated"]),
    change_s=st.floats(0.1, 0.9),
)
def test_nothing_accepted_is_late_over_any_change_of_plan(
    plans: tuple[Plan, Plan], load: float, nic: str, change_s: float
) -> None:
    changes = (PlanChange(at_s=change_s, plan=plans[1]),)
    options = SimOptions(duration_s=1, load_factor=load, nic=nic, changes=changes)
    assert late(simulate(plans[0], options)) == 0


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(plan=boarding_plans(), load=st.sampled_from([1.0, 6.0]), vgpu=st.integers(0, 1))
def test_nothing_is_lost_where_runs_vary_and_workers_die(
    plan: Plan, load: float, vgpu: int
) -> None:
    failures = (Failure(start_s=0.3, end_s=0.5, vgpu=vgpu),)
    options = SimOptions(
        duration_s=1, load_factor=load, latency_noise_cv=0.2, failures=failures, seed=vgpu
    )
    late(simulate(plan, options))  # invariants are checked at the end


def test_shared_batches_of_queues_that_another_plan_has_not_are_counted_where_there_is_room() -> (
    None
):
    """A shared batch with a request of a former plan's third queue runs under one of one queue."""
    problem = case(0, 7, blocks=4, rates=(30,))
    options = PlanOptions(planner="graft", objective="share")
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    (model,) = problem.workload.models
    few = replace(problem.workload, models=(replace(model, entries=model.entries[:1]),))
    fewer = make_plan(problem.profiles, problem.cluster, few, options)
    stepwise = Stepwise(plan, SimOptions(duration_s=1))
    rows = np.zeros(len(model.entries), dtype=REQUEST_RECORD)
    rows["queue"] = np.arange(len(rows))
    rows["samples"] = 1
    rows["application"] = rows["dispatch_us"] = rows["batch_id"] = -1
    rows["deadline_us"] = [e.budget_us for e in plan.models[0].entries]
    stepwise.offer(rows)
    stepwise.advance(1)
    stepwise.change(fewer, 1)
    assert len(stepwise._run.world.queues) > stepwise.requests["queue"].max()
    stepwise.advance(1_000_000)
    assert np.isin(stepwise.requests["outcome"], [SERVED, DROPPED]).all()


@pytest.mark.parametrize("planner", ["pool", "graft"])
@pytest.mark.parametrize("seed", range(3))
def test_planned_entries_are_never_late(planner: str, seed: int) -> None:
    problem = case(seed, 7, blocks=4, rates=(30,))
    options = PlanOptions(planner=planner, objective="share")
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    for load in (0.9, 1.5):
        assert late(simulate(plan, SimOptions(duration_s=2, load_factor=load))) == 0


def test_two_tails_fill_their_shared_batches_and_alone_they_do_not_fit() -> None:
    plan = two_tails()
    options = SimOptions(duration_s=5, load_factor=20, arrivals=Deterministic())
    result = simulate(plan, options)
    assert result.attainment >= 0.995
    for entry in result.entries["net"].values():
        assert entry.shared_batch_fill is not None
        assert entry.shared_batch_fill.samples >= 1.5
        assert entry.shared_batch_fill.entries >= 1.5
    told = result.to_dict()["entries"]["net"]["e0"]["shared_batch_fill"]
    assert set(told) == {"shared_batches", "samples", "entries"}
    alone = simulate(plan, replace(options, shared_batches=False))
    assert alone.attainment < 0.9
    assert alone.to_dict()["entries"]["net"]["e0"]["shared_batch_fill"] is None


def boards_behind_batches() -> Plan:
    """Batches of two, of which two run together behind: 2,800 requests/s at most."""
    first, last = (PlacementRun(node=0, gpu=0, slot=0, nodes=1, gpus=n, slots=1) for n in (13, 7))
    last = replace(last, node=1)
    pipeline = hand_pipeline(
        hand_stage((0, 2), "A", first, (7_400, 9_200)),
        hand_stage((2, 4), "B", last, (4_900, 6_500, 8_200, 9_900), boards=True),
        batch=2,
        rate_rps=2_800.0,
    )
    stages = pipeline.pipeline.stages
    stages = (stages[0], replace(stages[1], batch=4))
    pipeline = replace(pipeline, pipeline=replace(pipeline.pipeline, stages=stages))
    model = hand_model("net", pipeline, slo_us=39_600, policy="reservation-ahead")
    nodes = [
        NodeGroup(count=1, gpu_class=name, gpus=gpus, nic_gbps=10)
        for name, gpus in (("A", 13), ("B", 7))
    ]
    return hand_plan(model, nodes=nodes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("load", "least"),
    [
        pytest.param(0.9, 0.9, id="all, however long"),
        pytest.param(1.1, 0.95, id="overload"),
        pytest.param(1.5, 0.95, id="much overload"),
    ],
)
def test_batches_that_join_others_behind_stay_full_under_load(load: float, least: float) -> None:
    options = SimOptions(duration_s=30, load_factor=load, arrivals=POISSON, seed=1)
    result = simulate(boards_behind_batches(), options)
    assert load * result.attainment >= 0.995 * least
