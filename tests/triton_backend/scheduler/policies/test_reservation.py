"""Policy `reservation`: batches as large as deadlines allow."""

from tests.fakes.arrivals import SLO_US, arrival, arrive
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
    DropReason,
    SetTimer,
)
from triton_backend.contract.events import (
    Arrival,
    Timer,
)
from triton_backend.scheduler.scheduler import Scheduler


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


def test_a_request_that_ends_just_in_time_does_not_wait_for_company_that_costs_nothing() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(6_000, 6_000))]], slo_us=SLO_US))
    (batch,) = scheduler.handle(Arrival(now_us=0, request_id=1, model=0, deadline_us=6_000))
    assert isinstance(batch, Dispatch)
    assert batch.hops[0].end_us == 6_000
