"""Workers drained because they stayed slow, and their way back."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway, kinds, run_full_batch
from tests.triton_backend.serving.plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.runtimes.base import Tensors
from triton_backend.runtimes.emulated import EmulatedRuntime
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.addresses import Worker
from triton_backend.serving.liveness.health import HealthBoard
from triton_backend.serving.liveness.quarantine import (
    FIRST_REST_US,
    GOOD_AFTER_US,
    LONGEST_REST_US,
    RENEW_AFTER_US,
    TRIAL_EVERY_US,
    DrainedWorkers,
)
from triton_backend.serving.liveness.slow_workers import FEWEST_RUNS, FEWEST_TRIALS, PaceWatch
from triton_backend.serving.transport.wire import Kind, TimesBody
from triton_backend.serving.worker.process import StageWorker
from triton_backend.serving.worker.stage import open_runtime

SLOW, PEER = 1, 2  # the vGPUs of the second pool
PLANNED_US = 5_000


@pytest.fixture
def gateway(tmp_path: Path) -> HeldGateway:
    """One worker of the second pool has just been drained."""
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    made = HeldGateway(deployment)
    for vgpu in range(3):
        made.worker_up(Worker(1, vgpu), 0)
    number = 1
    while up(made) == 3:
        run_full_batch(made, number * BATCH, SLOW, 4)
        number += 1
        assert number < 50
    return made


def up(gateway: HeldGateway) -> int:
    return int(gateway.status()["workers"]["up"])


def try_for(gateway: HeldGateway, begin_us: int, trials: int, took_us: int) -> list[Kind]:
    """Look as often as trials are due, answer each; what was told."""
    told: list[Kind] = []
    for number in range(trials):
        now_us = begin_us + number * TRIAL_EVERY_US
        gateway.look(now_us)
        letters = gateway.letters()
        told += kinds(letters)
        if Kind.PACE_PROBE in kinds(letters):
            gateway.trial_done(Worker(1, SLOW), TimesBody(SLOW, now_us, now_us + took_us), now_us)
    return told


LATER_US = 10**9


def test_a_worker_that_is_well_again_is_back_with_the_same_process(gateway: HeldGateway) -> None:
    told = try_for(gateway, LATER_US, FEWEST_TRIALS, PLANNED_US)
    assert told == [Kind.PACE_PROBE] * FEWEST_TRIALS
    assert up(gateway) == 3


def test_a_worker_that_is_still_slow_is_tried_on_and_then_renewed(gateway: HeldGateway) -> None:
    trials = RENEW_AFTER_US // TRIAL_EVERY_US + 1
    told = try_for(gateway, LATER_US, trials + 1, 4 * PLANNED_US)
    assert told == [Kind.PACE_PROBE] * trials + [Kind.RETIRE]
    assert up(gateway) == 2
    gateway.worker_lost(Worker(1, SLOW), 2 * LATER_US)
    gateway.worker_up(Worker(1, SLOW), 2 * LATER_US)
    assert up(gateway) == 3


@pytest.mark.parametrize(("peers", "well"), [(1, False), (4, True)])
def test_bounds_are_those_of_its_peers(peers: int, *, well: bool) -> None:
    """Where the machine has become slow for all, four times the profile is well."""
    watch = PaceWatch([(0, 0, 0)] * 2)
    for _ in range(FEWEST_RUNS):
        watch.ran(1, peers * PLANNED_US, PLANNED_US, 0)
    for _ in range(FEWEST_TRIALS):
        assert not watch.is_well(0, (1,))
        watch.tried(0, 4 * PLANNED_US, PLANNED_US)
    assert watch.is_well(0, (1,)) == well


def test_a_drained_worker_is_back_when_its_pool_has_nobody_else(gateway: HeldGateway) -> None:
    gateway.worker_lost(Worker(1, PEER), LATER_US)
    gateway.look(LATER_US)
    assert up(gateway) == 2


def test_a_process_that_ended_is_not_tried(gateway: HeldGateway) -> None:
    gateway.worker_lost(Worker(1, SLOW), LATER_US)
    assert try_for(gateway, LATER_US, 3, PLANNED_US) == []


def test_one_that_comes_and_goes_rests_longer_each_time() -> None:
    drained, now_us, rests = DrainedWorkers(), 0, list[int]()
    for _ in range(8):
        drained.drain(0, now_us)
        begin_us = now_us
        while not drained.orders(now_us):
            now_us += TRIAL_EVERY_US
        rests.append(now_us - begin_us)
        drained.back(0, now_us)
        assert drained.orders(LATER_US) == []
    assert rests == [min(FIRST_REST_US << n, LONGEST_REST_US) for n in range(8)]
    drained.drain(0, now_us + GOOD_AFTER_US)
    assert drained.orders(now_us + GOOD_AFTER_US + FIRST_REST_US) == [(0, Kind.PACE_PROBE)]


class Starved:
    """A runtime that takes `factor` times as long as it should, as if it had no processor."""

    def __init__(self, runtime: EmulatedRuntime) -> None:
        self._runtime = runtime
        self.inputs, self.outputs = runtime.inputs, runtime.outputs
        self.register, self.close = runtime.register, runtime.close
        self.factor = 1

    def run(self, inputs: Tensors, out: Tensors) -> None:
        for _ in range(self.factor):
            self._runtime.run(inputs, out)


@pytest.mark.slow
def test_a_starved_worker_returns_by_itself(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    try:
        system.stop_worker(1, SLOW)
        runtime = open_runtime(system.deployment, SLOW, system.clock)
        assert isinstance(runtime, EmulatedRuntime)
        starved = Starved(runtime)
        board = HealthBoard.open(system.deployment, "SLOW")
        worker = StageWorker(system.deployment, SLOW, starved, board, system.clock)
        system.run_worker(worker, vgpu=SLOW)
        wait_for(lambda: system.status()["workers"]["up"] == 3)
        starved.factor = 5
        asked = 0
        while system.status()["workers"]["up"] == 3:
            assert not isinstance(system.ask("pair", picture(BATCH), PATIENT_US)(), Refusal)
            asked += 1
            assert asked < 100
        starved.factor = 1
        wait_for(lambda: system.status()["workers"]["up"] == 3)
        assert system.status()["counters"]["workers_drained"] == 1
    finally:
        system.stop()
