"""Requests of fronts in a gateway called by hand: announced, refused, given up."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.plans import HandModel, hand_model, hand_pipeline
from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    drops,
    serving,
)
from tests.triton_backend.serving.small_plans import SLO_US, plan, stage, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    LOCALS,
    ArrivalBody,
)


def test_the_same_request_announced_twice_counts_once(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 1, 2, 3)
    assert not gateway.frames()
    assert dict(gateway.waiting()) == {"pair": 3}
    assert gateway.counters.offered == {"pair": 3}


@pytest.mark.parametrize("number", [-1, LOCALS, 1 << 62])
def test_a_number_that_would_be_another_fronts_is_refused(
    gateway: HeldGateway, number: int
) -> None:
    with pytest.raises(InputError, match="fronts count from 0"):
        arrive(gateway, number)
    with pytest.raises(InputError, match="fronts count from 0"):
        gateway.requests.cancel(PAIR, number, 20)
    gateway.requests.cancel(FrontAddress("other"), 0, 20)
    assert dict(gateway.waiting()) == {"pair": 0}


def test_a_model_that_is_not_planned_is_refused(gateway: HeldGateway) -> None:
    gateway.requests.arrival(FrontAddress("other"), ArrivalBody(1, SLO_US, 1), 10)
    (sent,) = gateway.frames()
    (drop,) = drops([sent])
    assert sent.to == FrontAddress("other")
    assert drop.reason is DropReason.MODEL_REMOVED


@pytest.mark.slow
def test_a_request_refused_for_overload_says_so_to_its_front(gateway: HeldGateway) -> None:
    for number in range(2_000):  # three times what the slower stage can do
        now_us = 400 * number
        arrive(gateway, number, now_us=now_us)
    refused = [drop for drop in drops(gateway.frames()) if drop.reason is DropReason.OVERLOAD]
    assert gateway.status()["counters"]["dropped"]["pair/overload"] == len(refused) > 0
    assert all(drop.best_finish_us > drop.deadline_us - SLO_US for drop in refused)


def test_a_lost_front_takes_its_queue_along(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2)
    gateway.requests.front_lost(PAIR, 20)
    assert dict(gateway.waiting()) == {"pair": 0}
    reasons = {drop.reason for drop in drops(gateway.frames())}
    assert reasons == {DropReason.CANCELLED}


def cut(*blocks: int, plan_id: str) -> Plan:
    """A model with an entry at every one of these blocks, listed in this order."""
    lines = {
        b: hand_pipeline(stage((b, 3), "FAST", 0), batch=1, rate_rps=1.0, entry=f"at-{b}")
        for b in blocks
    }
    entries = tuple(Entry(name=f"at-{b}", block=b, budget_us=SLO_US, rate_rps=1.0) for b in blocks)
    model = hand_model("cut", *lines.values(), slo_us=SLO_US, entries=entries)
    named = [replace(s, pool="one") for p in model.model.pipelines for s in p.stages]
    pipelines = tuple(
        replace(p, stages=(s,)) for p, s in zip(model.model.pipelines, named, strict=True)
    )
    pool = replace(model.pools[0], name="one")
    return plan(
        HandModel(model=replace(model.model, pipelines=pipelines), pools=(pool,)), plan_id=plan_id
    )


def test_an_entry_is_meant_as_the_plan_has_it_that_the_front_knew(tmp_path: Path) -> None:
    """Of arrivals that were on their way while the plan changed.

    A block that is gone is refused.
    """
    first = deploy(tmp_path, cut(0, 1, 2, plan_id="first"))
    gateway, front = serving(first), FrontAddress("cut")
    second = deploy(tmp_path, cut(2, 0, plan_id="second"), generation=2)
    gateway.prepare(second)
    for vgpu in second.vgpus:
        gateway.workers.up(WorkerAddress(2, vgpu.index), 5)
    gateway.swap(10)
    for number, tag, entry in ((1, first.tag, 0), (2, first.tag, 2), (3, second.tag, 0), (4, 0, 1)):
        gateway.requests.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 20, tag)
    gateway.frames()
    assert dict(gateway.counters.entries) == {("cut", "at-0"): 2, ("cut", "at-2"): 2}
    gateway.requests.arrival(front, ArrivalBody(8, SLO_US, 1, 0, low=1), 20, second.tag)
    counters = gateway.status()["counters"]
    assert counters["asked"] == {"cut": 4}  # without low ones
    assert counters["entries"] == {"cut/at-0": 2, "cut/at-2": 2}
    gateway.frames()
    for number, tag, entry in ((5, first.tag, 1), (6, first.tag, 3), (7, 99, 0)):
        gateway.requests.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 30, tag)
    assert [drop.request for drop in drops(gateway.frames())] == [5, 6, 7]


def test_a_front_that_still_shares_requests_loses_none_after_the_change(tmp_path: Path) -> None:
    """Arrivals that name an entry reach a plan without entries, and the other way round."""
    alone = plan(two_stage("pair"), plan_id="alone")
    (model,) = alone.models
    entries = tuple(
        Entry(name=name, block=0, budget_us=model.slo_us, rate_rps=1.0, share=share)
        for name, share in (("former", 0.9), ("canary", 0.1))
    )
    lines = tuple(replace(model.pipelines[0], entry=e.name, throughput_rps=1.0) for e in entries)
    shared = replace(model, entries=entries, pipelines=lines)
    both = replace(alone, plan_id="both", models=(shared,))
    first, second = deploy(tmp_path, both), deploy(tmp_path, alone, generation=2)
    third = deploy(tmp_path, both, generation=3)
    gateway, front = serving(first), FrontAddress("pair")
    for number, entry in ((1, 0), (2, 1)):
        gateway.requests.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 5, first.tag)
    for deployment, at in ((second, 10), (third, 30)):
        gateway.prepare(deployment)
        for vgpu in deployment.vgpus:
            gateway.workers.up(WorkerAddress(deployment.generation, vgpu.index), at)
        gateway.swap(at)
        if deployment is second:
            gateway.requests.arrival(front, ArrivalBody(3, SLO_US, 1, 1), 20, first.tag)
            gateway.requests.arrival(front, ArrivalBody(4, SLO_US, 1, 0), 20, 0)
    gateway.requests.arrival(front, ArrivalBody(5, SLO_US, 1, 0), 40, 0)
    gateway.requests.arrival(front, ArrivalBody(6, SLO_US, 1, 2), 40, 0)
    assert [drop.request for drop in drops(gateway.frames())] == [6]
