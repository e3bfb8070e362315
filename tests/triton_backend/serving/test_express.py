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
from tests.triton_backend.serving.small_plans import SLO_US, plan, tensor, two_stage
from tests.triton_backend.serving.system import WAIT_SECONDS, LocalSystem, deploy, wait_for
from triton_backend.contract.decisions import Hop
from triton_backend.contract.plan import ModelPlan
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import EXPRESS_BYTES, EXPRESS_LATENCY_US, Deployment
from triton_backend.serving.front import express as front_express
from triton_backend.serving.front.express import REST_US, ExpressSlots
from triton_backend.serving.front.pending import Request
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.state import FrontAddress, WorkerAddress
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.shared_memory import Arrays, Segment, remove_segments
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    ArrivalBody,
    BatchBody,
    FailureBody,
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


def alone(model: ModelPlan) -> ModelPlan:
    """The same with batches of one sample."""
    (pipeline,) = model.pipelines
    return replace(model, pipelines=(replace(pipeline, batch=1),))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(alone(two_stage())), ServeOptions())


# Which models


def test_slots_are_for_models_that_are_quick_small_and_run_alone(deployment: Deployment) -> None:
    slots = deployment.front_slots(0)
    assert deployment.express_slots(0) == range(slots, 2 * slots)
    (model,) = deployment.plan.models
    (pipeline,) = model.pipelines
    slow = replace(pipeline, latency_us=EXPRESS_LATENCY_US)
    for other in (
        replace(model, pipelines=(slow,)),
        replace(model, inputs=(tensor("image", EXPRESS_BYTES),)),
        two_stage(),
    ):
        changed = Deployment(deployment.settings, 1, plan(other))
        assert not changed.express_slots(0)


# The scheduler's side


@pytest.fixture
def gateway(deployment: Deployment) -> HeldGateway:
    made = HeldGateway(deployment)
    for vgpu in range(3):
        made.worker_up(WorkerAddress(1, vgpu), 0)
    made.frames()
    return made


def arrive(gateway: HeldGateway, number: int, slot: int, tag: int) -> None:
    gateway.arrival(PAIR, ArrivalBody(number, 10 + SLO_US, 1, slot, CHECKSUM), 10, tag)


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
    gateway.worker_lost(WorkerAddress(1, 1), 20)
    kinds = [(sent.to, parse_header(sent.data).kind) for sent in gateway.frames()]
    assert (WorkerAddress(1, 0), Kind.ABORT) in kinds
    assert kinds[-1] == (PAIR, Kind.DISPATCH)


def test_a_worker_on_another_host_cannot_take_from_the_slot(tmp_path: Path) -> None:
    options = ServeOptions(hosts={"FAST": "10.0.0.2"})
    deployment = deploy(tmp_path, plan(alone(two_stage())), options)
    gateway = HeldGateway(deployment)
    for vgpu in range(3):
        gateway.worker_up(WorkerAddress(1, vgpu), 0)
    gateway.frames()
    assert not deployment.express_slots(0)
    arrive(gateway, 5, deployment.front_slots(0), deployment.tag)
    sent, header = only(gateway.frames())
    assert (sent.to, header.kind) == (PAIR, Kind.DISPATCH)


# The front's slots


class Slots:
    """Express slots of a front whose requests are answered by hand."""

    def __init__(self, deployment: Deployment) -> None:
        self.waiting: dict[int, Request] = {}
        self.slots = ExpressSlots(deployment, 0, self.waiting.get)
        self.room = len(deployment.express_slots(0))

    def write(self, number: int, samples: int = 1) -> int | None:
        tensors: Arrays = {
            "image": np.zeros((samples, 3, 16), np.float32),
            "mask": np.zeros((samples, 4), np.uint8),
        }
        request = Request(tensors, samples, 0, SLO_US, lambda _: None, lambda: False, number=number)
        self.waiting[number] = request
        ticket = self.slots.write(request)
        return None if ticket is None else ticket.slot


@pytest.fixture
def held(deployment: Deployment) -> Iterator[Slots]:
    made = Slots(deployment)
    yield made
    made.slots.remove()
    remove_segments(deployment.settings.segment_prefix)


def test_a_request_without_a_free_slot_goes_by_its_front(held: Slots) -> None:
    slots = [held.write(number) for number in range(held.room)]
    assert len(set(slots)) == held.room
    assert held.write(held.room) is None
    assert slots[0] is not None
    held.slots.take(slots[0])
    assert held.write(held.room) is None  # its answer is on its way to the client
    held.slots.give(slots[0])
    assert held.write(held.room) == slots[0]


def test_only_the_request_in_a_slot_is_answered_from_it(held: Slots) -> None:
    slot = held.write(7)
    assert slot is not None
    assert held.slots.get(slot, 7) is held.waiting[7]
    assert held.slots.get(slot, 8) is None
    assert held.slots.get(slot + 1, 7) is None


def test_a_slot_rests_when_its_request_was_answered_in_another_way(held: Slots) -> None:
    slots = [held.write(number) for number in range(held.room)]
    held.slots.rest(0)
    assert held.slots.busy
    request = held.waiting.pop(3)
    held.slots.rest(10)
    slot = slots[3]
    assert slot is not None
    assert held.slots.get(slot, 3) is request  # a late answer finds it
    held.slots.rest(10 + REST_US - 1)
    assert held.write(held.room) is None
    held.slots.rest(10 + REST_US)
    assert held.write(held.room) == slot


def test_a_late_answer_ends_a_slots_rest(held: Slots) -> None:
    slots = [held.write(number) for number in range(held.room)]
    held.waiting.clear()
    held.slots.rest(10)
    assert not held.slots.busy  # nobody waits, and a generation may retire
    assert slots[3] is not None
    held.slots.take(slots[3])
    held.slots.give(slots[3])
    assert held.write(held.room) == slots[3]
    assert held.slots.busy
    held.slots.rest(10 + REST_US)
    assert held.slots.get(slots[3], held.room) is held.waiting[held.room]


def test_more_samples_than_the_plan_runs_at_once_go_without_a_slot(held: Slots) -> None:
    assert held.write(1, samples=2) is None
    slots = [held.write(number) for number in range(held.room)]
    assert None not in slots


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
    """What is said to the front from now on."""
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
    for vgpu in range(2):
        system.start_worker(prepared, vgpu)
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
    monkeypatch.setattr(front_express, "checksum_of", wrong_checksum)
    answer = system.ask("affine", {"x": x}, PATIENT_US)()
    assert isinstance(answer, Refusal)
    assert "checksum" in answer.message
    monkeypatch.undo()
    assert not isinstance(system.ask("affine", {"x": x}, PATIENT_US)(), Refusal)
    assert system.status()["counters"]["workers_lost"] == 0


def test_a_failure_of_a_run_given_up_is_not_told_to_the_client(system: LocalSystem) -> None:
    system.control("flush")
    waiting = system.ask("affine", {"x": numbers(0)}, PATIENT_US)
    front, tag = system.fronts["affine"], system.deployment.tag
    (number,) = [request.number for request in front._pending.all()]
    for slot in system.deployment.express_slots(0):
        given_up = Header(Kind.BATCH_FAILED, 0, 0, 0, 9, tag, 0)
        front._batches.abort(given_up.batch_id, 0)
        front._failed(given_up, FailureBody("gone", number, slot))
    system.control("abort")
    assert not isinstance(waiting(), Refusal)


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

    monkeypatch.setattr(worker._stage, "_execute", fail)
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
