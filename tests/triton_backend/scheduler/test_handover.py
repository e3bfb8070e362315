"""Requests that wait while a plan changes."""

import pytest

from tests.fakes.plans import Own, make_plan, two_stages
from tests.triton_backend.scheduler.arrivals import SLO_US, arrival, arrive
from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Pause,
    PlanChanged,
)
from triton_backend.contract.reasons import DropReason
from triton_backend.scheduler.handover import LeftOut, hand_over
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.queues import enqueue, new_request
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import Tables, new_tables, with_room
from triton_backend.scheduler.topology import build_topology


def test_waiting_requests_go_on_under_a_new_plan_and_those_of_removed_models_are_dropped() -> None:
    pool = [[Own(latency_us=(1_000, 1_500), gpus=1)]]
    scheduler = Scheduler(make_plan(pool, pool, names=["kept", "removed"]))
    scheduler.handle(Pause(now_us=0))
    scheduler.handle(arrival(0, 1, model=0))
    scheduler.handle(arrival(1, 2, model=1))
    scheduler.handle(arrival(2, 3, model=0))
    decided = scheduler.handle(
        PlanChanged(now_us=4, plan=make_plan(pool, pool, names=["added", "kept"]))
    )
    assert decided[0] == Drop(
        request_id=1, model=1, reason=DropReason.MODEL_REMOVED, deadline_us=SLO_US + 2
    )
    assert isinstance(decided[1], Dispatch)
    assert (decided[1].model, decided[1].request_ids) == (1, (0, 2))
    scheduler.check_invariants()


def test_a_plan_cannot_change_while_batches_are_in_flight(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    with pytest.raises(InputError, match="1 batches are still in flight"):
        scheduler.handle(PlanChanged(now_us=1, plan=two_stages()))
    assert scheduler.in_flight() == 1


def old_and_new() -> tuple[Tables, Tables]:
    """Tables of a model whose batches hold 4, and of one whose batches hold 2."""
    pools = (Own(latency_us=(1_000,) * size) for size in (4, 2))
    old, new = (new_tables(build_topology(make_plan([[pool]]))) for pool in pools)
    return old, new


def test_who_waits_keeps_order_deadline_arrival_and_a_retry() -> None:
    old, new = old_and_new()
    for number, deadline_us in enumerate((30, 10, 20)):
        old.counts[0]["now_us"] = number
        enqueue(old, new_request(old, 0, 100 + number, deadline_us, 1))
    old.requests[2]["retried"] = 1
    new, left_out = hand_over(old, new, [0])
    check_invariants(new)
    assert left_out == []
    fields = ["id", "arrival_us", "deadline_us", "retried"]
    assert new.requests[fields][:3].tolist() == [
        (100, 0, 30, 0),
        (101, 1, 10, 0),
        (102, 2, 20, 1),
    ]
    assert new.requests[int(new.queues[0]["first"])]["id"] == 101
    assert new.counts[0]["now_us"] == 2


def test_who_is_too_large_for_the_new_plan_is_left_out() -> None:
    old, new = old_and_new()
    for number, samples in enumerate((1, 3, 2)):
        enqueue(old, new_request(old, 0, number, 10, samples))
    new, left_out = hand_over(old, new, [0])
    assert left_out == [LeftOut(1, DropReason.TOO_LARGE)]
    assert new.queues[0]["samples"] == 3


def test_batch_numbers_and_the_armed_timer_go_on() -> None:
    old, new = old_and_new()
    old.counts[0]["batches"], old.counts[0]["armed_timer_us"] = 7, 99
    new, _ = hand_over(old, new, [None])
    assert (new.counts[0]["batches"], new.counts[0]["armed_timer_us"]) == (7, 99)


def test_more_waiting_requests_than_the_new_tables_hold_are_all_taken() -> None:
    old, new = old_and_new()
    old = with_room(old, batches=256, requests=3_000)
    for number in range(2_500):
        enqueue(old, new_request(old, 0, number, 10, 1))
    new, left_out = hand_over(old, new, [0])
    check_invariants(new)
    assert (left_out, int(new.queues[0]["requests"])) == ([], 2_500)
