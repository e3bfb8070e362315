"""Policy `throughput-cost`: the cheapest pipeline that ends in time takes the head."""

import pytest

from tests.fakes.plans import Own, make_plan
from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.events import Arrival
from triton_backend.scheduler.scheduler import Scheduler


@pytest.mark.parametrize(("deadline_us", "taken"), [(30_000, 0), (29_999, 1)])
def test_the_cheapest_pipeline_is_taken_where_it_ends_just_in_time(
    deadline_us: int, taken: int
) -> None:
    """Half a GPU for 30 ms costs less than a whole one for 20 ms."""
    cheap, quick = Own(latency_us=(30_000,), divisor=2), Own(latency_us=(20_000,))
    scheduler = Scheduler(make_plan([[cheap], [quick]]), policy="throughput-cost")
    decided = scheduler.handle(Arrival(now_us=0, request_id=0, model=0, deadline_us=deadline_us))
    assert [d.pipeline for d in decided if isinstance(d, Dispatch)] == [taken]
