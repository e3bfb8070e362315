"""Arrivals for a scheduler, by hand."""

from triton_backend.contract.decisions import Decision, Dispatch
from triton_backend.contract.events import Arrival, StageDone
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


def arrive(scheduler: Scheduler, count: int, now_us: int = 0, first: int = 0) -> list[Decision]:
    decided: list[Decision] = []
    for request_id in range(first, first + count):
        decided += scheduler.handle(arrival(request_id, now_us))
    return decided


def ran(batch: Dispatch) -> StageDone:
    """A batch of one stage ran as it was reserved."""
    (hop,) = batch.hops
    return StageDone(
        now_us=hop.end_us,
        batch_id=batch.batch_id,
        stage=0,
        start_us=hop.start_us,
        end_us=hop.end_us,
    )
