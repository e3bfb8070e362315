"""Workers that are slow or silent, told from those of a machine that is busy."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    HeldGateway,
    arrive,
    dispatches,
    kinds,
    run_full_batch,
    serving,
)
from tests.triton_backend.serving.plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness.slow_workers import LAST_RUNS, OVERDUE_AT_LEAST_US, PaceWatch
from triton_backend.serving.transport.wire import Kind, TimesBody


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    return serving(deploy(tmp_path, plan(two_stage()), ServeOptions()))


@pytest.mark.parametrize(("slow_vgpu", "drained"), [(1, True), (0, False)])
def test_a_worker_that_stays_slow_is_drained_where_its_pool_has_another(
    gateway: HeldGateway, slow_vgpu: int, *, drained: bool
) -> None:
    for number in range(1, 30):
        run_full_batch(gateway, number * BATCH, slow_vgpu, 4)
    assert gateway.status()["workers"]["up"] == 3 - drained
    assert gateway.counters.workers_drained == drained


def test_workers_that_are_all_slow_are_left_alone() -> None:
    watch = PaceWatch([(0, 0, 0)] * 3)
    for _ in range(LAST_RUNS):
        for vgpu in range(3):
            watch.ran(vgpu, took_us=40_000, expected_us=10_000, late_us=0)
    assert not any(watch.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3))
    for _ in range(LAST_RUNS):
        watch.ran(2, took_us=100_000, expected_us=10_000, late_us=0)
    assert [watch.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3)] == [False, False, True]
    assert not watch.is_slow(2, (2,))
    watch.forget(2)
    assert not watch.is_slow(2, (0, 1, 2))


def test_a_few_late_runs_are_not_slowness() -> None:
    watch = PaceWatch([(0, 0, 0)] * 2)
    for run in range(LAST_RUNS):
        watch.ran(0, took_us=1_000, expected_us=1_000, late_us=0)
        watch.ran(1, took_us=90_000 if run % 3 == 0 else 1_000, expected_us=1_000, late_us=0)
    assert not watch.is_slow(1, (0, 1))


def test_where_all_reports_are_late_more_patience_is_had() -> None:
    watch = PaceWatch([(0, 0, 0)] * 2)
    assert watch.overdue_after_us(1_000) == OVERDUE_AT_LEAST_US
    for _ in range(200):
        watch.ran(0, took_us=1_000, expected_us=1_000, late_us=100_000)
    assert watch.overdue_after_us(1_000) > 5 * OVERDUE_AT_LEAST_US


def test_a_batch_long_overdue_runs_again_elsewhere(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.letters())
    gateway.reports.stage_done(batch, 0, TimesBody(0, 10, 5_010), 5_010)
    gateway.look(10_000 + OVERDUE_AT_LEAST_US)
    assert not gateway.letters()
    gateway.look(11_000 + OVERDUE_AT_LEAST_US)
    letters = gateway.letters()
    assert {Kind.RETIRE, Kind.ABORT, Kind.DISPATCH} <= set(kinds(letters))
    ((_, again),) = dispatches(letters)
    assert again.requests == body.requests
    assert again.hops[1].vgpu == 2


def test_the_only_worker_of_a_pool_is_waited_for(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    gateway.letters()
    gateway.look(10 * OVERDUE_AT_LEAST_US)
    assert not gateway.letters()
    assert gateway.in_flight == 1
