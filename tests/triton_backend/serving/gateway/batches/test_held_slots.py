"""Slots of batches that were aborted.

Granted again when nothing can write there any more, no sooner.
"""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    finish,
    look_until,
    serving,
)
from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.liveness.limits import dead_after_us
from triton_backend.serving.transport.wire import ArrivalBody, DispatchBody, Kind, parse_header

SHORT_US = 50_000
FIRST = WorkerAddress(1, 0)
Granted = set[tuple[int, int]]


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    return serving(deploy(tmp_path, plan(two_stage(slo_us=SHORT_US)), ServeOptions()))


def granted(body: DispatchBody) -> Granted:
    """(vGPU, slot)s of a batch."""
    return {(hop.vgpu, slot) for hop, slot in zip(body.hops, body.slots, strict=True)}


def one_batch(gateway: HeldGateway, first: int, now_us: int) -> tuple[int, DispatchBody]:
    arrive(gateway, *range(first, first + BATCH), now_us=now_us)
    ((number, body),) = dispatches(gateway.frames())
    return number, body


def give_up(gateway: HeldGateway, first: int, now_us: int) -> tuple[int, DispatchBody]:
    """A batch that no worker reports of; its requests are served in another one."""
    number, body = one_batch(gateway, first, now_us)
    gateway.reports.lost(number, -1)
    ((again, other),) = dispatches(look_until(gateway, now_us, now_us + 150_000))
    finish(gateway, again, other, now_us + 150_000)
    return number, body


def acknowledge(gateway: HeldGateway, number: int, body: DispatchBody, *but: object) -> None:
    for peer in (PAIR, *(WorkerAddress(1, hop.vgpu) for hop in body.hops)):
        if peer not in but:
            gateway.reports.let_go((peer,), number)


def slots_used(gateway: HeldGateway, first: int, now_us: int) -> Granted:
    """All slots that a full load of batches is granted, which then end."""
    slots = gateway.deployment.worker_slots(0)
    numbers = range(first, first + BATCH * slots)
    arrive(gateway, *numbers, now_us=now_us)
    sent = dispatches(gateway.frames())
    for number, body in sent:
        finish(gateway, number, body, now_us)
    gateway.frames()
    return set().union(*(granted(body) for _, body in sent))


def test_a_short_objective_frees_no_slot_that_may_be_written(gateway: HeldGateway) -> None:
    """It was given up at 200 ms; at 300 ms its sender may be stopped, and lives."""
    _, body = give_up(gateway, 1, 50_000)
    gateway.look(300_000)
    assert not slots_used(gateway, 100, 300_000) & granted(body)


@pytest.mark.parametrize("silent", [PAIR, FIRST])
def test_a_slot_is_free_when_all_that_write_there_have_let_go(
    gateway: HeldGateway, silent: object
) -> None:
    number, body = give_up(gateway, 1, 50_000)
    first = (0, body.slots[0])
    acknowledge(gateway, number, body, silent)
    assert first not in slots_used(gateway, 100, 300_000)
    acknowledge(gateway, number, body)
    assert first in slots_used(gateway, 1000, 400_000)


def test_a_stage_is_written_by_its_own_worker_and_by_the_one_before(gateway: HeldGateway) -> None:
    number, body = give_up(gateway, 1, 50_000)
    gateway.reports.let_go((WorkerAddress(1, body.hops[1].vgpu),), number)
    gateway.reports.let_go((PAIR,), number)
    last = (body.hops[1].vgpu, body.slots[1])
    for first in (10, 20, 30):
        other = one_batch(gateway, first, 300_000)[1]
        assert last not in granted(other)


def test_what_nothing_says_of_is_free_when_its_sender_cannot_live(gateway: HeldGateway) -> None:
    _, body = give_up(gateway, 1, 50_000)
    slowest_us = max(s.latency_us for s in gateway.deployment.plan.models[0].pipelines[0].stages)
    free_us = body.hops[-1].end_us + SHORT_US + dead_after_us(slowest_us)
    gateway.look(free_us - 60_000)
    assert (0, body.slots[0]) not in slots_used(gateway, 100, free_us - 50_000)
    gateway.look(free_us + 1)
    assert (0, body.slots[0]) in slots_used(gateway, 1000, free_us + 2)


def test_a_batch_may_wait_in_a_process_that_is_cut_off_until_long_after_its_turn(
    tmp_path: Path,
) -> None:
    """Its worker lives on another host and hears no ABORT.

    It runs the batch when its turn comes.
    """
    slo_us = 60_000_000
    gateway = serving(deploy(tmp_path, plan(two_stage(slo_us=slo_us)), ServeOptions()))
    for request in range(BATCH):
        gateway.requests.arrival(PAIR, ArrivalBody(request, 50_000 + slo_us, 1), 50_000)
    ((number, body),) = dispatches(gateway.frames())
    gateway.reports.lost(number, -1)
    gateway.look(100_000)
    assert gateway.batches.to_let_go(FIRST)
    slowest_us = max(s.latency_us for s in gateway.deployment.plan.models[0].pipelines[0].stages)
    gone_us = body.hops[-1].end_us + slo_us + dead_after_us(slowest_us)
    gateway.look(gone_us - 1)
    assert number in {parse_header(notice).batch_id for notice in gateway.batches.to_let_go(FIRST)}
    gateway.look(gone_us)
    assert number not in {
        parse_header(notice).batch_id for notice in gateway.batches.to_let_go(FIRST)
    }


def test_a_peer_that_comes_back_hears_again_what_it_has_to_let_go_of(gateway: HeldGateway) -> None:
    number, body = give_up(gateway, 1, 50_000)
    for peer in (PAIR, FIRST):
        (notice,) = gateway.batches.to_let_go(peer)
        header = parse_header(notice)
        assert (header.kind, header.batch_id) == (Kind.ABORT, number)
        gateway.reports.let_go((peer,), number)
        assert not gateway.batches.to_let_go(peer)
    assert not gateway.batches.to_let_go(WorkerAddress(1, 3 - body.hops[1].vgpu))


def test_held_slots_keep_no_batch_waiting(gateway: HeldGateway) -> None:
    slots = gateway.deployment.worker_slots(0)
    for number in range(slots):
        give_up(gateway, 1 + BATCH * number, 50_000)
    arrive(gateway, *range(10_000, 10_000 + BATCH * slots), now_us=300_000)
    assert len(dispatches(gateway.frames())) == slots


def test_what_waits_for_a_held_slot_is_sent_as_soon_as_it_is_let_go_of(
    gateway: HeldGateway,
) -> None:
    given_up = [one_batch(gateway, 1, 50_000)]
    while True:
        gateway.reports.lost(given_up[-1][0], -1)
        gateway.look(50_000)
        sent = dispatches(gateway.frames())
        if not sent:
            break  # every slot of the first stage is held
        given_up += sent
    number, body = given_up[0]
    acknowledge(gateway, number, body)
    ((_, again),) = dispatches(gateway.frames())
    assert (again.requests, again.slots[0]) == (body.requests, body.slots[0])
