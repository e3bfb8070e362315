"""Express slots of a front: a small request is written where its first worker takes it from, at once.

When the scheduler makes a batch of just that request, it sends the batch to the worker itself, and
the front hears of it no sooner than by its answer: one hand-over less. Where the batch has more
requests, or runs a second time, the front gathers it as any other and the slot was of no use.

Here: which slots are free, and whose request lies in which. Not here: the batch that is made of it
(`front_batches`).
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from triton_backend.serving.front_requests import Request
from triton_backend.serving.memory import Segment
from triton_backend.serving.outbound import checksum_of
from triton_backend.serving.settings import EXPRESS_BYTES, Deployment

# Long enough for a worker that hangs to be noticed: it might still take from the slot, or answer.
REST_US = 1_000_000


class Ticket(NamedTuple):
    """The slot that holds a request's tensors, and their checksum."""

    slot: int
    payload_checksum: int


class ExpressSlots:
    """Of one model in one generation.

    Args:
        find: the request of a number, or None when it has been answered.
    """

    def __init__(
        self, deployment: Deployment, model: int, find: Callable[[int], Request | None]
    ) -> None:
        plan = deployment.plan.models[model]
        slots = deployment.express_slots(model)
        self.tag = deployment.tag
        self._find = find
        self._segment = Segment.create(
            deployment.express_segment(plan.name), deployment.express_layout(plan), slots.stop
        )
        self._free = deque(slots)
        self._requests: dict[int, Request] = {}
        self._resting: deque[tuple[int, int]] = deque()

    @property
    def busy(self) -> bool:
        """Whether an answer may come."""
        return bool(self._requests)

    def write(self, request: Request) -> Ticket | None:
        """Write a request's tensors into a free slot; None where it has to go without. Any thread."""
        if request.samples * self._segment.layout.bytes_per_sample > EXPRESS_BYTES:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        for name, view in self._segment.views(slot, request.samples).items():
            view[...] = request.tensors[name]
        self._requests[slot] = request
        return Ticket(slot, checksum_of(self._segment, slot, request.samples))

    def get(self, slot: int, number: int) -> Request | None:
        """The request of a slot, if it has that number."""
        request = self._requests.get(slot)
        return request if request is not None and request.number == number else None

    def take(self, slot: int) -> None:
        """Its answer is in the slot of the same number."""
        del self._requests[slot]

    def give(self, slot: int) -> None:
        """A slot whose answer was sent is free again."""
        self._free.append(slot)

    def rest(self, now_us: int) -> None:
        """Free slots, after a while, whose requests were answered in another way."""
        while self._resting and self._resting[0][0] <= now_us:
            self._free.append(self._resting.popleft()[1])
        for slot, request in list(self._requests.copy().items()):
            if self._find(request.number) is None:
                del self._requests[slot]
                self._resting.append((now_us + REST_US, slot))

    def remove(self) -> None:
        """Unmap and delete the slots."""
        self._segment.remove()
