"""Emulated network links: one uplink and one downlink per node, each moves one batch at a time.

The moves of every link lie in one small file of shared memory, so that all workers of a host share
the same links; a file lock makes taking both ends of a transfer one step. Transfers are taken when
a stage ends, for the instants reserved for them, so not in the order of these: each gets the first
gap that is free on both links.
"""

import fcntl
import mmap
import os

import numpy as np

from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

_UPLINK, _DOWNLINK = 0, 1
_END = 1  # of a move: its begin, its end
MOVES = 64  # the last ones to end, that a link remembers


class EmulatedLinks:
    """The links of all nodes of a cluster.

    Args:
        name: of the shared file; made by the first process.
        nodes: in the cluster.
    """

    def __init__(self, name: str, nodes: int) -> None:
        path = SHARED_FOLDER / name
        shape = (nodes, 2, MOVES, 2)
        size = int(np.prod(shape)) * 8
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, size)
        self._memory = mmap.mmap(self._fd, size)
        self._moves_us = np.frombuffer(self._memory, dtype=np.int64).reshape(shape)

    def take(self, sender: int, receiver: int, earliest_us: int, duration_us: int) -> int:
        """Occupy the sender's uplink and the receiver's downlink; the instant the move begins."""
        links = (self._moves_us[sender, _UPLINK], self._moves_us[receiver, _DOWNLINK])
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            begin_us = max(earliest_us, *(int(moves[:, _END].min()) for moves in links))
            to_come = np.concatenate([moves[moves[:, _END] > begin_us] for moves in links])
            for other_begin_us, other_end_us in sorted(to_come.tolist()):
                if other_begin_us >= begin_us + duration_us:
                    break
                begin_us = max(begin_us, other_end_us)
            for moves in links:
                moves[moves[:, _END].argmin()] = begin_us, begin_us + duration_us
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return begin_us

    def close(self) -> None:
        """Give the file back (the links go on for the others)."""
        del self._moves_us
        self._memory.close()
        os.close(self._fd)
