"""What a node sees of its workers: a row of shared memory each, written by the worker.

`beat_us`: when its heartbeat thread last ran. `busy_since_us`: when the batch it runs began, 0 when
idle. `expected_us`: how long that batch should take. No messages, so a hundred workers cost nothing.
"""

import math
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.engines.clock import Clock
from triton_backend.serving.memory import SHARED_FOLDER
from triton_backend.serving.settings import Deployment, short_name

BEAT_SECONDS = 0.2
# A process that does not beat for so long is stopped or stuck.
SILENT_US = 1_000_000
# A batch that runs so many times its profile, and so much longer at least, never ends.
HUNG_FACTOR = 10
HUNG_AT_LEAST_US = 1_000_000
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

    def complaint(self, vgpu: int, now_us: int) -> str | None:
        """Why a worker must be taken for hung, or None. One that never beat is still loading."""
        beat, since, expected = (self.rows[vgpu, column] for column in range(_COLUMNS))
        if beat and now_us - beat > SILENT_US:
            return f"no heartbeat for {(now_us - beat) / 1e6:.1f} s"
        limit = max(HUNG_FACTOR * expected, expected + HUNG_AT_LEAST_US)
        if since and now_us - since > limit:
            return f"busy for {(now_us - since) / 1e6:.1f} s, expected {expected / 1e6:.3f} s"
        return None
