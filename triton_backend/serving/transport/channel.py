"""Handing a batch to the worker of its next stage: same host in place, other hosts over TCP.

Fronts and workers send through this one class. Tensors are written where `acquire` and `views` say:
into the receiver's own slot on the same host, otherwise into a buffer of ours, which TCP carries
while the next batch is written into another.
"""

import zlib
from collections import deque
from collections.abc import Callable
from functools import partial

from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Segment

# Batches on their way to one receiver on another host. One is written while one is sent; more only
# make up for a link that pauses.
BUFFERS = 4
# Of a receiver that takes nothing while all buffers are full: its batches would be late anyway.
PATIENCE_SECONDS = 0.5


_Key = tuple[int, int | tuple[str, int]]
"""Generation, and a vGPU or a model with the gateway of its front."""


class Channel:
    """A connection to a receiver and the memory its tensors are written to.

    Args:
        segment: the receiver's slots, where it is `shared` with us; otherwise our buffers. What is
            written is written into it `laid_out` for the stage that receives.
        express: a front's slots of express requests.
    """

    def __init__(
        self,
        connection: Connection,
        segment: Segment,
        *,
        shared: bool,
        express: Segment | None = None,
    ) -> None:
        self.connection = connection
        self.segment = segment
        self.shared = shared
        self.express = express
        self._free = deque(range(0 if shared else segment.slots))

    def acquire(self, slot: int, flush: Callable[[], None] | None = None) -> int | None:
        """Where the tensors of a batch are to be written whose receiver has granted a slot.

        Args:
            slot: of the receiver.
            flush: called before waiting for a buffer, to `send` those that are written.

        Returns:
            a slot of `segment`; None where a receiver on another host takes nothing.
        """
        if self.shared:
            return slot
        if not self._free:
            if flush is not None:
                flush()
            self.connection.drain(PATIENCE_SECONDS)
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """A slot taken has not been sent, or has been."""
        if not self.shared:
            self._free.append(slot)

    def close(self) -> None:
        """Unmap its memory."""
        self.segment.close()
        if self.express is not None:
            self.express.close()

    def send(self, data: bytes, written: Segment, slot: int, samples: int) -> bool:
        """Tell the receiver (and carry the tensors, to another host); False when it is gone.

        `written` is `segment`, laid out for the stage that receives.
        """
        if self.shared:
            return self.connection.send(data)
        pieces = written.pieces(slot, samples)
        return self.connection.send_with_payload(data, pieces, partial(self.release, slot))


def checksum_up_to(most_bytes: int, segment: Segment, slot: int, samples: int) -> int:
    """CRC-32 of a batch's tensors in a slot; 0 where they are larger than `most_bytes`."""
    if segment.layout.payload_bytes(samples) > most_bytes:
        return 0
    return checksum_of(segment, slot, samples)


def checksum_of(segment: Segment, slot: int, samples: int) -> int:
    """CRC-32 of a batch's tensors in a slot; never 0, which means not computed."""
    value = 0
    for piece in segment.pieces(slot, samples):
        value = zlib.crc32(piece, value)
    return value or 1


class Channels:
    """Channels of one process, opened when first needed.

    Args:
        node: where this process runs; None for the gateway's host.
    """

    def __init__(self, loop: EventLoop, settings: ServeSettings, node: str | None) -> None:
        self._loop = loop
        self._settings = settings
        self._node = node
        self._open_channels: dict[_Key, Channel] = {}
        for host in set(settings.hosts.values()):
            loop.look_up(host)

    def to_worker(self, deployment: Deployment, vgpu: int) -> Channel | None:
        """The channel to a worker; None when it is gone."""
        key = (deployment.generation, vgpu)
        channel = self._open_channels.get(key)
        if channel is not None and not channel.connection.closed:
            return channel
        shared = deployment.same_host(deployment.node_name_of(vgpu), self._node)
        address = deployment.worker_address(vgpu, same_host=shared)
        layout = deployment.worker_layout(vgpu)
        return self._open(key, address, deployment.worker_segment(vgpu), layout, shared=shared)

    def to_front(self, deployment: Deployment, model: str, gateway: int = 0) -> Channel | None:
        """The channel back to a gateway's front of a model, or of an application.

        None when it is gone.
        """
        plan = deployment.served[model]
        key = (deployment.generation, (plan.name, gateway))
        channel = self._open_channels.get(key)
        if channel is not None and not channel.connection.closed:
            return channel
        shared = self._node is None or deployment.same_host(self._node, None)
        address = self._settings.front_address(plan.name, gateway)
        if not shared:
            address = f"tcp:{self._settings.gateway_host}:{deployment.front_port(plan.name)}"
        inputs = deployment.express_segment(plan.name, gateway), deployment.express_layout(plan)
        if deployment.applications.answers_from_retained(model):
            # Nothing is written to such a front.
            return self._open(key, address, *inputs, shared=shared, express=inputs)
        plan = deployment.plan.model(model)  # with outputs that clients do not see
        name, layout = deployment.front_segment(plan.name), deployment.front_layout(plan)
        number = deployment.plan.models.index(plan)
        express = inputs if shared and deployment.express_slots(number) else None
        return self._open(key, address, name, layout, shared=shared, express=express)

    def _open(
        self,
        key: _Key,
        address: str,
        name: str,
        layout: SlotLayout,
        *,
        shared: bool,
        express: tuple[str, SlotLayout] | None = None,
    ) -> Channel | None:
        connection = self._loop.connect(address)
        if connection is None:
            return None
        try:
            # Mapped after connecting: a receiver makes its segment before it listens.
            segment = Segment.attach(name, layout) if shared else Segment.private(layout, BUFFERS)
            taken_from = None if express is None else Segment.attach(*express)
        except InputError:
            self._loop.drop(connection, CloseReason.NO_SEGMENT)
            return None
        channel = self._open_channels[key] = Channel(
            connection, segment, shared=shared, express=taken_from
        )
        return channel

    def forget(self, generation: int) -> None:
        """A generation is over: end the channels to receivers that go on without it."""
        for key, channel in list(self._open_channels.items()):
            if key[0] == generation:
                del self._open_channels[key]
                self._loop.drop(channel.connection, CloseReason.OVER)
                channel.close()

    def forget_before(self, generation: int) -> None:
        """Close the channels of every generation older than this one."""
        for older in {key[0] for key in list(self._open_channels) if key[0] < generation}:
            self.forget(older)

    def closed(self, connection: Connection) -> None:
        """A connection ended: what was mapped with it belongs to a process that is gone."""
        for key, channel in list(self._open_channels.items()):
            if channel.connection is connection:
                del self._open_channels[key]
                channel.close()

    def close(self) -> None:
        """Unmap everything; the event loop closes the connections."""
        for channel in self._open_channels.values():
            channel.close()
