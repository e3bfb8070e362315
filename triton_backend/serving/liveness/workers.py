"""A node's workers: a row of shared memory each, and the watch that judges them by it.

A machine that stands still for a while hangs none. Not here: workers judged by their results
(`supervisor`).
"""

import math
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.limits import (
    HUNG_AT_LEAST_US,
    HUNG_FACTOR,
    SILENT_US,
    STUCK_US,
)
from triton_backend.serving.liveness.threads import Starvation, thread_uses, wants_to_run
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

WORKER_HEARTBEAT_SECONDS = 0.2
# A look that comes so long after the one before: the node stood still, and its workers with it.
STALL_US = 500_000

_HEARTBEAT, _BUSY_SINCE, _EXPECTED, _PID, _PRESSURE = range(5)
_OWNERS = range(5, 7)  # by gateway
_PATIENCE = 7
_COLUMNS = 8
_CELL_BYTES = 8
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class HealthBoard:
    """A node's view of its workers: shared memory that each writes, rows by vGPU number.

    `rows[vgpu]` is (heartbeat, busy since, expected), µs: when its heartbeat thread last ran; when
    the batch it runs began, 0 while it is idle; how long that batch should take; then the process,
    how hard the batch presses on neighbours (millionths, where interference is emulated), and the
    server of each gateway, all of which it belongs to. No messages, so a hundred workers cost
    nothing. A worker keeps the row of the generation that it was started for.
    """

    path: Path
    rows: "memoryview[int]"  # [vGPU, column]; written faster than an array of numpy

    @classmethod
    def open(cls, deployment: Deployment, node: str) -> Self:
        """Map the board of a node, making it where it is not there yet."""
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

    @classmethod
    def generations(cls, settings: ServeSettings, node: str) -> list[int]:
        """Generations that a node has a board of."""
        prefix = f"{settings.segment_prefix}g"
        found = SHARED_FOLDER.glob(f"{prefix}*-health-{short_name(node)}")
        numbers = (path.name.removeprefix(prefix).partition("-")[0] for path in found)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def row(self, vgpu: int) -> "HealthRow":
        """The row that the worker of a vGPU writes."""
        return HealthRow(self.rows, vgpu)

    def process_of(self, vgpu: int) -> int:
        """Process id of the worker; 0 before it has loaded."""
        return self.rows[vgpu, _PID]

    def has_loaded(self, vgpu: int) -> bool:
        """True if the worker has finished loading: its heart beats from then on."""
        return bool(self.rows[vgpu, _HEARTBEAT])

    def belongs_to(self, vgpu: int, gateway: int, owner: int) -> None:
        """Let a worker know of the process of the node's model in a gateway."""
        if self.rows[vgpu, _OWNERS[gateway]] != owner:
            self.rows[vgpu, _OWNERS[gateway]] = owner

    def reset(self, vgpu: int) -> None:
        """A new process takes the row."""
        for column in range(_COLUMNS):
            self.rows[vgpu, column] = 0

    def remove(self) -> None:
        """Delete the file; processes that map it keep it till then."""
        self.path.unlink(missing_ok=True)


class HealthRow:
    """A worker's own row of a board."""

    def __init__(self, rows: "memoryview[int]", vgpu: int) -> None:
        self._rows = rows
        self._vgpu = vgpu

    def busy(
        self, since_us: int, expected_us: int, pressure: float = 0.0, patience_us: int = 0
    ) -> None:
        """It begins a batch, which presses so hard on its neighbours.

        It is not taken to hang before `patience_us`.
        """
        self._rows[self._vgpu, _PATIENCE] = min(patience_us, SILENT_US)
        self._rows[self._vgpu, _PRESSURE] = round(pressure * _MILLION)
        self._rows[self._vgpu, _EXPECTED] = expected_us
        self._rows[self._vgpu, _BUSY_SINCE] = since_us

    def idle(self) -> None:
        """It ended its batch."""
        self._rows[self._vgpu, _BUSY_SINCE] = 0

    def pressing(self) -> float | None:
        """How hard its batch presses on its neighbours; None while it is idle."""
        if not self._rows[self._vgpu, _BUSY_SINCE]:
            return None
        return self._rows[self._vgpu, _PRESSURE] / _MILLION

    def keep_beating(
        self, clock: Clock, stop: threading.Event, owned_by: Callable[[int], None]
    ) -> None:
        """Show that this process runs, and read its owners; for a thread of its own."""
        self._rows[self._vgpu, _PID] = os.getpid()
        known = {0}
        while True:
            self._rows[self._vgpu, _HEARTBEAT] = clock.now_us()
            for owner in {self._rows[self._vgpu, column] for column in _OWNERS} - known:
                known.add(owner)
                owned_by(owner)
            if stop.wait(WORKER_HEARTBEAT_SECONDS):
                return


class HealthWatch:
    """Judges the workers on a board, in looks much less than `STALL_US` apart."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._looked_us = 0
        self._awake_us = 0  # nothing can have happened between two looks far apart
        # Of workers that run a batch for long: when it began, and what they had no processor for
        # since.
        self._starvation: dict[int, tuple[int, Starvation]] = {}

    def look(self, now_us: int) -> None:
        """Begin a look."""
        if now_us - self._looked_us > STALL_US:
            self._awake_us = now_us
        self._looked_us = now_us

    def complaint(self, vgpu: int, pid: int) -> str | None:
        """Why a worker must be taken for hung, or None. One that never beat is still loading."""
        beat, since, expected, patience_us = (
            self._board.rows[vgpu, column]
            for column in (_HEARTBEAT, _BUSY_SINCE, _EXPECTED, _PATIENCE)
        )
        silent_us = self._looked_us - max(beat, self._awake_us)
        if beat and silent_us > STUCK_US and (silent_us > SILENT_US or not wants_to_run(pid)):
            return f"no heartbeat for {silent_us / 1e6:.1f} s"
        busy_us = self._looked_us - max(since, self._awake_us)
        limit_us = max(HUNG_FACTOR * expected, expected + HUNG_AT_LEAST_US, patience_us)
        if since and 2 * busy_us > limit_us:
            busy_us -= self._starved_us(vgpu, pid, since)
            if busy_us > limit_us:
                return f"busy for {busy_us / 1e6:.1f} s, expected {expected / 1e6:.3f} s"
        return None

    def _starved_us(self, vgpu: int, pid: int, since_us: int) -> int:
        """Time a worker lacked a processor since half of its batch's time was over."""
        began_us, starvation = self._starvation.get(vgpu, (0, Starvation()))
        if began_us != since_us:
            starvation = Starvation()
        self._starvation[vgpu] = since_us, starvation
        return starvation.look(thread_uses(pid), self._looked_us)
