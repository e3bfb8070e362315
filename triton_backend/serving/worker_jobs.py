"""The batches of one worker that wait for their turn: which are taken, and which is next.

Here: the check of a batch frame against the plan, and the order. Not here: sockets, the runtime.
"""

from dataclasses import dataclass

from triton_backend.serving.memory import Segment
from triton_backend.serving.outbound import checksum_of
from triton_backend.serving.settings import Deployment
from triton_backend.serving.wire import BatchBody, FrameError, Header, HopGrant


@dataclass(frozen=True, slots=True)
class Job:
    """A batch whose tensors are in this worker's slot, or on their way there over a link."""

    batch_id: int
    body: BatchBody
    hop: HopGrant

    @property
    def due_us(self) -> int:
        """When it may start: its tensors are here and its reserved start has come."""
        return max(self.hop.start_us, self.body.available_us)


class Jobs:
    """Batches of one vGPU by number.

    Args:
        segment: where their tensors lie; it has a slot for every batch taken.
    """

    def __init__(self, deployment: Deployment, vgpu: int, segment: Segment) -> None:
        self._tag = deployment.tag
        self._vgpu = vgpu
        self._place = deployment.vgpus[vgpu]
        self._segment = segment
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        """Batches that wait."""
        return len(self._jobs)

    def check(self, header: Header, batch: BatchBody) -> HopGrant:
        """This worker's hop of a batch.

        Raises:
            FrameError: the batch is of another plan, for another worker or of a wrong size.
        """
        if header.plan_tag != self._tag:
            raise FrameError(f"a batch of plan {header.plan_tag:016x}, not {self._tag:016x}")
        stage = self._place.stage
        if header.stage != stage or len(batch.hops) <= stage:
            raise FrameError(f"a batch for stage {header.stage} at a worker of stage {stage}")
        hop = batch.hops[stage]
        if hop.vgpu != self._vgpu or batch.model != self._place.model:
            raise FrameError(f"a batch for vGPU {hop.vgpu} at vGPU {self._vgpu}")
        if not 0 <= hop.slot < self._segment.slots:
            raise FrameError(f"slot {hop.slot} of {self._segment.slots}")
        layout = self._segment.layout
        if not 1 <= batch.samples <= layout.batch:
            raise FrameError(f"{batch.samples} samples, at most {layout.batch} fit")
        size = layout.payload_bytes(batch.samples)
        if header.payload_bytes != size:
            raise FrameError(f"{header.payload_bytes} bytes, not {size}")
        return hop

    def take(self, header: Header, batch: BatchBody) -> None:
        """Let a batch wait for its turn.

        Raises:
            FrameError: it must not be taken (`check`), or its tensors are damaged.
        """
        hop = self.check(header, batch)
        if batch.payload_checksum and batch.payload_checksum != checksum_of(
            self._segment, hop.slot, batch.samples
        ):
            raise FrameError(f"tensors of batch {header.batch_id} do not match their checksum")
        if len(self._jobs) >= self._segment.slots:
            raise FrameError(f"more than {self._segment.slots} batches")
        self._jobs[header.batch_id] = Job(header.batch_id, batch, hop)

    def drop(self, batch_id: int) -> None:
        """It has its turn, or shall have none."""
        self._jobs.pop(batch_id, None)

    def next(self, now_us: int) -> Job | None:
        """The due batch reserved first, else the batch that is due first."""
        if not self._jobs:
            return None
        due = [job for job in self._jobs.values() if job.due_us <= now_us]
        if due:
            return min(due, key=lambda job: (job.hop.start_us, job.batch_id))
        return min(self._jobs.values(), key=lambda job: (job.due_us, job.batch_id))
