"""Decisions about workers, pools, links and batches from reports, and their effects."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    HeldGateway,
    SentFrame,
    arrive,
    dispatches,
    finish,
    kinds,
    look_until,
    run_full_batch,
    serving,
)
from tests.triton_backend.serving.small_plans import BATCH, SLO_US, joined, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.contract.applications.steps import Step
from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.events import LinkPaceChanged, PaceChanged
from triton_backend.contract.units import transfer_us
from triton_backend.runtimes.base import Tensors
from triton_backend.runtimes.emulated import EmulatedRuntime
from triton_backend.scheduler.measured.paces import LOOK_EVERY_US
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.event_log import read_events
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.liveness.pace import FEWEST_PROBES, LAST_MOVES
from triton_backend.serving.liveness.supervisor import (
    FIRST_REST_US,
    GOOD_AFTER_US,
    LONGEST_REST_US,
    OVERDUE_AT_LEAST_US,
    PROBE_EVERY_US,
    RENEW_AFTER_US,
    TWICE_US,
    Order,
    Quarantine,
)
from triton_backend.serving.liveness.threads import ThreadUse
from triton_backend.serving.transport.wire import Kind, TimesBody
from triton_backend.serving.worker import output
from triton_backend.serving.worker.process import StageWorker, health_row
from triton_backend.serving.worker.stage import open_runtimes

SLOW, PEER = 1, 2  # the vGPUs of the second pool
PLANNED_US = 5_000
LATER_US = 10**9
LOOK_US = 50_000


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(two_stage()), ServeOptions())


@pytest.fixture
def gateway(deployment: Deployment) -> HeldGateway:
    return serving(deployment)


def up(gateway: HeldGateway) -> int:
    return int(gateway.status()["workers"]["up"])


def test_a_plan_with_a_stage_of_smaller_batches_is_served(tmp_path: Path) -> None:
    gateway = serving(deploy(tmp_path, plan(joined(2)), ServeOptions()))
    assert up(gateway) == 3


# Slow workers, and their way back


@pytest.mark.parametrize(("slow_vgpu", "taken_out"), [(SLOW, True), (0, False)])
def test_a_worker_that_stays_slow_is_taken_out_where_its_pool_has_another(
    gateway: HeldGateway, slow_vgpu: int, *, taken_out: bool
) -> None:
    for number in range(1, 30):
        run_full_batch(gateway, number * BATCH, slow_vgpu, 4)
    assert up(gateway) == 3 - taken_out
    assert gateway.counters.workers_drained == taken_out


@pytest.fixture
def quarantined(gateway: HeldGateway) -> HeldGateway:
    """One worker of the second pool has just been taken out because it stayed slow."""
    number = 1
    while up(gateway) == 3:
        run_full_batch(gateway, number * BATCH, SLOW, 4)
        number += 1
        assert number < 50
    return gateway


def probe(gateway: HeldGateway, begin_us: int, probes: int, took_us: int) -> list[Kind]:
    """Look as often as probes are due, answer each; what was sent."""
    sent: list[Kind] = []
    for number in range(probes):
        now_us = begin_us + number * PROBE_EVERY_US
        gateway.look(now_us)
        frames = gateway.frames()
        sent += kinds(frames)
        if Kind.PACE_PROBE in kinds(frames):
            times = TimesBody(SLOW, now_us, now_us + took_us)
            gateway.workers.pace_result(WorkerAddress(1, SLOW), times, now_us)
    return sent


def test_a_worker_that_has_recovered_is_back_with_the_same_process(
    quarantined: HeldGateway,
) -> None:
    sent = probe(quarantined, LATER_US, FEWEST_PROBES, PLANNED_US)
    assert sent == [Kind.PACE_PROBE] * FEWEST_PROBES
    assert up(quarantined) == 3


def test_a_worker_that_is_still_slow_is_probed_on_and_then_renewed(
    quarantined: HeldGateway,
) -> None:
    probes = RENEW_AFTER_US // PROBE_EVERY_US + 1
    sent = probe(quarantined, LATER_US, probes + 1, 4 * PLANNED_US)
    assert sent == [Kind.PACE_PROBE] * probes + [Kind.RETIRE]
    assert up(quarantined) == 2
    quarantined.workers.lost(WorkerAddress(1, SLOW), 2 * LATER_US)
    quarantined.workers.up(WorkerAddress(1, SLOW), 2 * LATER_US)
    assert up(quarantined) == 3


def test_a_quarantined_worker_is_back_when_its_pool_has_nobody_else(
    quarantined: HeldGateway,
) -> None:
    quarantined.workers.lost(WorkerAddress(1, PEER), LATER_US)
    quarantined.look(LATER_US)
    assert up(quarantined) == 2


def test_a_process_that_ended_is_not_probed(quarantined: HeldGateway) -> None:
    quarantined.workers.lost(WorkerAddress(1, SLOW), LATER_US)
    assert probe(quarantined, LATER_US, 3, PLANNED_US) == []


def restart(gateway: HeldGateway, vgpu: int, now_us: int) -> None:
    """A worker's process ends, and another one is ready at once."""
    gateway.workers.lost(WorkerAddress(1, vgpu), now_us)
    gateway.workers.up(WorkerAddress(1, vgpu), now_us)


def test_one_whose_processes_end_twice_is_probed_before_it_takes_batches(
    gateway: HeldGateway,
) -> None:
    restart(gateway, SLOW, LATER_US)
    assert up(gateway) == 3
    restart(gateway, SLOW, LATER_US + TWICE_US - 1)
    assert up(gateway) == 2
    begin_us = LATER_US + TWICE_US + FIRST_REST_US
    assert probe(gateway, begin_us, FEWEST_PROBES - 1, PLANNED_US)
    assert up(gateway) == 2
    restart(gateway, SLOW, begin_us + FIRST_REST_US)  # its probes are forgotten
    begin_us += 2 * FIRST_REST_US
    probe(gateway, begin_us, FEWEST_PROBES - 1, PLANNED_US)
    assert up(gateway) == 2
    probe(gateway, begin_us + FIRST_REST_US, 1, PLANNED_US)
    assert up(gateway) == 3
    restart(gateway, SLOW, begin_us + 2 * TWICE_US)
    assert up(gateway) == 3


def test_one_whose_processes_end_twice_takes_batches_where_its_pool_has_nobody_else(
    gateway: HeldGateway,
) -> None:
    for now_us in (LATER_US, LATER_US + 1):
        restart(gateway, 0, now_us)
    assert up(gateway) == 3
    for now_us in (LATER_US + 2, LATER_US + 3):
        restart(gateway, SLOW, now_us)
    assert up(gateway) == 2
    gateway.workers.lost(WorkerAddress(1, PEER), LATER_US + 4)
    gateway.look(LATER_US + 4)
    assert up(gateway) == 2


def test_one_that_comes_and_goes_rests_longer_each_time() -> None:
    quarantine, now_us, rests = Quarantine(), 0, list[int]()
    for _ in range(8):
        quarantine.enter(0, now_us)
        begin_us = now_us
        while not list(quarantine.orders(now_us)):
            now_us += PROBE_EVERY_US
        rests.append(now_us - begin_us)
        quarantine.readmit(0, now_us)
        assert list(quarantine.orders(LATER_US)) == []
    assert rests == [min(FIRST_REST_US << n, LONGEST_REST_US) for n in range(8)]
    now_us += GOOD_AFTER_US
    quarantine.enter(0, now_us)
    assert list(quarantine.orders(now_us + FIRST_REST_US)) == [Order(0, Kind.PACE_PROBE)]


# Silent workers


def first_stage_done(gateway: HeldGateway) -> int:
    """A batch whose second stage is to be reported at 10,000; its number."""
    arrive(gateway, 1, 2, 3, 4)
    ((batch, _),) = dispatches(gateway.frames())
    gateway.reports.stage_done(batch, 0, TimesBody(0, 10, 5_010), 5_010)
    return batch


def test_a_batch_long_overdue_runs_again_elsewhere(gateway: HeldGateway) -> None:
    first_stage_done(gateway)
    assert not look_until(gateway, 0, 10_000 + OVERDUE_AT_LEAST_US)
    gateway.look(11_000 + OVERDUE_AT_LEAST_US)
    frames = gateway.frames()
    assert {Kind.RETIRE, Kind.ABORT, Kind.DISPATCH} <= set(kinds(frames))
    ((_, again),) = dispatches(frames)
    assert again.requests == (1, 2, 3, 4)
    assert again.hops[1].vgpu == PEER


def test_a_python_step_has_the_slo_for_a_batch_before_it_runs_elsewhere(tmp_path: Path) -> None:
    made = plan(two_stage())
    steps = (Step(name="pair", python="shop.pictures:decode"),)
    stepped = replace(made, workload=replace(made.workload, steps=steps))
    gateway = serving(deploy(tmp_path, stepped, ServeOptions()))
    first_stage_done(gateway)
    assert SLO_US > OVERDUE_AT_LEAST_US
    assert not look_until(gateway, 0, 10_000 + SLO_US)
    gateway.look(11_000 + SLO_US)
    assert Kind.RETIRE in kinds(gateway.frames())


@pytest.mark.parametrize(("wants", "retired"), [(True, False), (False, True)])
def test_one_that_wants_a_processor_and_has_none_is_not_taken_for_hung(
    deployment: Deployment, *, wants: bool, retired: bool
) -> None:
    asked: set[WorkerAddress] = set()

    def threads_of(worker: WorkerAddress) -> dict[int, ThreadUse]:
        asked.add(worker)
        return {1: ThreadUse(wants=wants, ran_us=500), 2: ThreadUse(wants=False, ran_us=0)}

    gateway = serving(deployment, threads_of)
    batch = first_stage_done(gateway)
    assert not look_until(gateway, 0, 10_000 + OVERDUE_AT_LEAST_US // 2)
    assert not asked  # it costs some system calls
    till_us = 10_000 + 3 * OVERDUE_AT_LEAST_US
    frames: list[SentFrame] = []
    for now_us in range(10_001 + OVERDUE_AT_LEAST_US // 2, till_us, LOOK_US):
        gateway.look(now_us)
        frames += gateway.frames()
    assert WorkerAddress(1, SLOW) in asked
    assert (Kind.RETIRE in kinds(frames)) == retired
    assert gateway.counters.workers_drained == retired
    gateway.reports.stage_done(batch, 1, TimesBody(SLOW, till_us - 5_000, till_us), till_us)
    assert gateway.in_flight == retired  # where it runs again


def test_where_all_reports_are_late_more_patience_is_had(gateway: HeldGateway) -> None:
    now_us = 0
    for number in range(1, 40):  # each a third of a second late
        now_us += 10**6
        arrive(gateway, *range(number * BATCH, (number + 1) * BATCH), now_us=now_us)
        ((batch, body),) = dispatches(gateway.frames())
        finish(gateway, batch, body, now_us + 330_000)
        look_until(gateway, now_us, now_us + 330_000)
    first_us = now_us = now_us + 10**6
    arrive(gateway, 1, 2, 3, 4, now_us=now_us)
    gateway.frames()
    assert not look_until(gateway, now_us, first_us + 10 * OVERDUE_AT_LEAST_US)
    assert gateway.in_flight == 1


def test_a_machine_that_stood_still_makes_nobody_overdue(gateway: HeldGateway) -> None:
    batch = first_stage_done(gateway)
    gateway.look(6_000)
    awake_us = 10**7
    assert not look_until(gateway, awake_us, awake_us + OVERDUE_AT_LEAST_US)
    gateway.reports.stage_done(
        batch, 1, TimesBody(SLOW, awake_us, awake_us + 5_000), awake_us + 200_000
    )
    assert gateway.in_flight == 0
    assert gateway.counters.workers_drained == 0


# Lost batches


def test_a_batch_that_nobody_will_end_is_given_up_though_its_worker_goes_on_reporting(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((lost, lost_body),) = dispatches(gateway.frames())
    now_us, aborted = 10, False
    for number in range(2, 60):
        now_us += 20_000
        arrive(gateway, *range(number * BATCH, (number + 1) * BATCH), now_us=now_us)
        frames = gateway.frames()
        for batch, body in dispatches(frames):
            finish(gateway, batch, body, now_us + 10_000)
        gateway.look(now_us + 10_000)
        aborted = aborted or Kind.ABORT in kinds(gateway.frames())
        if aborted:
            break
    assert aborted
    assert now_us <= 2 * SLO_US + 10 + lost_body.hops[-1].end_us
    assert (gateway.in_flight, gateway.counters.batches_lost) == (0, 1)
    assert up(gateway) == 3
    finish(gateway, lost, lost_body, now_us)  # no listener any more
    gateway.flush(now_us)
    assert gateway.status()["state"] == "flushed"


def test_the_only_worker_of_a_pool_is_kept_though_its_batch_is_given_up(
    gateway: HeldGateway,
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((_, body),) = dispatches(gateway.frames())
    given_up_us = body.hops[0].end_us + SLO_US
    assert not look_until(gateway, 0, given_up_us)
    assert gateway.in_flight == 1
    frames = look_until(gateway, given_up_us, given_up_us + 1)
    assert set(kinds(frames)) == {Kind.ABORT, Kind.DROP}
    assert (gateway.in_flight, up(gateway)) == (0, 3)


# Slow pools and links


def test_a_slow_pool_is_planned_with_its_pace(deployment: Deployment) -> None:
    events: list[object] = []
    gateway = HeldGateway(deployment, observe=lambda event, _: events.append(event))
    for vgpu in range(3):
        gateway.workers.up(WorkerAddress(1, vgpu), 0)
    gateway.frames()
    lengths: list[int] = []
    for number in range(1, 30):
        now_us = number * 10**6
        arrive(gateway, *range(number * BATCH, (number + 1) * BATCH), now_us=now_us)
        for batch, body in dispatches(gateway.frames()):
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
        for sent in gateway.frames():
            # The second worker of the second pool is idle, and asked how fast it is.
            assert sent.to == WorkerAddress(1, PEER)
            gateway.workers.pace_result(
                WorkerAddress(1, PEER), TimesBody(PEER, now_us - 15_000, now_us), now_us
            )
    # The first stage's only worker takes three times its 5 ms.
    assert (lengths[0], lengths[-1]) == (5_000, 15_000)
    changes = [event for event in events if isinstance(event, PaceChanged)]
    assert {(c.stage, c.percent) for c in changes} == {(0, 300), (1, 300)}
    assert gateway.counters.workers_drained == 0
    assert up(gateway) == 3


def test_a_slow_link_is_planned_with_its_pace(tmp_path: Path) -> None:
    """10 Gbit/s from FAST to SLOW carry 4 samples of 5 MB in 16 ms.

    Here they take four times as long.
    """
    model = two_stage()
    (pipeline,) = model.model.pipelines
    first, second = pipeline.stages
    stages = (replace(first, boundary_bytes_per_sample=5_000_000), second)
    model = model.replaced(pipelines=(replace(pipeline, stages=stages),))
    events: list[object] = []
    gateway = HeldGateway(
        deploy(tmp_path, plan(model), ServeOptions()),
        observe=lambda event, _: events.append(event),
    )
    for vgpu in range(3):
        gateway.workers.up(WorkerAddress(1, vgpu), 0)
    gateway.frames()
    moves: list[int] = []
    for number in range(1, LAST_MOVES + 3):
        now_us = number * LOOK_EVERY_US
        arrive(gateway, *range(number * BATCH, (number + 1) * BATCH), now_us=now_us)
        ((batch, body),) = dispatches(gateway.frames())
        sender, receiver = body.hops
        moves.append(receiver.start_us - sender.end_us)
        left_us = now_us + 5_000
        gateway.reports.stage_done(batch, 0, TimesBody(sender.vgpu, now_us, left_us), left_us)
        arrived_us = left_us + 64_000
        times = TimesBody(receiver.vgpu, left_us, arrived_us)
        gateway.reports.transfer_done(batch, 1, times, arrived_us)
        times = TimesBody(receiver.vgpu, arrived_us, arrived_us + 5_000)
        gateway.reports.stage_done(batch, 1, times, arrived_us + 5_000)
        look_until(gateway, now_us, now_us + 300_000)
    assert (moves[0], moves[-1]) == (16_000, 64_000)
    assert [
        (event.node, event.uplink_percent, event.downlink_percent)
        for event in events
        if isinstance(event, LinkPaceChanged)
    ] == [(0, 400, 100), (1, 100, 400)]


# All together


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
        (loaded,) = open_runtimes(system.deployment, SLOW, system.clock)
        assert isinstance(loaded.runtime, EmulatedRuntime)
        starved = Starved(loaded.runtime)
        health = health_row(system.deployment, SLOW)
        worker = StageWorker(
            system.deployment, SLOW, [loaded._replace(runtime=starved)], health, system.clock
        )
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


def four_times_as_long(size_bytes: int, rate_gbps: float) -> int:
    return transfer_us(4 * size_bytes, rate_gbps)


@pytest.mark.slow
def test_a_link_at_a_quarter_of_its_rate_is_planned_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 Mbit/s carry 4 samples of 512 bytes in 16.4 ms; at a quarter of that in 65.5 ms."""
    model = two_stage()
    (pipeline,) = model.model.pipelines
    first, second = pipeline.stages
    stages = (replace(first, boundary_bytes_per_sample=512), second)
    planned = plan(model.replaced(pipelines=(replace(pipeline, stages=stages),)))
    nodes = tuple(replace(group, nic_gbps=0.001) for group in planned.cluster.nodes)
    planned = replace(planned, cluster=replace(planned.cluster, nodes=nodes))
    monkeypatch.setattr(output, "transfer_us", four_times_as_long)
    system = LocalSystem(tmp_path / "serve", planned, ServeOptions())
    try:
        for _ in range(2 * LAST_MOVES):
            assert not isinstance(system.ask("pair", picture(BATCH), PATIENT_US)(), Refusal)
    finally:
        system.stop()
    (path,) = (tmp_path / "serve" / "events").iterdir()
    items = list(read_events(path.read_text().splitlines()))
    changes = {
        (event.node, round(event.uplink_percent, -1), round(event.downlink_percent, -1))
        for event in items
        if isinstance(event, LinkPaceChanged)
    }
    assert changes == {(0, 400, 100), (1, 100, 400)}
    dispatches = [item for item in items if isinstance(item, Dispatch)]
    before, after = (batch.hops[1] for batch in (dispatches[0], dispatches[-1]))
    assert before.transfer_end_us - before.transfer_start_us == transfer_us(BATCH * 512, 0.001)
    assert after.transfer_end_us - after.transfer_start_us == pytest.approx(65_536, rel=0.02)
