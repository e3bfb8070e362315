"""Stages that are loaded when a batch of them comes, and evicted for others.

    Residents          which stages of a vGPU are there: `runtimes.residency`, by the order of runs
    OnDemandRuntime    one of them: a runtime whose run loads first what is not there

Here: loads and evictions, one at a time, in the thread that runs; another one may add stages of a
later plan meanwhile. Not here: which batch is next.
"""

import contextlib
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InvariantError, PoolPipeError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Runtime, Tensors
from triton_backend.runtimes.residency import ABSENT, admit

Specs = tuple[TensorSpec, ...]


class Residents:
    """The stages of a vGPU that are loaded on demand; those there at once fit its room."""

    def __init__(self) -> None:
        self._stages: list[OnDemandRuntime] = []
        self._used: list[int] = []
        self._sizes: list[int] = []
        self._lock = threading.Lock()
        self._rooms: dict[int, int] = {}  # by the generation's tag
        self._room = 0
        self.loads = 0

    @property
    def present(self) -> tuple["OnDemandRuntime", ...]:
        """Those that are there."""
        both = zip(self._stages, self._used, strict=True)
        return tuple(stage for stage, used in both if used != ABSENT)

    @property
    def bytes_held(self) -> int:
        """Bytes of those that are there."""
        return sum(stage.size for stage in self.present)

    def serve(self, tag: int, room: int) -> None:
        """Leave so much room, in bytes, from the next run on; the least of all generations."""
        self._rooms[tag] = room
        self._room = min(self._rooms.values())

    def forget(self, tag: int) -> None:
        """A generation is over, and what it left room for."""
        self._rooms.pop(tag, None)
        self._room = min(self._rooms.values(), default=self._room)

    def add(self, stage: "OnDemandRuntime") -> None:
        """Another stage, not there yet."""
        with self._lock:
            self._stages.append(stage)
            self._sizes.append(stage.size)
            self._used.append(ABSENT)

    def remove(self, stage: "OnDemandRuntime") -> None:
        """Give up a stage that is not run any more."""
        with self._lock:
            place = self._stages.index(stage)
            stage.evict()
            del self._stages[place], self._sizes[place], self._used[place]

    def hold(self, stage: "OnDemandRuntime") -> None:
        """Let a stage be there, as it is about to run.

        Raises:
            InvariantError: it is larger than the room.
            Exception: whatever its runtime raises; it is not there then.
        """
        if stage.size > self._room:
            reason = f"a stage of {stage.size} bytes finds no room in {self._room}"
            raise InvariantError(reason)
        with self._lock:
            self._hold(stage)

    def _hold(self, stage: "OnDemandRuntime") -> None:
        place, before = self._stages.index(stage), list(self._used)
        absent = admit(self._used, self._sizes, self._room, place)
        for other, was, now in zip(self._stages, before, self._used, strict=True):
            if was != ABSENT and now == ABSENT:
                other.evict()
        if absent:
            self._used[place] = ABSENT  # until it is loaded
            stage.load()
            self._used[place] = max(before) + 1
            self.loads += 1


class OnDemandRuntime:
    """A stage that is loaded by its first run, and by the first one after it was evicted.

    Args:
        residents: of its vGPU, which it joins.
        size: bytes of its weights.
        open_it: loads it.
    """

    def __init__(
        self,
        residents: Residents,
        size: int,
        specs: tuple[Specs, Specs],
        open_it: Callable[[], Runtime],
    ) -> None:
        self.inputs, self.outputs = specs
        self.size = size
        self.residents = residents
        self._open = open_it
        self._runtime: Runtime | None = None
        self._memory: NDArray[np.uint8] | None = None
        residents.add(self)

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Load the stage, if it is not there, and run it.

        Raises:
            Exception: whatever the runtime raises as it is loaded or runs.
        """
        self.residents.hold(self)
        if self._runtime is None:  # pragma: no cover
            raise InvariantError("a stage on demand is held, but not loaded")
        self._runtime.run(inputs, out)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Let whatever is loaded pin this memory."""
        self._memory = memory

    def load(self) -> None:
        """Load the stage."""
        self._runtime = self._open()
        if self._memory is not None:
            with contextlib.suppress(PoolPipeError):  # its batches take one copy more
                self._runtime.register(self._memory)

    def evict(self) -> None:
        """Give up what was loaded."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = None

    def close(self) -> None:
        """Give up the stage."""
        self.residents.remove(self)
