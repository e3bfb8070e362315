"""The scheduler as a shell sees it: events in, decisions out."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fakes.plans import Pool, make_plan, two_stages
from triton_backend.contract.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    Hop,
    SetTimer,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    LinkPaceChanged,
    PaceChanged,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.contract.reasons import DropReason
from triton_backend.contract.tensors import TensorSpec
from triton_backend.scheduler.scheduler import Scheduler

SLO_US = 100_000


def arrival(request_id: int, now_us: int, *, model: int = 0, samples: int = 1) -> Arrival:
    return Arrival(
        now_us=now_us,
        request_id=request_id,
        model=model,
        deadline_us=now_us + SLO_US,
        samples=samples,
    )


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(two_stages())
    yield scheduler
    scheduler.check_invariants()


def one_of(plan: Plan) -> Scheduler:
    return Scheduler(plan)


def arrive(scheduler: Scheduler, count: int, now_us: int = 0, first: int = 0) -> list[Decision]:
    decided: list[Decision] = []
    for request_id in range(first, first + count):
        decided += scheduler.handle(arrival(request_id, now_us))
    return decided


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


def test_a_lone_request_waits_until_one_more_would_no_longer_fit(scheduler: Scheduler) -> None:
    # two would take 5,000 + 2,000 + 2,700 µs; one µs after that no longer fits is the last moment
    assert scheduler.handle(arrival(0, 0)) == [SetTimer(at_us=SLO_US - 9_700 + 1)]
    decided = scheduler.handle(Timer(now_us=SLO_US - 9_700 + 1))
    assert isinstance(decided[0], Dispatch)
    assert decided[0].request_ids == (0,)
    assert decided[0].hops[-1].end_us <= SLO_US


def test_a_timer_that_comes_early_changes_nothing(scheduler: Scheduler) -> None:
    arrive(scheduler, 1)
    assert scheduler.queue_lengths() == (1,)
    scheduler.handle(Timer(now_us=10))
    assert scheduler.queue_lengths() == (1,)


def test_the_vgpu_that_finishes_first_is_taken_and_ties_go_to_the_lowest_number(
    scheduler: Scheduler,
) -> None:
    decided = arrive(scheduler, 20)
    paths = [[hop.vgpu for hop in d.hops] for d in decided if isinstance(d, Dispatch)]
    assert [path[0] for path in paths] == [0, 1, 2, 3, 0]
    assert [path[1] for path in paths] == [4, 5, 4, 5, 4]


def test_uplink_and_downlink_are_reserved_together() -> None:
    # both senders share one node, so their transfers go one after the other
    first = Pool(latency_us=(1_000,), gpus=2, gpus_per_node=2, bytes_out=5_000_000)
    scheduler = one_of(make_plan([[first, Pool(latency_us=(1_000,), gpus=2)]]))
    decided = arrive(scheduler, 2)
    moves = [
        (d.hops[1].transfer_start_us, d.hops[1].transfer_end_us)
        for d in decided
        if isinstance(d, Dispatch)
    ]
    assert moves == [(1_000, 6_000), (6_000, 11_000)]
    scheduler.check_invariants()


def test_isolated_links_do_not_hinder_other_pipelines() -> None:
    def finishes(nic: str) -> list[int]:
        pools = [
            Pool(latency_us=(1_000,), gpus=1, bytes_out=5_000_000),
            Pool(latency_us=(1_000,), gpus=2, gpus_per_node=2),
        ]
        scheduler = Scheduler(make_plan([pools, pools]), nic=nic)
        decided = arrive(scheduler, 2)
        return [d.hops[-1].end_us for d in decided if isinstance(d, Dispatch)]

    assert finishes("isolated") == [7_000, 7_000]


def test_a_gap_before_a_later_reservation_is_filled() -> None:
    slow = Pool(latency_us=(50_000,), gpus=1, bytes_out=1_000)
    fast = Pool(latency_us=(1_000,), gpus=1, bytes_out=1_000)
    shared = Pool(latency_us=(10_000,), gpus=1)
    plan = make_plan([[slow, shared]], [[fast, shared]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    late = scheduler.handle(arrival(0, 0, model=0))[0]
    early = scheduler.handle(arrival(1, 0, model=1))[0]
    assert isinstance(late, Dispatch)
    assert isinstance(early, Dispatch)
    assert early.hops[-1].end_us < late.hops[-1].start_us
    scheduler.check_invariants()


def test_a_request_that_cannot_end_in_time_is_dropped_with_the_numbers(
    scheduler: Scheduler,
) -> None:
    event = Arrival(now_us=0, request_id=7, model=0, deadline_us=5_999)
    assert scheduler.handle(event) == [
        Drop(
            request_id=7,
            model=0,
            reason=DropReason.DEADLINE,
            deadline_us=5_999,
            best_finish_us=22_000 - 6_000,
        )
    ]


def test_more_samples_than_any_batch_are_refused(scheduler: Scheduler) -> None:
    decided = scheduler.handle(arrival(0, 0, samples=5))
    assert [d.reason for d in decided if isinstance(d, Drop)] == [DropReason.TOO_LARGE]


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


def test_a_cancelled_request_leaves_the_line(scheduler: Scheduler) -> None:
    arrive(scheduler, 2)
    decided = scheduler.handle(Cancel(now_us=5, request_id=1))
    assert [d.reason for d in decided if isinstance(d, Drop)] == [DropReason.CANCELLED]
    assert scheduler.queue_lengths() == (1,)


def test_a_dispatched_request_cannot_be_cancelled_any_more(scheduler: Scheduler) -> None:
    arrive(scheduler, 4)
    assert scheduler.handle(Cancel(now_us=5, request_id=1)) == []
    assert scheduler.in_flight() == 1


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
    plan = make_plan([[Pool(latency_us=(10_000,), gpus=1)]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    arrive(scheduler, 2)
    scheduler.handle(StageDone(now_us=13_000, batch_id=0, stage=0, start_us=0, end_us=13_000))
    decided = arrive(scheduler, 1, now_us=13_000, first=2)
    assert isinstance(decided[0], Dispatch)
    assert decided[0].hops[0].start_us == 23_000
    scheduler.check_invariants()


def test_a_stage_that_ends_early_frees_its_vgpu() -> None:
    plan = make_plan([[Pool(latency_us=(10_000,), gpus=1)]], slo_us=SLO_US)
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
    plan = make_plan([[Pool(latency_us=(60_000,), gpus=1)]], slo_us=SLO_US)
    scheduler = Scheduler(plan)
    arrive(scheduler, 1)
    decided = scheduler.handle(WorkerLost(now_us=50_000, vgpu=0))
    assert [type(d) for d in decided] == [Abort, Drop]
    assert isinstance(decided[1], Drop)
    assert decided[1].reason == DropReason.WORKER_LOST
    scheduler.check_invariants()


def test_a_vgpu_that_is_back_is_used_again() -> None:
    scheduler = Scheduler(make_plan([[Pool(latency_us=(1_000,), gpus=1)]]))
    scheduler.handle(WorkerLost(now_us=0, vgpu=0))
    assert isinstance(arrive(scheduler, 1)[0], Drop)
    scheduler.handle(WorkerBack(now_us=10, vgpu=0))
    assert isinstance(arrive(scheduler, 1, now_us=20, first=1)[0], Dispatch)


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


def test_links_that_have_become_slower_are_planned_as_if_they_always_were() -> None:
    planned = two_stages()
    senders, receivers = planned.cluster.nodes
    slower = replace(
        planned.cluster,
        nodes=(
            replace(senders, nic_gbps=senders.nic_gbps / 4),
            replace(receivers, nic_gbps=receivers.nic_gbps / 2),
        ),
    )
    told, knowing = Scheduler(planned), Scheduler(replace(planned, cluster=slower))
    for node in range(planned.cluster.node_count):
        percent = 400 if node < senders.count else 200
        change = LinkPaceChanged(
            now_us=0, node=node, uplink_percent=percent, downlink_percent=percent
        )
        assert told.handle(change) == []
    for number in range(40):
        event = arrival(number, number * 700)
        assert told.handle(event) == knowing.handle(event)
    told.check_invariants()


def test_a_slow_uplink_alone_delays_what_leaves_its_node() -> None:
    scheduler = one_of(two_stages())
    scheduler.handle(LinkPaceChanged(now_us=0, node=0, uplink_percent=300, downlink_percent=100))
    decided = arrive(scheduler, 20)
    moves = {
        d.hops[0].vgpu: d.hops[1].transfer_end_us - d.hops[1].transfer_start_us
        for d in decided
        if isinstance(d, Dispatch)
    }
    assert moves == {0: 12_000, 1: 4_000, 2: 4_000, 3: 4_000}
    back = LinkPaceChanged(now_us=1, node=0, uplink_percent=100, downlink_percent=100)
    assert scheduler.handle(back) == []
    scheduler.check_invariants()


def test_which_requests_are_queued_or_in_flight_is_known(scheduler: Scheduler) -> None:
    arrive(scheduler, 5)
    scheduler.handle(Cancel(now_us=1, request_id=4))
    assert scheduler.request_ids() == (0, 1, 2, 3)
    assert [scheduler.has_request(number) for number in (3, 4)] == [True, False]


def test_a_stage_that_has_become_slower_is_planned_with_its_new_pace() -> None:
    scheduler = Scheduler(make_plan([[Pool(latency_us=(1_000,), gpus=1)]]))

    def takes(now_us: int, number: int) -> int:
        (decided,) = [d for d in arrive(scheduler, 1, now_us, number) if isinstance(d, Dispatch)]
        hop = decided.hops[-1]
        done = StageDone(
            now_us=hop.end_us,
            batch_id=decided.batch_id,
            stage=0,
            start_us=hop.start_us,
            end_us=hop.end_us,
        )
        scheduler.handle(done)
        scheduler.check_invariants()
        return hop.end_us - hop.start_us

    def pace(now_us: int, percent: int) -> list[Decision]:
        changed = PaceChanged(now_us=now_us, model=0, pipeline=0, stage=0, percent=percent)
        return scheduler.handle(changed)

    assert takes(0, 1) == 1_000
    pace(20_000, 250)
    assert takes(20_000, 2) == 2_500
    pace(40_000, 100)
    assert takes(40_000, 3) == 1_000
    pace(60_000, 100 * SLO_US)
    (refused,) = arrive(scheduler, 1, now_us=60_000, first=4)
    assert isinstance(refused, Drop)
    with pytest.raises(InputError, match="no such stage"):
        scheduler.handle(PaceChanged(now_us=70_000, model=0, pipeline=0, stage=1, percent=100))


def test_nothing_is_dispatched_between_pause_and_resume(scheduler: Scheduler) -> None:
    scheduler.handle(Pause(now_us=0))
    assert arrive(scheduler, 8, now_us=1) == []
    assert scheduler.queue_lengths() == (8,)
    decided = scheduler.handle(Resume(now_us=2))
    assert [d.samples for d in decided if isinstance(d, Dispatch)] == [4, 4]


def test_waiting_requests_go_on_under_a_new_plan_and_those_of_removed_models_are_dropped() -> None:
    pool = [[Pool(latency_us=(1_000, 1_500), gpus=1)]]
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


def test_counting_io_reserves_the_way_in_and_the_way_back() -> None:
    image = TensorSpec(name="image", dtype="UINT8", shape=(-1, 2_000_000))
    classes = TensorSpec(name="classes", dtype="UINT8", shape=(-1, 1_000_000))
    plan = make_plan([[Pool(latency_us=(10_000,))]])
    plan = replace(plan, models=(replace(plan.models[0], inputs=(image,), outputs=(classes,)),))
    scheduler = Scheduler(plan, count_io=True)
    first, second = arrive(scheduler, 2)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert first.hops[0] == Hop(
        vgpu=0, transfer_start_us=0, transfer_end_us=2_000, start_us=2_000, end_us=12_000
    )
    assert second.hops[0].transfer_start_us == 2_000
    told = {"now_us": 12_000, "batch_id": 0, "end_us": 12_000}
    scheduler.handle(StageDone(stage=0, start_us=2_000, **told))
    assert scheduler.in_flight() == 2
    scheduler.handle(
        TransferDone(now_us=13_000, batch_id=0, stage=1, start_us=12_000, end_us=13_000)
    )
    assert scheduler.in_flight() == 1
    scheduler.check_invariants()


def test_many_more_requests_than_there_was_room_for_are_kept(scheduler: Scheduler) -> None:
    scheduler.handle(Pause(now_us=0))
    arrive(scheduler, 3_000, now_us=0)
    assert scheduler.queue_lengths() == (3_000,)
    decided = scheduler.handle(Resume(now_us=0))
    served = sum(d.samples for d in decided if isinstance(d, Dispatch))
    dropped = sum(isinstance(d, Drop) for d in decided)
    assert (served + dropped + scheduler.queue_lengths()[0], served > 0) == (3_000, True)


def test_a_timer_that_comes_when_no_batch_slot_is_free_is_not_forgotten() -> None:
    waiting = Pool(latency_us=(1_000, 1_500), gpus=1)
    busy = Pool(latency_us=(50_000,), gpus=300)
    scheduler = Scheduler(make_plan([[waiting]], [[busy]], slo_us=SLO_US))
    (timer,) = scheduler.handle(arrival(0, 0))
    assert isinstance(timer, SetTimer)
    for request_id in range(1, 257):
        (busily,) = scheduler.handle(arrival(request_id, 0, model=1))
        assert isinstance(busily, Dispatch)
    decided = scheduler.handle(Timer(now_us=timer.at_us))
    assert [d.request_ids for d in decided if isinstance(d, Dispatch)] == [(0,)]
    scheduler.check_invariants()


def test_looking_ahead_drops_nobody_because_whole_requests_do_not_fill_a_batch() -> None:
    pool = Pool(latency_us=(6_000, 8_000, 9_000, 10_000))
    scheduler = Scheduler(make_plan([[pool]], slo_us=SLO_US), policy="reservation-ahead")
    decided = [
        decision
        for number in range(12)
        for decision in scheduler.handle(
            Arrival(now_us=0, request_id=number, model=0, deadline_us=10**9, samples=3)
        )
    ]
    served = [d.samples for d in decided if isinstance(d, Dispatch)]
    assert served
    assert set(served) == {3}
    assert not [d for d in decided if isinstance(d, Drop)]


def test_looking_ahead_drops_a_head_that_would_make_batches_small_while_vgpus_are_short() -> None:
    def singles(policy: str) -> int:
        pool = Pool(latency_us=(6_000, 8_000, 9_000, 10_000))
        scheduler = Scheduler(make_plan([[pool]], slo_us=SLO_US), policy=policy)
        decided = arrive(scheduler, 36)
        late = [
            Arrival(now_us=0, request_id=100 + n, model=0, deadline_us=97_000) for n in range(4)
        ]
        for event in late:
            decided += scheduler.handle(event)
        scheduler.check_invariants()
        return sum(d.samples == 1 for d in decided if isinstance(d, Dispatch))

    assert singles("reservation") > 0
    assert singles("reservation-ahead") == 0
