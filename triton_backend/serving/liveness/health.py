"""What a node sees of its workers: a row of shared memory each, written by the worker.

`beat_us`: when its heartbeat thread last ran. `busy_since_us`: when the batch it runs began, 0 when
idle. `expected_us`: how long that batch should take. No messages, so a hundred workers cost nothing.

A machine that is short of processor, or stands still for a while, hangs nobody: `HealthWatch`.
"""

import math
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.stub_heartbeat import SILENT_US, STUCK_US, thread_states
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

BEAT_SECONDS = 0.2
# A batch that runs so many times its profile, and so much longer at least, never ends.
HUNG_FACTOR = 10
HUNG_AT_LEAST_US = 1_000_000
# A look that comes so long after the one before: the node stood still, and its workers with it.
STALL_US = 500_000
_BEAT, _SINCE, _EXPECTED, _COLUMNS = 0, 1, 2, 3
_CELL_BYTES = 8


@dataclass(frozen=True, slots=True)
class HealthBoard:
    """The board of one node; rows by vGPU number."""

    path: Path
    rows: "memoryview[int]"  # [vGPU, column]; written faster than an array of numpy

    @classmethod
    def open(cls, deployment: Deployment, node: str) -> Self:
        """Map the board, making it where it is not there yet."""
        prefix = deployment.settings.segment_prefix
        path = SHARED_FOLDER / f"{prefix}g{deployment.generation}-health-{short_name(node)}"
        shape = (len(deployment.vgpus), _COLUMNS)
        size = math.prod(shape) * _CELL_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        return cls(path, memoryview(memory).cast("q", shape))

    def busy(self, vgpu: int, since_us: int, expected_us: int) -> None:
        """The worker begins a batch."""
        self.rows[vgpu, _EXPECTED] = expected_us
        self.rows[vgpu, _SINCE] = since_us

    def idle(self, vgpu: int) -> None:
        """The worker ended its batch."""
        self.rows[vgpu, _SINCE] = 0

    def has_beaten(self, vgpu: int) -> bool:
        """Whether the worker has finished loading."""
        return bool(self.rows[vgpu, _BEAT])

    def reset(self, vgpu: int) -> None:
        """A new process takes the row."""
        for column in range(_COLUMNS):
            self.rows[vgpu, column] = 0

    def remove(self) -> None:
        """Delete the file; those who map it keep it till then."""
        self.path.unlink(missing_ok=True)

    def keep_beating(self, vgpu: int, clock: Clock, stop: threading.Event) -> None:
        """Show that this process runs; for a thread of its own."""
        while True:
            self.rows[vgpu, _BEAT] = clock.now_us()
            if stop.wait(BEAT_SECONDS):
                return


class HealthWatch:
    """Judges the workers on a board, in looks much less than `STALL_US` apart."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._looked_us = 0
        self._awake_us = 0  # nobody can have done anything between two looks far apart

    def look(self, now_us: int) -> None:
        """Begin a look."""
        if now_us - self._looked_us > STALL_US:
            self._awake_us = now_us
        self._looked_us = now_us

    def complaint(self, vgpu: int, pid: int) -> str | None:
        """Why a worker must be taken for hung, or None. One that never beat is still loading."""
        beat, since, expected = (self._board.rows[vgpu, column] for column in range(_COLUMNS))
        silent_us = self._looked_us - max(beat, self._awake_us)
        if beat and silent_us > STUCK_US and (silent_us > SILENT_US or not _wants_to_run(pid)):
            return f"no heartbeat for {silent_us / 1e6:.1f} s"
        busy_us = self._looked_us - max(since, self._awake_us)
        if since and busy_us > max(HUNG_FACTOR * expected, expected + HUNG_AT_LEAST_US):
            return f"busy for {busy_us / 1e6:.1f} s, expected {expected / 1e6:.3f} s"
        return None


def _wants_to_run(pid: int) -> bool:
    """Whether a thread waits for a processor or a disk: that of the heartbeat may be one of them."""
    return bool(thread_states(pid) & set("RD"))
