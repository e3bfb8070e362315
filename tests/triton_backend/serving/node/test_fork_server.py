"""The process that forks workers, as a node uses it."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.serving.node.fork_server import MOST_FAILURES, Forked, ForkServer

pytestmark = pytest.mark.slow
# A worker that says what it was given, and ends as its argument says.
PROGRAM = """
import os, signal, sys
from triton_backend.serving.node.fork_server import become_worker, main

def work(arguments):
    open_here = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
    given = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OF_ALL"]
    print(arguments, *given, os.getppid(), open_here, flush=True)
    if arguments == ["wait"]:
        signal.pause()
    sys.exit(7)

made = main(sys.argv[1:])
if made is not None:
    become_worker(made, work)
"""
THREADED = """
import sys, threading
from triton_backend.serving.node.fork_server import main

threading.Thread(target=threading.Event().wait, daemon=True).start()
main(sys.argv[1:])
"""


def server_of(program: str, folder: Path) -> ForkServer:
    environment = {**os.environ, "OF_ALL": "all", "OPENBLAS_NUM_THREADS": "1"}
    return ForkServer((sys.executable, "-c", program), environment, (), folder / "server.log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    made = server_of(PROGRAM, tmp_path)
    loaded(made)
    yield made
    made.stop()


def loaded(server: ForkServer) -> None:
    server.look(0)
    assert server.is_loading
    wait_for(lambda: (server.look(0), not server.is_loading)[1])


def forked(server: ForkServer, folder: Path, *arguments: str, gpu: str = "3") -> Forked:
    with (folder / f"{gpu}.log").open("wb") as log:
        made = server.fork(arguments, {"CUDA_VISIBLE_DEVICES": gpu}, log.fileno())
    assert made is not None
    return made


def test_a_worker_is_a_child_of_the_node_with_its_own_settings_and_log(
    server: ForkServer, tmp_path: Path
) -> None:
    one = forked(server, tmp_path, "first", "1", gpu="0")
    other = forked(server, tmp_path, "second", gpu="1")
    assert (one.wait(), other.wait()) == (7, 7)
    own = os.getpid()
    assert (tmp_path / "0.log").read_text() == f"['first', '1'] 0 all {own} [0, 1, 2]\n"
    assert (tmp_path / "1.log").read_text() == f"['second'] 1 all {own} [0, 1, 2]\n"
    assert one.poll() == 7
    one.kill()  # the number may be another's by now


def test_a_worker_that_gives_way_begins_at_a_lower_priority(
    server: ForkServer, tmp_path: Path
) -> None:
    """So does its fork; the next one that is missed does not wait for it."""
    found: list[int] = []
    for give_way in (tmp_path, None, tmp_path):
        with (tmp_path / "log").open("wb") as log:
            made = server.fork(
                ["wait"], {"CUDA_VISIBLE_DEVICES": "1"}, log.fileno(), give_way=give_way
            )
        assert made is not None
        assert server.pid is not None
        found += [os.sched_getscheduler(made.pid), os.sched_getscheduler(server.pid)]
        made.kill()
        made.wait()
    assert found == 2 * [os.SCHED_BATCH] + 2 * [os.SCHED_OTHER] + 2 * [os.SCHED_BATCH]


def test_a_worker_outlives_the_server_which_is_replaced(server: ForkServer, tmp_path: Path) -> None:
    worker = forked(server, tmp_path, "wait")
    before = server.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: psutil.Process(before).status() == psutil.STATUS_ZOMBIE)
    with (tmp_path / "log").open("wb") as log:
        assert server.fork(["wait"], {}, log.fileno()) is None  # the node starts this one itself
    server.look(0)
    assert server.pid not in {None, before}
    assert not server.is_loading  # no second wait for it
    assert worker.poll() is None
    worker.kill()
    assert worker.wait() == -signal.SIGKILL
    wait_for(lambda: (server.look(0), server.can_fork)[1])
    again = forked(server, tmp_path, "wait")
    again.kill()
    assert again.wait() == -signal.SIGKILL


def test_a_server_that_hangs_is_ended_and_its_late_worker_never_runs(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = psutil.Process()
    others = [child for child in own.children() if child.pid != server.pid]
    monkeypatch.setattr("triton_backend.serving.node.fork_server.ANSWERS_WITHIN_MS", 0)
    with (tmp_path / "log").open("wb") as log:
        assert server.fork(["wait"], {"CUDA_VISIBLE_DEVICES": "1"}, log.fileno()) is None
    assert server.pid is None
    server.stop()

    def left() -> list[psutil.Process]:
        mine = [child for child in own.children() if child not in others]
        return [child for child in mine if child.status() != psutil.STATUS_ZOMBIE]

    wait_for(lambda: not left())
    assert (tmp_path / "log").read_text() == ""


def test_a_server_that_cannot_be_started_is_given_up_like_one_that_ends(tmp_path: Path) -> None:
    server = ForkServer(("/nowhere/python",), {}, (), tmp_path / "server.log")
    for _ in range(MOST_FAILURES + 1):
        server.look(0)
        assert (server.pid, server.is_loading) == (None, False)
    server.stop()


def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    server = server_of(THREADED, tmp_path)
    for _ in range(MOST_FAILURES):
        server.look(0)
        before = server.pid
        wait_for(lambda: (server.look(0), server.pid is None)[1])
        assert before is not None
    server.look(0)
    assert server.pid is None  # no retry
    server.stop()
    said = (tmp_path / "server.log").read_text().splitlines()
    assert set(said) == {"not forked: there are 2 threads after the imports of []"}


def test_a_runtime_is_imported_before(tmp_path: Path) -> None:
    """A failing import is left to the worker that needs it."""
    program = PROGRAM.replace("sys.exit(7)", 'print("onnxruntime" in sys.modules, flush=True)')
    environment = {**os.environ, "OF_ALL": "", "OPENBLAS_NUM_THREADS": "1"}
    command, names = (sys.executable, "-c", program), ("onnxruntime", "nothing")
    server = ForkServer(command, environment, names, tmp_path / "server.log")
    loaded(server)
    assert forked(server, tmp_path).wait() == 0
    server.stop()
    assert (tmp_path / "3.log").read_text().splitlines()[1] == "True"


def test_what_workers_read_is_read_before_they_are_forked(tmp_path: Path) -> None:
    """A failing read is left to the worker that needs it."""
    reading = """
read = []
def read_ahead(arguments):
    read.append(os.getpid())
    if "wrong" in arguments:
        raise ValueError(arguments)

made = main(sys.argv[1:], read_ahead)
"""
    program = PROGRAM.replace("made = main(sys.argv[1:])", reading)
    program = program.replace("sys.exit(7)", "print(read, flush=True)")
    server = server_of(program, tmp_path)
    loaded(server)
    assert [forked(server, tmp_path, how, gpu=how).wait() for how in ("wrong", "right")] == [0, 0]
    said = [(tmp_path / f"{how}.log").read_text().splitlines()[1] for how in ("wrong", "right")]
    assert said == [str([server.pid] * times) for times in (1, 2)]
    server.stop()


def test_the_server_ends_with_its_node() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = ("-m", "triton_backend.serving.node.fork_server", str(its.fileno()), str(os.getpid()))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with ours, its:
        process = psutil.Popen([sys.executable, *words], pass_fds=[its.fileno()], env=environment)
        its.close()
        assert ours.recv(10) == b"ready"
    assert process.wait() == 0
