"""The process that keeps a real Triton well.

Hung, stuck, killed, overfed, and left alone itself.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.release.server.admin import check_can_start, start, stop, take_over
from flows.release.server.running import (
    ServerError,
    ServerState,
    read_state,
    served_without_keeper,
    status,
)
from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import BATCH, model, plan, stage
from tests.triton_backend.serving.system import deploy, processes_of, wait_for
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.state import command_line, read_state_file
from triton_backend.serving.liveness.processes import COMPILE_LIMIT_US, StubLook
from triton_backend.serving.server import tritonserver

pytestmark = pytest.mark.slow
NAME = "bare"
SERVED = plan(model(NAME, (stage((0, 10), "FAST", 0),)))
STUCK_MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        with open({path!r}) as fifo:  # until a writer comes
            fifo.read()

    def execute(self, requests):
        return []
"""


def endpoints() -> Endpoints:
    http, grpc, metrics = free_ports(3)
    return Endpoints(http=http, grpc=grpc, metrics=metrics)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of one system for all tests, each of which leaves it whole; the last one stops it."""
    folder = tmp_path_factory.mktemp("serve")
    render_repository(folder, SERVED, ServeOptions())
    start(folder, endpoints())
    yield folder
    stop(folder)


@pytest.fixture
def state(folder: Path) -> ServerState:
    """As its file has it now."""
    return read_state(folder)


def answers(state: ServerState, model: str = NAME) -> bool:
    # A full batch: a smaller one waits for company until the last moment.
    given = grpc_client.InferInput("input", [BATCH, 4096], "UINT8")
    given.set_data_from_numpy(np.zeros((BATCH, 4096), np.uint8))
    with (
        contextlib.suppress(InferenceServerException),
        grpc_client.InferenceServerClient(state.grpc_url) as client,
    ):
        return client.infer(model, [given], timeout=2_000_000, client_timeout=3.0) is not None
    return False


def stub_pid(state: ServerState, name: str) -> int | None:
    """The process of a model; None while its file is made again."""
    try:
        words = (state.folder / "pids" / name).read_text().split()
    except FileNotFoundError:
        return None
    return int(words[0]) if words else None


def kill_stub(state: ServerState, name: str) -> Callable[[], bool]:
    """Kill the process of a model; the answer says whether there is another."""
    first = stub_pid(state, name)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    return lambda: stub_pid(state, name) not in (None, first)


def keeper_log(state: ServerState) -> str:
    return (state.folder / "logs" / "server.log").read_text()


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


def test_a_server_with_many_models_is_waited_for_as_long_as_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritonserver, "WATCH_SECONDS", 0.001)
    monkeypatch.setattr(tritonserver, "READY_SECONDS", 0.01)
    deployment = deploy(tmp_path, SERVED, ServeOptions())
    (tmp_path / "pids").mkdir(exist_ok=True)
    noted: list[int] = []

    def note() -> None:
        noted.append(kept.models_begun)

    kept = tritonserver.KeptServer(deployment.settings, endpoints(), None, threading.Event(), note)
    loading = LoadingServer(tmp_path / "pids", 50)
    monkeypatch.setattr(kept, "_api", loading)
    with pytest.raises(PoolPipeError, match="is not ready"):  # no more of them begin then
        kept._wait_ready(cast("tritonserver.TritonServer", loading))
    assert noted == [*range(1, 50)]
    assert loading.looks < 70
    assert loading.stopped


def test_a_file_is_read_again_when_its_stub_may_be_silent_or_a_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(tmp_path, SERVED, ServeOptions())
    stopping = threading.Event()
    kept = tritonserver.KeptServer(deployment.settings, endpoints(), None, stopping, lambda: None)
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


def test_a_server_that_compiles_is_waited_for_as_long_as_it_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritonserver, "WATCH_SECONDS", 0.001)
    monkeypatch.setattr(tritonserver, "READY_SECONDS", 0.01)
    deployment = deploy(tmp_path, SERVED, ServeOptions())
    (tmp_path / "pids").mkdir(exist_ok=True)
    noted: list[int | None] = []

    def note() -> None:
        noted.append(kept.compiled_us)

    ports = endpoints()
    kept = tritonserver.KeptServer(deployment.settings, ports, None, threading.Event(), note)
    patient = CompilingServer(tmp_path / "pids", compiling=50, ready_after=55)
    monkeypatch.setattr(kept, "_api", patient)
    kept._wait_ready(cast("tritonserver.TritonServer", patient))
    assert (patient.looks, patient.stopped) == (55, False)
    assert [*dict.fromkeys(noted)] == [*range(1, 51)]
    silent = CompilingServer(tmp_path / "pids", compiling=5, ready_after=100)
    monkeypatch.setattr(kept, "_api", silent)
    with pytest.raises(PoolPipeError, match="is not ready"):
        kept._wait_ready(cast("tritonserver.TritonServer", silent))
    assert silent.stopped
    endless = CompilingServer(
        tmp_path / "pids", compiling=100, ready_after=100, step_us=COMPILE_LIMIT_US // 10
    )
    monkeypatch.setattr(kept, "_api", endless)
    with pytest.raises(PoolPipeError, match="not ready: model has compiled for 1980 s, longer"):
        kept._wait_ready(cast("tritonserver.TritonServer", endless))
    assert (endless.looks, endless.stopped) == (12, True)  # it might have become ready


def post(state: ServerState, body: bytes, *headers: str) -> int:
    """The status of an infer with a body as it goes over the wire; 0 without an answer."""
    host, port = state.http_url.split(":")
    head = [f"POST /v2/models/{NAME}/infer HTTP/1.1", f"Host: {host}", *headers]
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=60) as connection,
    ):
        connection.sendall(("\r\n".join(head) + "\r\n\r\n").encode(errors="surrogateescape") + body)
        return int(connection.recv(64).split()[1])
    return 0


def nested(levels: int) -> bytes:
    return b'{"inputs":[{"name":"input","shape":[1,4096],"datatype":"UINT8","data":' + (
        b"[" * levels + b"]" * levels + b"}]}"
    )


def test_bodies_that_end_the_server_with_a_usual_stack_are_answered(state: ServerState) -> None:
    pid, form = int(state.data["triton_pid"]), b"a=" + b"b" * 6_000_000
    chunks = b"1\r\nx\r\n" * 600_000 + b"0\r\n\r\n"
    deep = nested(100_000)
    codes = {
        "deep": post(state, deep, f"Content-Length: {len(deep)}"),
        "form": post(
            state,
            form,
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(form)}",
        ),
        "chunks": post(state, chunks, "Transfer-Encoding: chunked"),
    }
    assert codes == {"deep": 500, "form": 500, "chunks": 500}  # Triton's own parser
    assert read_state(state.folder).data["triton_pid"] == pid
    assert psutil.Process(pid).rlimit(psutil.RLIMIT_STACK)[0] == 1 << 30
    assert answers(state)
    assert "ended with" not in keeper_log(state)


def test_texts_that_are_no_utf8_are_answered(state: ServerState) -> None:
    # Triton hands them on as they are, and waits for an answer for as long as its client does.
    sizes = b'"shape":[1,4096],"datatype":"UINT8","data":[' + b"0," * 4095 + b"0]"
    inputs = b'"inputs":[{"name":"input",' + sizes + b"}]}"
    bodies = {
        "parameter": b'{"parameters":{"any":"\xff"},' + inputs,
        "id": b'{"id":"\xff",' + inputs,
    }
    codes = {
        what: post(state, body, f"Content-Length: {len(body)}") for what, body in bodies.items()
    }
    plain = b"{" + inputs
    header = "traceparent: \udcff", f"Content-Length: {len(plain)}"
    assert codes | {"header": post(state, plain, *header)} == dict.fromkeys(
        ("parameter", "id", "header"), 400
    )
    assert answers(state)


def test_the_keepers_own_stack_stays_as_it_was(state: ServerState) -> None:
    keeper = psutil.Process(int(state.data["pid"]))
    assert keeper.rlimit(psutil.RLIMIT_STACK) == resource.getrlimit(resource.RLIMIT_STACK)


def test_a_load_that_hangs_hides_no_other_death(state: ServerState, tmp_path: Path) -> None:
    """A stub of `stuck` is dead, and its load never ends; the front's stub dies meanwhile."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    place = state.folder / "repository" / "stuck" / "1"
    place.mkdir(parents=True)
    config = (state.folder / "repository" / NAME / "config.pbtxt").read_text()
    (place.parent / "config.pbtxt").write_text(config.replace(f'name: "{NAME}"', 'name: "stuck"'))
    (place / "model.py").write_text(STUCK_MODEL.format(path=str(fifo)))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    (state.folder / "pids" / "stuck").write_text(f"{ended.pid} 1")
    wait_for(lambda: "stuck is reloaded" in keeper_log(state))
    another = kill_stub(state, NAME)
    try:
        wait_for(another)
        wait_for(lambda: answers(state))
        assert "tritonserver ended" not in keeper_log(state)
    finally:
        (state.folder / "pids" / "stuck").unlink(missing_ok=True)
        shutil.rmtree(place.parent)
        with contextlib.suppress(OSError):
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def test_a_server_that_hangs_is_started_anew(state: ServerState) -> None:
    hung = int(state.data["triton_pid"])
    os.kill(hung, signal.SIGSTOP)

    def another() -> bool:
        data = read_state(state.folder).data
        return data["triton_pid"] != hung and data["ready"]

    wait_for(another)
    wait_for(lambda: answers(state))
    assert "tritonserver is killed: no answer to" in keeper_log(state)
    assert "tritonserver ended with -9, restarted" in keeper_log(state)
    found = status(state.folder)
    assert (found["keeper"], found["restarts"]) == ("runs", 1)
    assert found["restarted"] is not None


def test_what_a_machine_that_went_down_left_is_no_obstacle(state: ServerState) -> None:
    """Everything was killed at once, and the state file lies there."""
    killed: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == state.data["process_group"]:
                process.kill()
                killed.append(process)
    # A server that is about to end resets connections, which is no answer of a system that is gone.
    wait_for(lambda: not any(command_line(process.pid) for process in killed))
    with pytest.raises(InputError, match="left of a system that was killed"):
        status(state.folder)
    segments = f"poolpipe-{state.data['instance']}-*"
    assert list(Path("/dev/shm").glob(segments))
    ports = endpoints()
    check_can_start(state.folder, ports)
    stop(state.folder)
    assert not list(Path("/dev/shm").glob(segments))
    render_repository(state.folder, SERVED, ServeOptions())
    # Its next server is killed while it loads, as by a crash of its own, and restarted.
    crashed: list[int] = []

    def crash_once() -> None:
        def its_process() -> int:
            return int((read_state_file(state.folder) or {}).get("triton_pid") or 0)

        wait_for(lambda: its_process() > 0)
        crashed.append(its_process())
        os.kill(crashed[0], signal.SIGKILL)

    crashing = threading.Thread(target=crash_once)
    crashing.start()
    again = start(state.folder, ports)
    crashing.join()
    assert (again.data["triton_pid"] != crashed[0], again.data["restarts"]) == (True, 1)
    assert answers(again)


def test_a_killed_keeper_shows_and_the_next_one_takes_the_server_over(
    folder: Path, state: ServerState
) -> None:
    """The last test of the system, which it stops."""
    server = int(state.data["triton_pid"])
    assert served_without_keeper(folder) is None
    with pytest.raises(InputError, match="no server whose keeper is gone"):
        take_over(folder)
    os.kill(int(state.data["pid"]), signal.SIGKILL)
    wait_for(lambda: served_without_keeper(folder) == SERVED.plan_id)
    found = status(folder)
    assert (found["keeper"].split(",")[0], found["state"]) == ("is gone", "serving")
    with pytest.raises(InputError, match="its keeper is gone: `poolpipe serve`"):
        check_can_start(folder, endpoints())
    taken = take_over(folder)
    assert (taken.data["triton_pid"], status(folder)["keeper"]) == (server, "runs")
    assert answers(state)
    # It keeps a server well that is no child of its own: a stub first, then the server itself.
    wait_for(kill_stub(state, NAME))
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: read_state(folder).data["triton_pid"] != server and answers(state))
    assert "tritonserver ended with an unknown code, restarted" in keeper_log(state)
    groups = {taken.data["process_group"], taken.data["server_group"]}
    assert len(groups) == 2
    assert stop(folder)
    assert processes_of(groups) == []


def test_the_wheels_server_listens_beyond_loopback_only_when_told(tmp_path: Path) -> None:
    render_repository(tmp_path, SERVED, ServeOptions())
    for wrong in (Endpoints(address="0.0.0.0"), Endpoints(metrics_address="10.1.2.3")):
        with pytest.raises(InputError, match=r"Triton 2\.51 of 2024.*--accept-old-server"):
            start(tmp_path, wrong)
    arguments = Endpoints(address="0.0.0.0").arguments()
    command = [sys.executable, "-m", "triton_backend.serving.server.tritonserver", "start"]
    refused = subprocess.run(
        [*command, f"--folder={tmp_path}", *arguments], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, "--accept-old-server" in refused.stderr) == (2, True)


def test_a_folder_for_sockets_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    settings = render_repository(tmp_path, SERVED, ServeOptions())
    settings.socket_folder.mkdir(mode=0o755)
    try:
        with pytest.raises((InputError, ServerError), match="is open to others"):
            start(tmp_path, endpoints())
    finally:
        settings.socket_folder.rmdir()
