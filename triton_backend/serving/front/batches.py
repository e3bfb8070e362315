"""The batches of one front: gathered for their first worker, cut into answers after the last.

A generation of the plan has its own answer slots; a dispatch that finds none free waits here. All
is called from the front's polling thread, except where a reply thread gives a slot back.
"""

from collections import deque
from collections.abc import Callable

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.express import ExpressSlots
from triton_backend.serving.front.generation import Batch, Generation
from triton_backend.serving.front.pending import Request
from triton_backend.serving.transport.channel import Channels, checksum_of
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

# A batch that neither answered nor was aborted (its scheduler died) gives its slot back after this.
FORGET_BATCH_US = 10_000_000
ABORTED_KEPT = 256


class FrontBatches:
    """Batches in flight, and the generations they belong to.

    Args:
        find: the request of a number, or None when it has been answered.
        unusable: told a dispatch that cannot be carried out, and whether its worker is the reason.
        checksum_up_to_bytes: larger tensors carry no checksum.
    """

    def __init__(
        self,
        model: str,
        outbound: Channels,
        *,
        find: Callable[[int], Request | None],
        unusable: Callable[[Header, bool], None],
        checksum_up_to_bytes: int,
    ) -> None:
        self._model = model
        self._channels = outbound
        self._find = find
        self._unusable = unusable
        self._checksum_up_to_bytes = checksum_up_to_bytes
        self._generations: dict[int, Generation] = {}
        self._batches: dict[int, Batch] = {}
        self._sent: deque[Batch] = deque()
        self._aborted: deque[int] = deque(maxlen=ABORTED_KEPT)  # express batches, the last of them

    # Generations

    def deployment(self, generation: int) -> Deployment | None:
        """A generation that is known here."""
        for known in self._generations.values():
            if known.deployment.generation == generation:
                return known.deployment
        return None

    def add(self, deployment: Deployment) -> None:
        """Make room for the answers of a generation, if it has this model."""
        models = {model.name: i for i, model in enumerate(deployment.plan.models)}
        if self._model not in models:
            return
        self._generations[deployment.tag] = Generation.create(
            deployment, models[self._model], self._find
        )

    def express(self, deployment: Deployment) -> ExpressSlots | None:
        """Where small requests are written at once under a generation, if anywhere."""
        generation = self._generations.get(deployment.tag)
        return None if generation is None else generation.express

    def retire_before(self, current: int) -> None:
        """Remove the segments of older generations once nothing of them is in flight."""
        for tag, generation in list(self._generations.items()):
            older = generation.deployment.generation < current
            busy = any(batch.generation is generation for batch in self._batches.values())
            if older and not busy and not generation.express_busy:
                generation.remove()
                del self._generations[tag]

    def close(self) -> None:
        """Remove all segments."""
        for generation in self._generations.values():
            generation.remove()

    # On their way out

    def dispatch(self, header: Header, body: DispatchBody, now_us: int) -> None:
        """Gather a batch as soon as it has a slot for its answer.

        Raises:
            FrameError: it is of a plan that is not known here.
        """
        generation = self._generations.get(header.plan_tag)
        if generation is None:
            raise FrameError(f"a dispatch of plan {header.plan_tag:016x}, which is not known here")
        if generation.slots.free and not generation.held:
            self._gather(generation, header, body, now_us)
        else:
            generation.held.append((header, body))

    def _gather(
        self, generation: Generation, header: Header, body: DispatchBody, now_us: int
    ) -> None:
        """Write the requests' tensors into the first worker's slot, one after the other."""
        requests: list[Request] = []
        samples = 0
        for number in body.requests:
            request = self._find(number)
            if request is not None:
                requests.append(request)
                samples += request.samples
        channel = self._channels.to_worker(generation.deployment, body.hops[0].vgpu)
        place = channel.acquire(body.slots[0]) if channel is not None and samples else None
        if channel is None or place is None:
            self._unusable(header, bool(samples))
            return
        slot = generation.slots.take()
        assert slot is not None
        answer_bytes = generation.segment.layout.payload_bytes(samples)
        self._batches[header.batch_id] = Batch(
            requests, samples, generation, slot, answer_bytes, now_us
        )
        views = channel.views(place, samples)
        at = 0
        for request in requests:
            request.batch_id = header.batch_id
            end = at + request.samples
            for name, tensor in request.tensors.items():
                views[name][at:end] = tensor
            at = end
        checksum = channel.checksum(place, samples, self._checksum_up_to_bytes)
        batch = BatchBody(
            generation.model,
            body.pipeline,
            samples,
            slot,
            checksum,
            now_us,
            now_us,
            NONE,
            body.hops,
            body.slots,
        )
        data = frame(
            Kind.BATCH,
            pack_batch(batch),
            batch_id=header.batch_id,
            plan_tag=header.plan_tag,
            payload_bytes=channel.segment.layout.payload_bytes(samples),
        )
        if not channel.send(data, place, samples):
            self._unusable(header, True)  # noqa: FBT003  # its worker is gone

    # On their way back

    def get(self, header: Header, body: AnswerBody) -> Batch | None:
        """The batch of an answer; None when it was aborted and run again, or forgotten."""
        if body.express == NONE:
            return self._batches.get(header.batch_id)
        generation = self._generations.get(header.plan_tag)
        if generation is None:
            return None
        return generation.express_batch(body.answer_slot, body.express)

    def answered(self, header: Header, body: AnswerBody) -> Batch | None:
        """Take a batch whose outputs are in its slot; None when nobody waits for it.

        Raises:
            FrameError: size, plan or checksum do not fit.
        """
        batch = self.get(header, body)
        if batch is None:
            return None
        if not batch.fits(header, body):
            raise FrameError(f"an answer to batch {header.batch_id} that does not fit it")
        segment = batch.generation.segment
        if body.payload_checksum and body.payload_checksum != checksum_of(
            segment, batch.slot, batch.samples
        ):
            raise FrameError(f"outputs of batch {header.batch_id} do not match their checksum")
        if body.express == NONE:
            return self._batches.pop(header.batch_id)
        batch.generation.take_express(batch)
        batch.requests[0].batch_id = header.batch_id
        return batch

    def failed(self, header: Header, message: FailureBody) -> Batch | None:
        """Take a batch that failed; None when nobody waits for it."""
        if message.express == NONE:
            return self._batches.pop(header.batch_id, None)
        generation = self._generations.get(header.plan_tag)
        if generation is None or header.batch_id in self._aborted:
            return None
        batch = generation.express_batch(message.slot, message.express)
        if batch is not None:
            generation.take_express(batch)
        return batch

    def abort(self, batch_id: int, now_us: int) -> None:
        """Its requests wait again; the scheduler has queued or dropped them."""
        for generation in self._generations.values():
            kept = [item for item in generation.held if item[0].batch_id != batch_id]
            generation.held = deque(kept)
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            self._aborted.append(batch_id)
        else:
            for request in batch.requests:
                request.batch_id = None
            self.free(batch, now_us)

    def free(self, batch: Batch, now_us: int) -> None:
        """Its slot may be used again; a batch that waited for one goes out."""
        generation = batch.generation
        generation.give(batch.slot)
        while generation.held and generation.slots.free:
            self._gather(generation, *generation.held.popleft(), now_us)

    def give_back(self, batch: Batch) -> bool:
        """All replies from its slot are sent; from any thread, `take_back` frees it.

        Returns:
            whether a dispatch waits for a slot, so that `take_back` should be called soon.
        """
        self._sent.append(batch)
        return bool(batch.generation.held)

    def take_back(self, now_us: int) -> None:
        """Free the slots that reply threads are done with."""
        while self._sent:
            self.free(self._sent.popleft(), now_us)

    def forget_old(self, now_us: int) -> None:
        """Give up batches that nobody will ever tell of."""
        for batch_id, batch in list(self._batches.items()):
            if now_us - batch.dispatched_us > FORGET_BATCH_US:
                del self._batches[batch_id]
                self.free(batch, now_us)
        for generation in self._generations.values():
            if generation.express is not None:
                generation.express.rest(now_us)
