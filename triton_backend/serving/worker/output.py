"""What a worker says about a batch: on to the next worker, back to the front, to the scheduler.

Here: the frames of a batch that ran, an express request taken from its front, and the instants of emulated links. Not here: running it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from triton_backend.contract.units import transfer_us
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.channel import Channel, Channels
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.emulated_links import Links
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import (
    AnswerBody,
    BatchBody,
    FrameError,
    HopGrant,
    Kind,
    TimesBody,
    frame,
    pack_answer,
    pack_batch,
    pack_json,
    pack_times,
)
from triton_backend.serving.worker.queue import Job


class OutputTarget(NamedTuple):
    """Where a stage's results go: `slot` of the channel to the next worker, or to the front."""

    channel: Channel
    slot: int
    last: bool


class OutputSender:
    """The ways on from one vGPU.

    Attributes:
        scheduler: who is told of runs and transfers; None while it is gone.
    """

    def __init__(self, loop: EventLoop, deployment: Deployment, vgpu: int) -> None:
        self.scheduler: Connection | None = None
        self._deployment = deployment
        self._vgpu = vgpu
        self._place = deployment.vgpus[vgpu]
        self._stage, self._tag = self._place.stage, deployment.tag
        self._checksum_up_to = deployment.settings.checksum_up_to_bytes
        node = deployment.node_name_of(vgpu)
        self._channels = Channels(loop, deployment.settings, node)
        self._links = _links(deployment)

    def way_of(self, job: Job, hand_over: Callable[[], None]) -> OutputTarget | None:
        """Where the results of a batch go; None when that process is gone, or takes nothing.

        `hand_over` sends those that are left to be sent; called before waiting for a free buffer.
        """
        body, after = job.body, self._stage + 1
        last = after == len(body.hops)
        if last:
            channel, slot = self._channels.to_front(self._deployment, body.model), body.answer_slot
        else:
            hop = body.hops[after]
            channel, slot = self._channels.to_worker(self._deployment, hop.vgpu), hop.slot
        place = None if channel is None else channel.take(slot, hand_over)
        return None if channel is None or place is None else OutputTarget(channel, place, last)

    def fetch(self, body: BatchBody, into: Arrays) -> None:
        """Copy an express request out of its front's slot.

        Raises:
            FrameError: the front is gone, or has no such slot.
        """
        channel = self._channels.to_front(self._deployment, body.model)
        express = None if channel is None else channel.express
        if express is None or not 0 <= body.answer_slot < express.slots:
            raise FrameError(f"its front is gone, or has no express slot {body.answer_slot}")
        for name, tensor in express.views(body.answer_slot, body.samples).items():
            np.copyto(into[name], tensor)

    def tell_arrival(self, job: Job) -> None:
        """Report when the tensors of a batch came here from another worker (gateway's time)."""
        begin_us = job.body.transfer_start_us
        arrived_us = max(job.body.available_us, begin_us)
        self._tell(Kind.TRANSFER_DONE, job, (begin_us, arrived_us))

    def tell_end(self, job: Job, way: OutputTarget, span_us: tuple[int, int]) -> None:
        """Hand on a batch that ran, and report when (gateway's time)."""
        if way.last:  # the client waits for the answer, nobody for the report
            self._answer(job, way)
            self._tell(Kind.STAGE_DONE, job, span_us)
        else:  # told before the next worker can tell of its transfer
            self._tell(Kind.STAGE_DONE, job, span_us)
            self._hand_on(job, way, span_us[1])

    def tell_failure(self, batch_id: int, body: BatchBody, reason: str) -> None:
        """Have the batch's requests answered with an error."""
        told = pack_json({"reason": reason, "express": body.express, "slot": body.answer_slot})
        data = frame(
            Kind.BATCH_FAILED, told, batch_id=batch_id, stage=self._stage, plan_tag=self._tag
        )
        channel = self._channels.to_front(self._deployment, body.model)
        for connection in (self.scheduler, None if channel is None else channel.connection):
            if connection is not None:
                connection.send(data)

    def _answer(self, job: Job, way: OutputTarget) -> None:
        """Tell the front that a batch's outputs are in its slot."""
        channel, slot, samples = way.channel, way.slot, job.body.samples
        checksum = channel.checksum(slot, samples, self._checksum_up_to)
        data = frame(
            Kind.ANSWER,
            pack_answer(AnswerBody(job.body.answer_slot, samples, checksum, job.body.express)),
            batch_id=job.batch_id,
            stage=self._stage,
            plan_tag=self._tag,
            payload_bytes=channel.segment.layout.payload_bytes(samples),
        )
        channel.send(data, slot, samples)

    def _hand_on(self, job: Job, way: OutputTarget, end_us: int) -> None:
        """Send a batch whose results were written at `end_us` to the next worker."""
        channel, samples, stage = way.channel, job.body.samples, self._stage + 1
        size = channel.segment.layout.payload_bytes(samples)
        begin_us, available_us = self._transfer(job.body.hops[stage], size, end_us)
        body = job.body._replace(
            payload_checksum=channel.checksum(way.slot, samples, self._checksum_up_to),
            transfer_start_us=begin_us,
            available_us=available_us,
        )
        data = frame(
            Kind.BATCH,
            pack_batch(body),
            batch_id=job.batch_id,
            stage=stage,
            plan_tag=self._tag,
            payload_bytes=size,
        )
        channel.send(data, way.slot, samples)

    def _tell(self, kind: Kind, job: Job, span_us: tuple[int, int]) -> None:
        scheduler = self.scheduler
        if scheduler is not None:
            body = pack_times(TimesBody(self._vgpu, *span_us))
            data = frame(kind, body, batch_id=job.batch_id, stage=self._stage, plan_tag=self._tag)
            scheduler.send(data)

    def forget(self, connection: Connection) -> None:
        """A connection ended."""
        self._channels.forget(connection)

    def close(self) -> None:
        """Unmap everything."""
        self._channels.close()
        if self._links is not None:
            self._links.close()

    def _transfer(self, hop: HopGrant, size: int, end_us: int) -> tuple[int, int]:
        """When the move to the next stage begins and ends; real links just take their time."""
        if self._links is None:
            return end_us, end_us
        cluster = self._deployment.plan.cluster
        here, there = self._place.slot.node, self._deployment.vgpus[hop.vgpu].slot.node
        rate = min(cluster.node_group_of(n).nic_gbps for n in (here, there))
        duration_us = round(transfer_us(size, rate) * self._deployment.settings.time_stretch)
        begin_us = self._links.take(here, there, max(end_us, hop.transfer_start_us), duration_us)
        return begin_us, begin_us + duration_us


def _links(deployment: Deployment) -> Links | None:
    if not deployment.settings.emulate_links:
        return None
    name = f"{deployment.settings.segment_prefix}links"
    return Links(name, deployment.plan.cluster.node_count)
