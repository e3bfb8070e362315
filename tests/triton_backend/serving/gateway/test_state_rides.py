"""Rides of the gateway without sockets.

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
from tests.triton_backend.serving.shared_plans import with_tail
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import DropReason
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.state import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    BATCH_BITS,
    HEADER_BYTES,
    ArrivalBody,
    DispatchBody,
    Kind,
    RideBody,
    TimesBody,
    parse_header,
    unpack_ride,
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
    gateway.arrival(CUT, body, now_us)


def rides(frames: list[SentFrame]) -> list[tuple[int, RideBody]]:
    """The frames about rides to the tail's worker."""
    found: list[tuple[int, RideBody]] = []
    for sent in frames:
        header = parse_header(sent.data)
        if header.kind is Kind.RIDE:
            assert sent.to == WorkerAddress(1, TAIL_VGPU)
            found.append((header.batch_id, unpack_ride(sent.data[HEADER_BYTES:])))
    return found


def both_aboard(gateway: HeldGateway) -> tuple[int, RideBody, list[tuple[int, DispatchBody]]]:
    """One request of each entry in one ride: its number, how it is, the batches."""
    ask(gateway, 0, WHOLE, 10)
    ask(gateway, 1, TAIL, 20)
    frames = gateway.frames()
    (first, _), (number, ride) = rides(frames)
    assert first == number
    return number, ride, dispatches(frames)


def left(gateway: HeldGateway) -> tuple[int, ...]:
    """How much is kept of batches and rides."""
    gateway._core.check_invariants()
    return gateway.in_flight, len(gateway._batches), len(gateway._rides)


def ran(ride: RideBody) -> TimesBody:
    return TimesBody(TAIL_VGPU, ride.start_us, ride.start_us + 4_000)


def test_the_worker_of_a_ride_hears_who_is_in_it_and_from_when_on(gateway: HeldGateway) -> None:
    number, ride, batches = both_aboard(gateway)
    assert {batch for batch, _ in batches} == set(ride.batches)
    assert number >= FIRST
    assert number not in ride.batches
    (start_us,) = {body.hops[-1].start_us for _, body in batches[:1]}
    assert ride.start_us <= start_us  # it is full, and leaves as soon as all are there
    assert ride.leave_us >= ride.start_us + 400_000


def test_a_ride_ends_when_its_members_have_reported_the_stages_before(
    gateway: HeldGateway,
) -> None:
    number, ride, ((whole, body), _) = both_aboard(gateway)
    gateway.ride_done(number, ride.batches, ran(ride), ride.start_us + 4_000)
    assert left(gateway) == (2, 2, 1)
    head = TimesBody(HEAD_VGPU, 10, body.hops[0].end_us)
    gateway.stage_done(whole, 0, head, ride.start_us + 5_000)
    assert left(gateway) == (0, 0, 0)
    counters = gateway.counters
    assert (counters.rides["cut"], counters.ride_batches["cut"]) == (1, 2)
    assert (counters.ride_samples["cut"], counters.ride_entries["cut"]) == (4, 2)
    assert sum(use.runs for use in counters.stages.values()) == 2


def test_who_was_let_in_while_the_ride_left_runs_again(gateway: HeldGateway) -> None:
    number, ride, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.ride_done(number, (tail,), ran(ride), ride.start_us + 4_000)
    frames = gateway.frames()
    assert {parse_header(s.data).batch_id for s in frames if s.data[5] == Kind.ABORT} == {whole}
    ((again, _),) = dispatches(frames)
    assert again not in {whole, tail}
    assert gateway.counters.batches_lost == 1
    assert left(gateway) == (1, 1, 1)  # in a ride of its own


def test_a_member_that_failed_leaves_the_others_their_ride(gateway: HeldGateway) -> None:
    number, ride, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.batch_failed(whole, 0, 100)
    ((_, smaller),) = rides(gateway.frames())
    assert smaller.batches == (tail,)
    gateway.ride_done(number, (tail,), ran(ride), ride.start_us + 4_000)
    assert left(gateway) == (0, 0, 0)


def test_a_run_that_failed_ends_its_ride(gateway: HeldGateway) -> None:
    number, ride, ((whole, body), (tail, _)) = both_aboard(gateway)
    gateway.stage_done(whole, 0, TimesBody(HEAD_VGPU, 10, body.hops[0].end_us), 9_000)
    for batch, stage in ((whole, 1), (tail, 0)):
        gateway.batch_failed(batch, stage, 9_100)
    gateway.ride_done(number, (), TimesBody(TAIL_VGPU, 9_050, 9_100), 9_200)
    assert left(gateway) == (0, 0, 0)
    assert gateway.counters.rides["cut"] == 0
    assert ride.batches


def test_a_cancelled_request_gives_its_seat_back(gateway: HeldGateway) -> None:
    number, ride, ((whole, _), (tail, _)) = both_aboard(gateway)
    gateway.cancel(CUT, 1, 30)
    frames = gateway.frames()
    ((_, smaller),) = rides(frames)
    assert (smaller.batches, set(ride.batches)) == ((whole,), {whole, tail})
    assert [(drop.request, drop.reason) for drop in drops(frames)] == [(1, DropReason.CANCELLED)]
    assert left(gateway) == (1, 1, 1)
    assert number in {n for n, _ in rides(frames)}


def test_a_lost_worker_takes_its_rides_with_it(gateway: HeldGateway) -> None:
    number, ride, _ = both_aboard(gateway)
    gateway.worker_lost(WorkerAddress(1, TAIL_VGPU), 50)
    frames = gateway.frames()
    assert kinds(frames).count(Kind.ABORT) == 5  # fronts of both, and the workers on their ways
    assert {drop.request for drop in drops(frames)} == {0, 1}
    assert rides(frames) == [(number, RideBody(0, rides(frames)[0][1].leave_us, ()))]
    gateway.ride_done(number, ride.batches, ran(ride), 60_000)
    assert left(gateway) == (0, 0, 0)


def test_what_is_said_of_a_ride_by_another_worker_or_of_none_is_ignored(
    gateway: HeldGateway,
) -> None:
    number, ride, _ = both_aboard(gateway)
    gateway.ride_done(number, ride.batches, TimesBody(HEAD_VGPU, 1, 2), 60_000)
    gateway.ride_done(number - 1, ride.batches, ran(ride), 60_000)
    gateway.ride_done(number + 99, ride.batches, ran(ride), 60_000)
    assert left(gateway) == (2, 2, 1)


def test_a_member_that_waits_for_a_slot_is_named_when_it_was_sent(gateway: HeldGateway) -> None:
    slots = gateway._served.slots.of(TAIL_VGPU)
    taken = [slots.take() for _ in range(gateway.deployment.worker_slots(TAIL_VGPU))]
    assert taken[0] is not None
    ask(gateway, 0, TAIL, 10)
    assert kinds(gateway.frames()) == []
    slots.give(taken[0])
    gateway._may_send = True
    frames = look_until(gateway, 20, 20)
    assert [kind for kind in kinds(frames) if kind in {Kind.RIDE, Kind.DISPATCH}] == [
        Kind.DISPATCH,
        Kind.RIDE,
    ]
