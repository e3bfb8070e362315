"""The gateway changing its plan, called by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import (
    PAIR,
    HeldGateway,
    SentFrame,
    arrive,
    dispatches,
    finish,
    kinds,
    serving,
)
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.rollout import State
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    AdoptBody,
    Kind,
    unpack_adopt,
    unpack_plan,
)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(two_stage()), ServeOptions())


@pytest.fixture
def gateway(deployment: Deployment) -> HeldGateway:
    return serving(deployment)


def rollout(gateway: HeldGateway, tmp_path: Path, *, up: bool = True) -> Deployment:
    new = deploy(tmp_path, replace(gateway.deployment.plan, plan_id="next"), generation=2)
    gateway.prepare(new)
    if up:
        for vgpu in range(3):
            gateway.workers.up(WorkerAddress(2, vgpu), 20)
    return new


def test_a_swap_waits_for_workers_and_after_a_flush_for_what_is_in_flight(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    new = rollout(gateway, tmp_path, up=False)
    gateway.frames()
    with pytest.raises(InputError, match="0 of 3 workers"):
        gateway.swap(30)
    _ups(gateway)()
    gateway.flush(40)
    with pytest.raises(InputError, match="not flushed"):
        gateway.swap(41)
    arrive(gateway, 5, 6, 7, 8, now_us=41)
    assert gateway.state is State.FLUSHING
    finish(gateway, batch, body, 50_000)
    assert gateway.state is State.FLUSHED
    assert not dispatches(gateway.frames())
    gateway.swap(60_000)
    ((_, later),) = dispatches(gateway.frames())
    assert later.requests == (5, 6, 7, 8)
    assert gateway.status()["generation"] == new.generation


def _ups(gateway: HeldGateway) -> Callable[[], None]:
    def report() -> None:
        for vgpu in range(3):
            gateway.workers.up(WorkerAddress(2, vgpu), 20)

    return report


def _sent_deferred(gateway: HeldGateway, now_us: int) -> list[SentFrame]:
    gateway.announcements.deferred.send(now_us)
    return gateway.frames()


def test_a_plan_is_announced_to_one_after_the_other(gateway: HeldGateway, tmp_path: Path) -> None:
    rollout(gateway, tmp_path, up=False)
    assert not gateway.frames()
    sent: list[SentFrame] = []
    while (now_us := gateway.announcements.deferred.due_us) is not None:
        assert not _sent_deferred(gateway, now_us - 1)
        one = _sent_deferred(gateway, now_us)
        assert len(one) == 1
        sent += one
    assert kinds(sent) == [Kind.PLAN, Kind.ADOPT, Kind.ADOPT, Kind.ADOPT]
    assert [one.to for one in sent] == [PAIR, *(WorkerAddress(1, vgpu) for vgpu in range(3))]


def test_an_abort_is_not_overtaken_by_what_was_to_be_announced(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    rollout(gateway, tmp_path)
    gateway.frames()
    gateway.abort(30)
    (told,) = gateway.frames()
    plan = unpack_plan(told.data[HEADER_BYTES:])
    assert (told.to, plan.generation, plan.prepared) == (PAIR, 1, False)
    sent: list[SentFrame] = []
    while (now_us := gateway.announcements.deferred.due_us) is not None:
        sent += _sent_deferred(gateway, now_us)
    assert kinds(sent) == [Kind.ADOPT] * 3
    adopts = [unpack_adopt(one.data[HEADER_BYTES:]) for one in sent]
    assert set(adopts) == {AdoptBody(1, 1)}


def test_an_abort_dispatches_what_waited_under_the_old_plan(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    rollout(gateway, tmp_path)
    gateway.flush(30)
    arrive(gateway, 1, 2, 3, 4, now_us=31)
    gateway.frames()
    gateway.abort(40)
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1, 2, 3, 4)
    assert gateway.status()["prepared"] is None


def test_a_flush_that_nobody_ends_is_aborted_while_what_waits_can_be_served(
    gateway: HeldGateway, tmp_path: Path
) -> None:
    rollout(gateway, tmp_path)
    slo_us = gateway.deployment.plan.models[0].slo_us
    gateway.flush(30)
    arrive(gateway, 1, 2, 3, 4, now_us=31)
    gateway.frames()
    gateway.look(40)
    gateway.look(40 + min(99_000, slo_us // 3 - 1))
    assert gateway.state is State.FLUSHED
    gateway.look(40 + max(100_000, slo_us // 3))
    ((_, body),) = dispatches(gateway.frames())
    assert body.requests == (1, 2, 3, 4)
    assert (gateway.state, gateway.status()["prepared"]) == (State.SERVING, None)
