"""The queue of a model: its order, what leaves it, and batches made of its head."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.arrivals import arrival, arrive
from tests.fakes.plans import two_stages
from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
    DropReason,
)
from triton_backend.contract.events import (
    Arrival,
    Cancel,
)
from triton_backend.scheduler.compiled import FAR, NONE
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.queues import (
    drop,
    enqueue,
    make_batch,
    new_request,
    prefix,
    serve_batch,
)
from triton_backend.scheduler.reservations.probe import BY_FINISH, probe
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import CANCELLED, DEADLINE, DROP, Tables, new_tables


def queued(tables: Tables) -> list[int]:
    """Ids of the queue of model 0, the head first."""
    ids: list[int] = []
    slot = int(tables.queues[0]["first"])
    while slot != NONE:
        ids.append(int(tables.requests[slot]["id"]))
        slot = int(tables.requests[slot]["next"])
    return ids


def test_requests_of_several_samples_are_not_split(scheduler: Scheduler) -> None:
    scheduler.handle(arrival(0, 0, samples=3))
    decided = scheduler.handle(arrival(1, 0, samples=3))
    dispatched = [d for d in decided if isinstance(d, Dispatch)]
    assert [(d.request_ids, d.samples) for d in dispatched] == [((0,), 3)]
    assert scheduler.queue_lengths() == (1,)


def test_a_more_urgent_request_goes_first(scheduler: Scheduler) -> None:
    arrive(scheduler, 3)
    urgent = Arrival(now_us=0, request_id=9, model=0, deadline_us=50_000)
    decided = scheduler.handle(urgent)
    assert isinstance(decided[0], Dispatch)
    assert decided[0].request_ids == (9, 0, 1, 2)


def test_a_cancelled_request_leaves_the_queue(scheduler: Scheduler) -> None:
    arrive(scheduler, 2)
    decided = scheduler.handle(Cancel(now_us=5, request_id=1))
    assert [d.reason for d in decided if isinstance(d, Drop)] == [DropReason.CANCELLED]
    assert scheduler.queue_lengths() == (1,)


def test_a_dispatched_request_cannot_be_cancelled_any_more(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    assert scheduler.handle(Cancel(now_us=5, request_id=1)) == []
    assert scheduler.in_flight() == 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=25),
    removed=st.lists(st.integers(0, 24), max_size=10, unique=True),
    size=st.integers(0, 40),
)
def test_a_queue_is_in_the_order_of_deadlines_whatever_comes_and_goes(
    requests: list[tuple[int, int]], removed: list[int], size: int
) -> None:
    tables = new_tables(build_topology(two_stages()))
    slots = [
        new_request(tables, 0, number, deadline_us, samples)
        for number, (deadline_us, samples) in enumerate(requests)
    ]
    for slot in slots:
        enqueue(tables, slot)
    for number in removed:
        if number < len(slots):
            drop(tables, slots[number], CANCELLED, FAR)
    left = [n for n in range(len(requests)) if n not in removed]
    left.sort(key=lambda n: (requests[n][0], n))
    assert queued(tables) == left
    total, fits = 0, 0
    for number in left:
        total += requests[number][1]
        fits = total if total <= size and fits + requests[number][1] == total else fits
    assert prefix(tables, 0, size) == fits


def test_a_drop_says_how_many_requests_stood_before_it() -> None:
    tables = new_tables(build_topology(two_stages()))
    for number in range(3):
        enqueue(tables, new_request(tables, 0, number, 100 + number, 1))
    drop(tables, 2, DEADLINE, 77)
    assert tables.out[0].tolist() == [DROP, 2, DEADLINE, 77, 2]
    assert tables.counts[0]["out"] == 1


def test_a_batch_takes_the_head_and_gives_its_slots_back_when_it_is_served() -> None:
    tables = new_tables(build_topology(two_stages()))
    for number in range(3):
        enqueue(tables, new_request(tables, 0, number, 100 - number, 1))
    probe(tables, 0, 2, 0, BY_FINISH)
    batch = make_batch(tables, tables.queues[0]["first"], 0)
    assert queued(tables) == [0]
    assert tables.requests["batch"][:3].tolist() == [NONE, batch, batch]
    check_invariants(tables)
    serve_batch(tables, batch)
    assert (tables.counts[0]["served"], tables.counts[0]["in_flight"]) == (2, 0)
    assert queued(tables) == [0]
    check_invariants(tables)
