"""Tensors on their way to another host: written into one buffer while another is sent."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport import channel as channel_module
from triton_backend.serving.transport.channel import BUFFERS, Channel
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.transport.wire import Header, Kind, frame

KEY = b"the key"
# More than the kernel takes for a peer that does not read.
SIZE = 16 << 20
LAYOUT = SlotLayout(specs=(TensorSpec(name="x", dtype="UINT8", shape=(-1, SIZE)),), batch=1)


class Sink:
    """Keeps the first byte of every payload, and the kinds of all frames."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.kinds: list[Kind] = []
        self._payload = bytearray(SIZE)

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        del connection, body
        self.kinds.append(header.kind)
        if header.payload_bytes:
            self.firsts.append(self._payload[0])
            assert self._payload[0] == self._payload[-1]

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        del connection, reason

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        del connection, header, body
        return [memoryview(self._payload)]


class Pair:
    """A channel and the receiver at its end, which reads only when told to."""

    def __init__(self) -> None:
        self.receiver = Sink()
        self.there, self.here = (
            EventLoop(handler, SystemClock(), KEY) for handler in (self.receiver, Sink())
        )
        connection = self.here.connect(self.there.listen("tcp:127.0.0.1:0"))
        assert connection is not None
        self.channel = Channel(connection, Segment.private(LAYOUT, BUFFERS), shared=False)

    def send(self, number: int) -> bool:
        """A batch filled with a number; whether there was a buffer for it."""
        place, written = self.channel.acquire(0), self.channel.segment
        if place is None:
            return False
        written.views(place, 1)["x"][:] = np.uint8(number)
        assert self.channel.send(frame(Kind.BATCH, payload_bytes=SIZE), written, place, 1)
        return True

    def read_alone(self, frames: int) -> None:
        """Let so many frames in all arrive, with only the receiver polled."""
        while len(self.receiver.kinds) < frames:
            self.there.poll(0.001)

    def read(self, frames: int) -> None:
        """Let so many frames in all arrive, with both ends polled."""
        while len(self.receiver.kinds) < frames:
            self.here.poll(0.001)
            self.there.poll(0.001)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.here.close()
    made.there.close()


def test_batches_are_written_while_others_are_on_their_way(pair: Pair) -> None:
    assert [pair.send(number) for number in range(BUFFERS)] == [True] * BUFFERS
    assert pair.channel.connection.send(frame(Kind.HEARTBEAT))
    pair.read(BUFFERS + 1)
    assert pair.receiver.firsts == list(range(BUFFERS))
    assert pair.receiver.kinds[-1] is Kind.HEARTBEAT


def test_a_receiver_that_takes_nothing_is_waited_for_in_vain_only_so_long(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "PATIENCE_SECONDS", 0.05)
    sent = [pair.send(number) for number in range(BUFFERS + 1)]
    assert sent == [True] * BUFFERS + [False]
    pair.read(BUFFERS)
    assert pair.send(BUFFERS)
    pair.read(BUFFERS + 1)
    assert pair.receiver.firsts == list(range(BUFFERS + 1))


def test_who_needs_a_buffer_waits_for_a_receiver_that_reads(pair: Pair) -> None:
    for number in range(BUFFERS):
        pair.send(number)
    reading = threading.Thread(target=pair.read_alone, args=(1,))
    reading.start()
    assert pair.send(BUFFERS)  # without anybody who polls here
    reading.join()
    pair.read(BUFFERS + 1)
    assert pair.receiver.firsts == list(range(BUFFERS + 1))


def test_what_is_written_is_sent_before_anybody_waits(pair: Pair) -> None:
    places = [pair.channel.acquire(0) for _ in range(BUFFERS)]
    assert None not in places
    asked: list[int] = []

    def flush() -> None:
        asked.append(1)
        for place in places:
            assert place is not None
            pair.channel.release(place)

    assert pair.channel.acquire(0, flush) in places
    assert pair.channel.acquire(0, flush) in places
    assert asked == [1]
