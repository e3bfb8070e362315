"""The batches of one front: gathered for their first worker, cut into answers after the last.

Every batch has a slot for its answer, in shared memory, from before it is sent until its replies
have left:

    free --> in flight --> replying --> free      answered
                 |
                 +------> held ------> free       aborted, forgotten, or answered in another way

A slot that is *held* may still be written by a last worker that is slow, hung or taken for lost. It
is free again when that worker has answered after all, or when no worker that wrote into it can be
alive.

An *express* request is written, when it arrives, into a slot from which its first worker copies it:
where the scheduler makes a batch of just that request, it sends it to the worker itself, and the
front hears of it no sooner than by its answer, in the answer slot of the same number. Where the
batch has more requests, or runs a second time, the front gathers it as any other.

Here: slots, generations, batches. Not here: requests that are not in a batch (`pending`), replies.
All is called in the thread that polls, but for `write_express` and `replied`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from triton_backend.runtimes.texts import put_tensor
from triton_backend.serving.deployment import EXPRESS_BYTES, Deployment
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import ExpressTicket, Request
from triton_backend.serving.liveness.limits import dead_after_us, written_until_us
from triton_backend.serving.transport.channel import Channel, Channels, checksum_of, checksum_up_to
from triton_backend.serving.transport.shared_memory import Arrays, Segment, SlotPool
from triton_backend.serving.transport.wire import (
    NONE,
    AnswerBody,
    BatchBody,
    DispatchBody,
    FailureBody,
    FrameError,
    Header,
    Kind,
    frame,
    pack_batch,
)

ABORTED_KEPT = 256
_LOG = logging.getLogger(__name__)


class Generation:
    """The slots of a model in one generation of the plan.

    Numbers of answer slots: those that batches use first, those of express requests, and as many as
    the first again, so that slots held after a fault keep no batch waiting. Pages are taken when
    first written.

    Attributes:
        model: its number in the plan.
        patience_us: for how long a dispatch that was decided may be on its way.
        waiting: dispatches that found no slot free.
        superseded_us: since when another generation is served; None while this one is, or may be.
        express: the express batch of every express slot in use.
    """

    def __init__(self, deployment: Deployment, model: int) -> None:
        plan = deployment.plan.models[model]
        express = deployment.express_slots(model)
        usual = deployment.front_slots(model)
        layout = deployment.front_layout(plan)
        self.deployment = deployment
        self.model = model
        self._slo_us = max(deployment.longest_slos_us)
        self._slowest_us = max(one.latency_us for path in plan.pipelines for one in path.stages)
        self.patience_us = dead_after_us(self._slowest_us)
        self.waiting: deque[tuple[Header, DispatchBody]] = deque()
        self.superseded_us: int | None = None
        self.express: dict[int, Batch] = {}
        self.answers = Segment.create(
            deployment.front_segment(plan.name), layout, express.stop + usual
        )
        self._slots = SlotPool(chain(range(usual), range(express.stop, express.stop + usual)))
        self._free_express = deque(express)  # of any thread
        self._express_numbers = express
        self._inputs: Segment | None = None
        if express:
            name, layout = deployment.express_segment(plan.name), deployment.express_layout(plan)
            self._inputs = Segment.create(name, layout, express.stop)

    @property
    def free(self) -> int:
        """Slots free for batches that are not express."""
        return self._slots.free

    @property
    def in_use(self) -> bool:
        """True if a batch may still be answered from a slot, or a worker write into one."""
        express_free = len(self._free_express) == len(self._express_numbers)
        return bool(self._slots.taken) or not express_free

    def written_until_us(self, now_us: int, end_us: int) -> int:
        """Until when a worker may write the answer of a batch that is given up now."""
        return written_until_us(now_us, end_us, slo_us=self._slo_us, latency_us=self._slowest_us)

    def take(self) -> int:
        """A slot for the answer of a batch; there must be one free."""
        slot = self._slots.take()
        assert slot is not None
        return slot

    def give(self, slot: int) -> None:
        """A slot is neither written nor read any more."""
        if slot in self._express_numbers:
            self.express.pop(slot, None)
            self._free_express.append(slot)
        else:
            self._slots.give(slot)

    def write_express(self, request: Request) -> ExpressTicket | None:
        """Write a request's tensors where a worker can copy them; None where it has to go without.

        From any thread.
        """
        inputs, samples = self._inputs, request.samples
        if inputs is None or samples > inputs.layout.batch:
            return None
        if inputs.layout.payload_bytes(samples) > EXPRESS_BYTES:
            return None
        try:
            slot = self._free_express.pop()
        except IndexError:
            return None
        request.express = True
        self.express[slot] = Batch(
            [request],
            samples,
            self,
            slot,
            since_us=request.arrival_us,
            end_us=request.arrival_us,
            express=request.number,
        )
        for name, view in inputs.views(slot, samples).items():
            put_tensor(view, request.tensors[name])
        return ExpressTicket(slot, checksum_of(inputs, slot, samples), self.deployment.tag)

    def express_batch(self, slot: int, number: int) -> "Batch | None":
        """The batch of the express request in a slot; None where that has another number."""
        batch = self.express.get(slot)
        return batch if batch is not None and batch.express == number else None

    def remove(self) -> None:
        """Delete the slots; express ones are unmapped with the last `write_express`."""
        self.answers.remove()
        if self._inputs is not None:
            self._inputs.unlink()


@dataclass(slots=True, eq=False)
class Batch:
    """A batch in flight: its requests in the order of their samples.

    Attributes:
        since_us: when it was dispatched; of an express request, when that came.
        end_us: of the last of its reservations, which the front does not know of an express one.
        express: the number of its only request, where that is express.
        held_until_us: when its slot is free; None while its answer is waited for.
    """

    requests: list[Request]
    samples: int
    generation: Generation
    slot: int
    since_us: int
    end_us: int
    express: int = NONE
    held_until_us: int | None = None
    payload_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.payload_bytes = self.generation.answers.layout.payload_bytes(self.samples)

    def fits(self, header: Header, body: AnswerBody) -> bool:
        """True if an answer is to this batch."""
        return (
            header.plan_tag == self.generation.deployment.tag
            and body.answer_slot == self.slot
            and body.samples == self.samples
            and header.payload_bytes == self.payload_bytes
        )

    def pieces(self) -> list[memoryview]:
        """Where its outputs are to be written."""
        return self.generation.answers.pieces(self.slot, self.samples)

    def views(self) -> Arrays:
        """Its outputs, [samples, ...]; not to be changed."""
        return self.generation.answers.views(self.slot, self.samples)

    def outputs(self) -> Iterator[tuple[Request, Arrays]]:
        """Every request with its own part of the outputs."""
        views = self.views()
        at = 0
        for request in self.requests:
            end = at + request.samples
            yield request, {name: view[at:end] for name, view in views.items()}
            at = end

    def hold(self, now_us: int) -> None:
        """No client waits for its answer, but a process may still write it."""
        self.held_until_us = self.generation.written_until_us(now_us, self.end_us)
        self.requests = []  # their tensors are Triton's


class FrontBatches:
    """Batches in flight, and the generations they belong to.

    Args:
        pending: the requests that are not answered yet.
        report: tells the scheduler of a dispatch that is not carried out: BATCH_LOST or
            BATCH_FAILED, and why.
        checksum_up_to_bytes: larger tensors carry no checksum.
    """

    def __init__(
        self,
        model: str,
        channels: Channels,
        pending: PendingRequests,
        report: Callable[[Kind, Header, str], None],
        *,
        checksum_up_to_bytes: int,
    ) -> None:
        self._model = model
        self._channels = channels
        self._pending = pending
        self._report = report
        self._checksum_up_to_bytes = checksum_up_to_bytes
        self._generations: dict[int, Generation] = {}
        self._current: Generation | None = None
        self._batches: dict[int, Batch] = {}  # but for express ones
        self._replied: deque[Batch] = deque()
        self._aborted: deque[int] = deque(maxlen=ABORTED_KEPT)  # express batches, the last of them

    # Generations

    def add(self, deployment: Deployment) -> None:
        """Make room for the answers of a generation, if workers send it this model's."""
        models = {model.name: i for i, model in enumerate(deployment.plan.models)}
        if self._model in models and not deployment.applications.answers_from_retained(self._model):
            self._generations[deployment.tag] = Generation(deployment, models[self._model])

    def use(self, deployment: Deployment) -> None:
        """Write express requests under this generation from now on."""
        self._current = self._generations.get(deployment.tag)

    def retire_before(self, current: int, now_us: int) -> None:
        """Remove slots of older generations once nothing of them is queued or in flight.

        What was decided before the plan changed may be dispatched a little later.
        """
        for tag, generation in list(self._generations.items()):
            if generation.deployment.generation >= current:
                continue
            if generation.superseded_us is None:
                generation.superseded_us = now_us
            over = now_us - generation.superseded_us > generation.patience_us
            if over and not generation.in_use and not generation.waiting:
                generation.remove()
                self._channels.forget(generation.deployment.generation)
                del self._generations[tag]

    def close(self) -> None:
        """Remove all slots."""
        for generation in self._generations.values():
            generation.remove()

    @property
    def at_rest(self) -> bool:
        """True if no slot is in use and no generation is to be removed."""
        if self._batches or self._replied:
            return False
        return not any(
            generation.in_use or generation.waiting or generation.superseded_us is not None
            for generation in self._generations.values()
        )

    # On their way out

    def write_express(self, request: Request) -> ExpressTicket | None:
        """Write a request's tensors into an express slot, if it may have one; from any thread."""
        generation = self._current
        return None if generation is None else generation.write_express(request)

    def dispatch(self, header: Header, body: DispatchBody, now_us: int) -> None:
        """Gather a batch as soon as it has a slot for its answer.

        Raises:
            FrameError: it is of a plan that is not known here.
        """
        generation = self._generations.get(header.plan_tag)
        if generation is None:
            raise FrameError(f"a dispatch of plan {header.plan_tag:016x}, which is not known here")
        if generation.free and not generation.waiting:
            self._gather(generation, header, body, now_us)
        else:
            generation.waiting.append((header, body))

    def forget_waiting(self) -> None:
        """The scheduler is gone: what waits for a slot is dispatched again by the next one."""
        for generation in self._generations.values():
            generation.waiting.clear()

    def _gather(
        self, generation: Generation, header: Header, body: DispatchBody, now_us: int
    ) -> None:
        """Write the requests' tensors into the first worker's slot, one after the other.

        Not of a dispatch so late that its scheduler may be dead, and the slot granted again by the
        one after the next: this process stood still meanwhile.
        """
        found = [self._pending.get(number) for number in body.requests]
        requests = [request for request in found if request is not None]
        if not requests:
            reason = "its requests were answered before it was dispatched"
            self._report(Kind.BATCH_FAILED, header, reason)
            return
        late_us = now_us - body.hops[0].start_us
        if late_us > generation.deployment.longest_slos_us[generation.model]:
            reason = f"it was to begin {late_us / 1e6:.1f} s ago"
            self._report(Kind.BATCH_LOST, header._replace(stage=NONE), reason)
            return
        samples = sum(request.samples for request in requests)
        channel = self._channels.to_worker(generation.deployment, body.hops[0].vgpu)
        place = None if channel is None else channel.acquire(body.slots[0])
        if channel is None or place is None:
            reason = "its first worker is gone, or takes nothing"
            self._report(Kind.BATCH_LOST, header, reason)
            return
        deployment = generation.deployment
        receives = deployment.row_of(generation.model, body.pipeline, 0)
        written = channel.segment.laid_out(deployment.layout_of(receives, body.hops[0].vgpu))
        try:
            _write(requests, written.views(place, samples))
        except Exception as error:  # noqa: BLE001  # one request that does not fit must not end all others
            _LOG.exception("batch %d", header.batch_id)
            channel.release(place)
            self._fail(header, requests, f"it cannot be gathered: {error}")
            return
        batch = Batch(
            requests, samples, generation, generation.take(), now_us, body.hops[-1].end_us
        )
        self._batches[header.batch_id] = batch
        for request in requests:
            request.batch_id = header.batch_id
        if deployment.binds_late(generation.model):
            first_us = min(request.arrival_us for request in requests)
            self._pending.counters.gathered(samples, max(0, now_us - first_us))
        self._send(header, body, batch, channel, written, place)

    def _fail(self, header: Header, requests: list[Request], reason: str) -> None:
        failure = Refusal("INTERNAL", f"model {self._model!r}: {reason}")
        for request in requests:
            self._pending.refuse(request.number, failure)
        self._report(Kind.BATCH_FAILED, header, reason)

    def _send(
        self,
        header: Header,
        body: DispatchBody,
        batch: Batch,
        channel: Channel,
        written: Segment,
        place: int,
    ) -> None:
        message = BatchBody(
            batch.generation.model,
            body.pipeline,
            batch.samples,
            batch.slot,
            checksum_up_to(self._checksum_up_to_bytes, written, place, batch.samples),
            batch.since_us,
            batch.since_us,
            NONE,
            body.hops,
            body.slots,
        )
        data = frame(
            Kind.BATCH,
            pack_batch(message),
            batch_id=header.batch_id,
            plan_tag=header.plan_tag,
            payload_bytes=written.layout.payload_bytes(batch.samples),
        )
        channel.send(data, written, place, batch.samples)

    # On their way back

    def get(self, header: Header, body: AnswerBody) -> Batch | None:
        """The batch of an answer, also when its slot is only held; None when it is not known."""
        if body.express == NONE:
            return self._batches.get(header.batch_id)
        generation = self._generations.get(header.plan_tag)
        if generation is None:
            return None
        return generation.express_batch(body.answer_slot, body.express)

    def answered(self, header: Header, body: AnswerBody, now_us: int) -> Batch | None:
        """A batch whose outputs are in its slot, until `replied`; None without a waiter.

        Raises:
            FrameError: size, plan or checksum do not fit.
        """
        batch = self.get(header, body)
        if batch is None:
            return None
        if not batch.fits(header, body):
            raise FrameError(f"an answer to batch {header.batch_id} that does not fit it")
        if body.payload_checksum and body.payload_checksum != checksum_of(
            batch.generation.answers, batch.slot, batch.samples
        ):
            raise FrameError(f"outputs of batch {header.batch_id} do not match their checksum")
        self._batches.pop(header.batch_id, None)
        batch.generation.express.pop(batch.slot, None)
        if batch.held_until_us is not None:
            self._free(batch, now_us)  # its worker has written, if late
            return None
        for request in batch.requests:
            request.batch_id = header.batch_id
        return batch

    def failed(self, header: Header, message: FailureBody, now_us: int) -> Batch | None:
        """A batch that its worker could not run; None without a waiter."""
        batch = self._batches.pop(header.batch_id, None)
        generation = self._generations.get(header.plan_tag)
        if message.express != NONE and generation and header.batch_id not in self._aborted:
            batch = generation.express_batch(message.slot, message.express)
        if batch is None:
            return None
        waited_for = batch.held_until_us is None
        self._free(batch, now_us)
        return batch if waited_for else None

    def abort(self, batch_id: int, now_us: int) -> None:
        """Its requests wait again; the scheduler has queued or dropped them."""
        for generation in self._generations.values():
            kept = [item for item in generation.waiting if item[0].batch_id != batch_id]
            generation.waiting = deque(kept)
        batch = self._batches.get(batch_id)
        if batch is None:
            self._aborted.append(batch_id)
        elif batch.held_until_us is None:
            for request in batch.requests:
                request.batch_id = None
            batch.hold(now_us)

    def replied(self, batch: Batch) -> bool:
        """All replies have left a batch's slot; from any thread, `look` frees it.

        Returns:
            whether a dispatch waits for a slot, so that `look` should be called soon.
        """
        self._replied.append(batch)
        return bool(batch.generation.waiting)

    def free_replied(self, now_us: int) -> None:
        """Free the slots that all replies have left."""
        while self._replied:
            self._free(self._replied.popleft(), now_us)

    def look(self, now_us: int) -> None:
        """Hold the slots of batches without a waiter, and free those held long enough."""
        for batch_id, batch in list(self._batches.items()):
            if batch.held_until_us is None:
                if now_us > batch.generation.written_until_us(batch.since_us, batch.end_us):
                    self.abort(batch_id, now_us)  # its scheduler died
            elif now_us >= batch.held_until_us:
                del self._batches[batch_id]
                self._free(batch, now_us)
        for generation in self._generations.values():
            for batch in list(generation.express.copy().values()):
                if batch.held_until_us is None:
                    if self._pending.get(batch.express) is None:
                        batch.hold(now_us)
                elif now_us >= batch.held_until_us:
                    self._free(batch, now_us)

    def _free(self, batch: Batch, now_us: int) -> None:
        """Free the slot of a batch; one that waited for a slot goes out."""
        generation = batch.generation
        generation.give(batch.slot)
        while generation.waiting and generation.free:
            self._gather(generation, *generation.waiting.popleft(), now_us)


def _write(requests: list[Request], views: Arrays) -> None:
    """Copy the tensors of requests, one after the other, into views of all their samples."""
    at = 0
    for request in requests:
        end = at + request.samples
        for name, tensor in request.tensors.items():
            put_tensor(views[name][at:end], tensor)
        at = end
