"""The promise of entries at any phases, recomputed: no more than brute force over phases finds."""

from dataclasses import replace
from math import ceil

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.verify.phases import phase_differences
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.flows.planning.entries.entry_cases import case, planned
from tests.flows.planning.entries.test_phases import Clients
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.workload import ModelDemand, Workload

STEP_US = 1_000  # of a client's whole numbers


def one_pool(clients: Clients, vgpus: int) -> Plan:
    """A plan for any phases of an entry per client, all on one pool."""
    latency_us = STEP_US * clients.latency
    place = PlacementRun(node=0, gpu=0, slot=0, nodes=vgpus)
    stage = hand_stage((0, 1), "GPU", place, (latency_us,) * clients.batch)
    entries = tuple(
        Entry(name=f"e{i}", block=0, budget_us=latency_us + STEP_US * wait, rate_rps=1e6 / period)
        for i, (wait, period) in enumerate(
            zip(clients.waits, (STEP_US * p for p in clients.periods), strict=True)
        )
    )
    paths = [
        hand_pipeline(stage, batch=clients.batch, rate_rps=entry.rate_rps, entry=entry.name)
        for entry in entries
    ]
    model = hand_model("net", *paths, slo_us=10**6, entries=entries)
    plan = hand_plan(model, nodes=[NodeGroup(count=vgpus, gpu_class="GPU", gpus=1, nic_gbps=8)])
    demand = ModelDemand(name="net", slo_us=10**6, entries=entries)
    return replace(plan, workload=Workload(models=(demand,)), options={"phases": "any"})


@pytest.mark.parametrize("block", range(6))
def test_what_is_said_to_hold_is_late_in_no_phases(block: int) -> None:
    holding = 0
    for seed in range(20 * block, 20 * block + 20):
        clients = Clients(seed)
        rates = sum(clients.latency / clients.batch / period for period in clients.periods)
        sizes = range(max(1, ceil(rates)), 20)
        fewest = next(v for v in sizes if not list(phase_differences(one_pool(clients, v))))
        if fewest <= 6:
            holding += 1
            assert not clients.ever_late(fewest), seed
        assert fewest <= clients.needed(20), seed  # a planner proves no more
    assert holding


@pytest.mark.parametrize("planner", ["pool", "graft"])
@pytest.mark.parametrize("rates", [(20.0,), (40.0, 90.0), (5.0, 12.5, 30.0, 120.0)])
@pytest.mark.parametrize("headroom", ["none", "1.3"])
def test_plans_for_any_phases_hold(planner: str, rates: tuple[float, ...], headroom: str) -> None:
    for seed in range(3):
        problem = case(seed, 16, rates=rates, blocks=1 + seed, loose=3)
        own = {"phases": "any", "headroom": headroom}
        options = PlanOptions(planner=planner, objective="share", own=own)
        plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
        assert verify_plan(plan, problem.profiles) == []


def test_a_plan_by_rates_alone_does_not_hold_at_any_phases() -> None:
    plan = planned(case(1, 16, rates=(40.0, 90.0), blocks=1, loose=3))
    (said, *_) = verify_plan(replace(plan, options={**plan.options, "phases": "any"}))
    assert "not proven to serve" in said
    assert said.endswith("entries of net in time at any phases")


def test_less_time_for_a_request_than_the_plan_was_made_for_is_seen() -> None:
    clients = Clients(0)
    clients.latency, clients.batch = 4, 1
    clients.periods, clients.waits = [10, 10], [4, 4]
    assert list(phase_differences(one_pool(clients, 1))) == []
    clients.waits = [3, 3]  # one is in the way of the other
    (said,) = phase_differences(one_pool(clients, 1))
    assert said == (
        "pool gpu-0.0.0: 1 vGPUs are not proven to serve 2 entries of net in time at any phases"
    )
    assert clients.ever_late(1)


def test_other_phases_are_not_known() -> None:
    plan = replace(one_pool(Clients(0), 6), options={"phases": "some"})
    assert list(phase_differences(plan)) == ["options: phases is 'some', none of any, even"]


def test_a_client_alone_may_keep_its_vgpu_nearly_busy() -> None:
    clients = Clients(0)
    clients.periods, clients.waits = [10], [0]
    clients.latency, clients.batch = 9, 1
    assert list(phase_differences(one_pool(clients, 1))) == []


def test_a_client_may_keep_one_of_two_vgpus_busy_all_the_time() -> None:
    clients = Clients(0)
    clients.periods, clients.waits = [10, 20], [3, 3]
    clients.latency, clients.batch = 10, 1
    assert list(phase_differences(one_pool(clients, 2))) == []
    assert not clients.ever_late(2)
