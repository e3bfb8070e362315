"""Triton's model processes that count as dead, hung or compiling, by their files."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.liveness import stubs
from triton_backend.serving.liveness.ends import ExitWatch
from triton_backend.serving.liveness.limits import SILENT_US, STUCK_US
from triton_backend.serving.liveness.stubs import (
    COMPILE_LIMIT_US,
    STUCK_LOOKS,
    Compiling,
    StubHeartbeat,
    StubLook,
    StubWatch,
    compiling,
)
from triton_backend.serving.liveness.threads import ThreadUse, thread_states

WANTS_TO_RUN = os.getpid()  # this very thread


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

    monkeypatch.setattr(stubs, "thread_uses", uses)


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

    monkeypatch.setattr(stubs, "thread_states", states)
    monkeypatch.setattr(stubs, "thread_uses", uses)
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

    monkeypatch.setattr(stubs, "thread_states", asked)
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
