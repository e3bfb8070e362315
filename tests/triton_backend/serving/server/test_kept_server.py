"""A server that begins, compiles, loads many models or fails to be looked at."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import PoolPipeError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serving.liveness.stubs import COMPILE_LIMIT_US, StubLook
from triton_backend.serving.server import kept_server
from triton_backend.serving.server.kept_server import KeptServer

SERVED = plan(two_stage("line"))


def endpoints() -> Endpoints:
    http, grpc, metrics = free_ports(3)
    return Endpoints(http=http, grpc=grpc, metrics=metrics)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has ten looks of a millisecond to become ready."""
    monkeypatch.setattr(kept_server, "WATCH_SECONDS", 0.001)
    monkeypatch.setattr(kept_server, "READY_SECONDS", 0.01)


class StartingServer:
    """A server that is ready once it was looked at so often; `look` is what it does meanwhile."""

    def __init__(self, ready_after: int) -> None:
        self._ready_after = ready_after
        self.looks = 0
        self.stopped = False

    def look(self) -> None: ...

    def is_there(self, timeout_s: float) -> bool:
        del timeout_s
        self.looks += 1
        self.look()
        return self.looks >= self._ready_after

    def get(self, path: str, timeout_s: float) -> int:
        del path, timeout_s
        return 200

    def ended(self) -> None:
        return None

    def stop(self, *_: object) -> None:
        self.stopped = True


class CompilingServer(StartingServer):
    """A model that compiles for `compiling` polls, then is ready if it ever becomes so.

    Args:
        step_us: from one look to the next, by the model's clock.
    """

    def __init__(self, pids: Path, compiling: int, ready_after: int, step_us: int = 1) -> None:
        super().__init__(ready_after)
        self._pids, self._compiling, self._step_us = pids, compiling, step_us

    def look(self) -> None:
        if self.looks <= self._compiling:
            (self._pids / "model").write_text(f"1 {self.looks * self._step_us} 0")


class LoadingServer(StartingServer):
    """A server with many models: one more of them has begun at every look."""

    def __init__(self, pids: Path, models: int) -> None:
        super().__init__(2 * models)
        self._pids, self._models = pids, models

    def look(self) -> None:
        if self.looks < self._models:
            (self._pids / f"m{self.looks}").touch()


@pytest.mark.usefixtures("impatient")
def test_a_server_with_many_models_is_waited_for_as_long_as_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(tmp_path, SERVED)
    (tmp_path / "pids").mkdir(exist_ok=True)
    noted: list[int] = []

    def note() -> None:
        noted.append(kept.models_begun)

    kept = KeptServer(deployment.settings, endpoints(), None, threading.Event(), note)
    loading = LoadingServer(tmp_path / "pids", 50)
    monkeypatch.setattr(kept, "_api", loading)
    with pytest.raises(PoolPipeError, match="is not ready"):  # no more of them begin then
        kept._wait_ready(cast("Any", loading))
    assert noted == [*range(1, 50)]
    assert loading.looks < 70
    assert loading.stopped


def test_a_file_is_read_again_when_its_stub_may_be_silent_or_a_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(tmp_path, SERVED)
    stopping = threading.Event()
    kept = KeptServer(deployment.settings, endpoints(), None, stopping, lambda: None)
    (tmp_path / "pids").mkdir(exist_ok=True)
    for name in ("beats", "silent"):
        (tmp_path / "pids" / name).touch()
    rounds = iter([[], [], [1], []])
    looks: list[list[str]] = []

    class Exits:
        def wait(self, _timeout_s: float) -> list[int]:
            looks.append([])
            ended = next(rounds, None)
            if ended is None:
                stopping.set()
            return ended or []

    class Stubs:
        def look(self, file: Path) -> StubLook:
            looks[-1].append(file.name)
            again_us = SystemClock().now_us() + 10**9 if file.name == "beats" else 0
            return StubLook(1, alive=True, complaint=None, again_us=again_us)

    monkeypatch.setattr(kept, "_exits", Exits())
    monkeypatch.setattr(kept, "_stubs", Stubs())
    for look in ("_watch_server", "_watch_beside", "_start_first"):
        monkeypatch.setattr(kept, look, list)
    kept.run()
    both = ["beats", "silent"]
    assert [sorted(one) for one in looks] == [both, ["silent"], both, ["silent"], ["silent"]]


@pytest.mark.usefixtures("impatient")
def test_a_server_that_compiles_is_waited_for_as_long_as_it_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(tmp_path, SERVED)
    (tmp_path / "pids").mkdir(exist_ok=True)
    noted: list[int | None] = []

    def note() -> None:
        noted.append(kept.compiled_us)

    ports = endpoints()
    kept = KeptServer(deployment.settings, ports, None, threading.Event(), note)
    patient = CompilingServer(tmp_path / "pids", compiling=50, ready_after=55)
    monkeypatch.setattr(kept, "_api", patient)
    kept._wait_ready(cast("Any", patient))
    assert (patient.looks, patient.stopped) == (55, False)
    assert [*dict.fromkeys(noted)] == [*range(1, 51)]
    silent = CompilingServer(tmp_path / "pids", compiling=5, ready_after=100)
    monkeypatch.setattr(kept, "_api", silent)
    with pytest.raises(PoolPipeError, match="is not ready"):
        kept._wait_ready(cast("Any", silent))
    assert silent.stopped
    endless = CompilingServer(
        tmp_path / "pids", compiling=100, ready_after=100, step_us=COMPILE_LIMIT_US // 10
    )
    monkeypatch.setattr(kept, "_api", endless)
    with pytest.raises(PoolPipeError, match="not ready: model has compiled for 1980 s, longer"):
        kept._wait_ready(cast("Any", endless))
    assert (endless.looks, endless.stopped) == (12, True)  # it might have become ready


def test_a_look_that_fails_in_an_unforeseen_way_ends_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All servers would be stopped with it. It is said once, with the place where it happened."""
    settings, stopping = deploy(tmp_path, SERVED).settings, threading.Event()
    kept = KeptServer(settings, endpoints(), None, stopping, lambda: None)
    kept._server = cast("Any", SimpleNamespace(pid=os.getpid(), ended=lambda: None))
    (tmp_path / "pids").mkdir(exist_ok=True)
    (tmp_path / "pids" / "line").touch()
    looks: list[str] = []

    def look(file: Path) -> None:
        looks.append(file.name)
        if len(looks) == 3:
            stopping.set()
        raise LookupError(file.name)

    monkeypatch.setattr(kept._stubs, "look", look)
    kept.run()
    assert looks == ["line"] * 3
    assert caplog.text.count("tritonserver: LookupError('line')") == 1
    assert "in _watch_stubs" in caplog.text
