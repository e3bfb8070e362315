"""A worker's messages on a batch: to the next worker, the front and the scheduler.

Outputs of modules of an application go to no process: they are retained in this vGPU's own segment,
and the scheduler notifies their readers.

Here: the frames of a batch that ran, and the instants of emulated links. Not here: running it, what
it is given (`input`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from triton_backend.contract.decisions import Hop
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.units import transfer_us
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import Channel, Channels, checksum_up_to
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.emulated_links import EmulatedLinks
from triton_backend.serving.transport.retained import RetainedSegments
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.transport.wire import (
    NONE,
    RETAINED,
    AnswerBody,
    BatchBody,
    FailureBody,
    FrameError,
    Kind,
    TimesBody,
    frame,
    pack_answer,
    pack_batch,
    pack_failure,
    pack_rows,
    pack_shared_batch_done,
)
from triton_backend.serving.worker.queue import QueuedBatch, QueuedSharedBatch
from triton_backend.serving.worker.scheduler_link import SchedulerLink
from triton_backend.serving.worker.sizes import places_of

# Of files of this host, which a client has no business with.
_PATH = re.compile(r"(?<![\w.])/[^\s'\":,;()]+")


class ReceiverGoneError(PoolPipeError):
    """The process that is to receive a batch is gone, or takes nothing: the batch runs again."""


class OutputTarget(NamedTuple):
    """Where a stage's results go: `slot` of the channel to the next worker, or to the front.

    `segment` is the channel's, laid out for the receiver; without a channel it is the own
    retained outputs.
    """

    channel: Channel | None
    segment: Segment
    slot: int
    last: bool

    def views(self, samples: int) -> Arrays:
        """The tensors to be written, [samples, ...]."""
        return self.segment.views(self.slot, samples)

    def release(self) -> None:
        """Nothing will be sent from it."""
        if self.channel is not None:
            self.channel.release(self.slot)


class BatchHeader(NamedTuple):
    """Which batch it is, by whose plan it is numbered, and at which of its stages."""

    batch_id: int
    tag: int
    stage: int


class OutputSender:
    """Sends what the batches of one vGPU come to."""

    def __init__(
        self,
        deployment: Deployment,
        channels: Channels,
        retained: RetainedSegments,
        scheduler: SchedulerLink,
    ) -> None:
        self._scheduler = scheduler
        # By tag: the generations served, and the vGPU's number there.
        self._served: dict[int, tuple[Deployment, int]] = {}
        self._retained = retained
        self._checksum_up_to = deployment.settings.checksum_up_to_bytes
        self._channels = channels
        self._hosts = deployment.settings.hosts
        self._links = _links(deployment)

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Send what batches of a generation come to.

        Raises:
            InputError: shared memory has no room for this vGPU's retained outputs.
        """
        self._served[deployment.tag] = deployment, vgpu
        self._retained.add(deployment)
        self._retained.make(deployment, vgpu)

    @property
    def all_here(self) -> bool:
        """True if all that results go to is on this host, so that none of it is waited for."""
        return not self._hosts

    def take_pages(self, deployment: Deployment, vgpu: int) -> None:
        """Take the memory of this vGPU's retained outputs before it is used; from any thread."""
        self._retained.take_pages(deployment, vgpu)

    def forget(self, tag: int) -> None:
        """Nothing will come of a generation any more."""
        served = self._served.pop(tag, None)
        if served is not None:
            self._retained.forget(served[0].generation)
            self._channels.forget(served[0].generation)

    def forget_before(self, generation: int) -> None:
        """Drop what is kept of older generations: no batch that is left reads or writes theirs."""
        self._retained.forget_before(generation)
        self._channels.forget_before(generation)

    def target_of(self, batch: QueuedBatch, flush: Callable[[], None]) -> OutputTarget:
        """Where the results of a batch go.

        Args:
            batch: is about to run.
            flush: sends the results that wait to be sent; called before waiting for a free buffer.

        Raises:
            ReceiverGoneError: the process that is to receive them is gone, or takes nothing.
        """
        body, after = batch.body, batch.stage + 1
        if batch.tag not in self._served:
            raise ReceiverGoneError("its plan is over")
        deployment, own = self._served[batch.tag]
        last = after == len(body.hops)
        if last and body.express == RETAINED:
            output_slot = self._retained.of_model(deployment, own, _name(deployment, body))
            return OutputTarget(None, output_slot, body.answer_slot, last)
        if last:
            channel = self._channels.to_front(deployment, _name(deployment, body))
            slot, receiver = body.answer_slot, "the front"
        else:
            vgpu = body.hops[after].vgpu
            channel = self._channels.to_worker(deployment, vgpu)
            slot, receiver = body.slots[after], f"the worker of vGPU {vgpu}"
        place = None if channel is None else channel.acquire(slot, flush)
        if channel is None or place is None:
            raise ReceiverGoneError(f"{receiver} is gone, or takes nothing")
        written = channel.segment
        if not last:
            receives = deployment.row_of(body.model, body.pipeline, after)
            written = written.laid_out(deployment.layout_of(receives, body.hops[after].vgpu))
        return OutputTarget(channel, written, place, last)

    def report_transfer(self, batch: QueuedBatch) -> None:
        """Report when the tensors of a batch came here from another worker (gateway's time)."""
        if batch.stage:
            begin_us = batch.body.transfer_start_us
            arrived_us = max(batch.body.available_us, begin_us)
            self._report(Kind.TRANSFER_DONE, batch, (begin_us, arrived_us))

    def send_result(
        self, batch: QueuedBatch, target: OutputTarget, span_us: tuple[int, int]
    ) -> None:
        """Hand on a batch that ran, and report when (gateway's time)."""
        if target.last:  # the client waits for the answer, none for the report
            self.pass_on(batch, target, span_us[1])
            self._report(Kind.STAGE_DONE, batch, span_us)
        else:  # reported before the next worker can report its transfer
            self._report(Kind.STAGE_DONE, batch, span_us)
            self.pass_on(batch, target, span_us[1])

    def pass_on(self, batch: QueuedBatch, target: OutputTarget, end_us: int) -> None:
        """Tell its receiver of a batch whose results were written at `end_us`."""
        if batch.tag not in self._served:  # its generation was given up while it ran
            target.release()
            return
        channel = target.channel
        if channel is None:  # the scheduler notifies its readers
            self._report_rows(batch, target)
        elif target.last:
            self._answer(batch, target, channel)
        else:
            self._hand_on(batch, target, channel, end_us)

    def report_shared_batch(
        self,
        shared_batch: QueuedSharedBatch,
        aboard: Sequence[QueuedBatch],
        span_us: tuple[int, int],
    ) -> None:
        """Report when a shared batch ran (gateway's time), and the members whose results go on."""
        tag = shared_batch.members[0].tag
        if tag not in self._served:
            return
        _, vgpu = self._served[tag]
        numbers = [batch.batch_id for batch in aboard]
        body = pack_shared_batch_done(TimesBody(vgpu, *span_us), numbers)
        self._scheduler.send(
            frame(Kind.SHARED_BATCH_DONE, body, batch_id=shared_batch.shared_batch_id, plan_tag=tag)
        )

    def report_failure(self, header: BatchHeader, body: BatchBody, reason: str) -> None:
        """Have the batch's requests answered with an error.

        Paths of files are left out of the reason.
        """
        batch_id, tag, stage = header
        text = f"stage {stage} failed: {_PATH.sub('(a file)', reason)}"
        failure = FailureBody(text, body.express, body.answer_slot)
        data = frame(
            Kind.BATCH_FAILED,
            pack_failure(failure),
            batch_id=batch_id,
            stage=stage,
            plan_tag=tag,
        )
        self._scheduler.send(data)
        if tag not in self._served:
            return
        deployment, _ = self._served[tag]
        retained = body.express == RETAINED  # the scheduler knows its readers
        channel = None if retained else self._channels.to_front(deployment, _name(deployment, body))
        if channel is not None:
            channel.connection.send(data)

    def report_let_go(self, batch_id: int, tag: int) -> None:
        """Say that nothing of a batch that was aborted is written here any more."""
        self._scheduler.send(frame(Kind.LET_GO, batch_id=batch_id, plan_tag=tag))

    def report_lost(self, batch: QueuedBatch, reason: str) -> None:
        """Have the requests run again of a batch that cannot be brought to its next stage."""
        self._report_lost(BatchHeader(batch.batch_id, batch.tag, batch.stage + 1), reason)

    def report_not_gathered(self, header: BatchHeader, reason: str) -> None:
        """Have the tasks run again of a batch whose rows cannot be had now.

        No worker is to blame.
        """
        self._report_lost(header._replace(stage=NONE), reason)

    def _report_lost(self, header: BatchHeader, reason: str) -> None:
        data = frame(
            Kind.BATCH_LOST,
            pack_failure(FailureBody(reason, NONE, NONE)),
            batch_id=header.batch_id,
            stage=header.stage,
            plan_tag=header.tag,
        )
        self._scheduler.send(data)

    def _answer(self, batch: QueuedBatch, target: OutputTarget, channel: Channel) -> None:
        """Send ANSWER: a batch's outputs are in the front's slot."""
        written, slot, samples = target.segment, target.slot, batch.body.samples
        checksum = checksum_up_to(self._checksum_up_to, written, slot, samples)
        body = AnswerBody(
            batch.body.answer_slot,
            samples,
            checksum,
            batch.body.express,
            batch.body.hops[-1].end_us,
        )
        data = frame(
            Kind.ANSWER,
            pack_answer(body),
            batch_id=batch.batch_id,
            stage=batch.stage,
            plan_tag=batch.tag,
            payload_bytes=written.layout.payload_bytes(samples),
        )
        channel.send(data, written, slot, samples)

    def _hand_on(
        self, batch: QueuedBatch, target: OutputTarget, channel: Channel, end_us: int
    ) -> None:
        """Send a batch whose results were written at `end_us` to the next worker."""
        written, samples, stage = target.segment, batch.body.samples, batch.stage + 1
        size = written.layout.payload_bytes(samples)
        begin_us, available_us = self._transfer(batch.tag, batch.body.hops[stage], size, end_us)
        body = batch.body._replace(
            payload_checksum=checksum_up_to(self._checksum_up_to, written, target.slot, samples),
            transfer_start_us=begin_us,
            available_us=available_us,
        )
        data = frame(
            Kind.BATCH,
            pack_batch(body),
            batch_id=batch.batch_id,
            stage=stage,
            plan_tag=batch.tag,
            payload_bytes=size,
        )
        if not channel.send(data, written, target.slot, samples):
            self.report_lost(batch, "the next worker is gone")

    def _report(self, kind: Kind, batch: QueuedBatch, span_us: tuple[int, int]) -> None:
        if batch.tag not in self._served:
            return
        _, vgpu = self._served[batch.tag]
        times = TimesBody(vgpu, *span_us)
        self._scheduler.send_times(
            kind, times, batch_id=batch.batch_id, stage=batch.stage, tag=batch.tag
        )

    def _report_rows(self, batch: QueuedBatch, target: OutputTarget) -> None:
        """Report how many rows each sample gave, and which size each has, where that varies.

        Counts that are none fail the batch, and so do shapes that no size has.
        """
        deployment, _ = self._served[batch.tag]
        views = target.views(batch.body.samples)
        name = _name(deployment, batch.body)
        groups, choices = (
            deployment.applications.row_groups(name),
            deployment.applications.choices(name),
        )
        if not groups and not choices:
            return
        try:
            places = [places_of(output, known, views) for output, known in choices.items()]
            rows = pack_rows([*(views[counts].tolist() for counts in groups), *places])
            data = frame(Kind.EMITTED, rows, batch_id=batch.batch_id, plan_tag=batch.tag)
        except FrameError as error:
            header = BatchHeader(batch.batch_id, batch.tag, batch.stage)
            self.report_failure(header, batch.body, str(error))
        else:
            self._scheduler.send(data)

    def closed(self, connection: Connection) -> None:
        """A connection ended."""
        self._channels.closed(connection)

    def close(self) -> None:
        """Unmap everything."""
        self._retained.close()
        self._channels.close()
        if self._links is not None:
            self._links.close()

    def _transfer(self, tag: int, hop: Hop, size: int, end_us: int) -> tuple[int, int]:
        """When the move to the next stage begins and ends; real links just take their time."""
        if self._links is None:
            return end_us, end_us
        deployment, vgpu = self._served[tag]
        cluster = deployment.plan.cluster
        here, there = (deployment.vgpus[one].slot.node for one in (vgpu, hop.vgpu))
        rate = min(cluster.node_group_of(n).nic_gbps for n in (here, there))
        duration_us = round(transfer_us(size, rate) * deployment.settings.time_stretch)
        begin_us = self._links.take(here, there, max(end_us, hop.transfer_start_us), duration_us)
        return begin_us, begin_us + duration_us

    def moved_in(self, tag: int, body: BatchBody, moved: Mapping[int, int]) -> BatchBody:
        """A batch of modules, available once its rows came over emulated links, by sending node."""
        if self._links is None:
            return body
        deployment, vgpu = self._served[tag]
        cluster, here = deployment.plan.cluster, deployment.vgpus[vgpu].slot.node
        begin_us, available_us = body.hops[0].transfer_start_us, body.available_us
        for there, size in moved.items():
            rate = min(cluster.node_group_of(n).nic_gbps for n in (here, there))
            duration_us = round(transfer_us(size, rate) * deployment.settings.time_stretch)
            end_us = self._links.take(there, here, begin_us, duration_us) + duration_us
            available_us = max(available_us, end_us)
        return body._replace(available_us=available_us)


def _name(deployment: Deployment, body: BatchBody) -> str:
    """The model of a batch."""
    return deployment.plan.models[body.model].name


def _links(deployment: Deployment) -> EmulatedLinks | None:
    if not deployment.settings.emulate_links:
        return None
    name = f"{deployment.settings.segment_prefix}links"
    return EmulatedLinks(name, deployment.plan.cluster.node_count)
