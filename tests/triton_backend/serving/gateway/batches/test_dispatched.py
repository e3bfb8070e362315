"""Batches that wait for slots, in a gateway called by hand."""

from pathlib import Path

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    arrive,
    dispatches,
    finish,
    kinds,
)
from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    ArrivalBody,
    Kind,
    TimesBody,
)


def test_a_batch_that_waits_for_a_slot_is_not_overtaken_on_a_vgpu_of_its_path(
    gateway: HeldGateway,
) -> None:
    slots = gateway.deployment.worker_slots(1)
    gateway.workers.lost(WorkerAddress(1, 2), 5)
    for number in range(BATCH * (slots + 1)):  # one more than vGPU 1 has slots
        gateway.requests.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.frames())
    for batch, body in sent:
        gateway.reports.stage_done(batch, 0, TimesBody(body.hops[0].vgpu, 20, 20), 20)
    assert [{hop.vgpu for hop in body.hops} for _, body in sent] == [{0, 1}] * slots
    gateway.workers.up(WorkerAddress(1, 2), 30)
    gateway.frames()
    arrive(gateway, *range(1000, 1000 + BATCH), now_us=40)
    assert gateway.in_flight == slots + 2
    assert not gateway.frames()  # vGPUs 0 and 2 have slots, but another waits for vGPU 0
    batch, body = sent[0]
    gateway.reports.stage_done(batch, 1, TimesBody(1, 50, 50), 50)
    paths = [[hop.vgpu for hop in body.hops] for _, body in dispatches(gateway.frames())]
    assert paths == [[0, 1], [0, 2]]


def test_who_waits_for_a_slot_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage(), two_stage("other")), ServeOptions())
    gateway = HeldGateway(deployment)
    for vgpu in deployment.vgpus:
        gateway.workers.up(WorkerAddress(1, vgpu.index), 0)
    slots = deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.requests.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    gateway.frames()
    assert gateway.in_flight == slots + 2
    for number in range(BATCH):
        gateway.requests.arrival(FrontAddress("other"), ArrivalBody(number, 10**9, 1), 20)
    (sent,) = gateway.frames()
    assert (sent.to, kinds([sent])) == (FrontAddress("other"), [Kind.DISPATCH])


def test_batches_wait_for_slots_rather_than_share_them(gateway: HeldGateway) -> None:
    slots = gateway.deployment.worker_slots(0)
    for number in range(BATCH * (slots + 2)):
        gateway.requests.arrival(PAIR, ArrivalBody(number, 10**9, 1), 10)
    sent = dispatches(gateway.frames())
    assert len(sent) == slots
    assert len({body.slots[0] for _, body in sent}) == slots
    assert gateway.in_flight == slots + 2
    batch, body = sent[0]
    finish(gateway, batch, body, 20)
    assert len(dispatches(gateway.frames())) == 1
