"""Emulated network links: one uplink and one downlink per node, each moves one batch at a time.

The instants at which links become free lie in one small file of shared memory, so that all workers
of a host queue on the same links; a file lock makes taking both ends of a transfer one step.
"""

import fcntl
import mmap
import os

import numpy as np

from triton_backend.serving.memory import SHARED_FOLDER

_UPLINK, _DOWNLINK = 0, 1


class Links:
    """The links of all nodes of a cluster.

    Args:
        name: of the shared file; made by whoever comes first.
        nodes: in the cluster.
    """

    def __init__(self, name: str, nodes: int) -> None:
        path = SHARED_FOLDER / name
        size = nodes * 2 * 8
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, size)
        self._memory = mmap.mmap(self._fd, size)
        self._free_us = np.frombuffer(self._memory, dtype=np.int64).reshape(nodes, 2)

    def take(self, sender: int, receiver: int, earliest_us: int, duration_us: int) -> int:
        """Occupy the sender's uplink and the receiver's downlink; the instant the move begins."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            begin = max(
                earliest_us,
                int(self._free_us[sender, _UPLINK]),
                int(self._free_us[receiver, _DOWNLINK]),
            )
            self._free_us[sender, _UPLINK] = begin + duration_us
            self._free_us[receiver, _DOWNLINK] = begin + duration_us
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return begin

    def close(self) -> None:
        """Give the file back (the links go on for the others)."""
        del self._free_us
        self._memory.close()
        os.close(self._fd)
