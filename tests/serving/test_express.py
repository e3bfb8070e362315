"""Small requests that go from their front's slot to the first worker at once."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flows.release.render import ServeOptions
from tests.serving.artifacts import FACTOR, OFFSET, affine
from tests.serving.gateway import HeldGateway, Letter
from tests.serving.plans import SLO_US, plan, tensor, two_stage
from tests.serving.system import WAIT_SECONDS, LocalSystem, deploy, wait_for
from triton_backend.core.plan import ModelPlan
from triton_backend.serving.driver_letters import Front, Worker
from triton_backend.serving.front_express import REST_US, ExpressSlots
from triton_backend.serving.front_requests import Refusal, Request
from triton_backend.serving.hub_connection import Connection
from triton_backend.serving.memory import Arrays, remove_segments
from triton_backend.serving.settings import EXPRESS_BYTES, EXPRESS_LATENCY_US, Deployment
from triton_backend.serving.wire import HEADER_BYTES, Header, Kind, frame, parse_header
from triton_backend.serving.wire_bodies import (
    ArrivalBody,
    BatchBody,
    HopGrant,
    pack_batch,
    unpack_batch,
)

PATIENT_US = 2_000_000
PAIR = Front("pair")


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
        made.worker_up(Worker(1, vgpu), 0)
    made.letters()
    return made


def arrive(gateway: HeldGateway, number: int, slot: int, tag: int) -> None:
    gateway.intake.arrival(PAIR, ArrivalBody(number, 10 + SLO_US, 1, slot, 77), 10, tag)


def only(letters: list[Letter]) -> tuple[Letter, Header]:
    (letter,) = letters
    return letter, parse_header(letter.data)


def test_a_batch_of_one_goes_to_its_worker_and_names_slot_and_request(gateway: HeldGateway) -> None:
    deployment = gateway.deployment
    slot = deployment.express_slots(0).start
    arrive(gateway, 5, slot, deployment.tag)
    letter, header = only(gateway.letters())
    batch = unpack_batch(letter.data[HEADER_BYTES:])
    assert (letter.to, header.kind, header.plan_tag) == (Worker(1, 0), Kind.BATCH, deployment.tag)
    assert header.payload_bytes == deployment.worker_layout(0).payload_bytes(1)
    assert (batch.express, batch.answer_slot, batch.payload_checksum) == (5, slot, 77)
    assert [hop.vgpu for hop in batch.hops] == [0, 1]


def test_a_slot_of_another_plan_is_not_used(gateway: HeldGateway) -> None:
    arrive(gateway, 5, 0, gateway.deployment.tag + 1)
    letter, header = only(gateway.letters())
    assert (letter.to, header.kind) == (PAIR, Kind.DISPATCH)


def test_a_batch_that_runs_again_is_gathered_by_its_front(gateway: HeldGateway) -> None:
    arrive(gateway, 5, 0, gateway.deployment.tag)
    gateway.letters()
    gateway.worker_lost(Worker(1, 1), 20)
    kinds = [(letter.to, parse_header(letter.data).kind) for letter in gateway.letters()]
    assert (Worker(1, 0), Kind.ABORT) in kinds
    assert kinds[-1] == (PAIR, Kind.DISPATCH)


def test_a_worker_on_another_host_cannot_take_from_the_slot(tmp_path: Path) -> None:
    options = ServeOptions(hosts={"FAST": "10.0.0.2"})
    deployment = deploy(tmp_path, plan(alone(two_stage())), options)
    gateway = HeldGateway(deployment)
    for vgpu in range(3):
        gateway.worker_up(Worker(1, vgpu), 0)
    gateway.letters()
    arrive(gateway, 5, 0, deployment.tag)
    letter, header = only(gateway.letters())
    assert (letter.to, header.kind) == (PAIR, Kind.DISPATCH)


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
    held.waiting.pop(3)
    held.slots.rest(10)
    slot = slots[3]
    assert slot is not None
    assert held.slots.get(slot, 3) is None
    held.slots.rest(10 + REST_US - 1)
    assert held.write(held.room) is None
    held.slots.rest(10 + REST_US)
    assert held.write(held.room) == slot


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
    room = len(system.deployment.express_slots(0))
    for seed in range(2 * room):  # every slot is used again
        x = numbers(seed)
        answer = system.ask("affine", {"x": x}, PATIENT_US)()
        assert not isinstance(answer, Refusal)
        np.testing.assert_array_equal(answer["y"], x * np.float32(FACTOR) + np.float32(OFFSET))
    assert Kind.DISPATCH not in kinds
    assert kinds.count(Kind.ANSWER) == 2 * room


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

    monkeypatch.setattr(worker._compute, "run", fail)
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
    hops = (HopGrant(0, 0, 0, 0, 1), HopGrant(1, 0, 0, 0, 1))
    size = deployment.worker_layout(0).payload_bytes(1)
    body = pack_batch(BatchBody(0, 0, 1, deployment.express_slots(0).start, 0, 0, 0, 5, hops))
    data = frame(Kind.BATCH, body, batch_id=1, plan_tag=deployment.tag, payload_bytes=size)
    stranger.sendall(data)
    assert stranger.recv(1) == b""  # refused: the worker closed it
    stranger.close()
    assert not isinstance(system.ask("affine", {"x": numbers(0)}, PATIENT_US)(), Refusal)
