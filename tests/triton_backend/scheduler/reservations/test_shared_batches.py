"""Shared batches: rows, departures, and members that are late, lost or cancelled."""

from typing import get_args

import pytest

from tests.fakes.plans import Own as Pool
from tests.fakes.plans import Way, make_boarding_plan, two_tails
from tests.interpreters import printed_by
from triton_backend.contract.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    DropReason,
    Member,
    SharedBatch,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Event,
    Pause,
    PlanChanged,
    Resume,
    SharedBatchDone,
    SharedBatchStarted,
    StageDone,
    Timer,
    TransferDone,
    WorkerLost,
)
from triton_backend.contract.plan import LONGEST_PIPELINE, Plan
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.topology import MOST_SEATS, PUNCTUAL, SharedBatchTimes
from triton_backend.serving.gateway.event_log import read_events, to_line

ALIGNED, AT_JUNCTION = 0, 1  # entries of `two_tails`


class Told:
    """A scheduler, and all that it was told and said."""

    def __init__(self, plan: Plan, times: SharedBatchTimes = PUNCTUAL) -> None:
        self.scheduler = Scheduler(plan, shared_batch_times=times)
        self.items: list[Event | Decision] = []
        self.came = 0

    def tell(self, event: Event) -> list[Decision]:
        decided = self.scheduler.handle(event)
        self.scheduler.check_invariants()
        self.items += [event, *decided]
        return decided

    def arrive(
        self, at_us: int, entry: int, slack_us: int = 100_000, samples: int = 1
    ) -> list[Decision]:
        self.came += 1
        return self.tell(
            Arrival(
                now_us=at_us,
                request_id=self.came - 1,
                model=0,
                entry=entry,
                deadline_us=at_us + slack_us,
                samples=samples,
            )
        )

    def done(self, shared_batch: SharedBatch, end_us: int, now_us: int = 0) -> list[Decision]:
        start_us, now_us = min(shared_batch.start_us, end_us), max(now_us, end_us)
        return self.tell(
            SharedBatchDone(
                now_us=now_us,
                shared_batch_id=shared_batch.shared_batch_id,
                start_us=start_us,
                end_us=end_us,
            )
        )


def the_shared_batch(decided: list[Decision]) -> SharedBatch:
    (shared_batch,) = [d for d in decided if isinstance(d, SharedBatch)]
    return shared_batch


def hop(decided: list[Decision], stage: int) -> tuple[int, int]:
    (dispatch,) = [d for d in decided if isinstance(d, Dispatch)]
    return dispatch.hops[stage].start_us, dispatch.hops[stage].end_us


def test_a_shared_batch_has_all_rows_that_end_in_time_and_waits_for_as_long_as_it_runs() -> None:
    told = Told(two_tails())
    decided = told.arrive(0, AT_JUNCTION)
    shared_batch = the_shared_batch(decided)
    assert (shared_batch.capacity, shared_batch.start_us, shared_batch.end_us) == (4, 7_000, 14_000)
    assert hop(decided, 0) == (7_000, 14_000)
    tight = the_shared_batch(Told(two_tails()).arrive(0, AT_JUNCTION, slack_us=8_000))
    assert (tight.capacity, tight.start_us, tight.end_us) == (4, 1_000, 8_000)
    small = the_shared_batch(Told(two_tails()).arrive(0, AT_JUNCTION, slack_us=5_500))
    assert (small.capacity, small.start_us, small.end_us) == (2, 500, 5_500)
    most = the_shared_batch(Told(two_tails(8)).arrive(0, AT_JUNCTION, slack_us=10_500))
    assert (most.capacity, most.start_us, most.end_us) == (7, 500, 10_500)


def test_who_boards_twice_leaves_time_to_wait_for_company_the_second_time() -> None:
    """Two runs of 7 ms: of 20 ms the first waits for 2, the second for 4."""
    pool = Pool(latency_us=(4_000, 5_000, 6_000, 7_000))
    way = Way(pools=(0, 1))
    told = Told(make_boarding_plan([((0, 2), pool), ((2, 4), pool)], way, way))
    decided = told.arrive(0, 0, slack_us=20_000)
    times = [(d.start_us, d.end_us) for d in decided if isinstance(d, SharedBatch)]
    assert times == [(2_000, 9_000), (13_000, 20_000)]


def test_batches_of_two_entries_sit_in_one_run_at_rows_of_their_own() -> None:
    told = Told(two_tails())
    first = the_shared_batch(told.arrive(0, ALIGNED))  # there at 4,000
    assert first.start_us == 11_000
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION, samples=2))
    assert shared_batch.shared_batch_id == first.shared_batch_id
    assert shared_batch.members == (
        Member(batch_id=0, stage=1, first_row=0, rows=1),
        Member(batch_id=2, stage=0, first_row=1, rows=2),
    )
    assert (shared_batch.start_us, shared_batch.end_us) == (11_000, 18_000)


def test_a_full_shared_batch_leaves_as_soon_as_the_last_member_is_there() -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION, samples=3))
    assert (shared_batch.start_us, shared_batch.end_us) == (
        4_000,
        11_000,
    )  # the first is moved until then


def test_a_batch_that_comes_at_the_very_start_of_a_shared_batch_boards_it() -> None:
    told = Told(two_tails())
    first = the_shared_batch(told.arrive(0, AT_JUNCTION, slack_us=11_000))
    assert first.start_us == 4_000
    boarded = the_shared_batch(told.arrive(0, ALIGNED))  # there at 4,000
    assert boarded.shared_batch_id == first.shared_batch_id
    assert (len(boarded.members), boarded.start_us) == (2, 4_000)


@pytest.mark.parametrize(("bytes_out", "boards"), [(0, True), (1_000, False)])
def test_a_batch_that_moves_for_a_microsecond_comes_a_microsecond_later(
    bytes_out: int, *, boards: bool
) -> None:
    shared = Pool(latency_us=(4_000, 5_000, 6_000, 7_000))
    align = Pool(latency_us=(3_000,), gpus=2, bytes_out=bytes_out)
    ways = Way(pools=(0, 1)), Way(pools=(1,))
    told = Told(make_boarding_plan([((0, 2), align), ((2, 4), shared)], *ways))
    first = the_shared_batch(told.arrive(0, AT_JUNCTION, slack_us=10_000))
    assert first.start_us == 3_000
    other = the_shared_batch(told.arrive(0, ALIGNED))
    assert (other.shared_batch_id == first.shared_batch_id) == boards


def test_who_has_no_time_for_the_shared_batch_opens_another_before_it() -> None:
    told = Told(two_tails())
    first = the_shared_batch(told.arrive(0, ALIGNED))
    other = the_shared_batch(told.arrive(100, AT_JUNCTION, slack_us=9_000))
    assert other.shared_batch_id != first.shared_batch_id
    assert other.end_us <= 9_100


def test_a_shared_batch_that_waits_for_company_leaves_sooner_for_who_has_less_time() -> None:
    told = Told(two_tails())
    first = the_shared_batch(told.arrive(0, AT_JUNCTION))
    assert (first.start_us, first.end_us) == (7_000, 14_000)
    sooner = the_shared_batch(told.arrive(100, AT_JUNCTION, slack_us=9_000))
    assert sooner.shared_batch_id == first.shared_batch_id
    assert (len(sooner.members), sooner.start_us, sooner.end_us) == (2, 2_100, 9_100)


def test_it_leaves_no_sooner_than_its_vgpu_is_free() -> None:
    told = Told(two_tails())
    full = the_shared_batch(told.arrive(0, AT_JUNCTION, samples=4))
    assert (full.start_us, full.end_us) == (0, 7_000)
    waits = the_shared_batch(told.arrive(10, AT_JUNCTION))
    assert (waits.start_us, waits.end_us) == (14_000, 21_000)
    sooner = the_shared_batch(told.arrive(20, AT_JUNCTION, slack_us=13_980))
    assert (sooner.shared_batch_id, sooner.start_us, sooner.end_us) == (
        waits.shared_batch_id,
        7_000,
        14_000,
    )
    (drop,) = told.arrive(30, AT_JUNCTION, slack_us=13_960)
    assert isinstance(drop, Drop)


def shared_batches_by_number(decided: list[Decision]) -> dict[int, SharedBatch]:
    return {d.shared_batch_id: d for d in decided if isinstance(d, SharedBatch)}


@pytest.mark.parametrize("entry", [ALIGNED, AT_JUNCTION])
def test_who_has_time_gives_up_its_seats_and_sits_in_a_later_shared_batch(entry: int) -> None:
    """One pipeline of one stage there, and one with a stage on another pool before it."""
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION, samples=4)  # leaves at once
    waits = the_shared_batch(told.arrive(10, AT_JUNCTION, samples=4))
    assert (waits.start_us, waits.end_us) == (7_000, 14_000)
    decided = told.arrive(20, entry, slack_us=14_500)
    shared_batches = shared_batches_by_number(decided)
    sooner = shared_batches.pop(waits.shared_batch_id)
    assert (len(sooner.members), sooner.start_us, sooner.end_us) == (1, 7_000, 14_000)
    (later,) = shared_batches.values()
    assert later.members == waits.members
    assert (later.start_us, later.end_us) == (14_000, 21_000)
    assert isinstance(told.arrive(30, AT_JUNCTION, slack_us=6_000)[0], Drop)


def test_an_urgent_batch_goes_before_shared_batches_that_can_wait_and_takes_members_along() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION, samples=4)
    waits = the_shared_batch([told.arrive(at_us, AT_JUNCTION) for at_us in range(10, 14)][-1])
    assert (len(waits.members), waits.start_us, waits.end_us) == (4, 7_000, 14_000)
    shared_batches = shared_batches_by_number(
        told.arrive(20, AT_JUNCTION, slack_us=14_500, samples=2)
    )
    later = shared_batches.pop(waits.shared_batch_id)
    assert (len(later.members), later.start_us, later.end_us) == (2, 14_000, 21_000)
    (sooner,) = shared_batches.values()
    assert (len(sooner.members), sooner.start_us, sooner.end_us) == (3, 7_000, 14_000)
    assert {s.batch_id for s in sooner.members}.isdisjoint({s.batch_id for s in later.members})


def test_who_would_leave_in_a_small_shared_batch_goes_before_one_that_can_wait() -> None:
    """So the vGPU is free at once for a third that has no time at all."""
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION, slack_us=21_000, samples=3)
    shared_batches = told.arrive(100, AT_JUNCTION, slack_us=16_000, samples=3)
    found = shared_batches_by_number(shared_batches).values()
    assert sorted((one.start_us, one.end_us) for one in found) == [
        (7_000, 14_000),
        (14_000, 21_000),
    ]
    third = the_shared_batch(told.arrive(200, AT_JUNCTION, slack_us=11_000, samples=3))
    assert (third.start_us, third.end_us) == (200, 6_200)


def test_who_has_little_time_goes_before_shared_batches_of_which_one_waits_for_the_other() -> None:
    """The second one has 9 ms left, and waits for 7 more."""
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION, samples=4)
    waiting = [
        the_shared_batch(
            told.arrive(at_us, AT_JUNCTION, slack_us=100_000 if at_us < 14 else 30_000)
        )
        for at_us in range(10, 18)
    ]
    first, second = waiting[3], waiting[7]
    assert [(r.start_us, r.end_us) for r in (first, second)] == [(7_000, 14_000), (14_000, 21_000)]
    shared_batches = shared_batches_by_number(
        told.arrive(20, AT_JUNCTION, slack_us=14_500, samples=2)
    )
    later = [
        (shared_batches[r.shared_batch_id].start_us, shared_batches[r.shared_batch_id].end_us)
        for r in (first, second)
    ]
    assert later == [(14_000, 21_000), (21_000, 28_000)]


def test_who_leaves_a_full_shared_batch_sooner_boards_the_next_one_sooner() -> None:
    align = Pool(latency_us=(3_000, 4_000), bytes_out=1_000_000)
    shared = Pool(latency_us=(4_000, 5_000, 6_000, 7_000))
    both = Way(pools=(0, 1))
    told = Told(
        make_boarding_plan([((0, 2), align), ((2, 4), shared)], both, both, Way(pools=(1,)))
    )
    first, later = shared_batches_by_number(told.arrive(0, 0)).values()
    assert first.start_us == 4_000  # it waits for company, as long as it runs
    assert later.start_us >= 9_000
    assert shared_batches_by_number(told.arrive(100, 1))[first.shared_batch_id].start_us == 100
    full = the_shared_batch(told.arrive(200, 2, samples=2))
    assert (full.shared_batch_id, len(full.members)) == (later.shared_batch_id, 3)
    assert full.start_us == 6_100  # two moves of 1 ms each after 4,100


@pytest.mark.parametrize(("waiting", "put_off"), [(16, 16), (17, 0)])
def test_up_to_sixteen_shared_batches_wait_for_the_sake_of_one(waiting: int, put_off: int) -> None:
    told = Told(two_tails())
    for number in range(1 + waiting):  # each has time for one more before it
        told.arrive(0, AT_JUNCTION, slack_us=7_000 * (number + 2) + 500, samples=4)
    decided = told.arrive(20, AT_JUNCTION, slack_us=14_500)
    sooner = [one for one in shared_batches_by_number(decided).values() if one.start_us == 7_000]
    assert (len(sooner), len(shared_batches_by_number(decided))) == (
        (1, 1 + put_off) if put_off else (0, 0)
    )


def test_nobody_is_put_off_beyond_a_deadline() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION, samples=4)
    waits = the_shared_batch(told.arrive(10, AT_JUNCTION, samples=4, slack_us=17_500))
    decided = told.arrive(20, AT_JUNCTION, slack_us=14_500)
    assert waits.shared_batch_id not in shared_batches_by_number(decided)
    assert [d for d in decided if isinstance(d, Drop)]


def test_no_batch_boards_a_shared_batch_that_has_started_nor_one_without_rows() -> None:
    told = Told(two_tails())
    first = the_shared_batch(told.arrive(0, AT_JUNCTION, samples=3))
    second = the_shared_batch(told.arrive(10, AT_JUNCTION, samples=2))
    assert second.shared_batch_id != first.shared_batch_id
    last = the_shared_batch(told.arrive(max(first.start_us, second.start_us) + 1, AT_JUNCTION))
    assert last.shared_batch_id not in {first.shared_batch_id, second.shared_batch_id}


def test_more_samples_than_seats_are_too_large() -> None:
    (drop,) = Told(two_tails(capacity=2)).arrive(0, AT_JUNCTION, samples=3)
    assert isinstance(drop, Drop)
    assert drop.reason is DropReason.TOO_LARGE


def test_members_end_with_their_shared_batch() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    shared_batch = the_shared_batch(told.arrive(1, AT_JUNCTION))
    assert told.scheduler.in_flight() == 2
    told.done(shared_batch, 13_000)
    assert told.scheduler.in_flight() == 0
    with pytest.raises(InputError, match="is not in flight"):
        told.done(shared_batch, 13_000)


def aligned(told: Told, start_us: int, end_us: int, batch_id: int = 0) -> list[Decision]:
    """A batch leaves its first stage, and then its rows are moved in 1 ms; what that led to."""
    decided = told.tell(
        StageDone(now_us=end_us, batch_id=batch_id, stage=0, start_us=start_us, end_us=end_us)
    )
    there_us = end_us + 1_000
    return decided + told.tell(
        TransferDone(now_us=there_us, batch_id=batch_id, stage=1, start_us=end_us, end_us=there_us)
    )


def test_a_shared_batch_waits_for_a_late_member_while_no_other_is_late_for_it() -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION, slack_us=40_000))
    assert shared_batch.end_us == 18_000
    assert [d for d in aligned(told, 0, 20_000) if isinstance(d, Abort)] == []
    assert told.done(shared_batch, 28_000) == []
    assert told.scheduler.in_flight() == 0


def test_what_follows_a_shared_batch_stays_as_reserved_while_it_waits_for_a_late_member() -> None:
    joint = Pool(latency_us=(3_000, 3_400, 3_800), bytes_out=1_000_000)
    plan = make_boarding_plan(
        [
            ((0, 2), Pool(latency_us=(2_000, 2_500), bytes_out=1_000_000)),
            ((2, 4), joint),
            ((4, 6), joint),
        ],
        Way(pools=(0, 1, 2)),
        Way(pools=(1, 2)),
    )
    told = Told(plan)
    told.arrive(0, 0, slack_us=200_000, samples=2)
    boarded = told.arrive(10, 1, slack_us=200_000)
    first = next(d for d in boarded if isinstance(d, SharedBatch))
    told.tell(Timer(now_us=30_000))
    told.tell(StageDone(now_us=60_000, batch_id=0, stage=0, start_us=0, end_us=60_000))
    late_us = 62_000  # moved for 2,000
    put_off = told.tell(
        TransferDone(now_us=late_us, batch_id=0, stage=1, start_us=60_000, end_us=late_us)
    )
    assert not [d for d in put_off if isinstance(d, Abort)]
    told.done(first, late_us + 3_800)
    assert told.scheduler.in_flight() == 2


@pytest.mark.parametrize("left_us", [10_001, 20_000])  # it was to be there at 11,000
def test_who_comes_late_for_a_shared_batch_puts_it_off_and_what_follows_on_its_vgpu(
    left_us: int,
) -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    told.arrive(100, AT_JUNCTION, slack_us=40_000)
    aligned(told, 0, left_us)  # there 1,000 later, and 7,000 on the vGPU
    full = the_shared_batch(told.arrive(left_us + 1_001, AT_JUNCTION, samples=4))
    assert full.start_us == left_us + 8_000


def test_a_shared_batch_leaves_without_a_member_that_others_would_be_late_for() -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION, slack_us=20_000))
    assert (shared_batch.start_us, shared_batch.end_us) == (11_000, 18_000)
    told.tell(Timer(now_us=11_001))  # it can wait until 13,100
    left = told.tell(Timer(now_us=13_100))
    assert Abort(batch_id=0) in left
    shared_batches = [d for d in left if isinstance(d, SharedBatch)]
    assert [place.batch_id for place in shared_batches[0].members] == [
        2
    ]  # the junction's shared batch alone
    assert shared_batches[0].start_us == 13_100
    assert any(isinstance(d, Dispatch) for d in left)  # its request is served by another


@pytest.mark.parametrize(("slack_us", "waits"), [(30_000, False), (40_000, True)])
def test_a_shared_batch_waits_for_a_late_member_only_while_who_follows_on_its_vgpu_has_time(
    slack_us: int, waits: bool
) -> None:
    told = Told(two_tails(capacity=2))
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION))
    (behind,) = [d for d in told.arrive(200, AT_JUNCTION, slack_us) if isinstance(d, SharedBatch)]
    assert behind.start_us > shared_batch.end_us
    left = [d for d in aligned(told, 0, 20_000) if isinstance(d, Abort)]
    assert left == ([] if waits else [Abort(batch_id=0)])


def test_a_member_that_comes_too_late_is_left_when_it_says_so() -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    told.arrive(100, AT_JUNCTION, slack_us=20_000)
    assert Abort(batch_id=0) in aligned(told, 0, 30_000)


def test_a_member_is_left_by_its_number_wherever_it_is_kept() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    told.tell(Cancel(now_us=0, request_id=0))  # the next one has its place, and another number
    (batch,) = [d for d in told.arrive(0, ALIGNED) if isinstance(d, Dispatch)]
    told.arrive(100, AT_JUNCTION, slack_us=20_000)
    assert Abort(batch_id=batch.batch_id) in aligned(told, 0, 30_000, batch.batch_id)


def test_a_late_member_has_a_little_time_whoever_else_becomes_late() -> None:
    told = Told(two_tails(), SharedBatchTimes(patience_us=4_000))
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION, slack_us=20_000))
    told.tell(Timer(now_us=13_999))  # until 13,100 the other is in time
    assert [d for d in aligned(told, 0, 14_000) if isinstance(d, Abort)] == []
    told.done(shared_batch, 22_000)
    assert told.scheduler.in_flight() == 0
    told = Told(two_tails(), SharedBatchTimes(patience_us=4_000))
    told.arrive(0, ALIGNED)
    told.arrive(100, AT_JUNCTION, slack_us=20_000)
    assert Abort(batch_id=0) in told.tell(Timer(now_us=15_001))


def test_doors_shut_before_a_shared_batch_leaves() -> None:
    told = Told(two_tails(), SharedBatchTimes(doors_us=1_000))
    shared_batch = the_shared_batch(told.arrive(0, AT_JUNCTION))
    assert shared_batch.start_us == 7_000
    assert (
        the_shared_batch(told.arrive(5_999, AT_JUNCTION)).shared_batch_id
        == shared_batch.shared_batch_id
    )
    assert (
        the_shared_batch(told.arrive(6_000, AT_JUNCTION)).shared_batch_id
        != shared_batch.shared_batch_id
    )


def test_no_batch_boards_a_shared_batch_that_has_started_before_its_time() -> None:
    told = Told(two_tails())
    shared_batch = the_shared_batch(told.arrive(0, AT_JUNCTION))
    told.arrive(1, AT_JUNCTION)
    assert (
        told.tell(SharedBatchStarted(now_us=2, shared_batch_id=shared_batch.shared_batch_id)) == []
    )
    decided = told.tell(BatchLost(now_us=3, batch_id=0))
    again = {place.batch_id for d in decided if isinstance(d, SharedBatch) for place in d.members}
    others = [
        d
        for d in decided
        if isinstance(d, SharedBatch) and d.shared_batch_id != shared_batch.shared_batch_id
    ]
    assert len(others) == 1
    assert 0 not in again
    with pytest.raises(InputError, match="is not in flight"):
        told.tell(SharedBatchStarted(now_us=4, shared_batch_id=99))


def test_times_of_shared_batches_are_those_said_last_over_a_change_of_plan() -> None:
    told = Told(two_tails())
    told.scheduler.set_shared_batch_times(SharedBatchTimes(doors_us=1_000))
    told.tell(PlanChanged(now_us=0, plan=two_tails()))
    shared_batch = the_shared_batch(told.arrive(0, AT_JUNCTION))
    assert (
        the_shared_batch(told.arrive(6_000, AT_JUNCTION)).shared_batch_id
        != shared_batch.shared_batch_id
    )


def test_a_member_that_failed_ends_alone_and_its_requests_with_it() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    told.arrive(1, AT_JUNCTION)
    decided = told.tell(StageDone(now_us=9, batch_id=0, stage=0, start_us=9, end_us=9))
    assert [place.batch_id for place in the_shared_batch(decided).members] == [2]
    assert told.scheduler.request_ids() == (1,)


def test_a_lost_worker_dissolves_its_shared_batches_and_members_are_queued_again() -> None:
    told = Told(two_tails(vgpus=2))
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION))
    vgpu = told.scheduler.plan.pools[0].vgpus  # the first of the shared pool
    decided = told.tell(WorkerLost(now_us=200, vgpu=vgpu))
    assert {d.batch_id for d in decided if isinstance(d, Abort)} == {0, 2}
    assert (
        SharedBatch(
            shared_batch_id=shared_batch.shared_batch_id,
            start_us=0,
            end_us=0,
            capacity=0,
            members=(),
        )
        in decided
    )
    again = [d for d in decided if isinstance(d, Dispatch)]
    assert sorted(n for d in again for n in d.request_ids) == [0, 1]
    assert {d.hops[-1].vgpu for d in again} == {vgpu + 1}


def test_a_request_whose_shared_batches_ended_two_vgpus_is_given_no_third() -> None:
    told = Told(two_tails(vgpus=3))
    decided = told.arrive(0, AT_JUNCTION)
    for _ in range(2):
        (start_us,) = (d.start_us for d in decided if isinstance(d, SharedBatch) and d.members)
        (vgpu,) = {d.hops[-1].vgpu for d in decided if isinstance(d, Dispatch)}
        decided = told.tell(WorkerLost(now_us=start_us + 1, vgpu=vgpu))
    drops = [(d.request_id, d.reason) for d in decided if isinstance(d, Drop)]
    assert drops == [(0, DropReason.DEADLY)]


def test_a_lost_member_leaves_a_hole_and_a_lost_shared_batch_takes_all_along() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    shared_batch = the_shared_batch(told.arrive(1, AT_JUNCTION))
    told.tell(Pause(now_us=2))
    (left,) = [d for d in told.tell(BatchLost(now_us=3, batch_id=0)) if isinstance(d, SharedBatch)]
    assert left.members == (Member(batch_id=2, stage=0, first_row=1, rows=1),)
    decided = told.tell(BatchLost(now_us=4, batch_id=shared_batch.shared_batch_id))
    assert [d.batch_id for d in decided if isinstance(d, Abort)] == [2]
    assert told.scheduler.queue_lengths() == (2,)


def test_a_cancel_frees_the_seat_before_anything_ran() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    told.arrive(1, AT_JUNCTION)
    decided = told.tell(Cancel(now_us=2, request_id=0))
    assert Abort(batch_id=0) in decided
    (drop,) = [d for d in decided if isinstance(d, Drop)]
    assert (drop.request_id, drop.reason) == (0, DropReason.CANCELLED)
    shared_batch = the_shared_batch(told.arrive(3, AT_JUNCTION))
    assert [place.first_row for place in shared_batch.members] == [
        0,
        1,
    ]  # the free row is taken again
    told.arrive(4, ALIGNED)
    assert told.tell(Cancel(now_us=5, request_id=3)) == []  # it runs already
    assert told.tell(Cancel(now_us=shared_batch.start_us, request_id=1)) == []  # it has left


def test_nobody_boards_while_paused() -> None:
    told = Told(two_tails())
    told.arrive(0, AT_JUNCTION)
    told.tell(Pause(now_us=1))
    assert told.arrive(2, AT_JUNCTION) == []
    assert told.scheduler.queue_lengths() == (1,)


def test_a_change_of_plan_keeps_seats_and_closes_doors() -> None:
    told = Told(two_tails())
    told.arrive(0, ALIGNED)
    shared_batch = the_shared_batch(told.arrive(100, AT_JUNCTION))
    told.tell(PlanChanged(now_us=200, plan=two_tails(vgpus=2)))
    assert told.scheduler.in_flight() == 2
    other = the_shared_batch(told.arrive(300, AT_JUNCTION))
    assert other.shared_batch_id != shared_batch.shared_batch_id
    told.tell(StageDone(now_us=3_000, batch_id=0, stage=0, start_us=0, end_us=3_000))
    told.tell(TransferDone(now_us=4_000, batch_id=0, stage=1, start_us=3_000, end_us=4_000))
    told.done(shared_batch, shared_batch.end_us)
    assert told.scheduler.in_flight() == 1


def test_shared_batches_one_after_another() -> None:
    plan = make_boarding_plan(
        [
            ((0, 2), Pool(latency_us=(2_000, 2_500))),
            ((2, 4), Pool(latency_us=(3_000, 3_400, 3_800))),
        ],
        Way(pools=(0, 1)),
        Way(pools=(0, 1)),
        Way(pools=(1,)),
    )
    told = Told(plan)
    shared_batches: dict[int, SharedBatch] = {}
    for at_us, entry in ((0, 0), (10, 1), (20, 2)):
        for decision in told.arrive(at_us, entry):
            if isinstance(decision, SharedBatch):
                shared_batches[decision.shared_batch_id] = decision
    first, second = sorted(shared_batches.values(), key=lambda shared_batch: shared_batch.start_us)
    assert [len(first.members), len(second.members)] == [2, 3]
    assert first.end_us <= second.start_us
    told.done(first, first.end_us)
    assert told.scheduler.in_flight() == 3
    assert told.tell(Timer(now_us=99_000)) == []  # all are there: none is left, however late it is
    told.done(second, second.end_us, now_us=99_000)
    assert told.scheduler.in_flight() == 0


def test_without_shared_batches_every_batch_runs_alone() -> None:
    scheduler = Scheduler(two_tails(), shared_batches=False)
    decided: list[Decision] = []
    for number in range(8):
        event = Arrival(
            now_us=number, request_id=number, model=0, entry=number % 2, deadline_us=99_000
        )
        decided += scheduler.handle(event)
    assert not [d for d in decided if isinstance(d, SharedBatch)]


def busy(seed: int = 0) -> Told:
    """Arrivals, ends late and in time, a lost worker and a change of plan.

    From numbers, not a generator.
    """
    told = Told(two_tails(vgpus=2))
    steps: dict[int, list[tuple[str, int, int, int]]] = {}
    shared_batches: dict[int, SharedBatch] = {}
    at_us, read = 0, 0
    for number in range(400):
        at_us += (number * 7_919 + seed) % 2_500
        told.arrive(
            at_us, number * 31 % 7 % 2, 20_000 + number * 911 % 60_000, 1 + (number % 5 == 0)
        )
        if number == 150:
            told.tell(WorkerLost(now_us=at_us, vgpu=3))
        if number == 250:
            told.tell(PlanChanged(now_us=at_us, plan=two_tails(vgpus=3)))
        for item in told.items[read:]:
            if isinstance(item, Dispatch):
                steps[item.batch_id] = [
                    (kind, stage, *span)
                    for stage, h in enumerate(item.hops)
                    for kind, span in (("move", h[1:3]), ("run", h[3:5]))
                    if span[1] > span[0]
                ]
            elif isinstance(item, SharedBatch):
                shared_batches[item.shared_batch_id] = item
                if not item.members:
                    del shared_batches[item.shared_batch_id]
            elif isinstance(item, Abort):
                del steps[item.batch_id]
        read = len(told.items)
        _end_one(told, steps, shared_batches, at_us)
    return told


def _end_one(
    told: Told,
    steps: dict[int, list[tuple[str, int, int, int]]],
    shared_batches: dict[int, SharedBatch],
    now_us: int,
) -> None:
    """The first thing that can have ended by now ends, some of them late."""
    for number, shared_batch in list(shared_batches.items()):
        there = all(
            steps[place.batch_id][0][:2] == ("run", place.stage) for place in shared_batch.members
        )
        if there and shared_batch.end_us <= now_us:
            del shared_batches[number]
            for place in shared_batch.members:
                steps[place.batch_id].pop(0)
                if not steps[place.batch_id]:
                    del steps[place.batch_id]
            told.done(shared_batch, now_us if number % 3 else shared_batch.end_us, now_us)
            return
    members = {
        place.batch_id for shared_batch in shared_batches.values() for place in shared_batch.members
    }
    for number, left in list(steps.items()):
        kind, stage, start_us, end_us = left[0]
        if end_us <= now_us and not (number in members and kind == "run" and len(left) == 1):
            left.pop(0)
            event = StageDone if kind == "run" else TransferDone
            told.tell(
                event(now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us)
            )
            return


@pytest.mark.long
def test_a_log_of_shared_batches_replays_to_the_same_decisions() -> None:
    told = busy()
    assert sum(isinstance(item, SharedBatch) and len(item.members) > 1 for item in told.items) > 50
    again, expected = Scheduler(two_tails(vgpus=2)), list[Decision]()
    for item in told.items:
        if isinstance(item, PlanChanged):  # a header in a log
            assert not expected
            expected = again.handle(item)
            continue
        (read,) = read_events([to_line(item)])
        if isinstance(read, get_args(Event)):
            assert not expected
            expected = again.handle(read)  # pyright: ignore[reportArgumentType]
        else:
            assert read == expected.pop(0)
    assert not expected


@pytest.mark.slow
def test_plain_python_boards_as_compiled_kernels() -> None:
    code = (
        "from tests.triton_backend.scheduler.reservations.test_shared_batches import busy\n"
        "print(*[i for i in busy().items if not hasattr(i, 'plan')], sep='\\n')\n"
    )
    assert printed_by(code, compiled=True) == printed_by(code, compiled=False) != ""


def all_aboard(plan: Plan, members: int) -> Scheduler:
    """A scheduler with so many requests in flight, each in its own batch, that sends no more."""
    scheduler = Scheduler(plan)
    for number in range(members):
        arrival = Arrival(
            now_us=0,
            request_id=number,
            model=0,
            entry=ALIGNED,
            deadline_us=10_000_000,
            samples=1,
        )
        scheduler.handle(arrival)
    scheduler.handle(Pause(now_us=0))
    assert scheduler.in_flight() == members
    return scheduler


def aborted(scheduler: Scheduler, event: Event) -> int:
    """Batches that an event aborts, each of them once."""
    numbers = [d.batch_id for d in scheduler.handle(event) if isinstance(d, Abort)]
    scheduler.check_invariants()
    assert len(set(numbers)) == len(numbers)
    return len(numbers)


@pytest.mark.long
@pytest.mark.parametrize("by_change", [False, True])
def test_what_a_lost_worker_takes_from_shared_batches_of_hundreds_fits_the_answers(
    by_change: bool,
) -> None:
    shared = Pool(latency_us=tuple(4_000 + 10 * n for n in range(64)))
    align = Pool(latency_us=(100,), gpus=3)
    plan = make_boarding_plan(
        [((0, 2), align), ((2, 4), shared)], Way(pools=(0, 1)), Way(pools=(1,))
    )
    event = (
        PlanChanged(now_us=1, plan=plan, lost=(0,)) if by_change else WorkerLost(now_us=1, vgpu=0)
    )
    assert aborted(all_aboard(plan, 1_350), event) == 450


@pytest.mark.long
def test_all_members_of_a_shared_batch_of_two_that_they_board_fit_the_answers() -> None:
    shared = Pool(latency_us=tuple(4_000 + 10 * n for n in range(MOST_SEATS)))
    plan = make_boarding_plan(
        [((0, 2), shared), ((2, 4), shared)], Way(pools=(0, 1)), Way(pools=(0, 1))
    )
    scheduler = all_aboard(plan, MOST_SEATS)
    assert aborted(scheduler, BatchLost(now_us=1, batch_id=1)) == MOST_SEATS


@pytest.mark.long
def test_the_longest_dispatch_that_puts_shared_batches_off_has_rows_for_all_it_decides() -> None:
    """Eighty stages board: two dispatches leave 94 rows of `out`.

    The third, with 16 shared batches put off, takes 97.
    """
    shared = [((k, k + 1), Pool(latency_us=(10, 10, 10))) for k in range(1, 80)]
    plan = make_boarding_plan(
        [
            ((0, 1), Pool(latency_us=(10,))),
            ((0, 1), Pool(latency_us=(10, 10, 10))),
            *shared,
            ((80, 81), Pool(latency_us=(10_000,) * 3)),
        ],
        Way(pools=(0, *range(2, 82)), budget_us=10_000_000),
        Way(pools=(1, *range(2, 82)), budget_us=10_000_000),
    )
    scheduler = Scheduler(plan)

    def arrive(number: int, at_us: int, entry: int, slack_us: int, samples: int) -> None:
        scheduler.handle(
            Arrival(
                now_us=at_us,
                request_id=number,
                model=0,
                entry=entry,
                deadline_us=at_us + slack_us,
                samples=samples,
            )
        )

    for number in range(44):
        arrive(number, 10 * number, 0, 10_000_000, 1)
    scheduler.handle(Pause(now_us=1_000))
    arrive(48, 1_000, 0, 10_000_000, 1)
    arrive(49, 1_000, 0, 10_000_000, 1)
    arrive(50, 1_000, 1, 40_000, 3)
    decided = scheduler.handle(Resume(now_us=1_000))
    assert sum(isinstance(one, Dispatch | Drop) for one in decided) == 3
    scheduler.check_invariants()


@pytest.mark.long
def test_the_longest_pipeline_all_of_whose_stages_board_has_rows_for_a_dispatch_and_its_loss() -> (
    None
):
    pools = [((k, k + 1), Pool(latency_us=(10, 10, 10))) for k in range(LONGEST_PIPELINE)]
    way = Way(pools=tuple(range(LONGEST_PIPELINE)), budget_us=10_000_000)
    told = Told(make_boarding_plan(pools, way, way))
    for number in range(3):
        decided = told.arrive(number, 0, slack_us=10_000_000)
        assert [len(d.hops) for d in decided if isinstance(d, Dispatch)] == [LONGEST_PIPELINE]
    decided = told.tell(WorkerLost(now_us=5, vgpu=LONGEST_PIPELINE - 1))
    assert sum(isinstance(d, Abort) for d in decided) == 3
    assert told.scheduler.in_flight() == 0
