"""Reported ends enter the tables; losses of workers, batches and vGPUs."""

import pytest

from tests.fakes.arrivals import SLO_US, arrive
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import (
    Abort,
    Dispatch,
    Drop,
    DropReason,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    BatchLost,
    StageDone,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.scheduler.scheduler import Scheduler


def test_a_batch_that_ended_is_forgotten(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    scheduler.handle(StageDone(now_us=8_000, batch_id=0, stage=0, start_us=0, end_us=8_000))
    scheduler.handle(
        TransferDone(now_us=12_000, batch_id=0, stage=1, start_us=8_000, end_us=12_000)
    )
    scheduler.handle(StageDone(now_us=16_000, batch_id=0, stage=1, start_us=12_000, end_us=16_000))
    assert scheduler.in_flight() == 0
    with pytest.raises(InputError, match="batch 0"):
        scheduler.handle(
            StageDone(now_us=16_000, batch_id=0, stage=1, start_us=12_000, end_us=16_000)
        )


def test_a_stage_that_ends_late_delays_what_follows() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=1)]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    arrive(scheduler, 2)
    scheduler.handle(StageDone(now_us=13_000, batch_id=0, stage=0, start_us=0, end_us=13_000))
    decided = arrive(scheduler, 1, now_us=13_000, first=2)
    assert isinstance(decided[0], Dispatch)
    assert decided[0].hops[0].start_us == 23_000
    scheduler.check_invariants()


def test_a_stage_that_ends_late_delays_all_stages_that_follow_it() -> None:
    """The third stage's vGPU is busy for longer, as the second batch finds out."""
    moving = Own(latency_us=(10_000,), gpus=1, bytes_out=5_000_000)
    scheduler = Scheduler(make_plan([[moving, moving, Own(latency_us=(20_000,))]], slo_us=SLO_US))
    (first,) = arrive(scheduler, 1)
    assert isinstance(first, Dispatch)
    moved_us = first.hops[2].start_us - 20_000
    assert moved_us > 0
    scheduler.handle(StageDone(now_us=15_000, batch_id=0, stage=0, start_us=0, end_us=15_000))
    second = arrive(scheduler, 1, now_us=15_000, first=1)[0]
    assert isinstance(second, Dispatch)
    assert second.hops[2].start_us == 15_000 + 10_000 + moved_us + 20_000
    scheduler.check_invariants()


def test_a_stage_that_ends_early_frees_its_vgpu() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=1)]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    arrive(scheduler, 1)
    scheduler.handle(StageDone(now_us=6_000, batch_id=0, stage=0, start_us=0, end_us=6_000))
    decided = arrive(scheduler, 1, now_us=6_000, first=1)
    assert isinstance(decided[0], Dispatch)
    assert decided[0].hops[0].start_us == 6_000


def test_a_lost_vgpu_aborts_its_batches_and_their_requests_go_elsewhere(
    scheduler: Scheduler,
) -> None:
    arrive(scheduler, 4)
    decided = scheduler.handle(WorkerLost(now_us=1_000, vgpu=0))
    assert decided[0] == Abort(batch_id=0)
    again = decided[1]
    assert isinstance(again, Dispatch)
    assert again.request_ids == (0, 1, 2, 3)
    assert again.hops[0].vgpu == 1


def test_what_a_lost_vgpu_has_not_yet_sent_is_gone(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    scheduler.handle(StageDone(now_us=8_000, batch_id=0, stage=0, start_us=0, end_us=8_000))
    decided = scheduler.handle(WorkerLost(now_us=9_000, vgpu=0))
    assert decided[0] == Abort(batch_id=0)


def test_a_batch_that_has_left_a_lost_vgpu_goes_on(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    scheduler.handle(StageDone(now_us=8_000, batch_id=0, stage=0, start_us=0, end_us=8_000))
    scheduler.handle(
        TransferDone(now_us=12_000, batch_id=0, stage=1, start_us=8_000, end_us=12_000)
    )
    assert scheduler.handle(WorkerLost(now_us=12_500, vgpu=0)) == []
    assert scheduler.in_flight() == 1


def test_requests_that_a_lost_vgpu_made_late_are_dropped_for_that_reason() -> None:
    plan = make_plan([[Own(latency_us=(60_000,), gpus=1)]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    arrive(scheduler, 1)
    decided = scheduler.handle(WorkerLost(now_us=50_000, vgpu=0))
    assert [type(d) for d in decided] == [Abort, Drop]
    assert isinstance(decided[1], Drop)
    assert decided[1].reason == DropReason.WORKER_LOST
    scheduler.check_invariants()


def test_a_request_whose_runs_ended_two_vgpus_is_given_no_third() -> None:
    """Something in it may end each vGPU that runs it."""
    scheduler = Scheduler(make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=SLO_US))
    (first,) = arrive(scheduler, 1)
    assert isinstance(first, Dispatch)
    _, second = scheduler.handle(WorkerLost(now_us=1_000, vgpu=first.hops[0].vgpu))
    assert isinstance(second, Dispatch)
    abort, drop = scheduler.handle(WorkerLost(now_us=2_000, vgpu=second.hops[0].vgpu))
    assert isinstance(abort, Abort)
    assert isinstance(drop, Drop)
    assert (drop.request_id, drop.reason) == (0, DropReason.DEADLY)
    scheduler.check_invariants()
    (other,) = arrive(scheduler, 1, now_us=3_000, first=1)
    assert isinstance(other, Dispatch)


def test_a_request_that_only_waited_for_vgpus_that_died_goes_on() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(10_000,), gpus=3)]], slo_us=SLO_US))
    arrive(scheduler, 3)
    (waits,) = arrive(scheduler, 1, now_us=10, first=3)
    for now_us in (1_000, 1_010):
        assert isinstance(waits, Dispatch)
        assert waits.hops[0].start_us > now_us
        decided = scheduler.handle(WorkerLost(now_us=now_us, vgpu=waits.hops[0].vgpu))
        waits = next(d for d in decided if isinstance(d, Dispatch) and d.request_ids == (3,))
    scheduler.check_invariants()


def test_a_vgpu_that_is_back_is_used_again() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(1_000,), gpus=1)]]))
    scheduler.handle(WorkerLost(now_us=0, vgpu=0))
    assert isinstance(arrive(scheduler, 1)[0], Drop)
    scheduler.handle(WorkerBack(now_us=10, vgpu=0))
    assert isinstance(arrive(scheduler, 1, now_us=20, first=1)[0], Dispatch)


def test_a_vgpu_that_is_back_and_busy_takes_what_can_wait_for_it() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(1_000,), gpus=1)]], slo_us=SLO_US))
    scheduler.handle(WorkerLost(now_us=0, vgpu=0))
    busy_until_us = SLO_US - 1_000
    scheduler.handle(WorkerBack(now_us=0, vgpu=0, idle_us=busy_until_us))
    (late,) = arrive(scheduler, 1, now_us=0)
    assert isinstance(late, Dispatch), "it ends at its deadline"
    assert (late.hops[0].start_us, late.hops[0].end_us) == (busy_until_us, SLO_US)
    (dropped,) = arrive(scheduler, 1, now_us=10, first=1)
    assert isinstance(dropped, Drop)
    assert dropped.best_finish_us == SLO_US + 1_000
    scheduler.check_invariants()


def test_a_vgpu_that_is_idle_sooner_than_said_is_used_sooner() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(1_000,), gpus=1)]], slo_us=SLO_US))
    scheduler.handle(WorkerLost(now_us=0, vgpu=0))
    scheduler.handle(WorkerBack(now_us=10, vgpu=0, idle_us=50_000))
    scheduler.handle(WorkerBack(now_us=20, vgpu=0))
    (sent,) = arrive(scheduler, 1, now_us=30)
    assert isinstance(sent, Dispatch)
    assert sent.hops[0].start_us == 30
    scheduler.handle(WorkerLost(now_us=40, vgpu=0))
    scheduler.check_invariants()


def test_requests_of_a_batch_that_got_lost_run_again(scheduler: Scheduler) -> None:
    first = arrive(scheduler, 4)[-1]
    assert isinstance(first, Dispatch)
    aborted, again = scheduler.handle(BatchLost(now_us=1_000, batch_id=first.batch_id))
    assert aborted == Abort(batch_id=first.batch_id)
    assert isinstance(again, Dispatch)
    assert again.request_ids == first.request_ids
    # All that the lost one had reserved is free again: the same path, as early as can be.
    assert [hop.vgpu for hop in again.hops] == [hop.vgpu for hop in first.hops]
    assert again.hops[0].start_us == 1_000
    assert scheduler.in_flight() == 1


def test_a_transfer_that_ends_late_delays_its_run_and_what_waits_for_its_links() -> None:
    first = Own(latency_us=(1_000,), gpus=2, gpus_per_node=2, bytes_out=5_000_000)
    scheduler = Scheduler(make_plan([[first, Own(latency_us=(1_000,), gpus=2)]]))
    arrive(scheduler, 2)  # moves 1,000 .. 6,000 and 6,000 .. 11,000 over one uplink
    for batch in (0, 1):
        scheduler.handle(StageDone(now_us=1_000, batch_id=batch, stage=0, start_us=0, end_us=1_000))
    scheduler.handle(TransferDone(now_us=8_000, batch_id=0, stage=1, start_us=1_000, end_us=8_000))
    (third,) = arrive(scheduler, 1, now_us=8_000, first=2)
    assert isinstance(third, Dispatch)
    assert third.hops[1].transfer_start_us == 13_000, "behind the second, moved to 8,000 .. 13,000"
    scheduler.check_invariants()
