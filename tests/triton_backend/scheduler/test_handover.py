"""Requests that wait, and batches in flight, while a plan changes."""

from dataclasses import replace

import pytest

from tests.fakes.arrivals import SLO_US, arrival, arrive
from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    DropReason,
    Hop,
    SetTimer,
)
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    BatchLost,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.handover import (
    LeftOut,
    Numbering,
    first_numbering,
    hand_over,
    matching_queues,
)
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.queues import enqueue, new_request
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import Tables, new_tables, with_room
from triton_backend.scheduler.topology import Topology


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


def old_and_new() -> tuple[Tables, Numbering, tuple[Plan, Topology]]:
    """Tables of a model whose batches hold 4, and the arrays of one whose batches hold 2."""
    before, after = (make_plan([[Own(latency_us=(1_000,) * size)]]) for size in (4, 2))
    topology = build_topology(before)
    numbering = first_numbering(before, topology, "shared")
    return new_tables(topology), numbering, (after, build_topology(after))


def test_who_waits_keeps_order_deadline_arrival_and_a_retry() -> None:
    old, numbering, new = old_and_new()
    for number, deadline_us in enumerate((30, 10, 20)):
        old.counts[0]["now_us"] = number
        enqueue(old, new_request(old, 0, 100 + number, deadline_us, 1))
    old.requests[2]["retried"] = old.requests[2]["deaths"] = 1
    done = hand_over(old, numbering, new, ())
    check_invariants(done.tables)
    assert done.left_out == []
    fields = ["id", "arrival_us", "deadline_us", "retried", "deaths"]
    assert done.tables.requests[fields][:3].tolist() == [
        (100, 0, 30, 0, 0),
        (101, 1, 10, 0, 0),
        (102, 2, 20, 1, 1),
    ]
    assert done.tables.requests[int(done.tables.queues[0]["first"])]["id"] == 101
    assert done.tables.counts[0]["now_us"] == 2


def test_who_is_too_large_for_the_new_plan_is_left_out() -> None:
    old, numbering, new = old_and_new()
    for number, samples in enumerate((1, 3, 2)):
        enqueue(old, new_request(old, 0, number, 10, samples))
    done = hand_over(old, numbering, new, ())
    assert done.left_out == [LeftOut(1, DropReason.TOO_LARGE)]
    assert done.tables.queues[0]["samples"] == 3


def test_batch_numbers_and_the_armed_timer_go_on() -> None:
    old, numbering, new = old_and_new()
    old.counts[0]["batches"], old.counts[0]["armed_timer_us"] = 7, 99
    counts = hand_over(old, numbering, new, ()).tables.counts[0]
    assert (counts["batches"], counts["armed_timer_us"]) == (7, 99)


def test_more_waiting_requests_than_the_new_tables_hold_are_all_taken() -> None:
    old, numbering, new = old_and_new()
    old = with_room(old, batches=256, requests=3_000, jobs=0)
    for number in range(2_500):
        enqueue(old, new_request(old, 0, number, 10, 1))
    done = hand_over(old, numbering, new, ())
    check_invariants(done.tables)
    assert (done.left_out, int(done.tables.queues[0]["requests"])) == ([], 2_500)


# Batches in flight. Plans of these tests: `make_plan` puts the pools of a plan on nodes n0, n1, ...
# in order, so plans that begin alike have the same vGPUs there.

QUICK, SLOW = Own(latency_us=(1_000,)), Own(latency_us=(5_000,), gpus=2)


def sent(decided: list[Decision]) -> list[Dispatch]:
    return [decision for decision in decided if isinstance(decision, Dispatch)]


def done(scheduler: Scheduler, dispatch: Dispatch) -> list[Decision]:
    """Tell that a batch of one stage ended as reserved."""
    (hop,) = dispatch.hops
    return scheduler.handle(
        StageDone(
            now_us=hop.end_us,
            batch_id=dispatch.batch_id,
            stage=0,
            start_us=hop.start_us,
            end_us=hop.end_us,
        )
    )


def reserved(scheduler: Scheduler) -> set[tuple[int, ...]]:
    """Every reserved interval: resource, start, end."""
    rows = scheduler._tables.intervals
    rows = rows[rows["resource"] != NONE]
    return set(rows[["resource", "start_us", "end_us"]].tolist())


def test_a_vgpu_of_both_plans_keeps_its_reservations_under_its_new_number() -> None:
    before = make_plan([[SLOW]], [[QUICK]], names=["a", "b"])
    after = make_plan([[SLOW]], [[QUICK]], [[QUICK]], names=["a", "b", "c"])
    after = replace(after, models=(after.models[2], after.models[0], after.models[1]))
    scheduler = Scheduler(before)
    (first,) = sent(scheduler.handle(arrival(0, 0)))
    (second,) = sent(scheduler.handle(arrival(1, 0)))
    assert reserved(scheduler) == {(0, 0, 5_000), (1, 0, 5_000)}
    # Under the new plan vGPU 0 is the added model's; those of `a` are 1 and 2.
    decided = scheduler.handle(PlanChanged(now_us=1_000, plan=after))
    assert (decided, scheduler.in_flight()) == ([], 2)
    assert reserved(scheduler) == {(1, 0, 5_000), (2, 0, 5_000)}
    scheduler.check_invariants()
    (third,) = sent(scheduler.handle(arrival(2, 1_000, model=1)))
    assert third.hops[0] == Hop(1, 1_000, 1_000, 5_000, 10_000)
    assert third.batch_id == 2
    for dispatch in (first, second, third):
        assert done(scheduler, dispatch) == []
    assert (scheduler.in_flight(), reserved(scheduler)) == (0, set())
    scheduler.check_invariants()


def test_batches_end_on_vgpus_that_the_new_plan_lacks_and_new_ones_start_at_once() -> None:
    scheduler = Scheduler(make_plan([[SLOW]]))
    (old,) = sent(scheduler.handle(arrival(0, 0)))
    # At the same place now stands a vGPU of another content: another worker.
    after = make_plan([[Own(latency_us=(2_000,), gpus=2)]], plan_id="after")
    scheduler.handle(PlanChanged(now_us=1_000, plan=after))
    (new,) = sent(scheduler.handle(arrival(1, 1_000)))
    assert new.hops[0] == Hop(0, 1_000, 1_000, 1_000, 3_000)
    scheduler.check_invariants()
    assert done(scheduler, new) == done(scheduler, old) == []
    assert scheduler.in_flight() == 0


def test_requests_that_wait_are_dispatched_at_the_very_instant_of_the_change() -> None:
    batch = [[Own(latency_us=(1_000, 1_500, 2_000))]]
    scheduler = Scheduler(make_plan(batch))
    (timer,) = scheduler.handle(arrival(0, 0))
    assert isinstance(timer, SetTimer)
    decided = scheduler.handle(PlanChanged(now_us=10, plan=make_plan([[QUICK]], plan_id="after")))
    (dispatch,) = sent(decided)
    assert (dispatch.request_ids, dispatch.hops[0].start_us) == ((0,), 10)


def test_a_worker_that_leaves_is_lost_by_the_number_it_had() -> None:
    scheduler = Scheduler(make_plan([[SLOW]]))
    dispatches = [d for n in (0, 1) for d in sent(scheduler.handle(arrival(n, 0)))]
    assert [d.hops[0].vgpu for d in dispatches] == [0, 1]
    after = make_plan([[QUICK]], plan_id="after")
    scheduler.handle(PlanChanged(now_us=1_000, plan=after))
    assert scheduler.plan_number == 1
    abort, again = scheduler.handle(WorkerLost(now_us=1_100, vgpu=1, plan=0))
    assert abort == Abort(batch_id=1)
    assert isinstance(again, Dispatch)
    assert (again.request_ids, again.hops[0].start_us) == ((1,), 1_100)
    scheduler.check_invariants()
    done(scheduler, again)
    done(scheduler, dispatches[0])
    scheduler.handle(PlanChanged(now_us=9_000, plan=after))
    assert scheduler.handle(WorkerLost(now_us=9_000, vgpu=1, plan=0)) == []
    for vgpu, plan in ((1, None), (1, 2), (0, 3), (0, -1)):
        with pytest.raises(InputError):
            scheduler.handle(WorkerLost(now_us=9_000, vgpu=vgpu, plan=plan))


def test_a_lost_batch_of_a_model_that_has_gone_is_answered_under_its_last_number() -> None:
    scheduler = Scheduler(make_plan([[QUICK]], [[SLOW]], names=["kept", "gone"]))
    for number in (0, 1):
        scheduler.handle(arrival(number, 0, model=1))
    after = make_plan([[QUICK]], names=["kept"], plan_id="after")
    scheduler.handle(PlanChanged(now_us=10, plan=after))
    scheduler.handle(Pause(now_us=15))
    assert scheduler.handle(BatchLost(now_us=20, batch_id=0)) == [
        Abort(batch_id=0),
        Drop(request_id=0, model=1, reason=DropReason.MODEL_REMOVED, deadline_us=SLO_US),
    ]
    scheduler.handle(Resume(now_us=25))
    scheduler.handle(PlanChanged(now_us=30, plan=after))
    assert scheduler.handle(WorkerLost(now_us=40, vgpu=2, plan=0)) == [
        Abort(batch_id=1),
        Drop(request_id=1, model=1, reason=DropReason.MODEL_REMOVED, deadline_us=SLO_US),
    ]
    assert scheduler.request_ids() == ()
    scheduler.check_invariants()


def test_a_second_change_before_the_guests_of_the_first_have_ended() -> None:
    first, second = two_stages(), make_plan([[QUICK]], plan_id="short", names=["m0"])
    scheduler = Scheduler(first)
    (former_batch,) = [d for n in range(4) for d in sent(scheduler.handle(arrival(n, 0)))]
    scheduler.handle(PlanChanged(now_us=1_000, plan=second))
    (other,) = sent(scheduler.handle(arrival(4, 1_000)))
    instants = {row[1:] for row in reserved(scheduler)}
    scheduler.handle(PlanChanged(now_us=1_500, plan=first))
    assert {row[1:] for row in reserved(scheduler)} == instants
    scheduler.check_invariants()
    # The link of n0-0 carries the former batch from 8 to 12 ms: under the third plan too. Were it
    # free, a batch of the third plan that leaves the same node then would move at once.
    fresh = [d for n in range(5, 9) for d in sent(scheduler.handle(arrival(n, 1_500)))]
    assert [d.hops[0].start_us for d in fresh] == [1_500]
    steps = (StageDone, 0, 8_000), (TransferDone, 1, 12_000), (StageDone, 1, 16_000)
    for told, stage, end_us in steps:
        hop = former_batch.hops[stage]
        start_us = hop.start_us if told is StageDone else hop.transfer_start_us
        assert hop.end_us == end_us or told is TransferDone
        scheduler.handle(
            told(now_us=end_us, batch_id=0, stage=stage, start_us=start_us, end_us=end_us)
        )
    done(scheduler, replace(other, hops=(other.hops[0]._replace(end_us=16_000),)))
    assert scheduler.in_flight() == 1
    scheduler.check_invariants()


def test_a_late_guest_delays_what_follows_it_on_an_inherited_vgpu() -> None:
    plan = make_plan([[Own(latency_us=(5_000,))]])
    scheduler = Scheduler(plan)
    (former_batch,) = sent(scheduler.handle(arrival(0, 0)))
    scheduler.handle(PlanChanged(now_us=100, plan=replace(plan, plan_id="same")))
    scheduler.handle(arrival(1, 100))
    assert reserved(scheduler) == {(0, 0, 5_000), (0, 5_000, 10_000)}
    done(scheduler, replace(former_batch, hops=(former_batch.hops[0]._replace(end_us=6_000),)))
    assert reserved(scheduler) == {(0, 6_000, 11_000)}


def test_vgpus_that_are_not_up_get_nothing_until_they_are_back() -> None:
    plan = make_plan([[SLOW]])
    scheduler = Scheduler(plan)
    scheduler.handle(arrival(0, 0))
    scheduler.handle(arrival(1, 0))
    decided = scheduler.handle(PlanChanged(now_us=10, plan=plan, lost=(1,)))
    assert decided[0] == Abort(batch_id=1)
    (again,) = sent(decided)
    assert again.hops[0][0::3] == (0, 5_000)
    scheduler.check_invariants()
    scheduler.handle(WorkerBack(now_us=20, vgpu=1))
    (third,) = sent(scheduler.handle(arrival(2, 20)))
    assert third.hops[0][0::3] == (1, 20)
    with pytest.raises(InputError, match="lost: no vGPU 2, the plan has 2"):
        scheduler.handle(PlanChanged(now_us=30, plan=plan, lost=(2,)))


def test_what_a_vgpu_is_busy_with_outlives_the_plan() -> None:
    plan = make_plan([[SLOW]])
    scheduler = Scheduler(plan)
    for vgpu in (0, 1):
        scheduler.handle(WorkerLost(now_us=0, vgpu=vgpu))
    scheduler.handle(WorkerBack(now_us=0, vgpu=0, idle_us=3_000))
    scheduler.handle(WorkerBack(now_us=0, vgpu=1, idle_us=4_000))
    scheduler.handle(PlanChanged(now_us=10, plan=plan, inherited=((0, 1), (1, 0))))
    begun = [sent(scheduler.handle(arrival(number, 10)))[0].hops[0][0::3] for number in (0, 1)]
    assert begun == [(1, 3_000), (0, 4_000)]
    scheduler.check_invariants()


def test_the_shell_says_who_goes_on_where_it_knows_better() -> None:
    plan = make_plan([[SLOW]])
    scheduler = Scheduler(plan)
    scheduler.handle(arrival(0, 0))
    scheduler.handle(PlanChanged(now_us=10, plan=plan, inherited=()))
    (second,) = sent(scheduler.handle(arrival(1, 10)))
    assert second.hops[0][0::3] == (0, 10), "a new worker stands beside the old one"
    for wrong in (((0, 2),), ((2, 0),), ((0, 0), (0, 1)), ((0, 1), (1, 1))):
        with pytest.raises(InputError, match="plan change, inherited vGPUs"):
            scheduler.handle(PlanChanged(now_us=10, plan=plan, inherited=wrong))


def test_a_change_prepared_before_is_the_same_change() -> None:
    before, after = two_stages(), make_plan([[QUICK]], plan_id="after", names=["m0"])
    answers: list[list[Decision]] = []
    for prepared in (False, True):
        scheduler = Scheduler(before)
        arrive(scheduler, 6)
        if prepared:
            scheduler.prepare(after)
        answers.append(scheduler.handle(PlanChanged(now_us=500, plan=after)))
    assert sent(answers[0])
    assert answers[0] == answers[1]


def test_who_waits_at_an_entry_that_is_gone_goes_to_the_budget_it_covers_at_the_same_block() -> (
    None
):
    def plan(*entries: tuple[str, int]) -> Plan:
        made = make_plan([[Own(latency_us=(1_000,))]])
        (model,) = made.models
        listed = tuple(Entry(name=n, block=0, budget_us=us, rate_rps=1.0) for n, us in entries)
        lines = tuple(
            replace(model.pipelines[0], entry=name, throughput_rps=0.0) for name, _ in entries
        )
        return replace(made, models=(replace(model, entries=listed, pipelines=lines),))

    before = plan(("a", 50), ("b", 10), ("c", 30))
    assert matching_queues(before, plan(("c", 30), ("d", 40), ("e", 20))) == [1, 2, 0]
    assert (
        matching_queues(before, make_plan([[Own(latency_us=(1_000,))]], names=["other"]))
        == [None] * 3
    )
    whole = make_plan([[Own(latency_us=(1_000,))]])
    assert matching_queues(before, whole) == [0, 0, 0]
    assert matching_queues(whole, plan(("b", 10), ("a", whole.models[0].slo_us))) == [1]
