"""Processes that count as dead, hung or busy.

Workers by their node, model processes by the server.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy, owners, wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness import processes
from triton_backend.serving.liveness.processes import (
    COMPILE_LIMIT_US,
    HUNG_AT_LEAST_US,
    SILENT_US,
    STALL_US,
    STUCK_LOOKS,
    STUCK_US,
    Compiling,
    ExitWatch,
    HealthBoard,
    HealthWatch,
    Starvation,
    StubHeartbeat,
    StubLook,
    StubWatch,
    ThreadUse,
    compiling,
    end_with,
    is_alive,
    thread_states,
    thread_uses,
)

NOW_US = 10**9
BATCH_US = 5_000
LOOK_US = STALL_US // 5
WANTS_TO_RUN = os.getpid()  # this very thread
# Belongs to a server too, once its main thread, which takes no signal before, has gone on.
OWNED = """
import ctypes, os, sys, threading, time
from triton_backend.serving.liveness.processes import OwnerWatch, end_with_parent

parent, server = map(int, sys.argv[1:])
end_with_parent(parent)
owners, libc, mutex = OwnerWatch(parent), ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)

def asleep():
    return open("/proc/self/stat").read().rpartition(")")[2].split()[0] == "S"

def other():
    seen = 0
    while seen < 20:  # the main thread waits for the mutex, not only for its turn
        time.sleep(0.01)
        seen = seen + 1 if asleep() else 0
    owners.add(server)
    print("added", flush=True)
    sys.stdin.readline()
    libc.pthread_mutex_unlock(mutex)

threading.Thread(target=other).start()
libc.pthread_mutex_lock(mutex)  # no signal ends it
threading.Event().wait()
"""
# Belongs to a server too, though the signal that was to say so never came.
UNHEARD = """
import ctypes, signal, sys, threading
from triton_backend.serving.liveness.processes import OwnerWatch, end_with_parent

parent, server = map(int, sys.argv[1:])
end_with_parent(parent)
owners = OwnerWatch(parent)
handler = signal.getsignal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
owners.add(server)
signal.signal(signal.SIGUSR1, handler)
print("added", flush=True)
threading.Event().wait()
"""
PARENT = """
import os, signal, subprocess, sys
code, server = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), server], stdin=0, stdout=1)
signal.pause()
"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[HealthBoard]:
    made = HealthBoard.open(deploy(tmp_path, plan(two_stage()), ServeOptions()), "FAST")
    yield made
    made.remove()


@pytest.fixture
def waiting() -> Iterator[int]:
    """A process of which no thread wants to run."""
    with subprocess.Popen(["sleep", "600"]) as process:
        wait_for(lambda: thread_states(process.pid) == {"S"})
        yield process.pid
        process.kill()


def looked(watch: HealthWatch, from_us: int, till_us: int) -> HealthWatch:
    """Look now and then from the first instant on, and at the last."""
    for now_us in (*range(from_us, till_us, LOOK_US), till_us):
        watch.look(now_us)
    return watch


@pytest.mark.slow
def test_who_is_silent_is_hung_sooner_when_no_thread_wants_to_run(
    board: HealthBoard, waiting: int
) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + STUCK_US)
    assert watch.complaint(0, waiting) is None  # it is loading
    board.rows[0, 0] = NOW_US
    assert watch.complaint(0, waiting) is None
    watch.look(NOW_US + STUCK_US + 1)
    assert "no heartbeat" in (watch.complaint(0, waiting) or "")
    assert watch.complaint(0, WANTS_TO_RUN) is None
    looked(watch, NOW_US + STUCK_US + 1, NOW_US + SILENT_US + 1)
    assert "no heartbeat" in (watch.complaint(0, WANTS_TO_RUN) or "")


@pytest.mark.slow
def test_a_batch_that_never_ends_is_told_from_a_long_one(board: HealthBoard, waiting: int) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + BATCH_US + HUNG_AT_LEAST_US)
    board.row(0).busy(NOW_US, BATCH_US)
    assert watch.complaint(0, waiting) is None
    watch.look(NOW_US + BATCH_US + HUNG_AT_LEAST_US + 1)
    assert "busy for" in (watch.complaint(0, waiting) or "")
    board.row(0).idle()
    assert watch.complaint(0, waiting) is None


@pytest.mark.slow
def test_a_run_whose_time_depends_on_its_input_is_waited_for(
    board: HealthBoard, waiting: int
) -> None:
    for patience_us, last_us in ((3_000_000, 3_000_000), (60_000_000, SILENT_US)):
        watch = looked(HealthWatch(board), NOW_US, NOW_US + last_us)
        board.row(0).busy(NOW_US, BATCH_US, patience_us=patience_us)
        assert watch.complaint(0, waiting) is None
        watch.look(NOW_US + last_us + 1)
        assert "busy for" in (watch.complaint(0, waiting) or "")
    board.row(0).busy(NOW_US, BATCH_US)
    assert "busy for" in (watch.complaint(0, waiting) or "")


def test_a_batch_whose_worker_has_no_processor_is_waited_for(board: HealthBoard) -> None:
    """Time is told, and far ahead of what this process runs.

    So it wants a processor and has none.
    """
    watch = HealthWatch(board)
    board.row(0).busy(NOW_US, BATCH_US)
    last_us = NOW_US + 10 * HUNG_AT_LEAST_US
    for now_us in range(NOW_US, last_us, LOOK_US):
        watch.look(now_us)
        assert watch.complaint(0, WANTS_TO_RUN) is None
    board.row(0).busy(last_us, BATCH_US)  # another: what went before says nothing of it
    watch.look(last_us + BATCH_US)
    assert watch.complaint(0, WANTS_TO_RUN) is None


def test_who_wants_a_processor_and_has_none_is_starved() -> None:
    starvation = Starvation()
    runs, waits, sleeps = 1, 2, 3
    looks = (
        {
            runs: ThreadUse(wants=True, ran_us=0),
            waits: ThreadUse(wants=True, ran_us=7),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {
            runs: ThreadUse(wants=True, ran_us=100),
            waits: ThreadUse(wants=True, ran_us=7),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {
            runs: ThreadUse(wants=True, ran_us=200),
            waits: ThreadUse(wants=True, ran_us=47),
            sleeps: ThreadUse(wants=False, ran_us=0),
        },
        {runs: ThreadUse(wants=True, ran_us=300), sleeps: ThreadUse(wants=False, ran_us=0)},
        {
            runs: ThreadUse(wants=True, ran_us=320),
            sleeps: ThreadUse(wants=False, ran_us=0),
            4: ThreadUse(wants=True, ran_us=0),
        },
        {},
    )
    assert [starvation.look(one, NOW_US + 100 * n) for n, one in enumerate(looks)] == [
        *(0, 100, 160, 160, 240, 240)
    ]


@pytest.mark.slow
def test_threads_are_seen_to_run_to_wait_and_to_stand_still() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        wait_for(lambda: any(t.wants and t.ran_us for t in thread_uses(process.pid).values()))
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: not any(t.wants for t in thread_uses(process.pid).values()))
        process.kill()
    assert thread_uses(process.pid) == {}


@pytest.mark.slow
def test_a_machine_that_stood_still_hangs_nobody(board: HealthBoard, waiting: int) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + LOOK_US)
    board.rows[0, 0] = NOW_US
    board.row(0).busy(NOW_US, BATCH_US)
    again_us = NOW_US + 10 * SILENT_US
    looked(watch, again_us, again_us + STUCK_US)
    assert watch.complaint(0, waiting) is None
    looked(watch, again_us + STUCK_US, again_us + STUCK_US + BATCH_US + 1)
    assert watch.complaint(0, waiting) is not None


# Triton's model processes


class LaterClock(SystemClock):
    """The clock of a watch that looks some time after the heartbeat."""

    later_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.later_us


@pytest.fixture(params=["input()", "while True: pass"])
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """One that waits, or one that always wants to run."""
    code = f"print('begun', flush=True)\n{request.param}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        made.kill()


def complaints(watch: StubWatch, file: Path, looks: int) -> list[str | None]:
    seen = [watch.look(file) for _ in range(looks)]
    return [one.complaint for one in seen if one is not None]


def runs_all_the_time(monkeypatch: pytest.MonkeyPatch, clock: SystemClock) -> None:
    """A thread that wants a processor has one, by the clock of the watch."""

    def uses(_pid: int) -> dict[int, ThreadUse]:
        return {2: ThreadUse(wants=True, ran_us=clock.now_us())}

    monkeypatch.setattr(processes, "thread_uses", uses)


@pytest.mark.slow
def test_one_that_waits_is_hung_sooner_than_one_that_is_busy(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model"
    clock = LaterClock()
    runs_all_the_time(monkeypatch, clock)
    busy = "while" in str(process.args)
    wait_for(lambda: thread_states(process.pid) == {"R" if busy else "S"})
    file.write_text(f"{process.pid} {clock.now_us()}")
    watch = StubWatch(clock)
    assert complaints(watch, file, STUCK_LOOKS) == [None] * STUCK_LOOKS
    clock.later_us = 2 * STUCK_US
    *first, last = complaints(watch, file, STUCK_LOOKS)
    assert first == [None] * (STUCK_LOOKS - 1)
    assert (last is None) == busy
    clock.later_us = SILENT_US + 1
    assert "silent" in str(complaints(watch, file, 1)[0])


def test_one_that_has_no_processor_is_not_hung_until_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model"
    clock = LaterClock()
    file.write_text(f"{WANTS_TO_RUN} {clock.now_us()}")
    watch = StubWatch(clock)

    def uses(_pid: int) -> dict[int, ThreadUse]:
        return {1: ThreadUse(wants=True, ran_us=0)}

    def states(_pid: int) -> set[str]:
        return {"R"}

    monkeypatch.setattr(processes, "thread_states", states)
    monkeypatch.setattr(processes, "thread_uses", uses)
    for more_us in (2 * STUCK_US, *[SILENT_US] * 5):  # it compiles, beside many others
        clock.later_us += more_us
        assert complaints(watch, file, 1) == [None]
    runs_all_the_time(monkeypatch, clock)
    assert complaints(watch, file, 1) == [None]
    clock.later_us += SILENT_US
    assert "silent" in str(complaints(watch, file, 1)[0])


@pytest.mark.slow
@pytest.mark.parametrize("process", ["while True: pass"], indirect=True)
def test_one_that_is_stopped_is_hung_and_one_that_is_killed_is_dead(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "model"
    clock = LaterClock()
    file.write_text(f"{process.pid} {clock.now_us()}")
    watch = StubWatch(clock)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: thread_states(process.pid) == {"T"})
    clock.later_us = 2 * STUCK_US
    assert "silent" in str(complaints(watch, file, STUCK_LOOKS)[-1])
    process.kill()
    wait_for(lambda: not thread_states(process.pid))
    seen = watch.look(file)
    assert seen is not None
    assert (seen.alive, seen.complaint) == (False, "its process died")


@pytest.mark.slow
@pytest.mark.parametrize("process", ["input()"], indirect=True)
def test_one_whose_heart_beats_costs_a_look_at_its_file_alone(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, clock, exits = tmp_path / "model", LaterClock(), ExitWatch()
    now_us = clock.now_us()
    file.write_text(f"{process.pid} {now_us}")
    watch = StubWatch(clock, exits)

    def asked(_pid: int) -> set[str]:
        raise AssertionError

    monkeypatch.setattr(processes, "thread_states", asked)
    assert watch.look(file) == StubLook(process.pid, True, None, now_us + STUCK_US)  # noqa: FBT003
    process.kill()
    assert exits.wait(10) == [process.pid]
    assert complaints(watch, file, 2) == ["its process died"] * 2  # and its file says that it lives


def test_a_file_of_a_stub_with_more_numbers_than_one_writes_is_read_all_the_same(
    tmp_path: Path,
) -> None:
    file, now_us = tmp_path / "model", SystemClock().now_us()
    file.write_text(f"{os.getpid()} {now_us} {now_us} 4 5")
    seen = StubWatch(SystemClock()).look(file)
    assert seen is not None
    assert (seen.pid, seen.complaint) == (os.getpid(), None)


@pytest.mark.long
def test_a_heartbeat_is_written_in_place_until_its_end(tmp_path: Path) -> None:
    file = tmp_path / "pids" / "model"
    instants = iter(range(10, 1000))
    heartbeat = StubHeartbeat(file, lambda: next(instants))
    assert StubWatch(SystemClock()).look(file) is None
    heartbeat.start()
    size = file.stat().st_size
    wait_for(lambda: int(file.read_text().split()[1]) > 11)
    assert file.stat().st_size == size
    heartbeat.stop()
    assert not file.exists()


def test_a_process_that_compiles_says_so_until_it_serves(tmp_path: Path) -> None:
    file = tmp_path / "model"
    since_us = iter([4, None])
    assert compiling(tmp_path) == []
    for expected in ([Compiling("model", heard_us=10, since_us=4)], []):
        heartbeat = StubHeartbeat(file, lambda: 10, lambda: next(since_us))
        heartbeat.start()
        heartbeat.start()
        assert compiling(tmp_path) == expected
        seen = StubWatch(LaterClock()).look(file)
        assert seen is not None
        assert (seen.pid, seen.alive) == (os.getpid(), True)
        heartbeat.stop()


def test_one_that_compiles_without_end_is_hung_though_it_shows_that_it_lives(
    tmp_path: Path,
) -> None:
    file, clock = tmp_path / "model", LaterClock()
    clock.later_us = 2 * COMPILE_LIMIT_US
    now_us = clock.now_us()
    since_us = now_us - COMPILE_LIMIT_US
    file.write_text(f"{os.getpid()} {now_us} {since_us}")
    assert complaints(StubWatch(clock), file, 1) == [None]
    file.write_text(f"{os.getpid()} {now_us} {since_us - 1}")
    assert "has compiled for 1800 s, longer than" in str(complaints(StubWatch(clock), file, 1))


def test_those_that_compile_are_named_the_one_last_heard_of_first(tmp_path: Path) -> None:
    for name, line in {"a": "1 5 2", "b": "2 7 3", "serves": "3 9", "no file": ""}.items():
        (tmp_path / name).write_text(line)
    assert compiling(tmp_path) == [Compiling("b", 7, 3), Compiling("a", 5, 2)]


def test_the_file_of_a_newer_load_is_left_alone(tmp_path: Path) -> None:
    old, new = (StubHeartbeat(tmp_path / "pids" / "model", SystemClock().now_us) for _ in range(2))
    old.start()
    new.start()
    old.stop()
    assert StubWatch(SystemClock()).look(tmp_path / "pids" / "model") is not None
    new.stop()


@pytest.mark.slow
def test_the_end_of_a_process_wakes_its_watcher() -> None:
    watch = ExitWatch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert watch.watch(process.pid)
        assert watch.watch(process.pid)
        assert watch.wait(0) == []
        process.kill()
        assert watch.wait(10) == [process.pid]
        assert not watch.watch(process.pid)  # its parent has not asked for it
    assert watch.wait(0) == []
    assert not watch.watch(process.pid)
    assert not watch.watch(0)
    assert watch.wait(0) == []


@pytest.mark.slow
def test_a_process_ends_with_another_one_that_did_not_start_it() -> None:
    code = """
import sys, threading
from triton_backend.serving.liveness.processes import end_with

def release():
    print("releases", flush=True)
    raise ValueError

thread = threading.Thread(target=end_with, args=[int(sys.argv[1]), release])
thread.start()
thread.join()
print("goes on", flush=True)
threading.Event().wait()
"""
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(server.kill)
        command = [sys.executable, "-c", code, str(server.pid)]
        stub = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(stub.kill)
        assert stub.stdout is not None
        assert stub.stdout.readline() == "goes on\n"
        assert stub.poll() is None
        server.kill()
        assert stub.stdout.readline() == "releases\n"
        assert stub.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        end_with(server.pid, int)


Child = tuple["subprocess.Popen[str]", "subprocess.Popen[bytes]", int]


@contextmanager
def child_with_two_owners(code: str) -> Generator[Child]:
    """Its parent, a server that it was added to as well, and its process id."""
    command = [sys.executable, "-c", PARENT, code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(server.kill)
        parent = stack.enter_context(subprocess.Popen([*command, str(server.pid)], **pipes))
        stack.callback(parent.kill)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "added\n"
        (child,) = psutil.Process(parent.pid).children()
        yield parent, server, child.pid


@pytest.mark.slow
def test_a_process_shows_another_owner_once_it_outlives_its_parent() -> None:
    """Its main thread may be at work then, and takes the signal that says so only afterwards."""
    with child_with_two_owners(OWNED) as (parent, server, child):
        assert parent.stdin is not None
        assert server.pid not in owners(child)
        parent.stdin.write("go on\n")
        parent.stdin.flush()
        wait_for(lambda: server.pid in owners(child))
        parent.kill()
        parent.wait()
        wait_for(lambda: owners(child) == {server.pid})
        server.kill()
        server.wait()
        wait_for(lambda: not is_alive(child))


@pytest.mark.slow
def test_a_process_whose_main_thread_missed_the_signal_outlives_its_parent_too() -> None:
    """It came just before the thread began to wait, which it does for good where it is idle."""
    with child_with_two_owners(UNHEARD) as (parent, server, child):
        wait_for(lambda: server.pid in owners(child))
        parent.kill()
        parent.wait()
        wait_for(lambda: owners(child) == {server.pid})
