"""Advice on pools from what the gateway counted, by hand: no socket, no clock."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    finish,
    serving,
)
from tests.triton_backend.serving.small_plans import BATCH, SLO_US, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.pool_use import (
    STEP_US,
    WINDOW_US,
    PoolAdvice,
    PoolUse,
    advice_document,
)
from triton_backend.serving.transport.wire import ArrivalBody, TimesBody


def watch(use: PoolUse, *, busy: float, vgpus: int = 3, until_us: int = 2 * WINDOW_US) -> None:
    """Every vGPU is busy for a share of every step."""
    for now_us in range(STEP_US, until_us + 1, STEP_US):
        for vgpu in range(vgpus):
            use.ran(vgpu, round(busy * STEP_US))
        use.look(now_us)


def advised(found: list[PoolAdvice]) -> list[int]:
    return [advice.advised for advice in found]


def test_idle_vgpus_are_given_up_once_a_whole_window_was_measured(gateway: HeldGateway) -> None:
    use = PoolUse(gateway.deployment.plan, gateway.counters, 0)
    watch(use, busy=0.2, until_us=WINDOW_US - STEP_US)
    assert advised(use.advice(WINDOW_US - 1)) == [1, 2]
    watch(use, busy=0.2)
    fast, slow = use.advice(2 * WINDOW_US)
    assert (fast.advised, slow.advised) == (1, 1)
    assert slow.busy_by_vgpu == pytest.approx((0.2, 0.2))
    assert slow.idle_fraction == pytest.approx(0.8)


def test_old_time_does_not_count(gateway: HeldGateway) -> None:
    use = PoolUse(gateway.deployment.plan, gateway.counters, 0)
    watch(use, busy=0.5)
    later_us = 4 * WINDOW_US
    for now_us in range(2 * WINDOW_US + STEP_US, later_us + 1, STEP_US):
        use.look(now_us)
    assert [advice.idle_fraction for advice in use.advice(later_us)] == [1.0, 1.0]


def test_bad_requests_ask_for_gpus_at_once_but_not_before_a_step(gateway: HeldGateway) -> None:
    use = PoolUse(gateway.deployment.plan, gateway.counters, 0)
    gateway.counters.offered["pair"] += 100
    gateway.counters.bad["pair"] += 50
    assert advised(use.advice(STEP_US - 1)) == [1, 2]
    found = use.advice(STEP_US)
    assert [advice.bad_rate for advice in found] == [0.5, 0.5]
    assert advised(found) == [2, 4]  # N / (1 - r)


def test_parts_of_gpus_are_advised_in_parts(gateway: HeldGateway) -> None:
    served = gateway.deployment.plan
    halves = tuple(
        replace(pool, share=WHOLE_GPU // 2) if pool.vgpus == 2 else pool for pool in served.pools
    )
    use = PoolUse(replace(served, pools=halves), gateway.counters, 0)
    gateway.counters.offered["pair"] += 100
    gateway.counters.bad["pair"] += 50
    _, slow = use.advice(STEP_US)
    assert (slow.advised, slow.advised_gpus) == (4, 2.0)  # one GPU's worth needs two
    assert advice_document(served, [slow], {})["gpu_classes"]["SLOW"] == {"gpus": 2, "advised": 2}


def test_a_gateway_counts_busy_time_by_vgpu_and_all_that_is_bad(gateway: HeldGateway) -> None:
    arrive(gateway, *range(BATCH))
    ((batch, body),) = dispatches(gateway.frames())
    first, second = body.hops
    gateway.reports.stage_done(batch, 0, TimesBody(first.vgpu, 0, 5_000), 5_000)
    gateway.reports.transfer_done(batch, 1, TimesBody(second.vgpu, 5_000, 5_000), 5_000)
    late_us = 10 + SLO_US + 1
    gateway.reports.stage_done(batch, 1, TimesBody(second.vgpu, 5_000, late_us), late_us)
    assert gateway.counters.bad == {"pair": BATCH}
    arrive(gateway, *range(10, 10 + BATCH), now_us=late_us)
    ((batch, body),) = dispatches(gateway.frames())
    gateway.reports.failed(batch, 0, late_us)
    assert gateway.counters.bad == {"pair": 2 * BATCH}
    arrive(gateway, *range(20, 20 + BATCH), now_us=late_us)
    ((batch, body),) = dispatches(gateway.frames())
    finish(gateway, batch, body, late_us + 10_000)
    gateway.requests.arrival(PAIR, ArrivalBody(30, late_us + 10_001, 1), late_us + 10_000)
    gateway.requests.arrival(PAIR, ArrivalBody(31, late_us + SLO_US, 1), late_us + 10_000)
    gateway.requests.cancel(PAIR, 31, late_us + 10_000)
    assert gateway.counters.bad == {"pair": 2 * BATCH + 1}
    fast, slow = gateway.advice(1_000_000)
    assert fast.busy_by_vgpu == (0.005,)
    assert max(slow.busy_by_vgpu) == pytest.approx((late_us - 5_000) / 1e6)
    assert fast.bad_rate == slow.bad_rate == (2 * BATCH + 1) / (3 * BATCH + 2)


def test_another_plan_is_measured_anew(tmp_path: Path) -> None:
    gateway = serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))
    gateway.counters.offered["pair"] += 100
    gateway.counters.bad["pair"] += 50
    assert advised(gateway.advice(STEP_US)) == [2, 4]
    second = deploy(tmp_path, plan(two_stage(), plan_id="second"), ServeOptions(), generation=2)
    gateway.prepare(second)
    for vgpu in second.vgpus:
        gateway.workers.up(WorkerAddress(2, vgpu.index), STEP_US)
    gateway.swap(STEP_US)
    assert advised(gateway.advice(2 * STEP_US)) == [1, 2]


def test_low_requests_advise_nothing(gateway: HeldGateway) -> None:
    late_us = 10 + SLO_US + 1
    for number in range(BATCH):
        gateway.requests.arrival(PAIR, ArrivalBody(number, 10 + SLO_US, 1, low=1), 10)
    ((batch, body),) = dispatches(gateway.frames())
    finish(gateway, batch, body, late_us)
    for number in range(10, 10 + BATCH):
        gateway.requests.arrival(PAIR, ArrivalBody(number, late_us + SLO_US, 1, low=1), late_us)
    ((batch, _),) = dispatches(gateway.frames())
    gateway.reports.failed(batch, 0, late_us)
    assert not gateway.counters.bad.total()
    assert not gateway.counters.offered.total()
    assert [advice.idle_fraction for advice in gateway.advice(WINDOW_US)] == [1.0, 1.0]
