"""A request beyond a new scheduler's reach waits for workers that have yet to report."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    drops,
)
from tests.triton_backend.serving.small_plans import BATCH, SLO_US, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import DropReason
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.put_off import PATIENCE_US
from triton_backend.serving.gateway.roll_call import MOMENT_US
from triton_backend.serving.transport.wire import ArrivalBody

FIRST, SECOND, THIRD = (WorkerAddress(1, vgpu) for vgpu in range(3))
SOON_US = 60_000
BUSY_US = 200_000


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    """A new scheduler after reports of the first stage's worker and a busy one of the second."""
    made = HeldGateway(deploy(tmp_path, plan(two_stage()), ServeOptions()))
    made.workers.up(FIRST, 0)
    made.workers.busy(SECOND, BUSY_US, 0)
    for number in range(BATCH):
        made.requests.arrival(PAIR, ArrivalBody(number, 100_000, 1), 10)
    made.look(MOMENT_US + 1)
    return made


def test_it_is_served_by_a_worker_that_reports_in_time(gateway: HeldGateway) -> None:
    assert not gateway.frames()
    gateway.workers.up(THIRD, SOON_US)
    ((_, body),) = dispatches(gateway.frames())
    assert (body.requests, body.hops[1].vgpu) == (tuple(range(BATCH)), THIRD.vgpu)
    assert not gateway.counters.dropped


def test_it_is_dropped_when_its_deadline_has_come(gateway: HeldGateway) -> None:
    gateway.look(99_999)
    assert not gateway.frames()
    gateway.look(100_000)
    assert {drop.request for drop in drops(gateway.frames())} == set(range(BATCH))
    gateway.workers.up(THIRD, 110_000)
    assert not gateway.frames()


def test_it_is_announced_again_or_cancelled_as_one_that_is_queued(gateway: HeldGateway) -> None:
    gateway.requests.arrival(PAIR, ArrivalBody(0, 100_000, 1), SOON_US)
    gateway.requests.cancel(PAIR, 1, SOON_US)
    gateway.workers.up(THIRD, SOON_US)
    while gateway.hub.timer_us is not None:
        gateway.hub.timer(gateway.hub.timer_us)
    served = [number for _, body in dispatches(gateway.frames()) for number in body.requests]
    assert sorted(served) == [0, 2, 3]


def test_those_of_a_front_that_is_gone_are_not_offered_again(gateway: HeldGateway) -> None:
    gateway.requests.front_lost(PAIR, SOON_US)
    gateway.workers.up(THIRD, SOON_US)
    gateway.look(100_000)
    assert not gateway.frames()


def test_nothing_is_put_off_once_workers_had_the_time_to_report(gateway: HeldGateway) -> None:
    gateway.look(100_000)
    gateway.look(PATIENCE_US)
    gateway.frames()
    gateway.workers.lost(SECOND, PATIENCE_US)
    arrive(gateway, 10, now_us=PATIENCE_US)
    gateway.look(PATIENCE_US + SLO_US)
    gateway.hub.timer(PATIENCE_US + SLO_US)
    (drop,) = drops(gateway.frames())
    assert (drop.request, drop.reason) == (10, DropReason.DEADLINE)
