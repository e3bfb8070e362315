"""The scheduler's thread and sockets, in a system whose parts are threads."""

import logging
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import WAIT_SECONDS, LocalSystem, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.wire import (
    Header,
    Kind,
    TimesBody,
    WorkerHello,
    frame,
    pack_hello,
    pack_times,
)
from triton_backend.serving.worker.process import StageWorker


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    yield made
    made.stop()


def test_requests_are_served_again_after_errors(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = system.scheduler

    def fail(_now_us: int) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(scheduler.gateway, "look", fail)
    wait_for(lambda: scheduler.gateway.counters.internal_errors >= 3)
    monkeypatch.undo()
    assert not isinstance(system.ask("pair", picture(4), PATIENT_US)(), Refusal)
    assert system.status()["counters"]["internal_errors"] >= 3


def test_a_call_that_was_not_answered_in_time_is_not_made_later(system: LocalSystem) -> None:
    scheduler = system.scheduler
    began, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def keep_busy() -> None:
        began.set()
        assert go_on.wait(WAIT_SECONDS)

    busy = threading.Thread(target=scheduler.call, args=(keep_busy, WAIT_SECONDS))
    busy.start()
    assert began.wait(WAIT_SECONDS)
    with pytest.raises(TimeoutError, match=r"^the scheduler did not answer within 0\.01 s$"):
        scheduler.call(lambda: ran.append("late"), 0.01)
    go_on.set()
    busy.join()
    scheduler.call(lambda: ran.append("in time"))
    assert ran == ["in time"]


def test_a_pace_of_another_generation_than_the_one_served_is_not_judged(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, tag = system.scheduler, system.scheduler.gateway.deployment.tag
    seen: list[int] = []

    def note(_worker: WorkerAddress, times: TimesBody, _now_us: int) -> None:
        seen.append(times.end_us)

    monkeypatch.setattr(scheduler.gateway.workers, "pace_result", note)

    def report(end_us: int, of: int) -> None:
        worker = next(
            connection
            for connection, names in scheduler._names.items()
            if isinstance(names[-1], WorkerAddress)
        )
        header = Header(Kind.PACE_RESULT, 0, 0, 0, 0, of, 0)
        scheduler.on_frame(worker, header, pack_times(TimesBody(0, 0, end_us)))

    for end_us, of in ((1, tag), (2, tag + 1), (3, tag)):
        scheduler.call(partial(report, end_us, of))
    assert seen == [1, 3]


def test_a_front_hears_a_beat_when_what_is_lost_has_changed_and_workers_hear_all(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[type, int] = {FrontService: 0, StageWorker: 0}
    for kind in heard:
        on_frame = kind.on_frame

        def noted(
            self: FrontService | StageWorker,
            connection: Connection,
            header: Header,
            body: bytes,
            on_frame: Any = on_frame,
            kind: type = kind,
        ) -> None:
            heard[kind] += header.kind is Kind.HEARTBEAT
            on_frame(self, connection, header, body)

        monkeypatch.setattr(kind, "on_frame", noted)

    def after_beats() -> int:
        """Those that the front heard while its workers heard some."""
        heard.update(dict.fromkeys(heard, 0))
        wait_for(lambda: heard[StageWorker] >= 3 * len(system.workers))
        return heard[FrontService]

    wait_for(lambda: after_beats() == 0)
    lost = {"pool": 1}
    monkeypatch.setattr(system.scheduler.gateway.workers, "lost_vgpus", lambda: lost)
    assert after_beats() == 1
    assert system.fronts["pair"].lost == lost
    assert after_beats() == 0


def test_a_worker_that_a_rollout_ends_is_no_warning(
    system: LocalSystem, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = system.deployment.generation

    def leave(generation: int, noted: str) -> str:
        """The level at which the scheduler notes that a worker of a generation went."""
        caplog.clear()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(system.settings.scheduler_address().removeprefix("unix:"))
            peer.sendall(frame(Kind.HELLO, pack_hello(WorkerHello(generation, 0))))
            address = WorkerAddress(generation, 0)
            wait_for(lambda: address in system.scheduler._peers)
        wait_for(lambda: noted in caplog.text)
        return next(r.levelname for r in caplog.records if noted in r.getMessage())

    assert leave(served - 1, "worker ended") == "INFO"
    assert leave(served, "worker lost") == "WARNING"
