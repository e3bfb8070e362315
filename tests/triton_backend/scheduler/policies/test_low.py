"""Low requests: they use what others leave, and never displace one."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.arrivals import arrival
from tests.fakes.plans import Own, Way, make_boarding_plan, make_plan
from triton_backend.contract.decisions import Decision, Dispatch, Drop, DropReason, SetTimer
from triton_backend.contract.events import (
    Arrival,
    JobArrival,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import FAR
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.topology import Lead

SLO_US = 100_000
TOOK_US = 10_000


def plan(latency_us: tuple[int, ...] = (TOOK_US,), gpus: int = 1, slo_us: int = SLO_US) -> Plan:
    return make_plan([[Own(latency_us=latency_us, gpus=gpus)]], slo_us=slo_us)


def come(scheduler: Scheduler, *numbers: int, low: bool, now_us: int = 0) -> list[Decision]:
    events = [
        replace(arrival(number, now_us), deadline_us=now_us + SLO_US, low=int(low))
        for number in numbers
    ]
    return [decision for event in events for decision in scheduler.handle(event)]


def sent(decided: list[Decision]) -> list[tuple[tuple[int, ...], int, int]]:
    """Requests, start and end of every batch."""
    return [
        (d.request_ids, d.hops[0].start_us, d.hops[-1].end_us)
        for d in decided
        if isinstance(d, Dispatch)
    ]


def end_batches(scheduler: Scheduler, decided: list[Decision]) -> None:
    """Each that is sent ends as reserved."""
    for batch in decided:
        if isinstance(batch, Dispatch):
            (hop,) = batch.hops
            times = {"now_us": hop.end_us, "start_us": hop.start_us, "end_us": hop.end_us}
            scheduler.handle(StageDone(batch_id=batch.batch_id, stage=0, **times))


def test_a_low_request_goes_at_once_where_a_vgpu_is_free_and_others_could_wait_for_it() -> None:
    scheduler = Scheduler(plan())
    assert sent(come(scheduler, 0, low=True)) == [((0,), 0, TOOK_US)]
    assert sent(come(scheduler, 1, low=False)) == [((1,), TOOK_US, 2 * TOOK_US)]
    scheduler.check_invariants()


def test_a_low_batch_that_would_make_another_request_late_never_goes() -> None:
    took_us = 60_000  # one that comes behind it would end at 120 ms
    scheduler = Scheduler(plan((took_us,)))
    decided = come(scheduler, 0, low=True)
    assert sent(decided) == []
    dropped: list[Drop] = []
    while not dropped:
        (timer,) = [d for d in decided if isinstance(d, SetTimer)]
        decided = scheduler.handle(Timer(now_us=timer.at_us))
        dropped = [d for d in decided if isinstance(d, Drop)]
    (drop,) = dropped
    assert (drop.request_id, drop.reason, drop.low) == (0, DropReason.DEADLINE, 1)
    assert scheduler.queue_lengths() == (0,)
    scheduler.check_invariants()


def test_no_low_batch_goes_that_leaves_others_only_batches_that_their_policy_drops() -> None:
    # behind a batch of four a head ends in time in a batch of one or two, which "wastes" vGPUs
    shell = Shell(Scheduler(plan((15_000, 30_000, 45_000, 60_000)), policy="reservation-ahead"))
    shell.come(0, 0, low=True)
    shell.come(1, 1_000, low=False)
    at_us = 10_000_000  # others have become rare
    for number in range(2, 6):
        shell.come(number, at_us, low=True)
    shell.come(6, at_us + 1_000, low=False)
    shell.until(at_us + 10 * SLO_US)
    assert 6 not in shell.dropped


@pytest.mark.long
def test_a_low_request_goes_where_hardly_a_batch_slot_is_free() -> None:
    scheduler = Scheduler(plan(gpus=300))
    come(scheduler, *range(255), low=False)
    assert scheduler.in_flight() == 255  # of 256 slots; others to come are reserved for a moment
    assert sent(come(scheduler, 255, low=True)) == [((255,), 0, TOOK_US)]
    scheduler.check_invariants()


def test_nothing_is_reserved_ahead_for_a_low_request() -> None:
    scheduler = Scheduler(plan())
    come(scheduler, 0, low=False)
    (timer,) = come(scheduler, 1, low=True)
    assert timer == SetTimer(at_us=TOOK_US)
    assert sent(come(scheduler, 2, low=False)) == [((2,), TOOK_US, 2 * TOOK_US)]
    assert scheduler.queue_lengths() == (1,)


def test_a_low_request_goes_when_the_vgpu_is_free() -> None:
    scheduler = Scheduler(plan())
    come(scheduler, 0, low=False)
    come(scheduler, 1, low=True)
    scheduler.handle(StageDone(now_us=TOOK_US, batch_id=0, stage=0, start_us=0, end_us=TOOK_US))
    assert sent(scheduler.handle(Timer(now_us=TOOK_US))) == [((1,), TOOK_US, 2 * TOOK_US)]


def test_low_requests_fill_the_batch_of_others_behind_all_of_them() -> None:
    scheduler = Scheduler(plan((20_000, 22_000, 24_000, 26_000)))
    come(scheduler, 7, 3, low=False)
    assert sent(come(scheduler, 1, low=True)) == []
    assert sent(come(scheduler, 2, low=True)) == [((7, 3, 1, 2), 0, 26_000)]
    scheduler.check_invariants()


def test_a_low_queue_waits_for_a_whole_batch_for_half_of_its_time() -> None:
    scheduler = Scheduler(plan((20_000, 20_000)))
    assert come(scheduler, 0, low=True) == [SetTimer(at_us=37_500)]
    assert sent(scheduler.handle(Timer(now_us=37_500))) == [((0,), 37_500, 57_500)]


def test_the_time_of_a_queue_whose_requests_all_left_with_a_low_one_comes_in_vain() -> None:
    scheduler = Scheduler(plan((20_000, 22_000)))
    (timer,) = come(scheduler, 0, low=False)
    assert isinstance(timer, SetTimer)
    assert sent(come(scheduler, 1, low=True)) == [((0, 1), 0, 22_000)]
    scheduler.handle(StageDone(now_us=22_000, batch_id=0, stage=0, start_us=0, end_us=22_000))
    assert scheduler.handle(Timer(now_us=timer.at_us)) == []  # there is no head whose wait ends


def test_requests_that_wait_for_their_batch_are_not_made_late() -> None:
    # two others wait until 70 ms for a batch of 3; a low batch from 40 to 70 ms lets them
    scheduler = Scheduler(plan((30_000, 30_000, 30_000)))
    come(scheduler, 0, low=False)
    decided = come(scheduler, 1, low=True)
    at_us = 0
    while not sent(decided):
        (timer,) = [d for d in decided if isinstance(d, SetTimer)]
        at_us = timer.at_us
        decided = scheduler.handle(Timer(now_us=at_us))
    assert {n for ids, _, end_us in sent(decided) for n in ids if end_us <= SLO_US} == {0, 1}


def test_a_paused_scheduler_sends_no_low_request() -> None:
    scheduler = Scheduler(plan())
    scheduler.handle(Pause(now_us=0))
    assert sent(come(scheduler, 0, low=True)) == []
    assert sent(scheduler.handle(Resume(now_us=1))) == [((0,), 1, TOOK_US + 1)]


def test_a_low_request_whose_worker_died_waits_again_and_stays_low() -> None:
    scheduler = Scheduler(plan(gpus=2))
    come(scheduler, 0, low=True)
    decided = scheduler.handle(WorkerLost(now_us=10, vgpu=0))
    assert sent(decided) == [((0,), 10, TOOK_US + 10)]
    scheduler.check_invariants()


def test_low_requests_go_over_to_the_queue_of_their_model_in_a_new_plan() -> None:
    scheduler = Scheduler(plan())
    come(scheduler, 0, low=False)
    come(scheduler, 1, low=True)
    decided = scheduler.handle(PlanChanged(now_us=5, plan=plan(gpus=2)))
    assert [ids for ids, *_ in sent(decided)] == [(1,)]
    scheduler.check_invariants()


def test_beside_late_binding_a_low_batch_is_sent_as_long_before_its_start_as_others() -> None:
    for policy, start_us in (("eager", 100 + 2 * 10), ("reservation", 0)):
        scheduler = Scheduler(plan((20_000, 20_000)), policy=policy, lead=Lead(100, 10))
        assert sent(come(scheduler, 0, 1, low=True)) == [((0, 1), start_us, start_us + 20_000)]


def test_low_requests_stay_low_in_a_new_plan() -> None:
    scheduler = Scheduler(plan())
    come(scheduler, 0, low=False)
    come(scheduler, 1, low=True)
    decided = scheduler.handle(PlanChanged(now_us=5, plan=replace(plan(), plan_id="next")))
    assert sent(decided) == []  # nothing is reserved ahead for one
    assert sent(come(scheduler, 2, low=False, now_us=5)) == [((2,), TOOK_US, 2 * TOOK_US)]
    scheduler.check_invariants()


def test_low_requests_of_a_removed_model_are_dropped_as_such() -> None:
    scheduler = Scheduler(plan())
    come(scheduler, 0, low=False)
    come(scheduler, 1, low=True)
    other = make_plan([[Own(latency_us=(TOOK_US,))]], slo_us=SLO_US, names=["other"])
    (drop,) = scheduler.handle(PlanChanged(now_us=5, plan=other))
    assert drop == Drop(
        request_id=1, model=0, reason=DropReason.MODEL_REMOVED, deadline_us=SLO_US, low=1
    )


@dataclass
class Shell:
    """Carries out what is decided exactly as reserved, and checks it."""

    scheduler: Scheduler
    timer_us: int | None = None
    ends: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    deadlines: dict[int, int] = field(default_factory=dict[int, int])
    lows: set[int] = field(default_factory=set[int])
    dropped: set[int] = field(default_factory=set[int])

    def come(self, number: int, now_us: int, *, low: bool) -> None:
        """A request comes, after all that happens until then."""
        self.until(now_us)
        self.deadlines[number] = now_us + SLO_US
        if low:
            self.lows.add(number)
        event = replace(arrival(number, now_us), deadline_us=now_us + SLO_US, low=int(low))
        self.tell(event)

    def tell(self, event: Arrival | StageDone | Timer) -> None:
        for decision in self.scheduler.handle(event):
            if isinstance(decision, Dispatch):
                self.check(decision, event.now_us)
                hop = decision.hops[0]
                self.ends[decision.batch_id] = hop.end_us, hop.start_us
            elif isinstance(decision, SetTimer):
                self.timer_us = decision.at_us
            elif isinstance(decision, Drop):
                self.dropped.add(decision.request_id)
        self.scheduler.check_invariants()

    def check(self, batch: Dispatch, now_us: int) -> None:
        are_low = [number in self.lows for number in batch.request_ids]
        assert are_low == sorted(are_low)  # behind all others
        (hop,) = batch.hops
        assert hop.end_us <= min(self.deadlines[n] for n in batch.request_ids)
        assert hop.start_us == now_us or not any(are_low)  # nothing is reserved ahead

    def until(self, instant_us: int) -> None:
        """Ends and timers happen, ends first."""
        while True:
            end_us, batch = min(((end, n) for n, (end, _) in self.ends.items()), default=(FAR, 0))
            timer_us = FAR if self.timer_us is None else self.timer_us
            if min(end_us, timer_us) > instant_us:
                return
            if end_us <= timer_us:
                _, start_us = self.ends.pop(batch)
                times = {"now_us": end_us, "start_us": start_us, "end_us": end_us}
                self.tell(StageDone(batch_id=batch, stage=0, **times))
            else:
                self.timer_us = None
                self.tell(Timer(now_us=timer_us))


@settings(max_examples=60, deadline=None)
@given(
    latencies=st.lists(st.integers(2_000, 25_000), min_size=1, max_size=4),
    gpus=st.integers(1, 3),
    arrivals=st.lists(st.tuples(st.integers(0, 15_000), st.booleans()), max_size=40),
)
def test_low_requests_stay_behind_and_all_that_is_sent_ends_in_time(
    latencies: list[int], gpus: int, arrivals: list[tuple[int, bool]]
) -> None:
    latency_us = tuple(sum(latencies[: n + 1]) for n in range(len(latencies)))
    shell = Shell(Scheduler(plan(latency_us, gpus)))
    now_us = 0
    for number, (gap_us, is_low) in enumerate(arrivals):
        now_us += gap_us
        shell.come(number, now_us, low=is_low)
    shell.until(now_us + 10 * SLO_US)
    assert shell.scheduler.queue_lengths() == (0,)
    assert shell.scheduler.in_flight() == 0


@pytest.mark.parametrize(("gap_us", "goes"), [(60_000, False), (SLO_US, True)])
def test_a_low_batch_goes_where_others_have_become_rare(gap_us: int, *, goes: bool) -> None:
    # planned is one in 30 ms: behind a low batch of 30 ms a fourth of these would be late
    scheduler = Scheduler(plan((30_000,)))
    come(scheduler, 0, low=True)
    end_batches(scheduler, come(scheduler, 1, low=False))
    for number in range(2, 42):
        end_batches(scheduler, come(scheduler, number, low=False, now_us=number * gap_us))
    assert bool(sent(come(scheduler, 50, low=True, now_us=41 * gap_us + 30_000))) == goes


def test_tasks_to_come_keep_a_low_batch_from_going_as_requests_do() -> None:
    # behind a low batch and one more, a third would end 120 ms from now
    alone = hand_application("app", [hand_module("only", "m0")])
    scheduler = Scheduler(with_applications(plan((40_000,)), alone))
    come(scheduler, 0, low=True)
    end_batches(scheduler, come(scheduler, 1, low=False))
    now_us = 0
    for number in range(2, 22):
        now_us = number * SLO_US
        job = JobArrival(now_us=now_us, job_id=number, application=0, deadline_us=now_us + SLO_US)
        end_batches(scheduler, scheduler.handle(job))
    assert sent(come(scheduler, 50, low=True, now_us=now_us + 50_000)) == []


def test_low_requests_join_others_in_a_plan_where_batches_board_shared_ones() -> None:
    pools = [((0, 2), Own(latency_us=(TOOK_US,))), ((2, 4), Own(latency_us=(TOOK_US, TOOK_US)))]
    way = Way(pools=(0, 1))
    scheduler = Scheduler(make_boarding_plan(pools, way))
    come(scheduler, 0, low=False)
    come(scheduler, 1, low=True)
    assert scheduler.queue_lengths() == (1,)
    decided = scheduler.handle(PlanChanged(now_us=5, plan=make_boarding_plan(pools, way, way)))
    scheduler.check_invariants()
    assert [ids for ids, *_ in sent(decided)] == [(1,)]  # reserved ahead, as usual
    (drop,) = scheduler.handle(replace(arrival(2, 6), samples=3, low=1))
    assert isinstance(drop, Drop)
    scheduler.check_invariants()
