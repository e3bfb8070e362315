"""The change from one generation to the next, as one small state machine.

    serving ── prepare, swap ──> serving (the next generation), with batches in flight

    serving ── flush ──> flushing ── nothing in flight ──> flushed ── swap ──> serving (the next)
       ^                     │                                │
       └───── abort ─────────┴──────── abort, or the lease ends

The second way is for operators who ask for it: while *flushing* nothing more is dispatched, and the
swap comes within milliseconds of *flushed*. A gateway that stays *flushed* for the length of its
lease goes back to *serving*: the process that flushed it has died, and requests are waiting.

Here: which generation is served, which is prepared, where the change stands. Not here: telling the
core, fronts and workers of it (`state`).
"""

from enum import StrEnum

from triton_backend.contract.errors import InputError
from triton_backend.serving.deployment import Deployment

LEAST_LEASE_US = 100_000


class State(StrEnum):
    """Where a rollout stands."""

    SERVING = "serving"
    FLUSHING = "flushing"
    FLUSHED = "flushed"


class Rollout:
    """The generation served, and the one that may follow it.

    Attributes:
        serving: served now.
        prepared: accepted beside it; None where there is none.
    """

    def __init__(self, serving: Deployment) -> None:
        self.serving = serving
        self.prepared: Deployment | None = None
        self.paused = False
        self._flushed_us: int | None = None  # when that was seen first

    def state(self, in_flight: int) -> State:
        """Where the rollout stands with so many batches in flight."""
        if not self.paused:
            return State.SERVING
        return State.FLUSHING if in_flight else State.FLUSHED

    def prepare(self, deployment: Deployment) -> bool:
        """Accept a generation beside the one served; False where it is that one."""
        if deployment.generation == self.serving.generation:
            return False
        self.prepared = deployment
        return True

    def flush(self) -> bool:
        """Dispatch nothing more; False where that was so already."""
        changed = not self.paused
        self.paused = True
        return changed

    def swap(self, workers_up: int, in_flight: int) -> Deployment:
        """Serve the prepared generation, of which so many workers are up; it is returned.

        Raises:
            InputError: nothing is prepared, its workers are not all up, or a flush has not ended.
        """
        prepared = self.prepared
        if prepared is None:
            raise InputError("swap", "nothing is prepared")
        if workers_up < len(prepared.vgpus):
            raise InputError("swap", f"{workers_up} of {len(prepared.vgpus)} workers are up")
        state = self.state(in_flight)
        if state is State.FLUSHING:
            raise InputError("swap", f"the gateway is {state}, not flushed")
        self.serving, self.prepared, self.paused = prepared, None, False
        return prepared

    def abort(self) -> bool:
        """Forget what is prepared and dispatch again; False where nothing was flushed."""
        changed = self.paused
        self.prepared, self.paused = None, False
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
        shortest_us = min(model.slo_us for model in self.serving.plan.models)
        return max(shortest_us // 3, LEAST_LEASE_US)
