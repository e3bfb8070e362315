"""Small requests that go from their front's slot to the first worker at once."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.gateway.gateways import HeldGateway, SentFrame
from tests.triton_backend.serving.small_plans import SLO_US, alone, plan, tensor, two_stage
from tests.triton_backend.serving.system import WAIT_SECONDS, LocalSystem, deploy, wait_for
from triton_backend.contract.decisions import Hop
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import EXPRESS_BYTES, EXPRESS_LATENCY_US, Deployment
from triton_backend.serving.front import batches as front_batches
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    ArrivalBody,
    BatchBody,
    Header,
    Kind,
    frame,
    pack_batch,
    parse_header,
    unpack_batch,
)

PATIENT_US = 2_000_000
MANY = 50
CHECKSUM = 77
PAIR = FrontAddress("pair")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(alone(two_stage())), ServeOptions())


# Which models


def test_slots_are_for_models_that_are_quick_small_and_run_alone(deployment: Deployment) -> None:
    slots = deployment.front_slots(0)
    assert deployment.express_slots(0) == range(slots, 2 * slots)
    model = alone(two_stage())
    (pipeline,) = model.model.pipelines
    slow = replace(pipeline, latency_us=EXPRESS_LATENCY_US)
    for other in (
        model.replaced(pipelines=(slow,)),
        model.replaced(inputs=(tensor("image", EXPRESS_BYTES),)),
        two_stage(),
    ):
        changed = Deployment(deployment.settings, 1, plan(other))
        assert not changed.express_slots(0)


# The scheduler's side


@pytest.fixture
def gateway(deployment: Deployment) -> HeldGateway:
    made = HeldGateway(deployment)
    for vgpu in range(3):
        made.workers.up(WorkerAddress(1, vgpu), 0)
    made.frames()
    return made


def arrive(gateway: HeldGateway, number: int, slot: int, tag: int) -> None:
    gateway.requests.arrival(PAIR, ArrivalBody(number, 10 + SLO_US, 1, 0, slot, CHECKSUM), 10, tag)


def first_slot(gateway: HeldGateway) -> int:
    return gateway.deployment.express_slots(0).start


def only(frames: list[SentFrame]) -> tuple[SentFrame, Header]:
    (sent,) = frames
    return sent, parse_header(sent.data)


def test_a_batch_of_one_goes_to_its_worker_and_names_slot_and_request(gateway: HeldGateway) -> None:
    deployment = gateway.deployment
    slot = deployment.express_slots(0).start
    arrive(gateway, 5, slot, deployment.tag)
    sent, header = only(gateway.frames())
    batch = unpack_batch(sent.data[HEADER_BYTES:])
    assert (sent.to, header.kind, header.plan_tag) == (
        WorkerAddress(1, 0),
        Kind.BATCH,
        deployment.tag,
    )
    assert header.payload_bytes == deployment.worker_layout(0).payload_bytes(1)
    assert (batch.express, batch.answer_slot, batch.payload_checksum) == (5, slot, CHECKSUM)
    assert [hop.vgpu for hop in batch.hops] == [0, 1]


def test_a_slot_of_another_plan_is_not_used(gateway: HeldGateway) -> None:
    arrive(gateway, 5, first_slot(gateway), gateway.deployment.tag + 1)
    sent, header = only(gateway.frames())
    assert (sent.to, header.kind) == (PAIR, Kind.DISPATCH)


@pytest.mark.parametrize("beside", [-7, -1, 10**6])
def test_a_slot_that_a_front_does_not_have_is_not_used(gateway: HeldGateway, beside: int) -> None:
    arrive(gateway, 5, first_slot(gateway) + beside, gateway.deployment.tag)
    sent, header = only(gateway.frames())
    assert (sent.to, header.kind) == (PAIR, Kind.DISPATCH)


def test_a_batch_that_runs_again_is_gathered_by_its_front(gateway: HeldGateway) -> None:
    arrive(gateway, 5, first_slot(gateway), gateway.deployment.tag)
    gateway.frames()
    gateway.workers.lost(WorkerAddress(1, 1), 20)
    kinds = [(sent.to, parse_header(sent.data).kind) for sent in gateway.frames()]
    assert (WorkerAddress(1, 0), Kind.ABORT) in kinds
    assert kinds[-1] == (PAIR, Kind.DISPATCH)


def test_a_worker_on_another_host_cannot_take_from_the_slot(tmp_path: Path) -> None:
    options = ServeOptions(hosts={"FAST": "10.0.0.2"})
    deployment = deploy(tmp_path, plan(alone(two_stage())), options)
    gateway = HeldGateway(deployment)
    for vgpu in range(3):
        gateway.workers.up(WorkerAddress(1, vgpu), 0)
    gateway.frames()
    assert not deployment.express_slots(0)
    arrive(gateway, 5, deployment.front_slots(0), deployment.tag)
    sent, header = only(gateway.frames())
    assert (sent.to, header.kind) == (PAIR, Kind.DISPATCH)


# All together


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    root = tmp_path / "artifacts"
    served = alone(affine(root))
    options = ServeOptions(artifacts=root)
    made = LocalSystem(tmp_path / "serve", plan(served), options)
    yield made
    made.stop()


def heard(system: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """Frames to the front from now on."""
    front, kinds = system.fronts["affine"], list[Kind]()
    tell = front.on_frame

    def on_frame(connection: Connection, header: Header, body: bytes) -> None:
        kinds.append(header.kind)
        tell(connection, header, body)

    monkeypatch.setattr(front, "on_frame", on_frame)
    return kinds


def numbers(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(1, 3)).astype(np.float32)


def test_a_front_hears_of_its_request_no_sooner_than_by_its_answer(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = heard(system, monkeypatch)
    for seed in range(MANY):
        x = numbers(seed)
        answer = system.ask("affine", {"x": x}, PATIENT_US)()
        assert not isinstance(answer, Refusal)
        np.testing.assert_array_equal(answer["y"], x * np.float32(FACTOR) + np.float32(OFFSET))
    assert Kind.DISPATCH not in kinds
    assert kinds.count(Kind.ANSWER) == MANY


def test_a_request_outlives_a_change_of_plan(system: LocalSystem) -> None:
    prepared = deploy(
        system.settings.folder, replace(system.deployment.plan, plan_id="next"), None, 2
    )
    system.control("prepare", generation=2)
    wait_for(lambda: system.status()["prepared"]["up"] == len(prepared.vgpus))
    system.control("flush")
    wait_for(lambda: system.status()["state"] == "flushed")
    x = numbers(0)
    over = system.ask("affine", {"x": x}, PATIENT_US)  # in a slot of the old plan
    wait_for(lambda: system.status()["queued"]["affine"] == 1)
    system.control("swap", plan_id="next")
    for answer in (over(), system.ask("affine", {"x": x}, PATIENT_US)()):
        assert not isinstance(answer, Refusal)
        np.testing.assert_array_equal(answer["y"], x * np.float32(FACTOR) + np.float32(OFFSET))


def wrong_checksum(segment: Segment, slot: int, samples: int) -> int:
    return checksum_of(segment, slot, samples) ^ 1


def test_damaged_tensors_are_an_error_and_cost_nobody_a_connection(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(0)
    monkeypatch.setattr(front_batches, "checksum_of", wrong_checksum)
    answer = system.ask("affine", {"x": x}, PATIENT_US)()
    assert isinstance(answer, Refusal)
    assert "checksum" in answer.message
    monkeypatch.undo()
    assert not isinstance(system.ask("affine", {"x": x}, PATIENT_US)(), Refusal)
    assert system.status()["counters"]["workers_lost"] == 0


def test_many_at_once_are_all_answered_with_their_own(system: LocalSystem) -> None:
    many = len(system.deployment.express_slots(0)) + 8  # the last have to go without
    requests = [numbers(seed) for seed in range(many)]
    results = [system.ask("affine", {"x": x}, 4 * PATIENT_US) for x in requests]
    for x, result in zip(requests, results, strict=True):
        answer = result()
        assert not isinstance(answer, Refusal)
        np.testing.assert_array_equal(answer["y"], x * np.float32(FACTOR) + np.float32(OFFSET))


def test_a_stage_that_fails_is_told_to_the_client(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = system.workers[1000]

    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(worker._stages._stages[system.deployment.tag, 0, 0, 0], "run", fail)
    answer = system.ask("affine", {"x": numbers(0)}, PATIENT_US)()
    assert isinstance(answer, Refusal)
    assert "out of order" in answer.message
    wait_for(lambda: system.status()["in_flight"] == 0)


def test_a_worker_takes_express_requests_from_its_scheduler_only(system: LocalSystem) -> None:
    deployment = system.deployment
    path = deployment.worker_address(0, same_host=True).removeprefix("unix:")
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(WAIT_SECONDS)
    stranger.connect(path)
    hops = (Hop(0, 0, 0, 0, 1), Hop(1, 0, 0, 0, 1))
    size = deployment.worker_layout(0).payload_bytes(1)
    body = pack_batch(
        BatchBody(0, 0, 1, deployment.express_slots(0).start, 0, 0, 0, 5, hops, (0, 0))
    )
    data = frame(Kind.BATCH, body, batch_id=1, plan_tag=deployment.tag, payload_bytes=size)
    stranger.sendall(data)
    assert stranger.recv(1) == b""  # refused: the worker closed it
    stranger.close()
    assert not isinstance(system.ask("affine", {"x": numbers(0)}, PATIENT_US)(), Refusal)
