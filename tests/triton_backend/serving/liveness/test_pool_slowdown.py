"""Pools that are slower than planned as a whole: the scheduler's latencies follow, nobody is drained."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway, arrive, dispatches
from tests.triton_backend.serving.plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.events import PaceChanged
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.addresses import Worker
from triton_backend.serving.liveness.pool_slowdown import QUIET_US, PoolPaces
from triton_backend.serving.liveness.slow_workers import FEWEST_RUNS, PaceWatch
from triton_backend.serving.transport.wire import TimesBody

POOL = (0, 0, 0)
PLANNED_US = 10_000


def ran(watch: PaceWatch, vgpu: int, factor: float) -> None:
    for _ in range(FEWEST_RUNS):
        watch.ran(vgpu, round(factor * PLANNED_US), PLANNED_US, 0)


@pytest.mark.parametrize(
    ("factors", "percent"),
    [
        ((1.0, 1.0), []),
        ((1.4, 1.4), []),
        ((3.0, 3.0), [(POOL, 300)]),
        ((1.0, 4.0), []),  # one of two: it is drained
        ((4.0,), [(POOL, 400)]),  # the only one cannot be
    ],
)
def test_a_pool_is_corrected_where_all_of_it_is_slow(
    factors: tuple[float, ...], percent: list[tuple[tuple[int, int, int], int]]
) -> None:
    watch = PaceWatch([POOL] * len(factors))
    paces = PoolPaces(watch, {POOL: PLANNED_US}, 0)
    for vgpu, factor in enumerate(factors):
        ran(watch, vgpu, factor)
    up = range(len(factors))
    assert paces.changes(1, up) == percent
    assert paces.changes(2, up) == []


def test_short_stages_on_a_busy_machine_are_left_alone() -> None:
    watch = PaceWatch([POOL])
    paces = PoolPaces(watch, {POOL: 1_000}, 0)
    for _ in range(FEWEST_RUNS):
        watch.ran(0, 2_500, 1_000, 0)
    assert paces.changes(1, [0]) == []


def test_a_correction_ends_when_the_pool_keeps_to_its_profile_again() -> None:
    watch = PaceWatch([POOL])
    paces = PoolPaces(watch, {POOL: PLANNED_US}, 0)
    ran(watch, 0, 3.0)
    assert paces.changes(1, [0]) == [(POOL, 300)]
    for _ in range(3):
        ran(watch, 0, 1.0)
    assert paces.changes(2, [0]) == [(POOL, 100)]


def test_without_runs_a_correction_fades() -> None:
    """Else one that leaves no batch a chance would stay for good."""
    watch = PaceWatch([POOL])
    paces = PoolPaces(watch, {POOL: PLANNED_US}, 0)
    ran(watch, 0, 5.0)
    assert paces.changes(1, [0]) == [(POOL, 500)]
    told = [paces.changes(n * (QUIET_US + 1), [0]) for n in range(1, 6)]
    assert told == [[(POOL, 300)], [(POOL, 200)], [(POOL, 150)], [(POOL, 125)], [(POOL, 100)]]


def test_the_scheduler_is_told_and_promises_what_can_be_kept(tmp_path: Path) -> None:
    told: list[object] = []
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    gateway = HeldGateway(deployment, watch=lambda event, _: told.append(event))
    for vgpu in range(3):
        gateway.worker_up(Worker(1, vgpu), 0)
    gateway.letters()
    lengths: list[int] = []
    for number in range(1, 30):
        now_us = number * 10**6
        arrive(gateway, *range(number * BATCH, (number + 1) * BATCH), now_us=now_us)
        for batch, body in dispatches(gateway.letters()):
            lengths.append(body.hops[0].end_us - body.hops[0].start_us)
            for stage, hop in enumerate(body.hops):
                end_us = now_us + 15_000
                if stage:
                    gateway.reports.transfer_done(
                        batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us
                    )
                gateway.reports.stage_done(
                    batch, stage, TimesBody(hop.vgpu, now_us, end_us), end_us
                )
                now_us = end_us
        gateway.look(now_us)
        for letter in gateway.letters():
            # The second worker of the second pool is idle, and asked how fast it is.
            assert letter.to == Worker(1, 2)
            gateway.trial_done(Worker(1, 2), TimesBody(2, now_us - 15_000, now_us), now_us)
    # The first stage's only worker takes three times its 5 ms.
    assert (lengths[0], lengths[-1]) == (5_000, 15_000)
    changes = [event for event in told if isinstance(event, PaceChanged)]
    assert {(c.stage, c.percent) for c in changes} == {(0, 300), (1, 300)}
    assert gateway.counters.workers_drained == 0
    assert gateway.status()["workers"]["up"] == 3
