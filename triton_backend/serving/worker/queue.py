"""The batches of one worker that wait to run: which are accepted, and which runs next.

Here: the check of a batch frame against the plan, the order, and whether the vGPU runs. One thread
adds batches while another runs one. Not here: sockets, the runtime.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from triton_backend.contract.plan import StagePlace
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import checksum_of
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import BatchBody, FrameError, Header


class QueuedBatch(NamedTuple):
    """A batch whose tensors are in this worker's slot, or on their way there over a link.

    They compare by their reserved start, then by their number. `due_us`: when it may start, that
    is, when its tensors are here and its reserved start has come. `stage`: of its pipeline.
    """

    start_us: int
    batch_id: int
    due_us: int
    stage: int
    slot: int
    body: BatchBody

    @property
    def place(self) -> StagePlace:
        """Model, pipeline and stage that it is to run."""
        return self.body.model, self.body.pipeline, self.stage


class BatchQueue:
    """Batches of one vGPU by number, of all stages that it holds.

    Args:
        segment: where their tensors lie; it has a slot for every batch accepted.
        now_us: the gateway's time. It is read under the lock: who looks later sees a later instant,
            so a batch that was not due for one thread is so for the other.
    """

    def __init__(
        self, deployment: Deployment, vgpu: int, segment: Segment, now_us: Callable[[], int]
    ) -> None:
        self._now_us = now_us
        self._tag = deployment.tag
        self._vgpu = vgpu
        # Where a batch of each stage lies, by model, pipeline and stage.
        self._inputs = {
            row.place: segment.laid_out(deployment.layout_of(row))
            for row in deployment.rows_of(vgpu)
        }
        self._slots = segment.slots
        node = deployment.node_name_of(vgpu)
        self._neighbours = frozenset(
            other.index
            for other in deployment.vgpus
            if deployment.same_host(deployment.node_name_of(other.index), node)
        )
        self._batches: dict[int, QueuedBatch] = {}
        self._running = False
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._batches and not self._running

    def check(self, header: Header, batch: BatchBody) -> int:
        """This worker's slot of a batch.

        Raises:
            FrameError: the batch is of another plan, for another worker or of a wrong size.
        """
        if header.plan_tag != self._tag:
            raise FrameError(f"a batch of plan {header.plan_tag:016x}, not {self._tag:016x}")
        stage = header.stage
        inputs = self._inputs.get((batch.model, batch.pipeline, stage))
        if inputs is None or len(batch.hops) <= stage:
            where = f"model {batch.model}, pipeline {batch.pipeline}, stage {stage}"
            raise FrameError(f"a batch for {where}, which this worker does not hold")
        hop = batch.hops[stage]
        if hop.vgpu != self._vgpu:
            raise FrameError(f"a batch for vGPU {hop.vgpu} at vGPU {self._vgpu}")
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
        slot, stage = self.check(header, batch), header.stage
        inputs = self._inputs[batch.model, batch.pipeline, stage]
        if batch.payload_checksum and batch.payload_checksum != checksum_of(
            inputs, slot, batch.samples
        ):
            raise FrameError(f"tensors of batch {header.batch_id} do not match their checksum")
        if not self._shares_memory_with_sender(batch, stage):  # its tensors came behind the frame
            batch = batch._replace(available_us=max(batch.available_us, self._now_us()))
        start_us = batch.hops[stage].start_us
        due_us = max(start_us, batch.available_us)
        with self._lock:
            if len(self._batches) >= self._slots:
                raise FrameError(f"more than {self._slots} batches")
            self._batches[header.batch_id] = QueuedBatch(
                start_us, header.batch_id, due_us, stage, slot, batch
            )

    def _shares_memory_with_sender(self, batch: BatchBody, stage: int) -> bool:
        if not stage:
            return True  # of its way from the front nothing is reported
        return batch.hops[stage - 1].vgpu in self._neighbours

    def inputs_of(self, batch: QueuedBatch) -> Arrays:
        """The tensors of a batch, [samples, ...] in its slot."""
        return self._inputs[batch.place].views(batch.slot, batch.body.samples)

    def written_by(self, header: Header, batch: BatchBody) -> tuple[Segment, int]:
        """The slots in which the tensors of a batch lie or are to be written, and which it has.

        Raises:
            FrameError: it is not accepted (`check`).
        """
        slot = self.check(header, batch)
        return self._inputs[batch.model, batch.pipeline, header.stage], slot

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
