"""Ends of processes: being woken when one that is not our child ends, and ending with our parent."""

import contextlib
import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


class DeathWatch:
    """The processes watched; those that are gone are forgotten by themselves."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, int] = {}

    def watch(self, pid: int) -> None:
        """Wake up when this process ends; harmless when it is watched or gone already."""
        if pid not in self._watched.values():
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                self._watched[fd] = pid
                self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float) -> list[int]:
        """The processes that ended, as soon as one has; none after the time-out."""
        ended: list[int] = []
        for fd, _ in self._poll.poll(timeout_s * 1000):
            ended.append(self._watched.pop(fd))
            self._poll.unregister(fd)
            os.close(fd)
        return ended
