"""The batches of one worker that wait to run: which are accepted, and which runs next.

Here: the check of a batch frame against the plan, the order, and whether the vGPU runs. One thread
adds batches while another runs one. Not here: sockets, the runtime.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import BatchBody, FrameError, Header


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
    def place(self) -> "TaggedPlace":
        """Generation, model, pipeline and stage that it is to run."""
        return self.tag, self.body.model, self.body.pipeline, self.stage


TaggedPlace = tuple[int, int, int, int]
"""A generation's tag, and a stage: model, pipeline and stage by their numbers in its plan."""


class _Served(NamedTuple):
    """A generation that this worker serves: its vGPU's number, and the vGPUs of its host."""

    vgpu: int
    neighbours: frozenset[int]


class BatchQueue:
    """Batches of one vGPU by number, of all stages that it holds and all generations that it serves.

    Args:
        segment: where their tensors lie; it has a slot for every batch accepted.
        now_us: the gateway's time. It is read under the lock: who looks later sees a later instant,
            so a batch that was not due for one thread is so for the other.
    """

    def __init__(self, segment: Segment, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._segment = segment
        self._slots = segment.slots
        self._served: dict[int, _Served] = {}  # by tag
        self._inputs: dict[TaggedPlace, Segment] = {}  # where a batch of each stage lies
        self._batches: dict[int, QueuedBatch] = {}
        self._running = False
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._batches and not self._running

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
            self._inputs[deployment.tag, *row.place] = self._segment.laid_out(layout)
        self._served[deployment.tag] = _Served(vgpu, neighbours)

    def forget(self, tag: int) -> None:
        """Accept no more batches of a generation."""
        self._served.pop(tag, None)
        for place in [place for place in self._inputs if place[0] == tag]:
            del self._inputs[place]

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
        if header.payload_bytes != size:
            raise FrameError(f"{header.payload_bytes} bytes, not {size}")
        return slot

    def add(self, header: Header, batch: BatchBody) -> None:
        """Let a batch wait until it is due.

        Raises:
            FrameError: it is not accepted (`check`), or its tensors are damaged.
        """
        slot, stage, tag = self.check(header, batch), header.stage, header.plan_tag
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
        with self._lock:
            if len(self._batches) >= self._slots:
                raise FrameError(f"more than {self._slots} batches")
            self._batches[header.batch_id] = QueuedBatch(
                start_us, header.batch_id, due_us, tag, stage, slot, batch
            )

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

    def remove(self, batch_id: int) -> None:
        """Forget a batch that was aborted; one that runs already goes on."""
        with self._lock:
            self._batches.pop(batch_id, None)

    def begin(self) -> QueuedBatch | None:
        """The batch to run now, where nothing runs; it runs from then on."""
        with self._lock:
            return None if self._running else self._next()

    def end(self) -> None:
        """What ran has ended, and nothing runs."""
        with self._lock:
            self._running = False

    def end_and_begin(self) -> QueuedBatch | None:
        """What ran has ended: the batch to run now, or None, and nothing runs."""
        with self._lock:
            return self._next()

    def _next(self) -> QueuedBatch | None:
        """Of those due, the batch reserved first."""
        first = None
        if self._batches:
            now_us = self._now_us()
            for batch in self._batches.values():
                if batch.due_us <= now_us and (first is None or batch < first):
                    first = batch
        self._running = first is not None
        return None if first is None else self._batches.pop(first.batch_id)

    def next_due_us(self) -> int | None:
        """When somebody must look again; what is due while a batch runs, follows it."""
        if not self._batches:
            return None
        with self._lock:
            now_us = self._now_us()
            dues = (batch.due_us for batch in self._batches.values())
            return min((at for at in dues if not self._running or at > now_us), default=None)
