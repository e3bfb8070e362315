"""The scheduler as a shell sees it: events in, decisions out."""

from dataclasses import replace

import pytest

from tests.fakes.arrivals import SLO_US, arrival, arrive
from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
    DropReason,
    Hop,
    SetTimer,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    Cancel,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.units import TIME_BOUNDS_US
from triton_backend.scheduler.scheduler import Counted, Scheduler


def test_a_full_batch_is_dispatched_at_once_along_its_reserved_path(scheduler: Scheduler) -> None:
    decided = arrive(scheduler, 4)
    assert decided[-1] == Dispatch(
        batch_id=0,
        model=0,
        pipeline=0,
        request_ids=(0, 1, 2, 3),
        samples=4,
        hops=(
            Hop(vgpu=0, transfer_start_us=0, transfer_end_us=0, start_us=0, end_us=8_000),
            Hop(
                vgpu=4,
                transfer_start_us=8_000,
                transfer_end_us=12_000,
                start_us=12_000,
                end_us=16_000,
            ),
        ),
    )
    assert scheduler.in_flight() == 1
    assert scheduler.queue_lengths() == (0,)


def test_the_vgpu_that_finishes_first_is_taken_and_ties_go_to_the_lowest_number(
    scheduler: Scheduler,
) -> None:
    decided = arrive(scheduler, 20)
    paths = [[hop.vgpu for hop in d.hops] for d in decided if isinstance(d, Dispatch)]
    assert [path[0] for path in paths] == [0, 1, 2, 3, 0]
    assert [path[1] for path in paths] == [4, 5, 4, 5, 4]


def test_uplink_and_downlink_are_reserved_together() -> None:
    # both senders share one node, so their transfers go one after the other
    first = Own(latency_us=(1_000,), gpus=2, gpus_per_node=2, bytes_out=5_000_000)
    scheduler = Scheduler(make_plan([[first, Own(latency_us=(1_000,), gpus=2)]]))
    decided = arrive(scheduler, 2)
    moves = [
        (d.hops[1].transfer_start_us, d.hops[1].transfer_end_us)
        for d in decided
        if isinstance(d, Dispatch)
    ]
    assert moves == [(1_000, 6_000), (6_000, 11_000)]
    scheduler.check_invariants()


def test_a_gap_before_a_later_reservation_is_filled() -> None:
    slow = Own(latency_us=(50_000,), gpus=1, bytes_out=1_000)
    fast = Own(latency_us=(1_000,), gpus=1, bytes_out=1_000)
    shared = Own(latency_us=(10_000,), gpus=1)
    plan = make_plan([[slow, shared]], [[fast, shared]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    late = scheduler.handle(arrival(0, 0, model=0))[0]
    early = scheduler.handle(arrival(1, 0, model=1))[0]
    assert isinstance(late, Dispatch)
    assert isinstance(early, Dispatch)
    assert early.hops[-1].end_us < late.hops[-1].start_us
    scheduler.check_invariants()


def test_more_samples_than_any_batch_are_refused(scheduler: Scheduler) -> None:
    decided = scheduler.handle(arrival(0, 0, samples=5))
    assert [d.reason for d in decided if isinstance(d, Drop)] == [DropReason.TOO_LARGE]


def test_which_requests_are_queued_or_in_flight_is_known(scheduler: Scheduler) -> None:
    arrive(scheduler, 5)
    scheduler.handle(Cancel(now_us=1, request_id=4))
    assert scheduler.request_ids() == (0, 1, 2, 3)
    assert [scheduler.has_request(number) for number in (3, 4)] == [True, False]


def test_requests_of_a_batch_count_as_late_from_just_after_their_deadline(
    scheduler: Scheduler,
) -> None:
    (sent,) = [d for d in arrive(scheduler, 4) if isinstance(d, Dispatch)]
    assert scheduler.late_requests(sent.batch_id, SLO_US) == 0
    assert scheduler.late_requests(sent.batch_id, SLO_US + 1) == len(sent.request_ids)


def test_nothing_is_dispatched_between_pause_and_resume(scheduler: Scheduler) -> None:
    scheduler.handle(Pause(now_us=0))
    assert arrive(scheduler, 8, now_us=1) == []
    assert scheduler.queue_lengths() == (8,)
    decided = scheduler.handle(Resume(now_us=2))
    assert [d.samples for d in decided if isinstance(d, Dispatch)] == [4, 4]


@pytest.mark.parametrize(
    "event",
    [
        arrival(0, 10),
        arrival(1, 10, model=1),
        arrival(1, 10, samples=0),
        arrival(1, 9),
        Cancel(now_us=10, request_id=5),
        StageDone(now_us=10, batch_id=5, stage=0, start_us=0, end_us=1),
        TransferDone(now_us=10, batch_id=5, stage=1, start_us=0, end_us=1),
        WorkerLost(now_us=10, vgpu=6),
        WorkerBack(now_us=10, vgpu=-1),
    ],
)
def test_an_impossible_event_is_refused_and_changes_nothing(event: Arrival) -> None:
    scheduler, untouched = Scheduler(two_stages()), Scheduler(two_stages())
    for each in (scheduler, untouched):
        each.handle(arrival(0, 10))
    with pytest.raises(InputError):
        scheduler.handle(event)
    following = arrive(scheduler, 9, now_us=10, first=10)
    assert following == arrive(untouched, 9, now_us=10, first=10)
    scheduler.check_invariants()


def test_feedback_about_the_future_or_a_stage_that_is_not_there_is_refused(
    scheduler: Scheduler,
) -> None:
    arrive(scheduler, 4)
    for stage, end_us in ((2, 5), (0, 11)):
        with pytest.raises(InputError):
            scheduler.handle(
                StageDone(now_us=10, batch_id=0, stage=stage, start_us=0, end_us=end_us)
            )


def test_unknown_policies_and_nics_are_named() -> None:
    with pytest.raises(InputError, match="reservation"):
        Scheduler(two_stages(), policy="nonsense")
    with pytest.raises(InputError, match="shared"):
        Scheduler(two_stages(), nic="nonsense")


@pytest.mark.long
def test_many_more_requests_than_there_was_room_for_are_kept(scheduler: Scheduler) -> None:
    scheduler.handle(Pause(now_us=0))
    arrive(scheduler, 1_300, now_us=0)
    assert scheduler.queue_lengths() == (1_300,)
    decided = scheduler.handle(Resume(now_us=0))
    served = sum(d.samples for d in decided if isinstance(d, Dispatch))
    dropped = sum(isinstance(d, Drop) for d in decided)
    assert (served + dropped + scheduler.queue_lengths()[0], served > 0) == (1_300, True)


def test_a_timer_that_comes_when_no_batch_slot_is_free_is_not_forgotten() -> None:
    waiting = Own(latency_us=(1_000, 1_500), gpus=1)
    busy = Own(latency_us=(50_000,), gpus=300)
    scheduler = Scheduler(make_plan([[waiting]], [[busy]], slo_us=SLO_US))
    (timer,) = scheduler.handle(arrival(0, 0))
    assert isinstance(timer, SetTimer)
    for request_id in range(1, 257):
        (busily,) = scheduler.handle(arrival(request_id, 0, model=1))
        assert isinstance(busily, Dispatch)
    decided = scheduler.handle(Timer(now_us=timer.at_us))
    assert [d.request_ids for d in decided if isinstance(d, Dispatch)] == [(0,)]
    scheduler.check_invariants()


def by_bound(times: Counted) -> dict[int | None, tuple[int, int]]:
    """Count and sum of every bucket that has any, by its upper bound."""
    bounds = (*TIME_BOUNDS_US, None)
    found = zip(bounds, times.counts, times.sums_us, strict=True)
    return {bound: (count, total) for bound, count, total in found if count}


def test_a_batch_has_waited_since_its_first_request_came(scheduler: Scheduler) -> None:
    (name,) = (model.name for model in scheduler.plan.models)
    assert by_bound(scheduler.take_times().waits[name]) == {}
    arrive(scheduler, 1, now_us=0)
    arrive(scheduler, 3, now_us=700, first=1)
    arrive(scheduler, 4, now_us=701, first=4)
    arrive(scheduler, 2, now_us=800, first=8)
    arrive(scheduler, 2, now_us=1_600, first=10)
    found = {700: (1, 700), 200: (1, 0), 1_000: (1, 800)}
    assert by_bound(scheduler.take_times().waits[name]) == found
    assert by_bound(scheduler.take_times().waits[name]) == {}
    arrive(scheduler, 1, now_us=2_000, first=20)
    changed = replace(scheduler.plan, plan_id="other")
    scheduler.handle(PlanChanged(now_us=2_000, plan=changed))
    arrive(scheduler, 3, now_us=50_000, first=21)
    assert by_bound(scheduler.take_times().waits[name]) == {50_000: (1, 48_000)}
