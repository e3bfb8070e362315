"""Whether the process of a Triton model lives and works: its pulse, and who reads it.

A model writes its process id and its pulse into a file, four times a second: the last instant at
which every thread that requests depend on was seen to run. The supervisor reads it. Silence alone
says little on busy cores: a process is taken for hung soon only when none of its threads wants to
run (it is stopped, or waits for what never comes), in several looks one after the other; one that
runs or waits for a disk has more time.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from triton_backend.runtimes.clock import Clock

PULSE_SECONDS = 0.25
# Of a process that does not even want to run, seen so in as many looks.
STUCK_US = 1_000_000
STUCK_LOOKS = 3
# Of one that wants to run, or waits for a disk.
SILENT_US = 8_000_000
_LINE_BYTES = 40


class Pulse:
    """Keeps a model's file up to date between `start` and `stop`.

    Args:
        alive_us: the last instant at which all that requests depend on was seen to run.
    """

    def __init__(self, path: Path, alive_us: Callable[[], int]) -> None:
        self._path = path
        self._alive_us = alive_us
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._fd: int | None = None

    def start(self) -> None:
        """Write the file and go on writing it.

        Raises:
            OSError: it cannot be written.
        """
        self._path.parent.mkdir(exist_ok=True)
        # A new file, because a dead process may have left its own.
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the file unless a newer load of the model has written its own."""
        self._over.set()
        self._thread.join(timeout=2)
        assert self._fd is not None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == os.fstat(self._fd).st_ino:
                self._path.unlink()
        os.close(self._fd)

    def _run(self) -> None:
        while not self._over.wait(PULSE_SECONDS):
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """In place and of one length: a full disk does not stop it, and no reader sees half."""
        assert self._fd is not None
        line = f"{os.getpid()} {self._alive_us()}".ljust(_LINE_BYTES - 1) + "\n"
        os.pwrite(self._fd, line.encode(), 0)


class Seen(NamedTuple):
    """What a look at a model's file showed: its process, and why it must be loaded anew, if so."""

    pid: int
    alive: bool
    complaint: str | None


class PulseReader:
    """Looks at the files of a folder; to be asked a few times a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stuck_looks: dict[tuple[str, int], int] = {}

    def look(self, file: Path) -> Seen | None:
        """One look at one file; None where there is nothing to read yet."""
        try:
            pid, pulse_us = map(int, file.read_text().split())
        except (OSError, ValueError):
            return None
        key, silent_us = (file.name, pid), self._clock.now_us() - pulse_us
        states = thread_states(pid)
        if not states:
            self._stuck_looks.pop(key, None)
            return Seen(pid, alive=False, complaint="its process died")
        looks = self._stuck_looks.pop(key, 0)
        if silent_us > STUCK_US and not states & set("RD"):
            looks += 1
            self._stuck_looks[key] = looks
        if looks >= STUCK_LOOKS or silent_us > SILENT_US:
            self._stuck_looks.pop(key, None)
            return Seen(pid, alive=True, complaint=f"silent for {silent_us / 1e6:.1f} s")
        return Seen(pid, alive=True, complaint=None)


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, as Linux writes them (R, S, D, T, …); none of a dead one."""
    states: set[str] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states - {"Z", "X"}
