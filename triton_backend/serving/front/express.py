"""Express slots of a front: a small request is written where its first worker takes it from, at once.

When the scheduler makes a batch of just that request, it sends the batch to the worker itself, and
the front hears of it no sooner than by its answer: one hand-over less. Where the batch has more
requests, or runs a second time, the front gathers it as any other and the slot was of no use.

Here: which slots are free, and whose request lies in which. Not here: the batch that is made of it
(`front_batches`).
"""

from collections import deque
from collections.abc import Callable

from triton_backend.serving.deployment import EXPRESS_BYTES, Deployment
from triton_backend.serving.front.pending import ExpressTicket, Request
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.shared_memory import Segment

# Longer than a worker that hangs lives on: until then it might take from the slot, or answer.
REST_US = 3_000_000


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
        self._tag = deployment.tag
        self._find = find
        self._segment = Segment.create(
            deployment.express_segment(plan.name), deployment.express_layout(plan), slots.stop
        )
        self._free = deque(slots)
        self._requests: dict[int, Request] = {}
        self._resting: dict[int, int] = {}  # until when, by slot

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return len(self._requests) > len(self._resting)

    def write(self, request: Request) -> ExpressTicket | None:
        """Write a request's tensors into a free slot; None where it has to go without. Any thread."""
        layout, samples = self._segment.layout, request.samples
        if samples > layout.batch or layout.payload_bytes(samples) > EXPRESS_BYTES:
            return None
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        request.express = True
        self._requests[slot] = request
        for name, view in self._segment.views(slot, samples).items():
            view[...] = request.tensors[name]
        return ExpressTicket(slot, checksum_of(self._segment, slot, samples), self._tag)

    def get(self, slot: int, number: int) -> Request | None:
        """The request of a slot, if it has that number."""
        request = self._requests.get(slot)
        return request if request is not None and request.number == number else None

    def take(self, slot: int) -> None:
        """Its answer is in the slot of the same number."""
        del self._requests[slot]
        self._resting.pop(slot, None)

    def give(self, slot: int) -> None:
        """A slot whose answer was sent is free again."""
        self._free.append(slot)

    def rest(self, now_us: int) -> None:
        """Free slots, after a while, whose requests were answered in another way."""
        for slot, request in self._requests.copy().items():
            if self._find(request.number) is None:
                until_us = self._resting.setdefault(slot, now_us + REST_US)
                if now_us >= until_us:
                    self.take(slot)
                    self._free.appendleft(slot)

    def remove(self) -> None:
        """Delete the slots; unmapped with the last who looks, for `write` may be doing so."""
        self._segment.unlink()
