"""The batches of one worker that wait to run: which are accepted, and which runs next.

Where a stage boards, a batch waits for the others of its shared batch, which the scheduler names:

    batches   at other stages          due at their reserved start -------------> run alone
    boarding  at stages that board     their shared batch's start, all here ----> run together
    shared    what the scheduler says  `leave_us` has come, some missing -------> run together

Here: the check of a batch frame against the plan, the order, and whether the vGPU runs. One thread
adds batches while another runs one. Not here: sockets, the runtime.
"""

import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import (
    NONE,
    RETAINED,
    BatchBody,
    FrameError,
    Header,
    Kind,
    SharedBatchBody,
)

SHARED_BATCHES_KEPT = 256  # of those that have left: what is said of them later changes nothing
ABORTED_KEPT = 4096  # batches aborted before these are refused by number alone
PLANS_KEPT = 16  # of those that are over


class QueuedBatch(NamedTuple):
    """A batch whose tensors are in this worker's slot, or on their way there over a link.

    They compare by their reserved start, then by their number. `due_us`: when it may start, that
    is, when its tensors are here and its reserved start has come. `tag`: of the generation by whose
    plan model, pipeline, `stage` and vGPUs are numbered.
    """

    start_us: int
    batch_id: int
    due_us: int
    tag: int
    stage: int
    slot: int
    body: BatchBody

    @property
    def samples(self) -> int:
        """Its samples."""
        return self.body.samples

    @property
    def place(self) -> "TaggedPlace":
        """Generation, model, pipeline and stage that it is to run."""
        return self.tag, self.body.model, self.body.pipeline, self.stage


class QueuedSharedBatch(NamedTuple):
    """Batches that run together, in this order; ordered among others as a batch is."""

    start_us: int
    shared_batch_id: int
    members: tuple[QueuedBatch, ...]

    @property
    def samples(self) -> int:
        """Of all members."""
        return sum(batch.samples for batch in self.members)

    @property
    def last(self) -> bool:
        """True if it is the last stage of its members, which all end with the same block."""
        batch = self.members[0]
        return batch.stage + 1 == len(batch.body.hops)

    @property
    def place(self) -> "TaggedPlace":
        """A stage that runs them: they differ in pipeline and stage number only."""
        return self.members[0].place


TaggedPlace = tuple[int, int, int, int]
"""A generation's tag, and a stage: model, pipeline and stage by their numbers in its plan."""


class _Served(NamedTuple):
    """A generation that this worker serves: its vGPU's number, and the vGPUs of its host."""

    vgpu: int
    neighbours: frozenset[int]


class BatchQueue:
    """Batches of one vGPU by number, over all its stages and generations.

    Args:
        segment: where their tensors lie; it has a slot for every batch accepted.
        now_us: the gateway's time. It is read under the lock: a later look sees a later instant,
            so a batch that was not due for one thread is so for the other.
    """

    def __init__(self, segment: Segment, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._segment = segment
        self._slots = segment.slots
        self._served: dict[int, _Served] = {}  # by tag
        self._over = deque[int](maxlen=PLANS_KEPT)  # tags
        self._inputs: dict[TaggedPlace, Segment] = {}  # where a batch of each stage lies
        self._batches: dict[int, QueuedBatch] = {}
        self._patience_us: dict[TaggedPlace, int] = {}  # of stages that board
        self._boarding: dict[int, QueuedBatch] = {}
        self._arriving: list[QueuedBatch] = []  # of these, whose arrival is not reported
        self._shared_batches: dict[int, SharedBatchBody] = {}
        self._left = deque[int](maxlen=SHARED_BATCHES_KEPT)
        self._running: tuple[int, ...] = ()  # batches
        self._receiving: set[int] = set()  # batches whose tensors come in, into their slots
        self._aborted: dict[int, None] = {}  # the last of them
        self._aborted_before = NONE  # a number: of some of those up to it nothing is known any more
        # Of those aborted, with tags: they run or are received.
        self._to_let_go: dict[int, int] = {}
        self._let_go: list[tuple[int, int]] = []  # with tags: nothing of them is written any more
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """True if nothing runs or waits."""
        return not self._batches and not self._boarding and not self._running

    @property
    def reserved_until_us(self) -> int:
        """When the last of those that wait is to end; 0 where none does."""
        with self._lock:
            waiting = chain(self._batches.values(), self._boarding.values())
            return max((batch.body.hops[batch.stage].end_us for batch in waiting), default=0)

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Accept batches of a generation in which the vGPU has this number."""
        node = deployment.node_name_of(vgpu)
        neighbours = frozenset(
            other.index
            for other in deployment.vgpus
            if deployment.same_host(deployment.node_name_of(other.index), node)
        )
        for row in deployment.rows_of(vgpu):
            layout = deployment.layout_of(row, vgpu)
            place = deployment.tag, *row.place
            self._inputs[place] = self._segment.laid_out(layout)
            if deployment.capacity_of(row):
                self._patience_us[place] = deployment.model_of(row).slo_us
        self._served[deployment.tag] = _Served(vgpu, neighbours)
        if deployment.tag in self._over:  # it was served in part, and failed
            self._over.remove(deployment.tag)

    def forget(self, tag: int) -> None:
        """Accept no more batches of a generation, and run none that waits.

        The scheduler has given it up.
        """
        if self._served.pop(tag, None) is not None:
            self._over.append(tag)
        with self._lock:
            for batches in (self._batches, self._boarding):
                for batch in [b for b in batches.values() if b.tag == tag]:
                    del batches[batch.batch_id]
            self._arriving = [b for b in self._arriving if b.tag != tag]
        for place in [place for place in self._inputs if place[0] == tag]:
            self._segment.forget(self._inputs.pop(place).layout)
            self._patience_us.pop(place, None)

    def is_over(self, tag: int) -> bool:
        """True if a generation was served.

        A peer that still sends batches of it has not heard of its end.
        """
        return tag in self._over

    def check(self, header: Header, batch: BatchBody) -> int:
        """This worker's slot of a batch.

        Raises:
            FrameError: the batch is of another plan, for another worker or of a wrong size.
        """
        served = self._served.get(header.plan_tag)
        if served is None:
            known = ", ".join(f"{tag:016x}" for tag in self._served)
            raise FrameError(f"a batch of plan {header.plan_tag:016x}, not {known}")
        stage = header.stage
        inputs = self._inputs.get((header.plan_tag, batch.model, batch.pipeline, stage))
        if inputs is None or len(batch.hops) <= stage:
            where = f"model {batch.model}, pipeline {batch.pipeline}, stage {stage}"
            raise FrameError(f"a batch for {where}, which this worker does not hold")
        hop = batch.hops[stage]
        if hop.vgpu != served.vgpu:
            raise FrameError(f"a batch for vGPU {hop.vgpu} at vGPU {served.vgpu}")
        slot = batch.slots[stage]
        if not 0 <= slot < self._slots:
            raise FrameError(f"slot {slot} of {self._slots}")
        layout = inputs.layout
        if not 1 <= batch.samples <= layout.batch:
            raise FrameError(f"{batch.samples} samples, at most {layout.batch} fit")
        size = layout.payload_bytes(batch.samples)
        if header.kind is not Kind.GATHER and header.payload_bytes != size:
            raise FrameError(f"{header.payload_bytes} bytes, not {size}")
        return slot

    def add(self, header: Header, batch: BatchBody, slot: int | None = None) -> None:
        """Let a batch wait until it is due; not one that was aborted.

        Args:
            header: of its frame.
            batch: what it is.
            slot: its slot, where it has just been accepted (`written_by`).

        Raises:
            FrameError: it is not accepted (`check`), or its tensors are damaged.
        """
        stage, tag = header.stage, header.plan_tag
        slot = self.check(header, batch) if slot is None else slot
        inputs = self._inputs[tag, batch.model, batch.pipeline, stage]
        if batch.payload_checksum and batch.payload_checksum != checksum_of(
            inputs, slot, batch.samples
        ):
            raise FrameError(f"tensors of batch {header.batch_id} do not match their checksum")
        if not self._shares_memory_with_sender(
            batch, stage, tag
        ):  # its tensors came behind the frame
            batch = batch._replace(available_us=max(batch.available_us, self._now_us()))
        start_us = batch.hops[stage].start_us
        due_us = max(start_us, batch.available_us)
        queued = QueuedBatch(start_us, header.batch_id, due_us, tag, stage, slot, batch)
        with self._lock:
            if self.is_aborted(header.batch_id):
                return
            if len(self._batches) + len(self._boarding) >= self._slots:
                raise FrameError(f"more than {self._slots} batches")
            if queued.place not in self._patience_us:
                self._batches[header.batch_id] = queued
                return
            self._boarding[header.batch_id] = queued
            if stage:
                self._arriving.append(queued)

    def shared_batch(self, shared_batch_id: int, body: SharedBatchBody) -> None:
        """Have batches run together, in place of what was said of the shared batch.

        Too late once it has left.
        """
        with self._lock:
            if body.batches and shared_batch_id not in self._left:
                self._shared_batches[shared_batch_id] = body
            elif self._shared_batches.pop(shared_batch_id, None) is not None:
                self._left.append(shared_batch_id)

    def arrived(self) -> list[QueuedBatch]:
        """Batches that board whose tensors have come, from another worker; once each.

        The scheduler decides by that which members their shared batch waits for.
        """
        if not self._arriving:
            return []
        with self._lock:
            now_us = self._now_us()
            here = [batch for batch in self._arriving if batch.body.available_us <= now_us]
            self._arriving = [b for b in self._arriving if b.body.available_us > now_us]
            return here

    def _shares_memory_with_sender(self, batch: BatchBody, stage: int, tag: int) -> bool:
        if not stage:
            return True  # of its way from the front nothing is reported
        return batch.hops[stage - 1].vgpu in self._served[tag].neighbours

    def inputs_of(self, batch: QueuedBatch) -> Arrays:
        """The tensors of a batch, [samples, ...] in its slot."""
        return self._inputs[batch.place].views(batch.slot, batch.body.samples)

    def written_by(self, header: Header, batch: BatchBody) -> tuple[Segment, int]:
        """The slots in which the tensors of a batch lie or are to be written, and which it has.

        Raises:
            FrameError: it is not accepted (`check`).
        """
        slot = self.check(header, batch)
        return self._inputs[header.plan_tag, batch.model, batch.pipeline, header.stage], slot

    def nowhere(self, header: Header) -> list[memoryview]:
        """Memory for the tensors of a batch that is not run.

        Raises:
            FrameError: they are larger than any batch.
        """
        most = self._segment.layout.slot_bytes
        if header.payload_bytes > most:
            raise FrameError(f"{header.payload_bytes} bytes, at most {most}")
        return [memoryview(bytearray(header.payload_bytes))]

    def remove(self, batch_id: int, tag: int = 0) -> None:
        """Forget a batch of a plan that was aborted, and refuse it when it comes.

        One that runs goes on.
        """
        with self._lock:
            self._batches.pop(batch_id, None)
            if self._boarding.pop(batch_id, None) is not None:
                self._arriving = [b for b in self._arriving if b.batch_id != batch_id]
            self._aborted[batch_id] = None
            if len(self._aborted) > ABORTED_KEPT:
                oldest = next(iter(self._aborted))
                del self._aborted[oldest]
                self._aborted_before = max(self._aborted_before, oldest)
            self._to_let_go[batch_id] = tag
            self._look_for_let_go()

    def is_aborted(self, batch_id: int) -> bool:
        """True of a batch that was aborted, and of those too old to remember."""
        return batch_id <= self._aborted_before or batch_id in self._aborted

    def begin_receiving(self, batch_id: int) -> None:
        """The tensors of a batch are written into its slot as they come from another host."""
        with self._lock:
            self._receiving.add(batch_id)

    def end_receiving(self, batch_id: int) -> None:
        """They have come, or will not."""
        with self._lock:
            self._receiving.discard(batch_id)
            self._look_for_let_go()

    def take_let_go(self) -> list[tuple[int, int]]:
        """Batches that were aborted and of which nothing is written any more, with tags.

        Once each.
        """
        if not self._let_go:
            return []
        with self._lock:
            taken, self._let_go = self._let_go, []
            return taken

    def _look_for_let_go(self) -> None:
        if not self._to_let_go:
            return
        for batch_id, tag in list(self._to_let_go.items()):
            if batch_id not in self._running and batch_id not in self._receiving:
                del self._to_let_go[batch_id]
                self._let_go.append((batch_id, tag))

    def forget_retained(self) -> None:
        """Forget batches of modules: the scheduler that would read what they come to is gone.

        The next one has their jobs run from the beginning, and needs the vGPU for that.
        """
        with self._lock:
            for batches in (self._batches, self._boarding):
                for batch in [b for b in batches.values() if b.body.express == RETAINED]:
                    del batches[batch.batch_id]
            self._arriving = [b for b in self._arriving if b.batch_id in self._boarding]

    def begin(self) -> QueuedBatch | QueuedSharedBatch | None:
        """The batch or shared batch to run now, where nothing runs; it runs from then on."""
        with self._lock:
            return None if self._running else self._next()

    def end(self) -> None:
        """End the current run; nothing runs after it."""
        with self._lock:
            self._running = ()
            self._look_for_let_go()

    def end_and_begin(self) -> QueuedBatch | QueuedSharedBatch | None:
        """End the current run; returns the batch or shared batch to run now, or None."""
        with self._lock:
            return self._next()

    def _next(self) -> QueuedBatch | QueuedSharedBatch | None:
        """Of those due, the batch or shared batch reserved first."""
        first = None
        if self._batches:
            now_us = self._now_us()
            for batch in self._batches.values():
                if batch.due_us <= now_us and (first is None or batch < first):
                    first = batch
        shared_batch = self._next_shared_batch() if self._boarding or self._shared_batches else None
        chosen: QueuedBatch | QueuedSharedBatch | None = first
        if shared_batch is not None and (first is None or shared_batch[:2] < first[:2]):
            chosen = self._depart(shared_batch)
            self._running = tuple(batch.batch_id for batch in shared_batch.members)
        elif first is not None:
            del self._batches[first.batch_id]
            self._running = (first.batch_id,)
        else:
            self._running = ()
        self._look_for_let_go()
        return chosen

    def _next_shared_batch(self) -> QueuedSharedBatch | None:
        """Of the shared batches that leave now, the one reserved first."""
        now_us = self._now_us()
        first = None
        for shared_batch_id, body in list(self._shared_batches.items()):
            members = tuple(
                batch
                for number in body.batches
                if (batch := self._boarding.get(number)) and batch.body.available_us <= now_us
            )
            complete = len(members) == len(body.batches)
            if now_us < (body.start_us if complete else body.leave_us):
                continue
            if not members:  # no member came until its end
                del self._shared_batches[shared_batch_id]
                self._left.append(shared_batch_id)
                continue
            shared_batch = QueuedSharedBatch(body.start_us, shared_batch_id, members)
            if first is None or shared_batch[:2] < first[:2]:
                first = shared_batch
        self._forget_strays(now_us)
        return first

    def _depart(self, shared_batch: QueuedSharedBatch) -> QueuedSharedBatch:
        del self._shared_batches[shared_batch.shared_batch_id]
        self._left.append(shared_batch.shared_batch_id)
        for batch in shared_batch.members:
            del self._boarding[batch.batch_id]
        return shared_batch

    def _forget_strays(self, now_us: int) -> None:
        """Forget batches of no shared batch: the scheduler died before it could name theirs."""
        patience_us = self._patience_us
        late = [
            batch
            for batch in self._boarding.values()
            if now_us - batch.due_us > patience_us.get(batch.place, 0)
        ]
        if late:
            named = {number for body in self._shared_batches.values() for number in body.batches}
            for batch in late:
                if batch.batch_id not in named:
                    del self._boarding[batch.batch_id]

    def next_due_us(self) -> int | None:
        """When the next look is due; what is due while a batch runs, follows it."""
        if not self._batches and not self._boarding:
            return None
        with self._lock:
            now_us = self._now_us()
            dues = [batch.due_us for batch in self._batches.values()]
            if self._boarding:
                dues += self._shared_batch_dues()
            due_us = min((at for at in dues if not self._running or at > now_us), default=None)
            arrivals = (batch.body.available_us for batch in self._arriving)
            return min((at for at in (due_us, *arrivals) if at is not None), default=None)

    def _shared_batch_dues(self) -> list[int]:
        """When each shared batch leaves, as far as is known now."""
        dues: list[int] = []
        for body in self._shared_batches.values():
            here = [self._boarding[n] for n in body.batches if n in self._boarding]
            if len(here) == len(body.batches):
                dues.append(max(body.start_us, *(b.body.available_us for b in here)))
            else:
                dues.append(body.leave_us)
        return dues
