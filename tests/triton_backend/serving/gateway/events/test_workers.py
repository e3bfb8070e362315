"""Workers that report to a new scheduler, or are lost, in a gateway called by hand."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    EPOCH,
    HeldGateway,
    arrive,
    dispatches,
    finish,
    kinds,
    serving,
)
from tests.triton_backend.serving.small_plans import SLO_US, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.roll_call import MOMENT_US
from triton_backend.serving.transport.wire import (
    Kind,
)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(two_stage()), ServeOptions())


def test_a_new_scheduler_waits_for_the_workers_of_the_old_one(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    arrive(gateway, 1, 2, 3, 4)
    gateway.workers.up(WorkerAddress(1, 0), 20)
    gateway.workers.up(WorkerAddress(1, 1), 30)
    assert not gateway.frames()
    gateway.workers.up(WorkerAddress(1, 2), 40)
    assert kinds(gateway.frames()) == [Kind.DISPATCH]


def test_busy_workers_of_the_life_before_are_reckoned_with(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    gateway.workers.busy(WorkerAddress(1, 0), 12_000, 20)
    gateway.workers.busy(WorkerAddress(1, 1), 100 * SLO_US, 20)
    arrive(gateway, 1, 2, 3, 4, now_us=30)
    assert not gateway.frames(), "one may be idle and has not reported"
    gateway.workers.up(WorkerAddress(1, 2), 40)
    ((_, body),) = dispatches(gateway.frames())
    assert [hop.vgpu for hop in body.hops] == [0, 2]
    assert body.hops[0].start_us == 12_000
    gateway.workers.up(WorkerAddress(1, 0), 5_000)
    arrive(gateway, 5, 6, 7, 8, now_us=5_010)
    ((_, body),) = dispatches(gateway.frames())
    assert body.hops[0].start_us == 5_010, (
        "it was idle before, and the first batch is planned behind"
    )


def test_a_busy_worker_that_reports_late_or_is_gone(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    for vgpu in (0, 1):
        gateway.workers.busy(WorkerAddress(1, vgpu), 100_000, 20)
    gateway.workers.lost(WorkerAddress(1, 1), 30)
    arrive(gateway, 1, 2, 3, 4, now_us=40)
    gateway.look(MOMENT_US)
    assert not gateway.frames(), "a pool has no worker that is up"
    gateway.workers.busy(WorkerAddress(1, 2), 60_000, MOMENT_US + 10)
    assert not gateway.frames(), "another may be about to report, too"
    gateway.look(2 * MOMENT_US + 10)
    ((_, body),) = dispatches(gateway.frames())
    assert [hop.vgpu for hop in body.hops] == [0, 2]
    assert body.hops[0].start_us == 100_000
    gateway.workers.busy(WorkerAddress(1, 1), 90_000, 2 * MOMENT_US + 20)
    assert gateway.status()["workers"]["up"] == 3


def test_workers_that_never_report_do_not_hold_up_the_others(deployment: Deployment) -> None:
    gateway = HeldGateway(deployment, epoch=EPOCH)
    gateway.workers.up(WorkerAddress(1, 0), 20)
    gateway.workers.up(WorkerAddress(1, 1), 30)
    arrive(gateway, 1, 2, 3, 4, now_us=MOMENT_US - 100)
    gateway.look(MOMENT_US + 29)
    assert not gateway.frames()
    gateway.look(MOMENT_US + 30)
    assert kinds(gateway.frames()) == [Kind.DISPATCH]


def test_a_lost_worker_aborts_its_batch_and_the_requests_run_elsewhere(
    deployment: Deployment,
) -> None:
    gateway = serving(deployment)
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    lost = body.hops[1].vgpu
    gateway.workers.lost(WorkerAddress(1, lost), 20)
    frames = gateway.frames()
    assert kinds(frames).index(Kind.ABORT) < kinds(frames).index(Kind.DISPATCH)
    assert WorkerAddress(1, body.hops[0].vgpu) in {sent.to for sent in frames}
    ((again, new_body),) = dispatches(frames)
    assert again != batch
    assert new_body.requests == body.requests
    assert lost not in {hop.vgpu for hop in new_body.hops}
    finish(gateway, batch, body, 40_000)
    assert gateway.in_flight == 1
    finish(gateway, again, new_body, 50_000)
    assert gateway.in_flight == 0
