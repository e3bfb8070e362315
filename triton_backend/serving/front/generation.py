"""What a front keeps of one generation of the plan: its slots, and batches whose answers lie in them."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.express import ExpressSlots
from triton_backend.serving.front.pending import Request
from triton_backend.serving.transport.shared_memory import Arrays, Segment, SlotPool
from triton_backend.serving.transport.wire import AnswerBody, DispatchBody, Header


@dataclass(slots=True, eq=False)
class Generation:
    """A model's slots in one generation.

    Attributes:
        model: its number in the plan.
        segment: all answer slots; those of express requests come after `slots`.
        held: dispatches that wait for a free slot.
    """

    deployment: Deployment
    model: int
    segment: Segment
    slots: SlotPool
    express: ExpressSlots | None
    held: deque[tuple[Header, DispatchBody]] = field(
        default_factory=deque[tuple[Header, DispatchBody]]
    )

    @classmethod
    def create(
        cls, deployment: Deployment, model: int, find: Callable[[int], Request | None]
    ) -> Self:
        """Make the slots; `find` gives the request of a number that is not answered yet."""
        plan = deployment.plan.models[model]
        express = deployment.express_slots(model)
        layout = deployment.front_layout(plan)
        return cls(
            deployment,
            model,
            Segment.create(deployment.front_segment(plan.name), layout, express.stop),
            SlotPool(deployment.front_slots(model)),
            ExpressSlots(deployment, model, find) if express else None,
        )

    def express_batch(self, slot: int, number: int) -> "Batch | None":
        """The batch of the express request in a slot; None where that has another number."""
        request = None if self.express is None else self.express.get(slot, number)
        if request is None:
            return None
        size = self.segment.layout.payload_bytes(request.samples)
        return Batch([request], request.samples, self, slot, size, request.arrival_us)

    def take_express(self, batch: "Batch") -> None:
        """An express request has its answer in its slot."""
        assert self.express is not None
        self.express.take(batch.slot)

    def give(self, slot: int) -> None:
        """An answer slot may be used again."""
        if self.express is not None and slot >= self.slots.slots:
            self.express.give(slot)
        else:
            self.slots.give(slot)

    @property
    def express_busy(self) -> bool:
        """Whether an express request may still be answered from its slot."""
        return self.express is not None and self.express.busy

    def remove(self) -> None:
        """Unmap and delete the slots."""
        self.segment.remove()
        if self.express is not None:
            self.express.remove()


@dataclass(slots=True, eq=False)
class Batch:
    """A batch in flight: its requests in the order of their samples, the size of its outputs."""

    requests: list[Request]
    samples: int
    generation: Generation
    slot: int
    payload_bytes: int
    dispatched_us: int

    def fits(self, header: Header, body: AnswerBody) -> bool:
        """Whether an answer is to this batch."""
        return (
            header.plan_tag == self.generation.deployment.tag
            and body.answer_slot == self.slot
            and body.samples == self.samples
            and header.payload_bytes == self.payload_bytes
        )

    def pieces(self) -> list[memoryview]:
        """Where its outputs are to be written."""
        return self.generation.segment.pieces(self.slot, self.samples)

    def views(self) -> Arrays:
        """Its outputs; not to be changed."""
        return self.generation.segment.views(self.slot, self.samples)

    def outputs(self) -> Iterator[tuple[Request, Arrays]]:
        """Every request with its own part of the outputs."""
        views = self.views()
        at = 0
        for request in self.requests:
            end = at + request.samples
            yield request, {name: view[at:end] for name, view in views.items()}
            at = end
