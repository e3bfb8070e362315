"""Reports on batches to a gateway called by hand: failures, losses, wrong orders."""

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    EPOCH,
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    finish,
)
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.transport.wire import (
    Kind,
    TimesBody,
    parse_header,
)


def test_a_batch_that_cannot_be_run_frees_all_it_reserved(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, _),) = dispatches(gateway.frames())
    gateway.reports.failed(batch, 1, 30)
    assert gateway.in_flight == 1
    gateway.reports.failed(batch, 0, 30)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


@pytest.mark.parametrize("stage", [-1, 0, 1, 2, 99])
@pytest.mark.parametrize("batch", [0, (EPOCH << 32) + 5, -1])
def test_reports_about_unknown_batches_change_nothing(
    gateway: HeldGateway, stage: int, batch: int
) -> None:
    before = gateway.status()
    for report in (gateway.reports.stage_done, gateway.reports.transfer_done):
        report(batch, stage, TimesBody(0, 0, 0), 20)
    gateway.reports.failed(batch, stage, 20)
    gateway.workers.lost(WorkerAddress(9, 0), 20)
    gateway.requests.cancel(PAIR, 99, 20)
    assert gateway.status() == before


def test_a_stage_told_by_another_worker_changes_nothing(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    gateway.reports.stage_done(batch, 0, TimesBody(2, 20, 20), 20)
    gateway.reports.stage_done(batch, 1, TimesBody(3 - body.hops[1].vgpu, 20, 20), 20)
    assert not gateway.status()["counters"]["stage_runs"]
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0


def test_reports_read_in_the_wrong_order_end_their_batch(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
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
    ((batch, body),) = dispatches(gateway.frames())
    gateway.reports.failed(batch, 1, 50_000)
    gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 10, 20), 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["batches_failed"] == 1


def test_a_batch_that_got_lost_runs_again_in_other_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((lost, body),) = dispatches(gateway.frames())
    gateway.reports.lost(lost, 1)
    gateway.reports.lost(lost, 1)  # reported by two
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
    gateway.reports.lost(lost, 1)  # late
    gateway.look(30)
    finish(gateway, again, new_body, 50_000)
    assert (gateway.in_flight, gateway.counters.batches_lost) == (0, 1)
