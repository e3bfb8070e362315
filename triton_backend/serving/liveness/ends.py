"""Ends of processes: with another one, of those watched, and by which name they are known."""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from triton_backend.serving.liveness.threads import is_alive

OWNERS_LOOK_MS = 200

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def end_with(other: int, release: Callable[[], object]) -> None:
    """Have this process killed as soon as another one is gone.

    A thread waits for that end. The kernel could do it only at the end of the thread that started
    this process (`end_with_parent`), and Triton starts its models from threads that end.

    Args:
        other: the process.
        release: called right before: the kernel takes a while to give back what a process has, and
            long on a busy machine.

    Raises:
        OSError: it is gone already.
    """
    ended = select.poll()
    ended.register(os.pidfd_open(other), select.POLLIN)

    def wait() -> None:
        ended.poll()
        try:
            release()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="owner", daemon=True).start()


def name_process(name: str) -> None:
    """Have `ps` and `top` name the main thread's process so (15 bytes).

    A fork has its parent's command line.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class OwnerWatch:
    """Ends this process once every process that it belongs to is gone.

    A worker belongs to the node that started it, by the kernel's own means (`end_with_parent`),
    until it has loaded; from then on to tritonserver, too, by this.
    """

    def __init__(self, parent: int) -> None:
        self._poll = select.poll()
        self._owners: dict[int, int] = {}  # process id by file descriptor
        self._coming: list[int] = []  # owners that are watched once it outlives its parent
        self._lock = threading.RLock()  # a signal may come while another one is handled
        self._running = False
        self._parent = parent
        # Python runs it in the main thread, whose parent the kernel watches.
        signal.signal(signal.SIGUSR1, self._outlive_parent)

    def add(self, owner: int) -> None:
        """It belongs to another process, too, as soon as its main thread takes the signal.

        Only then is that one watched: a process seen to watch another owner outlives its parent.

        Raises:
            OSError: the parent is gone already.
        """
        with self._lock:
            if not self._running:
                self._watch(self._parent)
                self._running = True
                threading.Thread(target=self._run, name="owners", daemon=True).start()
            self._coming.append(owner)
        self._tell_main_thread()

    def _tell_main_thread(self) -> None:
        """Signal it, not its process: a signal to that may be taken by another thread."""
        ident = threading.main_thread().ident
        assert ident is not None, "it runs"
        signal.pthread_kill(ident, signal.SIGUSR1)

    def _outlive_parent(self, _number: int, _frame: object) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
        with self._lock:
            while self._coming:
                with contextlib.suppress(OSError):  # it is gone already
                    self._watch(self._coming.pop())

    def _watch(self, pid: int) -> None:
        if pid not in self._owners.values():
            fd = os.pidfd_open(pid)
            self._owners[fd] = pid
            self._poll.register(fd, select.POLLIN)

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll(OWNERS_LOOK_MS):
                with self._lock:
                    del self._owners[fd]
                    self._poll.unregister(fd)
                    os.close(fd)
            if not self._owners:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._coming:  # a signal right before the main thread begins to wait wakes it not
                self._tell_main_thread()


def parent_named(name: str) -> int | None:
    """The process that started this one; None where it has another name, so that it is gone."""
    parent = os.getppid()
    try:
        found = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return None
    return parent if found == name else None


class ExitWatch:
    """Is woken when a watched process ends; those that are gone are forgotten by themselves."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, int] = {}  # process id by file descriptor
        self._pids: set[int] = set()

    def watch(self, pid: int) -> bool:
        """Wake up when this process ends, also if it is watched; False where it has ended."""
        if pid in self._pids:
            return True
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # no descriptor is free, or it is the number of no process
            return is_alive(pid)
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        if ended.poll(0):
            os.close(fd)
            return False
        self._watched[fd] = pid
        self._pids.add(pid)
        self._poll.register(fd, select.POLLIN)
        return True

    def wait(self, timeout_s: float) -> list[int]:
        """The processes that ended, as soon as one has; none after the time-out."""
        ended: list[int] = []
        for fd, _ in self._poll.poll(timeout_s * 1000):
            pid = self._watched.pop(fd)
            ended.append(pid)
            self._pids.discard(pid)
            self._poll.unregister(fd)
            os.close(fd)
        return ended
