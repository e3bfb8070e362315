"""The gateway told things by hand: no socket, no clock."""

from pathlib import Path

import pytest

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
from tests.triton_backend.serving.plans import BATCH, SLO_US, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError
from triton_backend.contract.reasons import DropReason
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.addresses import Front, Worker
from triton_backend.serving.transport.wire import LOCALS, ArrivalBody, Kind, TimesBody


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    return serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))


def test_a_full_batch_goes_to_its_front_with_a_path_and_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    assert batch >> 32 == EPOCH
    assert (body.samples, body.requests) == (BATCH, (1, 2, 3, 4))
    assert [hop.vgpu for hop in body.hops] == [0, 1]
    assert gateway.in_flight == 1
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["stage_runs"] == {"pair/0/FAST/0": 1, "pair/0/SLOW/1": 1}


def test_what_waits_is_dispatched_by_the_timer_before_the_last_moment(gateway: HeldGateway) -> None:
    arrive(gateway, 1)
    assert not gateway.letters()
    ring_us = gateway.timer_us
    assert ring_us is not None
    assert ring_us < 10 + SLO_US - gateway.deployment.settings.guard_us(SLO_US)
    gateway.timer(ring_us)
    ((_, body),) = dispatches(gateway.letters())
    assert body.requests == (1,)


def test_the_same_request_told_twice_counts_once(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 1, 2, 3)
    assert not gateway.letters()
    assert dict(gateway.waiting()) == {"pair": 3}


@pytest.mark.parametrize("number", [-1, LOCALS, 1 << 62])
def test_a_number_that_would_be_another_fronts_is_refused(
    gateway: HeldGateway, number: int
) -> None:
    with pytest.raises(InputError, match="fronts count from 0"):
        arrive(gateway, number)
    with pytest.raises(InputError, match="fronts count from 0"):
        gateway.intake.cancel(PAIR, number, 20)
    gateway.intake.cancel(Front("other"), 0, 20)
    assert dict(gateway.waiting()) == {"pair": 0}


def test_a_model_that_is_not_planned_is_refused(gateway: HeldGateway) -> None:
    gateway.intake.arrival(Front("other"), ArrivalBody(1, SLO_US, 1), 10)
    (letter,) = gateway.letters()
    (drop,) = drops([letter])
    assert letter.to == Front("other")
    assert drop.reason is DropReason.MODEL_REMOVED


def test_a_request_refused_for_overload_says_so_to_its_front(gateway: HeldGateway) -> None:
    for number in range(2_000):  # three times what the slower stage can do
        now_us = 400 * number
        arrive(gateway, number, now_us=now_us)
    refused = [drop for drop in drops(gateway.letters()) if drop.reason is DropReason.OVERLOAD]
    assert gateway.status()["counters"]["dropped"]["pair/overload"] == len(refused) > 0
    assert all(drop.best_finish_us > drop.deadline_us - SLO_US for drop in refused)


def test_a_lost_front_takes_its_queue_along(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2)
    gateway.intake.front_lost(PAIR, 20)
    assert dict(gateway.waiting()) == {"pair": 0}
    reasons = {drop.reason for drop in drops(gateway.letters())}
    assert reasons == {DropReason.CANCELLED}


def test_a_lost_worker_aborts_its_batch_and_the_requests_run_elsewhere(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    lost = body.hops[1].vgpu
    gateway.worker_lost(Worker(1, lost), 20)
    letters = gateway.letters()
    assert kinds(letters).index(Kind.ABORT) < kinds(letters).index(Kind.DISPATCH)
    assert Worker(1, body.hops[0].vgpu) in {letter.to for letter in letters}
    ((again, new_body),) = dispatches(letters)
    assert again != batch
    assert new_body.requests == body.requests
    assert lost not in {hop.vgpu for hop in new_body.hops}
    finish(gateway, batch, body, 40_000)
    assert gateway.in_flight == 1
    finish(gateway, again, new_body, 50_000)
    assert gateway.in_flight == 0


def test_a_batch_that_cannot_be_run_frees_all_it_reserved(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, _),) = dispatches(gateway.letters())
    gateway.reports.batch_failed(batch, 1, 30)
    assert gateway.in_flight == 1
    gateway.reports.batch_failed(batch, 0, 30)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


@pytest.mark.parametrize("stage", [-1, 0, 1, 2, 99])
@pytest.mark.parametrize("batch", [0, (EPOCH << 32) + 5, -1])
def test_reports_about_unknown_batches_change_nothing(
    gateway: HeldGateway, stage: int, batch: int
) -> None:
    before = gateway.status()
    for told in (gateway.reports.stage_done, gateway.reports.transfer_done):
        told(batch, stage, TimesBody(0, 0, 0), 20)
    gateway.reports.batch_failed(batch, stage, 20)
    gateway.worker_lost(Worker(9, 0), 20)
    gateway.intake.cancel(PAIR, 99, 20)
    assert gateway.status() == before


def test_a_stage_told_by_another_worker_changes_nothing(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.stage_done(batch, 0, TimesBody(2, 20, 20), 20)
    gateway.reports.stage_done(batch, 1, TimesBody(3 - body.hops[1].vgpu, 20, 20), 20)
    assert not gateway.status()["counters"]["stage_runs"]
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0


def test_reports_read_in_the_wrong_order_end_their_batch(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.transfer_done(batch, 1, TimesBody(body.hops[1].vgpu, 21, 22), 50_000)
    gateway.reports.stage_done(batch, 1, TimesBody(body.hops[1].vgpu, 22, 30), 50_000)
    assert gateway.in_flight == 1
    gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert sum(gateway.status()["counters"]["stage_runs"].values()) == 2


def test_a_failure_read_before_the_stage_that_went_well_ends_its_batch(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.batch_failed(batch, 1, 50_000)
    gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


def test_instants_that_go_back_are_told_as_the_last_one(gateway: HeldGateway) -> None:
    arrive(gateway, 1, now_us=1000)
    arrive(gateway, 2, now_us=500)
    assert dict(gateway.waiting()) == {"pair": 2}


def test_who_waits_for_a_slot_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage(), two_stage("other")), ServeOptions())
    gateway = HeldGateway(deployment)
    for vgpu in deployment.vgpus:
        gateway.worker_up(Worker(1, vgpu.index), 0)
    slots = deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.intake.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    gateway.letters()
    assert gateway.in_flight == slots + 2
    for number in range(BATCH):
        gateway.intake.arrival(Front("other"), ArrivalBody(number, 10**9, 1), 20)
    (letter,) = gateway.letters()
    assert (letter.to, kinds([letter])) == (Front("other"), [Kind.DISPATCH])


def test_batches_wait_for_slots_rather_than_share_them(gateway: HeldGateway) -> None:
    slots = gateway.deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.intake.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.letters())
    assert len(sent) == slots
    assert len({body.hops[0].slot for _, body in sent}) == slots
    assert gateway.in_flight == slots + 2
    batch, body = sent[0]
    finish(gateway, batch, body, 20)
    assert len(dispatches(gateway.letters())) == 1
