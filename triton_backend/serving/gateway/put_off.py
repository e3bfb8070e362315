"""Requests that a new scheduler cannot serve in time with the workers that have reported so far.

Workers report to a new scheduler one after the other. A request that those present cannot serve by
its deadline is not dropped while others have yet to report: it is put off, and offered to the core
again with each that does.

Here: which requests wait so, and until when. Not here: the core, frames (`hub`).
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from triton_backend.contract.decisions import DropReason

# A worker that lives reports by then: as long as one is waited for that is alone in its pool
# (`roll_call`).
PATIENCE_US = 1_000_000
FOR_WANT_OF_WORKERS = frozenset({DropReason.DEADLINE, DropReason.WORKER_LOST})


class Offered(NamedTuple):
    """A request as its front announced it; its entry is one of the plan served."""

    front: Hashable
    model: int
    samples: int
    entry: int
    deadline_us: int
    low: int = 0


class PutOff:
    """Of one life of the scheduler, from `now_us` on.

    Args:
        vgpus: whose workers are to report.
    """

    def __init__(self, vgpus: int, now_us: int) -> None:
        self._missing = set(range(vgpus))
        self._until_us = now_us + PATIENCE_US
        self._offered: dict[int, Offered] = {}  # by the core's number, all of this time
        self._waiting: dict[int, None] = {}  # of these

    @property
    def over(self) -> bool:
        """True when nothing is put off any more."""
        return not self._missing

    def offered(self, number: int, request: Offered) -> None:
        """A request came; it may have to be put off."""
        self._offered[number] = request

    def puts_off(self, number: int, reason: DropReason, now_us: int) -> bool:
        """Put off a request that would be dropped, where that may help; False: drop it."""
        request = self._offered.get(number)
        late = request is None or now_us >= request.deadline_us
        if self.over or late or reason not in FOR_WANT_OF_WORKERS:
            return False
        self._waiting[number] = None
        return True

    def reported(self, vgpu: int) -> list[tuple[int, Offered]]:
        """A worker is there: the requests to be offered again."""
        if vgpu not in self._missing:
            return []
        self._missing.discard(vgpu)
        return self._take(self._waiting)

    def end(self) -> list[tuple[int, Offered]]:
        """Nothing is put off from now on: the requests to be offered for the last time."""
        self._missing.clear()
        return self._take(self._waiting)

    def due(self, now_us: int) -> list[tuple[int, Offered]]:
        """Those to be offered for the last time now.

        Their deadlines have come, or waiting is over.
        """
        if self.over:
            return []
        if now_us >= self._until_us:
            return self.end()
        deadlines = {number: self._offered[number].deadline_us for number in self._waiting}
        return self._take([number for number, at_us in deadlines.items() if at_us <= now_us])

    def waits(self, number: int) -> bool:
        """True of a request that is put off."""
        return number in self._waiting

    def forget(self, number: int) -> None:
        """Forget a request that its client has cancelled."""
        self._waiting.pop(number, None)

    def forget_front(self, front: Hashable) -> None:
        """A front is gone, with its requests."""
        for number in [n for n in self._waiting if self._offered[n].front == front]:
            del self._waiting[number]

    def _take(self, numbers: Iterable[int]) -> list[tuple[int, Offered]]:
        taken = [(number, self._offered[number]) for number in numbers]
        for number, _ in taken:
            self._waiting.pop(number, None)
        if self.over:
            self._offered.clear()
        return taken
