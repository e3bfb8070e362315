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
from tests.triton_backend.serving.system import processes_of, wait_for
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.state import command_line, read_state_file

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
