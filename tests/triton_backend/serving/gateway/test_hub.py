"""Timers and instants of the core, in a gateway called by hand."""

from pathlib import Path

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    serving,
)
from tests.triton_backend.serving.small_plans import SLO_US, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.scheduler.measured.guard import MIN_GUARD_US
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.transport.wire import (
    ArrivalBody,
)


def test_what_waits_is_dispatched_by_the_timer_before_the_last_moment(gateway: HeldGateway) -> None:
    arrive(gateway, 1, guard_us=MIN_GUARD_US)
    assert not gateway.frames()
    ring_us = gateway.hub.timer_us
    assert ring_us is not None
    assert ring_us < 10 + SLO_US - MIN_GUARD_US
    gateway.hub.timer(ring_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1,)


def test_batches_open_by_the_rules_that_were_asked_for(tmp_path: Path) -> None:
    rings_us: list[int] = []
    for milliseconds in (5.0, 20.0):
        rules = {"batch_timeout_ms": milliseconds}
        options = ServeOptions(policy="timeout", late_binding=rules)
        gateway = serving(deploy(tmp_path / str(milliseconds), plan(two_stage()), options))
        arrive(gateway, 1)
        assert not gateway.frames()
        assert gateway.hub.timer_us is not None
        rings_us.append(gateway.hub.timer_us)
        gateway.hub.timer(gateway.hub.timer_us + 1_000)
        ((_, body),) = dispatches(gateway.frames())
        assert body.requests == (1,)
    assert rings_us[1] - rings_us[0] == 15_000


def test_timers_ring_as_much_earlier_as_fronts_keep_back(gateway: HeldGateway) -> None:
    arrive(gateway, 1, guard_us=9_000)
    early_us = gateway.hub.timer_us
    arrive(gateway, 2, guard_us=4_000)  # has measured since; the last moment is earlier for two
    gateway.requests.cancel(PAIR, 2, 20)
    assert early_us is not None
    assert gateway.hub.timer_us == early_us + 5_000


def test_a_client_that_allows_much_time_takes_none_from_another(gateway: HeldGateway) -> None:
    """A timer rings before its instant, which is then the core's: no more than the SLO pays for."""
    allowed_us = 10 * SLO_US
    guard_us = ServeOptions().guard_us(allowed_us)
    patient = ArrivalBody(1, 10 + allowed_us - guard_us, 1, guard_us=guard_us)
    gateway.requests.arrival(PAIR, patient, 10)
    rings_us = gateway.hub.timer_us
    assert rings_us is not None
    gateway.hub.timer(rings_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1,)
    arrive(gateway, 2, 3, 4, 5, now_us=rings_us)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (2, 3, 4, 5)


def test_instants_that_go_back_count_as_the_last_one(gateway: HeldGateway) -> None:
    arrive(gateway, 1, now_us=1000)
    arrive(gateway, 2, now_us=500)
    assert dict(gateway.waiting()) == {"pair": 2}
