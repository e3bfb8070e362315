"""The change from one generation to the next, as one small state machine.

    serving ── prepare, swap ──> serving (the next generation), with batches in flight

    serving ── flush ──> flushing ── nothing in flight ──> flushed ── swap ──> serving (the next)
       ^                     │                                │
       └───── abort ─────────┴──────── abort, or the lease ends

The second way is for operators who ask for it: while *flushing* nothing more is dispatched, and the
swap comes within milliseconds of *flushed*. A gateway that stays *flushed* for the length of its
lease goes back to *serving*: the process that flushed it has died, and requests are waiting.

Here: where the change stands, and what keeps it waiting. Not here: which generation is which
(`batches.generations`), the steps themselves: telling the core, fronts and workers (`state`).
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from triton_backend.contract.errors import InputError

if TYPE_CHECKING:  # fronts read the states, and load no kernels
    from triton_backend.serving.gateway.batches.generation import Generation
    from triton_backend.serving.gateway.batches.generations import Generations

LEAST_LEASE_US = 100_000


class State(StrEnum):
    """Where a rollout stands."""

    SERVING = "serving"
    FLUSHING = "flushing"
    FLUSHED = "flushed"


class Rollout:
    """The change from the generation served to the one prepared.

    Attributes:
        paused: nothing is dispatched until the swap.
    """

    def __init__(self, generations: "Generations") -> None:
        self._generations = generations
        self.paused = False
        self._flushed_us: int | None = None  # when that was seen first

    def state(self, in_flight: int) -> State:
        """Where the rollout stands with so many batches in flight."""
        if not self.paused:
            return State.SERVING
        return State.FLUSHING if in_flight else State.FLUSHED

    def flush(self) -> bool:
        """Dispatch nothing more; False where that was so already."""
        changed = not self.paused
        self.paused = True
        return changed

    def swap(self, in_flight: int) -> "Generation":
        """The generation prepared is to be served now; it is returned.

        Raises:
            InputError: nothing is prepared, its workers are not all up, or a flush has not ended.
        """
        prepared = self._generations.prepared
        if prepared is None:
            raise InputError("swap", "nothing is prepared")
        workers, up = (
            prepared.deployment.vgpus,
            self._generations.up(prepared.deployment.generation),
        )
        if len(up) < len(workers):
            raise InputError("swap", f"{len(up)} of {len(workers)} workers are up")
        state = self.state(in_flight)
        if state is State.FLUSHING:
            raise InputError("swap", f"the gateway is {state}, not flushed")
        self.paused = False
        return prepared

    def abort(self) -> bool:
        """Dispatch again by the plan served; False where nothing was flushed."""
        changed = self.paused
        self.paused = False
        return changed

    def lease_ended(self, in_flight: int, now_us: int) -> bool:
        """True if the swap does not come; to be asked now and then."""
        if self.state(in_flight) is not State.FLUSHED:
            self._flushed_us = None
            return False
        if self._flushed_us is None:
            self._flushed_us = now_us
        return now_us - self._flushed_us >= self._lease_us()

    def _lease_us(self) -> int:
        """A third of the shortest SLO: what waited can still be served in time."""
        models = self._generations.deployment.plan.models
        return max(min(model.slo_us for model in models) // 3, LEAST_LEASE_US)
