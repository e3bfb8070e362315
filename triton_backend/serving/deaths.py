"""Being woken at once when a process that is not our child ends: Linux process descriptors."""

import contextlib
import os
import select


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
