"""The seat of the scheduler, and takeovers.

Schedulers are threads of one process here.
"""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway, arrive, dispatches
from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.repository import CONTROL_MODEL, STANDBY_MODEL
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.peers.addresses import StandbyAddress, WorkerAddress
from triton_backend.serving.gateway.service import NotActiveError, SchedulerService
from triton_backend.serving.gateway.standby import COURTESY_US, SEAT_NAME, SchedulerLock, Standby
from triton_backend.serving.liveness.limits import SILENT_US
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.wire import (
    BATCH_BITS,
    FrameError,
    FrontHello,
    Header,
    Kind,
    PlanBody,
    StandbyHello,
    frame,
    pack_dispatch,
    pack_hello,
    pack_plan,
)
from triton_backend.serving.worker.scheduler_link import GatewayTime, SchedulerLink

STATUS = json.dumps({"command": "status"})
HELD_US = 1_000
EXPRESS_IS_LEFT_OUT = ServeOptions(emulate_links=False)


# The seat


def test_one_at_a_time_has_the_seat_and_every_life_has_its_number(tmp_path: Path) -> None:
    seats = [SchedulerLock(tmp_path, HELD_US) for _ in range(3)]
    first = seats[0].take(5_000_000)
    assert first is not None
    assert (first.number, first.slots_used_until_us) == (5, 0)
    assert [seat.take(5_000_000) for seat in seats] == [None, None, None]
    lives = [first]
    for before, seat in pairwise(seats):
        before.release()
        life = seat.take(5_000_100)
        assert life is not None
        lives.append(life)
    assert [life.number for life in lives] == [5, 6, 7]
    # The third has the first one's slots, whose batches may be running: it ended at 5,000,100.
    assert [life.slots_used_until_us for life in lives[1:]] == [5_000_000 + HELD_US, 5_001_100]


def test_lives_are_odd_and_even_in_turn_however_late_the_next_comes(tmp_path: Path) -> None:
    numbers: list[int] = []
    for now_us in (7_000_000, 9_000_000, 20_000_000, 20_000_000):
        seat = SchedulerLock(tmp_path, HELD_US)
        life = seat.take(now_us)
        assert life is not None
        numbers.append(life.number)
        seat.release()
    assert numbers == [7, 10, 21, 22]


@pytest.mark.parametrize("text", ["", "nonsense", "12", "1 2 3", "x" * 500])
def test_a_seat_whose_file_says_nothing_is_taken_all_the_same(tmp_path: Path, text: str) -> None:
    (tmp_path / SEAT_NAME).write_text(text)
    assert SchedulerLock(tmp_path, HELD_US).take(3_000_000) == (3, 3_000_000, 0)


# Lives keep out of each other's way


def test_two_lives_grant_none_of_each_others_slots(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    granted: list[set[tuple[int, int]]] = []
    for epoch in (6, 7):
        gateway = HeldGateway(deployment, epoch=epoch)
        for vgpu in deployment.vgpus:
            gateway.workers.up(WorkerAddress(1, vgpu.index), 0)
        arrive(gateway, *range(3 * BATCH))
        bodies = [body for _, body in dispatches(gateway.frames())]
        granted.append({(h.vgpu, s) for b in bodies for h, s in zip(b.hops, b.slots, strict=True)})
    assert all(granted)
    assert not granted[0] & granted[1]
    assert all(slot < deployment.segment_slots(vgpu) for vgpu, slot in granted[0] | granted[1])


def test_slots_that_may_be_in_use_are_granted_later(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    gateway = HeldGateway(deployment, epoch=6, slots_free_us=50_000)
    for vgpu in deployment.vgpus:
        gateway.workers.up(WorkerAddress(1, vgpu.index), 0)
    arrive(gateway, *range(BATCH))
    gateway.look(49_999)
    assert (dispatches(gateway.frames()), gateway.in_flight) == ([], 1)
    gateway.look(50_000)
    assert len(dispatches(gateway.frames())) == 1


class Scheduler:
    """Plays the scheduler for a front, over a socket."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address.removeprefix("unix:"))
        self._listener.listen()
        self.front, _ = self._listener.accept()
        while b'"model"' not in self.front.recv(1 << 16):  # a worker
            self.front.close()
            self.front, _ = self._listener.accept()

    def dispatch(self, life: int, tag: int) -> None:
        """A batch of a request that is unknown."""
        body = pack_dispatch(0, 1, (), (), (1,))
        data = frame(Kind.DISPATCH, body, batch_id=life << BATCH_BITS, plan_tag=tag)
        self.front.sendall(data)

    def is_refused(self) -> bool:
        """True if the front ends the connection."""
        self.front.settimeout(20)
        while data := self.front.recv(1 << 16):
            assert data
        return True

    def close(self) -> None:
        self.front.close()
        self._listener.close()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", plan(two_stage()), EXPRESS_IS_LEFT_OUT)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_front_refuses_what_an_older_life_dispatches(system: LocalSystem) -> None:
    front, address = system.fronts["pair"], system.settings.scheduler_address()
    system.scheduler.stop()
    scheduler = Scheduler(address)
    refused = front.counters.frames_refused
    for life in (90_000_008, 90_000_009, 90_000_008):
        scheduler.dispatch(life, system.deployment.tag)
    assert scheduler.is_refused()
    scheduler.close()
    wait_for(lambda: front.counters.frames_refused == refused + 1)


def test_a_worker_refuses_what_an_older_life_sends(system: LocalSystem) -> None:
    loop = EventLoop(SilentHandler(), system.clock, b"key")
    link = SchedulerLink(loop, system.deployment, 0, GatewayTime(system.clock))
    for life in (8, 9, 9):
        link.check_life(life << BATCH_BITS)
    with pytest.raises(FrameError, match="life 8"):
        link.check_life((8 << BATCH_BITS) + 5)
    loop.close()


class JumpingClock(SystemClock):
    """A clock that jumps when asked to."""

    later_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.later_us


@pytest.mark.parametrize("name", [CONTROL_MODEL, STANDBY_MODEL])
def test_a_scheduler_compiles_before_it_has_the_seat_and_shows_that_it_lives(
    tmp_path: Path, name: str
) -> None:
    deployment = deploy(tmp_path, plan(two_stage()), ServeOptions())
    folder = deployment.settings.socket_folder
    folder.mkdir(parents=True, exist_ok=True)
    clock, compiled = JumpingClock(), list[Deployment]()

    def compile_for_a_minute(served: Deployment) -> None:
        clock.later_us += 60_000_000
        assert standby.alive_us() >= clock.now_us() - SILENT_US
        assert standby.compiles_since_us is not None
        assert clock.now_us() - standby.compiles_since_us >= 60_000_000
        other = SchedulerLock(folder, HELD_US)
        assert other.take(clock.now_us()) is not None
        other.release()
        compiled.append(served)

    standby = Standby(deployment, name, clock, SchedulerLock(folder, HELD_US), compile_for_a_minute)
    if name == STANDBY_MODEL:  # leaves it to the other one first
        assert standby.take_seat() is None
        assert not compiled
        clock.later_us += COURTESY_US
    assert standby.take_seat() is not None
    assert standby.alive_us() >= clock.now_us() - SILENT_US
    assert compiled == [deployment]
    assert standby.compiles_since_us is None
    standby.close()


class SilentHandler:
    """Hears nothing."""

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None: ...

    def on_close(self, connection: Connection, reason: CloseReason) -> None: ...

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        del connection, header, body
        return []


# A standby beside the scheduler


def standby_of(system: LocalSystem) -> SchedulerService:
    """A second scheduler, once the first knows of it."""
    made = SchedulerService(system.settings, system.deployment, system.clock, STANDBY_MODEL)
    made.start()
    wait_for(lambda: system.status()["scheduler"]["standby"] == "ready")
    return made


def take_over(system: LocalSystem, standby: SchedulerService) -> None:
    """End the scheduler; the standby is it from then on."""
    system.scheduler.stop()
    system.scheduler = standby
    wait_for(lambda: standby.is_active)
    wait_for(lambda: system.status()["workers"]["up"] == len(system.deployment.vgpus))


def test_only_one_of_two_is_the_scheduler(system: LocalSystem) -> None:
    assert system.status()["scheduler"]["standby"] == "not ready"
    standby = standby_of(system)
    with pytest.raises(NotActiveError, match="is the standby"):
        standby.control(STATUS)
    life = system.status()["scheduler"]["life"]
    take_over(system, standby)
    assert system.status()["scheduler"] == {
        "active": STANDBY_MODEL,
        "life": life + 1,
        "standby": "not ready",
    }


@pytest.mark.long
def test_what_waits_and_what_runs_is_answered_when_the_scheduler_ends(
    system: LocalSystem,
) -> None:
    standby = standby_of(system)
    running = [system.ask("pair", picture(1), PATIENT_US) for _ in range(2 * BATCH)]
    wait_for(lambda: system.status()["in_flight"] == 2)
    waiting = [system.ask("pair", picture(1), PATIENT_US) for _ in range(2)]
    take_over(system, standby)
    answers = [ask() for ask in (*running, *waiting)]
    assert not [answer.message for answer in answers if isinstance(answer, Refusal)]
    assert system.status()["counters"]["batches"] == {"pair": 1}  # the others were not run again


@pytest.mark.slow
def test_workers_on_other_hosts_find_the_next_scheduler(tmp_path: Path) -> None:
    hosts = {"FAST": "127.0.0.2", "SLOW": "127.0.0.3"}
    options = ServeOptions(emulate_links=False, hosts=hosts, base_port=18_240)
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), options)
    standby = standby_of(system)
    asked = [system.ask("pair", picture(1), PATIENT_US) for _ in range(2 * BATCH)]
    wait_for(lambda: system.status()["in_flight"] == 2)
    take_over(system, standby)
    asked += [system.ask("pair", picture(1), PATIENT_US) for _ in range(BATCH)]
    assert not [answer for ask in asked if isinstance(answer := ask(), Refusal)]
    system.stop()


@pytest.mark.long
@pytest.mark.parametrize("step", ["prepare", "abort", "swap"])
def test_the_standby_follows_a_change_of_plan(system: LocalSystem, step: str) -> None:
    following = replace(system.deployment.plan, plan_id="next")
    deploy(system.settings.folder, following, generation=2)
    standby = standby_of(system)
    system.control("prepare", plan_id="next", generation=2)
    wait_for(lambda: system.status()["prepared"]["up"] == len(system.deployment.vgpus))
    if step != "prepare":
        system.control(step, plan_id="next")
    before = system.status()
    take_over(system, standby)
    after = system.status()
    assert (after["plan_id"], after["generation"]) == (before["plan_id"], before["generation"])
    if step == "prepare":
        wait_for(lambda: system.status()["prepared"] == before["prepared"])
        system.control("swap", plan_id="next")
    assert system.status()["prepared"] is None
    assert system.status()["plan_id"] == ("test-plan" if step == "abort" else "next")
    assert not isinstance(system.ask("pair", picture(1), PATIENT_US)(), Refusal)


def test_a_standby_may_say_nothing_but_that_it_is_there(system: LocalSystem) -> None:
    refused = system.scheduler.gateway.counters.frames_refused
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(system.settings.scheduler_address().removeprefix("unix:"))
    peer.sendall(frame(Kind.HELLO, pack_hello(StandbyHello("other"))))
    peer.sendall(frame(Kind.HELLO, pack_hello(FrontHello("pair"))))
    wait_for(lambda: system.scheduler.gateway.counters.frames_refused == refused + 1)
    peer.close()


def test_a_plan_that_could_not_be_read_is_read_with_a_later_heartbeat(
    system: LocalSystem, caplog: pytest.LogCaptureFixture
) -> None:
    standby = standby_of(system)
    data = frame(Kind.PLAN, pack_plan(PlanBody(2, "next", prepared=True)))
    to = StandbyAddress(STANDBY_MODEL)
    system.scheduler.call(lambda: system.scheduler._send(to, data))
    wait_for(lambda: "generation 2" in caplog.text)
    assert standby._standby.prepared is None
    following = replace(system.deployment.plan, plan_id="next")
    deploy(system.settings.folder, following, generation=2)
    wait_for(lambda: standby._standby.prepared is not None)
    assert caplog.text.count("generation 2: ") == 1
    standby.stop()


def test_a_standby_is_ready_for_the_generation_that_it_has_read(system: LocalSystem) -> None:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(system.settings.scheduler_address().removeprefix("unix:"))
    for generation, state in ((1, "ready"), (2, "not ready"), (1, "ready")):
        peer.sendall(frame(Kind.HELLO, pack_hello(StandbyHello("other", generation))))
        wait_for(lambda state=state: system.status()["scheduler"]["standby"] == state)
    peer.close()


def test_a_standby_that_comes_again_before_its_end_was_heard_is_ready(system: LocalSystem) -> None:
    hello = frame(Kind.HELLO, pack_hello(StandbyHello("other", 1)))
    peers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for peer in peers:
        peer.connect(system.settings.scheduler_address().removeprefix("unix:"))
        peer.sendall(hello)
        wait_for(lambda: system.status()["scheduler"]["standby"] == "ready")
    assert peers[0].recv(1 << 16)  # plans
    while peers[0].recv(1 << 16):  # until the scheduler has ended it
        pass
    assert system.status()["scheduler"]["standby"] == "ready"
    for peer in peers:
        peer.close()
