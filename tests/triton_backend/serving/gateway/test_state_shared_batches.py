"""Shared batches of the gateway without sockets.

Frames to workers, ends out of order, members that are left.
"""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    EPOCH,
    HeldGateway,
    SentFrame,
    dispatches,
    drops,
    kinds,
    look_until,
    serving,
)
from tests.triton_backend.serving.shared.shared_plans import with_tail
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import DropReason
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    BATCH_BITS,
    HEADER_BYTES,
    ArrivalBody,
    DispatchBody,
    Kind,
    SharedBatchBody,
    TimesBody,
    parse_header,
    unpack_shared_batch,
)

CUT = FrontAddress("cut")
WHOLE, TAIL = 0, 1  # entries
HEAD_VGPU, TAIL_VGPU = 0, 1
FIRST = EPOCH << BATCH_BITS


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    served = plan(with_tail(tmp_path, boards=True).replaced(policy="reservation-ahead"))
    return serving(deploy(tmp_path / "serve", served, ServeOptions(artifacts=tmp_path)))


def ask(gateway: HeldGateway, number: int, entry: int, now_us: int, samples: int = 2) -> None:
    """A request of as many samples as a batch has, so that it waits for no other of its queue."""
    body = ArrivalBody(number, now_us + 300_000, samples, entry)
    gateway.requests.arrival(CUT, body, now_us)


def shared_batches(frames: list[SentFrame]) -> list[tuple[int, SharedBatchBody]]:
    """The frames about shared batches to the tail's worker."""
    found: list[tuple[int, SharedBatchBody]] = []
    for sent in frames:
        header = parse_header(sent.data)
        if header.kind is Kind.SHARED_BATCH:
            assert sent.to == WorkerAddress(1, TAIL_VGPU)
            found.append((header.batch_id, unpack_shared_batch(sent.data[HEADER_BYTES:])))
    return found


def both_aboard(
    gateway: HeldGateway,
) -> tuple[int, SharedBatchBody, list[tuple[int, DispatchBody]]]:
    """One request of each entry in one shared batch: its number, how it is, the batches."""
    ask(gateway, 0, WHOLE, 10)
    ask(gateway, 1, TAIL, 20)
    frames = gateway.frames()
    (first, _), (number, shared_batch) = shared_batches(frames)
    assert first == number
    return number, shared_batch, dispatches(frames)


def left(gateway: HeldGateway) -> tuple[int, ...]:
    """How much is kept of batches and shared batches."""
    gateway.hub.core.check_invariants()
    return gateway.in_flight, len(gateway.batches.sent), len(gateway.batches.shared)


def ran(shared_batch: SharedBatchBody) -> TimesBody:
    return TimesBody(TAIL_VGPU, shared_batch.start_us, shared_batch.start_us + 4_000)


def test_the_worker_of_a_shared_batch_hears_who_is_in_it_and_from_when_on(
    gateway: HeldGateway,
) -> None:
    number, shared_batch, batches = both_aboard(gateway)
    assert {batch for batch, _ in batches} == set(shared_batch.batches)
    assert number >= FIRST
    assert number not in shared_batch.batches
    (start_us,) = {body.hops[-1].start_us for _, body in batches[:1]}
    assert shared_batch.start_us <= start_us  # it is full, and leaves as soon as all are there
    assert shared_batch.leave_us >= shared_batch.start_us + 400_000


def test_a_shared_batch_ends_when_its_members_have_reported_the_stages_before(
    gateway: HeldGateway,
) -> None:
    number, shared_batch, ((whole, body), _) = both_aboard(gateway)
    gateway.reports.shared_batch_done(
        number, shared_batch.batches, ran(shared_batch), shared_batch.start_us + 4_000
    )
    assert left(gateway) == (2, 2, 1)
    head = TimesBody(HEAD_VGPU, 10, body.hops[0].end_us)
    gateway.reports.stage_done(whole, 0, head, shared_batch.start_us + 5_000)
    assert left(gateway) == (0, 0, 0)
    counters = gateway.counters
    assert (counters.shared_batches["cut"], counters.shared_batch_members["cut"]) == (1, 2)
    assert (counters.shared_batch_samples["cut"], counters.shared_batch_entries["cut"]) == (4, 2)
    assert sum(use.runs for use in counters.stages.values()) == 2


def test_who_was_let_in_while_the_shared_batch_left_runs_again(gateway: HeldGateway) -> None:
    number, shared_batch, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.reports.shared_batch_done(
        number, (tail,), ran(shared_batch), shared_batch.start_us + 4_000
    )
    frames = gateway.frames()
    assert {parse_header(s.data).batch_id for s in frames if s.data[5] == Kind.ABORT} == {whole}
    ((again, _),) = dispatches(frames)
    assert again not in {whole, tail}
    assert gateway.counters.batches_lost == 1
    assert left(gateway) == (1, 1, 1)  # in a shared batch of its own


def test_a_member_that_failed_leaves_the_others_their_shared_batch(gateway: HeldGateway) -> None:
    number, shared_batch, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.reports.failed(whole, 0, 100)
    ((_, smaller),) = shared_batches(gateway.frames())
    assert smaller.batches == (tail,)
    gateway.reports.shared_batch_done(
        number, (tail,), ran(shared_batch), shared_batch.start_us + 4_000
    )
    assert left(gateway) == (0, 0, 0)


def test_a_run_that_failed_ends_its_shared_batch(gateway: HeldGateway) -> None:
    number, shared_batch, ((whole, body), (tail, _)) = both_aboard(gateway)
    gateway.reports.stage_done(whole, 0, TimesBody(HEAD_VGPU, 10, body.hops[0].end_us), 9_000)
    for batch, stage in ((whole, 1), (tail, 0)):
        gateway.reports.failed(batch, stage, 9_100)
    gateway.reports.shared_batch_done(number, (), TimesBody(TAIL_VGPU, 9_050, 9_100), 9_200)
    assert left(gateway) == (0, 0, 0)
    assert gateway.counters.shared_batches["cut"] == 0
    assert shared_batch.batches


def test_a_cancelled_request_gives_its_seat_back(gateway: HeldGateway) -> None:
    number, shared_batch, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.requests.cancel(CUT, 1, 30)
    frames = gateway.frames()
    ((_, smaller),) = shared_batches(frames)
    assert (smaller.batches, set(shared_batch.batches)) == ((whole,), {whole, tail})
    assert [(drop.request, drop.reason) for drop in drops(frames)] == [(1, DropReason.CANCELLED)]
    assert left(gateway) == (1, 1, 1)
    assert number in {n for n, _ in shared_batches(frames)}


def test_a_lost_worker_takes_its_shared_batches_with_it(gateway: HeldGateway) -> None:
    number, shared_batch, _ = both_aboard(gateway)
    gateway.workers.lost(WorkerAddress(1, TAIL_VGPU), 50)
    frames = gateway.frames()
    assert kinds(frames).count(Kind.ABORT) == 5  # fronts of both, and the workers on their ways
    assert {drop.request for drop in drops(frames)} == {0, 1}
    assert shared_batches(frames) == [
        (number, SharedBatchBody(0, shared_batches(frames)[0][1].leave_us, ()))
    ]
    gateway.reports.shared_batch_done(number, shared_batch.batches, ran(shared_batch), 60_000)
    assert left(gateway) == (0, 0, 0)


def test_what_is_said_of_a_shared_batch_by_another_worker_or_of_none_is_ignored(
    gateway: HeldGateway,
) -> None:
    number, shared_batch, _ = both_aboard(gateway)
    gateway.reports.shared_batch_done(
        number, shared_batch.batches, TimesBody(HEAD_VGPU, 1, 2), 60_000
    )
    gateway.reports.shared_batch_done(number - 1, shared_batch.batches, ran(shared_batch), 60_000)
    gateway.reports.shared_batch_done(number + 99, shared_batch.batches, ran(shared_batch), 60_000)
    assert left(gateway) == (2, 2, 1)


def test_a_member_that_waits_for_a_slot_is_named_when_it_was_sent(gateway: HeldGateway) -> None:
    slots = gateway.generations.served.slots.of(TAIL_VGPU)
    taken = [slots.take() for _ in range(gateway.deployment.worker_slots(TAIL_VGPU))]
    assert taken[0] is not None
    ask(gateway, 0, TAIL, 10)
    assert kinds(gateway.frames()) == []
    slots.give(taken[0])
    gateway.batches.may_send = True
    frames = look_until(gateway, 20, 20)
    assert [kind for kind in kinds(frames) if kind in {Kind.SHARED_BATCH, Kind.DISPATCH}] == [
        Kind.DISPATCH,
        Kind.SHARED_BATCH,
    ]
