"""Policy `reservation-ahead`: no head costs more than it serves."""

import pytest

from tests.fakes.arrivals import SLO_US, arrive
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
)
from triton_backend.contract.events import (
    Arrival,
)
from triton_backend.scheduler.scheduler import Scheduler


def test_looking_ahead_drops_nobody_because_whole_requests_do_not_fill_a_batch() -> None:
    pool = Own(latency_us=(6_000, 8_000, 9_000, 10_000))
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
        pool = Own(latency_us=(6_000, 8_000, 9_000, 10_000))
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


@pytest.mark.parametrize("patience_us", [30_000, 18_000])  # at 20,000 the second ends
def test_a_pipeline_that_ends_in_time_goes_before_one_that_is_free_sooner(
    patience_us: int,
) -> None:
    slow, quick = Own(latency_us=(50_000,), gpus=1), Own(latency_us=(10_000,), gpus=1)
    scheduler = Scheduler(make_plan([[slow], [quick]], slo_us=SLO_US), policy="reservation-ahead")
    decided = [
        decision
        for number, now_us in enumerate((0, 2_000))
        for decision in scheduler.handle(
            Arrival(now_us=now_us, request_id=number, model=0, deadline_us=now_us + patience_us)
        )
    ]
    assert not [d for d in decided if isinstance(d, Drop)]
    assert {d.pipeline for d in decided if isinstance(d, Dispatch)} == {1}


def test_a_smaller_batch_costs_nothing_while_a_vgpu_is_free() -> None:
    pool = Own(latency_us=(6_000, 8_000, 9_000, 10_000), gpus=1)
    scheduler = Scheduler(make_plan([[pool]], slo_us=SLO_US), policy="reservation-ahead")
    decided = [
        decision
        for number in range(3)
        for decision in scheduler.handle(
            Arrival(now_us=0, request_id=number, model=0, deadline_us=8_500)
        )
    ]
    (batch,) = [d for d in decided if isinstance(d, Dispatch)]
    assert batch.request_ids == (0, 1)
