"""Triton's model processes (stubs): a heartbeat file each, and the watch that judges them by it."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from triton_backend.runtimes.clock import Clock
from triton_backend.serving.liveness.ends import ExitWatch
from triton_backend.serving.liveness.limits import SILENT_US, STUCK_US
from triton_backend.serving.liveness.threads import Starvation, thread_states, thread_uses

# Of one that compiles and says so, which takes 20 s of a processor: on a machine where it gets a
# sixtieth of one that is 20 minutes. What takes longer is taken to hang.
COMPILE_LIMIT_US = 1_800_000_000
STUB_HEARTBEAT_SECONDS = 0.25
STUCK_LOOKS = 3  # of a stub, one after the other

_LINE_BYTES = 64
_SERVES, _COMPILES = 2, 3  # numbers in a file


class StubHeartbeat:
    """Keeps a model's file up to date between `start` and `stop`: its process id and heartbeat.

    Args:
        alive_us: the last instant at which all that requests depend on was seen to run.
        compiles_since_us: since when it compiles, before it can serve; None while it does not.
    """

    def __init__(
        self,
        path: Path,
        alive_us: Callable[[], int],
        compiles_since_us: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._path = path
        self._alive_us = alive_us
        self._compiles_since_us = compiles_since_us
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._fd: int | None = None

    def start(self) -> None:
        """Write the file and go on writing it; harmless where that was begun before.

        Raises:
            OSError: it cannot be written.
        """
        if self._fd is not None:
            return
        self._path.parent.mkdir(exist_ok=True)
        # A new file, because a dead process may have left its own.
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the file unless a newer load of the model has written its own."""
        self._stopping.set()
        self._thread.join(timeout=2)
        assert self._fd is not None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == os.fstat(self._fd).st_ino:
                self._path.unlink()
        os.close(self._fd)

    def _run(self) -> None:
        while not self._stopping.wait(STUB_HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """In place and of one length: a full disk does not stop it, and no reader sees half."""
        assert self._fd is not None
        since_us = self._compiles_since_us()
        words = (os.getpid(), self._alive_us(), *([] if since_us is None else [since_us]))
        line = " ".join(map(str, words)).ljust(_LINE_BYTES - 1) + "\n"
        os.pwrite(self._fd, line.encode(), 0)


class Compiling(NamedTuple):
    """A model's process that compiles before it can serve, as its file says.

    Attributes:
        heard_us: when it was last heard of.
        since_us: when it began.
    """

    model: str
    heard_us: int
    since_us: int

    def complaint(self) -> str | None:
        """Why it must be taken for hung, or None."""
        lasted_us = self.heard_us - self.since_us
        if lasted_us <= COMPILE_LIMIT_US:
            return None
        return (
            f"has compiled for {lasted_us / 1e6:.0f} s, longer than the"
            f" {COMPILE_LIMIT_US / 1e6:.0f} s after which it is taken to hang"
        )


def compiling(pids: Path) -> list[Compiling]:
    """Processes of models that compile before they can serve, the one last heard of first."""
    found: list[Compiling] = []
    for file in stub_files(pids):
        numbers = _numbers_in(file)
        if len(numbers) == _COMPILES:
            found.append(Compiling(file.name, *numbers[1:]))
    return sorted(found, key=lambda one: one.heard_us, reverse=True)


def stub_files(pids: Path) -> list[Path]:
    """The files of the models' processes in a folder; none where it is not there."""
    try:
        return list(pids.iterdir())
    except OSError:
        return []


def _numbers_in(file: Path) -> list[int]:
    """The numbers of a model's process: its id, its heartbeat, since when it compiles, if it does.

    None where there is nothing to read yet. Hundreds are read a few times a second.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [int(word) for word in os.read(fd, _LINE_BYTES).split()]
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return []


class StubLook(NamedTuple):
    """Result of a check of a model's file: its process, and a reason to reload it, if any.

    `again_us`: until then nothing but the end of a process can make the result another.
    """

    pid: int
    alive: bool
    complaint: str | None
    again_us: int = 0


class StubWatch:
    """Judges the files of a folder; to be asked a few times a second.

    The kernel says which processes have ended, so of those whose heart beats nothing but their file
    is read. Time in which a process wanted a processor and had none is no silence: one that
    compiles on a busy machine would be restarted again and again.

    Args:
        exits: is woken when a process that was looked at ends.
    """

    def __init__(self, clock: Clock, exits: ExitWatch | None = None) -> None:
        self._clock = clock
        self._exits = exits or ExitWatch()
        self._stuck_looks: dict[tuple[str, int], int] = {}
        # Of those that have been silent for long: since when, and what they had no processor for
        # since.
        self._starvation: dict[tuple[str, int], tuple[int, Starvation]] = {}

    def look(self, file: Path) -> StubLook | None:
        """One look at one file; None where there is nothing to read yet."""
        numbers = _numbers_in(file)
        if len(numbers) < _SERVES:
            return None
        pid, alive_us, *rest = numbers
        since_us = rest[:1]  # where it compiles
        now_us = self._clock.now_us()
        key, silent_us = (file.name, pid), now_us - alive_us
        runs = self._exits.watch(pid)
        if runs and silent_us <= STUCK_US:
            self._forget(key)
            if since_us:
                endless = Compiling(file.name, alive_us, *since_us).complaint()
                return StubLook(pid, alive=True, complaint=endless)
            return StubLook(pid, alive=True, complaint=None, again_us=alive_us + STUCK_US)
        states = thread_states(pid) if runs else set[str]()
        if not states:
            self._forget(key)
            return StubLook(pid, alive=False, complaint="its process died")
        if not states & set("RD"):
            self._stuck_looks[key] = self._stuck_looks.get(key, 0) + 1
        else:
            self._stuck_looks.pop(key, None)
        silent_us -= self._starved_us(key, alive_us, now_us)
        if self._stuck_looks.get(key, 0) >= STUCK_LOOKS or silent_us > SILENT_US:
            self._forget(key)
            return StubLook(pid, alive=True, complaint=f"silent for {silent_us / 1e6:.1f} s")
        return StubLook(pid, alive=True, complaint=None)

    def _starved_us(self, key: tuple[str, int], alive_us: int, now_us: int) -> int:
        """For how long it wanted a processor and had none, since it was found silent."""
        since_us, starvation = self._starvation.get(key, (alive_us, Starvation()))
        if since_us != alive_us:
            starvation = Starvation()
        self._starvation[key] = alive_us, starvation
        return starvation.look(thread_uses(key[1]), now_us)

    def _forget(self, key: tuple[str, int]) -> None:
        self._stuck_looks.pop(key, None)
        self._starvation.pop(key, None)
