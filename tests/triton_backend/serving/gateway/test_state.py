"""The gateway called by hand: no socket, no clock."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.plans import HandModel, hand_model, hand_pipeline
from tests.triton_backend.serving.gateway.gateways import (
    EPOCH,
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    drops,
    finish,
    kinds,
    serving,
)
from tests.triton_backend.serving.small_plans import BATCH, SLO_US, plan, stage, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.measured.guard import MIN_GUARD_US
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    LOCALS,
    ArrivalBody,
    Kind,
    TimesBody,
    parse_header,
)


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    return serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))


def test_a_full_batch_goes_to_its_front_with_a_path_and_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    assert batch >> 32 == EPOCH
    assert (body.samples, body.requests) == (BATCH, (1, 2, 3, 4))
    assert [hop.vgpu for hop in body.hops] == [0, 1]
    assert gateway.in_flight == 1
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["stage_runs"] == {
        "pair/0/FAST/0/fast-0.0.0+0": 1,
        "pair/0/SLOW/1/slow-1.0.0+0": 1,
    }


def test_what_waits_is_dispatched_by_the_timer_before_the_last_moment(gateway: HeldGateway) -> None:
    arrive(gateway, 1, guard_us=MIN_GUARD_US)
    assert not gateway.frames()
    ring_us = gateway.timer_us
    assert ring_us is not None
    assert ring_us < 10 + SLO_US - MIN_GUARD_US
    gateway.timer(ring_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1,)


def test_batches_open_by_the_rules_that_were_asked_for(tmp_path: Path) -> None:
    rings_us: list[int] = []
    for milliseconds in (5.0, 20.0):
        rules = {"batch_timeout_ms": milliseconds}
        options = ServeOptions(policy="timeout", late_binding=rules)
        gateway = serving(deploy(tmp_path / str(milliseconds), plan(two_stage()), options))
        arrive(gateway, 1)
        assert not gateway.frames()
        assert gateway.timer_us is not None
        rings_us.append(gateway.timer_us)
        gateway.timer(gateway.timer_us + 1_000)
        ((_, body),) = dispatches(gateway.frames())
        assert body.requests == (1,)
    assert rings_us[1] - rings_us[0] == 15_000


def test_timers_ring_as_much_earlier_as_fronts_keep_back(gateway: HeldGateway) -> None:
    arrive(gateway, 1, guard_us=9_000)
    early_us = gateway.timer_us
    arrive(gateway, 2, guard_us=4_000)  # has measured since; the last moment is earlier for two
    gateway.cancel(PAIR, 2, 20)
    assert early_us is not None
    assert gateway.timer_us == early_us + 5_000


def test_a_client_that_allows_much_time_takes_none_from_another(gateway: HeldGateway) -> None:
    """A timer rings before its instant, which is then the core's: no more than the SLO pays for."""
    allowed_us = 10 * SLO_US
    guard_us = ServeOptions().guard_us(allowed_us)
    patient = ArrivalBody(1, 10 + allowed_us - guard_us, 1, guard_us=guard_us)
    gateway.arrival(PAIR, patient, 10)
    rings_us = gateway.timer_us
    assert rings_us is not None
    gateway.timer(rings_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1,)
    arrive(gateway, 2, 3, 4, 5, now_us=rings_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (2, 3, 4, 5)


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
        gateway.cancel(PAIR, number, 20)
    gateway.cancel(FrontAddress("other"), 0, 20)
    assert dict(gateway.waiting()) == {"pair": 0}


def test_a_model_that_is_not_planned_is_refused(gateway: HeldGateway) -> None:
    gateway.arrival(FrontAddress("other"), ArrivalBody(1, SLO_US, 1), 10)
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
    gateway.front_lost(PAIR, 20)
    assert dict(gateway.waiting()) == {"pair": 0}
    reasons = {drop.reason for drop in drops(gateway.frames())}
    assert reasons == {DropReason.CANCELLED}


def test_a_lost_worker_aborts_its_batch_and_the_requests_run_elsewhere(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    lost = body.hops[1].vgpu
    gateway.worker_lost(WorkerAddress(1, lost), 20)
    frames = gateway.frames()
    assert kinds(frames).index(Kind.ABORT) < kinds(frames).index(Kind.DISPATCH)
    assert WorkerAddress(1, body.hops[0].vgpu) in {sent.to for sent in frames}
    ((again, new_body),) = dispatches(frames)
    assert again != batch
    assert new_body.requests == body.requests
    assert lost not in {hop.vgpu for hop in new_body.hops}
    finish(gateway, batch, body, 40_000)
    assert gateway.in_flight == 1
    finish(gateway, again, new_body, 50_000)
    assert gateway.in_flight == 0


def test_a_batch_that_cannot_be_run_frees_all_it_reserved(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, _),) = dispatches(gateway.frames())
    gateway.batch_failed(batch, 1, 30)
    assert gateway.in_flight == 1
    gateway.batch_failed(batch, 0, 30)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


@pytest.mark.parametrize("stage", [-1, 0, 1, 2, 99])
@pytest.mark.parametrize("batch", [0, (EPOCH << 32) + 5, -1])
def test_reports_about_unknown_batches_change_nothing(
    gateway: HeldGateway, stage: int, batch: int
) -> None:
    before = gateway.status()
    for report in (gateway.stage_done, gateway.transfer_done):
        report(batch, stage, TimesBody(0, 0, 0), 20)
    gateway.batch_failed(batch, stage, 20)
    gateway.worker_lost(WorkerAddress(9, 0), 20)
    gateway.cancel(PAIR, 99, 20)
    assert gateway.status() == before


def test_a_stage_told_by_another_worker_changes_nothing(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    gateway.stage_done(batch, 0, TimesBody(2, 20, 20), 20)
    gateway.stage_done(batch, 1, TimesBody(3 - body.hops[1].vgpu, 20, 20), 20)
    assert not gateway.status()["counters"]["stage_runs"]
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0


def test_reports_read_in_the_wrong_order_end_their_batch(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    gateway.transfer_done(batch, 1, TimesBody(body.hops[1].vgpu, 21, 22), 50_000)
    gateway.stage_done(batch, 1, TimesBody(body.hops[1].vgpu, 22, 30), 50_000)
    assert gateway.in_flight == 1
    gateway.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert sum(gateway.status()["counters"]["stage_runs"].values()) == 2


def test_a_failure_read_before_the_stage_that_went_well_ends_its_batch(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    gateway.batch_failed(batch, 1, 50_000)
    gateway.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


def test_instants_that_go_back_count_as_the_last_one(gateway: HeldGateway) -> None:
    arrive(gateway, 1, now_us=1000)
    arrive(gateway, 2, now_us=500)
    assert dict(gateway.waiting()) == {"pair": 2}


def test_a_batch_that_got_lost_runs_again_in_other_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((lost, body),) = dispatches(gateway.frames())
    gateway.batch_lost(lost, 1)
    gateway.batch_lost(lost, 1)  # reported by two
    assert not gateway.frames()
    gateway.look(20)
    frames = gateway.frames()
    ((again, new_body),) = dispatches(frames)
    notified = {sent.to for sent in frames if parse_header(sent.data).kind is Kind.ABORT}
    assert notified == {PAIR, *(WorkerAddress(1, hop.vgpu) for hop in body.hops)}
    assert new_body.requests == body.requests
    before, after = (
        set(zip([hop.vgpu for hop in b.hops], b.slots, strict=True)) for b in (body, new_body)
    )
    assert not before & after
    gateway.batch_lost(lost, 1)  # late
    gateway.look(30)
    finish(gateway, again, new_body, 50_000)
    assert (gateway.in_flight, gateway.counters.batches_lost) == (0, 1)


def test_a_batch_that_waits_for_a_slot_is_not_overtaken_on_a_vgpu_of_its_path(
    gateway: HeldGateway,
) -> None:
    slots = gateway.deployment.worker_slots(1)
    gateway.worker_lost(WorkerAddress(1, 2), 5)
    for number in range(BATCH * (slots + 1)):  # one more than vGPU 1 has slots
        gateway.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.frames())
    for batch, body in sent:
        gateway.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 20, 20), 20)
    assert [{hop.vgpu for hop in body.hops} for _, body in sent] == [{0, 1}] * slots
    gateway.worker_up(WorkerAddress(1, 2), 30)
    gateway.frames()
    arrive(gateway, *range(1000, 1000 + BATCH), now_us=40)
    assert gateway.in_flight == slots + 2
    assert not gateway.frames()  # vGPUs 0 and 2 have slots, but another waits for vGPU 0
    batch, body = sent[0]
    gateway.stage_done(batch, 1, TimesBody(1, 50, 50), 50)
    paths = [[hop.vgpu for hop in body.hops] for _, body in dispatches(gateway.frames())]
    assert paths == [[0, 1], [0, 2]]


def test_who_waits_for_a_slot_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage(), two_stage("other")), ServeOptions())
    gateway = HeldGateway(deployment)
    for vgpu in deployment.vgpus:
        gateway.worker_up(WorkerAddress(1, vgpu.index), 0)
    slots = deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    gateway.frames()
    assert gateway.in_flight == slots + 2
    for number in range(BATCH):
        gateway.arrival(FrontAddress("other"), ArrivalBody(number, 10**9, 1), 20)
    (sent,) = gateway.frames()
    assert (sent.to, kinds([sent])) == (FrontAddress("other"), [Kind.DISPATCH])


def test_batches_wait_for_slots_rather_than_share_them(gateway: HeldGateway) -> None:
    slots = gateway.deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.frames())
    assert len(sent) == slots
    assert len({body.slots[0] for _, body in sent}) == slots
    assert gateway.in_flight == slots + 2
    batch, body = sent[0]
    finish(gateway, batch, body, 20)
    assert len(dispatches(gateway.frames())) == 1


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
        gateway.worker_up(WorkerAddress(2, vgpu.index), 5)
    gateway.swap(10)
    for number, tag, entry in ((1, first.tag, 0), (2, first.tag, 2), (3, second.tag, 0), (4, 0, 1)):
        gateway.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 20, tag)
    gateway.frames()
    assert dict(gateway.counters.entries) == {("cut", "at-0"): 2, ("cut", "at-2"): 2}
    gateway.arrival(front, ArrivalBody(8, SLO_US, 1, 0, low=1), 20, second.tag)
    counters = gateway.status()["counters"]
    assert counters["asked"] == {"cut": 4}  # without low ones
    assert counters["entries"] == {"cut/at-0": 2, "cut/at-2": 2}
    gateway.frames()
    for number, tag, entry in ((5, first.tag, 1), (6, first.tag, 3), (7, 99, 0)):
        gateway.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 30, tag)
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
        gateway.arrival(front, ArrivalBody(number, SLO_US, 1, entry), 5, first.tag)
    for deployment, at in ((second, 10), (third, 30)):
        gateway.prepare(deployment)
        for vgpu in deployment.vgpus:
            gateway.worker_up(WorkerAddress(deployment.generation, vgpu.index), at)
        gateway.swap(at)
        if deployment is second:
            gateway.arrival(front, ArrivalBody(3, SLO_US, 1, 1), 20, first.tag)
            gateway.arrival(front, ArrivalBody(4, SLO_US, 1, 0), 20, 0)
    gateway.arrival(front, ArrivalBody(5, SLO_US, 1, 0), 40, 0)
    gateway.arrival(front, ArrivalBody(6, SLO_US, 1, 2), 40, 0)
    assert [drop.request for drop in drops(gateway.frames())] == [6]
