"""Policy `reservation-ahead`: no head costs more than it serves."""

import pytest

from tests.fakes.arrivals import SLO_US, arrival, arrive, ran
from tests.fakes.plans import (
    Own,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
    make_plan,
)
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.decisions import Dispatch, Drop, SetTimer
from triton_backend.contract.events import Arrival, Timer
from triton_backend.contract.plan import PlacementRun
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


POOL = Own(latency_us=(6_000, 8_000, 9_000, 10_000), gpus=1)
"""166 requests/s one by one, the planned 400 in fours."""


def waited_us(scheduler: Scheduler, gap_us: int, count: int) -> int:
    """How long the last of requests at equal gaps waits, each batch run before the next comes."""
    waited = 0
    for number in range(count):
        now_us = number * gap_us
        decided = scheduler.handle(arrival(number, now_us))
        if not any(isinstance(d, Dispatch) for d in decided):
            (timer,) = (d for d in decided if isinstance(d, SetTimer))
            decided = scheduler.handle(Timer(now_us=timer.at_us))
        (batch,) = (d for d in decided if isinstance(d, Dispatch))
        done = ran(batch)
        waited = done.start_us - now_us
        scheduler.handle(done)
    scheduler.check_invariants()
    return waited


@pytest.mark.parametrize("policy", ["reservation-ahead", "throughput-cost"])
def test_a_request_at_a_free_vgpu_waits_only_where_vgpus_need_larger_batches(policy: str) -> None:
    scheduler = Scheduler(make_plan([[POOL]], slo_us=SLO_US), policy=policy)
    # The planned rate needs batches of 3. It is believed until requests have come.
    assert waited_us(scheduler, 200_000, 1) == SLO_US - 8_000 + 1
    scheduler = Scheduler(make_plan([[POOL]], slo_us=SLO_US), policy=policy)
    assert waited_us(scheduler, 200_000, 20) == 0


def test_the_published_rule_waits_however_few_requests_come() -> None:
    scheduler = Scheduler(make_plan([[POOL]], slo_us=SLO_US), policy="reservation")
    assert waited_us(scheduler, 200_000, 20) == SLO_US - 8_000 + 1


def test_a_request_that_came_while_the_vgpu_ran_goes_when_that_is_free() -> None:
    scheduler = Scheduler(make_plan([[POOL]], slo_us=SLO_US), policy="reservation-ahead")
    waited_us(scheduler, 200_000, 20)
    now_us = 20 * 200_000
    (batch,) = scheduler.handle(arrival(20, now_us))
    assert isinstance(batch, Dispatch)
    (timer,) = scheduler.handle(arrival(21, now_us + 1_000))
    assert timer == SetTimer(at_us=now_us + 6_000)
    assert scheduler.handle(arrival(22, now_us + 2_000)) == []
    decided = scheduler.handle(Timer(now_us=now_us + 6_000))
    (batch,) = (d for d in decided if isinstance(d, Dispatch))
    assert batch.request_ids == (21, 22)
    scheduler.check_invariants()


def test_what_other_models_ask_of_a_shared_pool_counts() -> None:
    def waits(rate_rps: float) -> bool:
        place = PlacementRun(node=0, gpu=0, slot=0)
        models = [
            hand_model(
                name,
                hand_pipeline(
                    hand_stage((0, 4), "GPU", place, POOL.latency_us), batch=4, rate_rps=own_rps
                ),
                slo_us=SLO_US,
                policy="reservation-ahead",
            )
            for name, own_rps in (("asked", 50.0), ("beside", rate_rps))
        ]
        group = NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=8.0, name="n0")
        scheduler = Scheduler(hand_plan(*models, nodes=[group]))
        return not any(isinstance(d, Dispatch) for d in scheduler.handle(arrival(0, 0)))

    assert not waits(100.0)  # 150 requests/s, each alone, keep it busy for 0.9 of the time
    assert waits(120.0)
