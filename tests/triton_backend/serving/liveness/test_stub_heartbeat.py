"""The pulse of Triton's model processes: who is taken for dead, for hung, for busy."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.liveness.stub_heartbeat import (
    SILENT_US,
    STUCK_LOOKS,
    STUCK_US,
    Pulse,
    PulseReader,
    thread_states,
)


class LaterClock(SystemClock):
    """The clock of a reader that looks some time after the pulse."""

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


def complaints(reader: PulseReader, file: Path, looks: int) -> list[str | None]:
    seen = [reader.look(file) for _ in range(looks)]
    return [one.complaint for one in seen if one is not None]


def test_one_that_waits_is_hung_sooner_than_one_that_is_busy(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "model"
    clock = LaterClock()
    busy = "while" in str(process.args)
    wait_for(lambda: thread_states(process.pid) == {"R" if busy else "S"})
    file.write_text(f"{process.pid} {clock.now_us()}")
    reader = PulseReader(clock)
    assert complaints(reader, file, STUCK_LOOKS) == [None] * STUCK_LOOKS
    clock.later_us = 2 * STUCK_US
    *first, last = complaints(reader, file, STUCK_LOOKS)
    assert first == [None] * (STUCK_LOOKS - 1)
    assert (last is None) == busy
    clock.later_us = SILENT_US + 1
    assert "silent" in str(complaints(reader, file, 1)[0])


@pytest.mark.parametrize("process", ["while True: pass"], indirect=True)
def test_one_that_is_stopped_is_hung_and_one_that_is_killed_is_dead(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "model"
    clock = LaterClock()
    file.write_text(f"{process.pid} {clock.now_us()}")
    reader = PulseReader(clock)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: thread_states(process.pid) == {"T"})
    clock.later_us = 2 * STUCK_US
    assert "silent" in str(complaints(reader, file, STUCK_LOOKS)[-1])
    process.kill()
    wait_for(lambda: not thread_states(process.pid))
    seen = reader.look(file)
    assert seen is not None
    assert (seen.alive, seen.complaint) == (False, "its process died")


def test_a_pulse_is_written_in_place_until_its_end(tmp_path: Path) -> None:
    file = tmp_path / "pids" / "model"
    instants = iter(range(10, 1000))
    pulse = Pulse(file, lambda: next(instants))
    assert PulseReader(SystemClock()).look(file) is None
    pulse.start()
    size = file.stat().st_size
    wait_for(lambda: int(file.read_text().split()[1]) > 11)
    assert file.stat().st_size == size
    pulse.stop()
    assert not file.exists()


def test_the_file_of_a_newer_load_is_left_alone(tmp_path: Path) -> None:
    old, new = (Pulse(tmp_path / "pids" / "model", SystemClock().now_us) for _ in range(2))
    old.start()
    new.start()
    old.stop()
    assert PulseReader(SystemClock()).look(tmp_path / "pids" / "model") is not None
    new.stop()
