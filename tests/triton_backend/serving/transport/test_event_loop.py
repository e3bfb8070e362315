import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_backend.contract.errors import InputError
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.event_loop import Hub, make_socket
from triton_backend.serving.transport.outgoing import MAX_PENDING_BYTES
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    FrameError,
    Header,
    Kind,
    frame,
)


class Recorder:
    """Notes what it is told; takes payloads of up to 64 bytes."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, bytes]] = []
        self.closed: list[str] = []
        self.payload = bytearray(64)
        self.failing: Exception | None = None

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        assert not connection.closed
        if self.failing is not None:
            raise self.failing
        self.frames.append((header.kind, body))

    def on_close(self, connection: Connection, reason: str) -> None:
        assert connection.closed
        self.closed.append(reason)

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        assert connection.name
        if body == b"refuse":
            raise FrameError("not wanted")
        half = header.payload_bytes // 2
        memory = memoryview(self.payload)
        return [memory[:half], memory[half : header.payload_bytes]]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def hub(recorder: Recorder) -> Iterator[Hub]:
    made = Hub(recorder)
    yield made
    made.close()


def poll_until_quiet(hub: Hub) -> None:
    for _ in range(8):
        hub.poll(0.002)


def dial(address: str) -> socket.socket:
    sock, target = make_socket(address)
    sock.connect(target)
    return sock


def test_frames_arrive_whole_and_in_order_however_they_are_cut(
    hub: Hub, recorder: Recorder, tmp_path: Path
) -> None:
    address = hub.listen(f"unix:{tmp_path}/s")
    bodies = [b"", b"abc", bytes(70_000), b"z"]
    stream = b"".join(frame(Kind.HELLO, body) for body in bodies)
    with dial(address) as peer:
        for start in range(0, len(stream), 999):
            peer.sendall(stream[start : start + 999])
            hub.poll(0.01)
        poll_until_quiet(hub)
    assert recorder.frames == [(Kind.HELLO, body) for body in bodies]


def test_a_large_frame_may_arrive_in_any_two_parts(
    hub: Hub, recorder: Recorder, tmp_path: Path
) -> None:
    address = hub.listen(f"unix:{tmp_path}/s")
    body = bytes(300_000)
    data = frame(Kind.HELLO, body)
    for first in (10, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 131_073):
        recorder.frames.clear()
        with dial(address) as peer:
            peer.sendall(data[:first])
            hub.poll(1)
            hub.poll(1)
            sender = threading.Thread(target=peer.sendall, args=(data[first:],))
            sender.start()
            poll_until_quiet(hub)
            while sender.is_alive() and not recorder.closed:
                hub.poll(0.01)
            sender.join()
            poll_until_quiet(hub)
        assert recorder.frames == [(Kind.HELLO, body)], first
        poll_until_quiet(hub)
    assert recorder.closed == ["the peer is gone"] * 5


def test_an_error_of_ours_costs_one_connection_and_is_logged_as_ours(
    hub: Hub, recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = hub.listen(f"unix:{tmp_path}/s")
    recorder.failing = KeyError("ours")
    with dial(address) as bad:
        bad.sendall(frame(Kind.BEAT))
        poll_until_quiet(hub)
        recorder.failing = None
        with dial(address) as good:
            good.sendall(frame(Kind.BEAT))
            poll_until_quiet(hub)
    assert recorder.frames == [(Kind.BEAT, b"")]
    assert recorder.closed[0] == "failed: our own error, see the log"
    assert "KeyError: 'ours'" in caplog.text


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(garbage=st.binary(min_size=50, max_size=500))
def test_garbage_costs_its_sender_the_connection_and_nobody_else(
    hub: Hub, recorder: Recorder, tmp_path: Path, garbage: bytes
) -> None:
    recorder.frames.clear()
    recorder.closed.clear()
    address = hub.listen(f"unix:{tmp_path}/g{len(hub.connections)}")
    with dial(address) as bad, dial(address) as good:
        bad.sendall(garbage)
        good.sendall(frame(Kind.BEAT))
        poll_until_quiet(hub)
        assert recorder.frames == [(Kind.BEAT, b"")]
        assert [reason for reason in recorder.closed if reason.startswith("refused")]
    poll_until_quiet(hub)


def test_payload_of_another_host_lands_in_the_memory_its_owner_named(
    hub: Hub, recorder: Recorder
) -> None:
    address = hub.listen("tcp:127.0.0.1:0")
    payload = bytes(range(40))
    with dial(address) as peer:
        peer.sendall(frame(Kind.BATCH, b"x", payload_bytes=40) + payload[:7])
        poll_until_quiet(hub)
        assert not recorder.frames
        peer.sendall(payload[7:] + frame(Kind.BEAT))
        poll_until_quiet(hub)
    assert recorder.frames == [(Kind.BATCH, b"x"), (Kind.BEAT, b"")]
    assert bytes(recorder.payload[:40]) == payload


@pytest.mark.parametrize(("body", "size"), [(b"refuse", 10), (b"", 65)])
def test_payload_that_is_not_wanted_or_does_not_fit_is_refused(
    hub: Hub, recorder: Recorder, body: bytes, size: int
) -> None:
    address = hub.listen("tcp:127.0.0.1:0")
    with dial(address) as peer:
        peer.sendall(frame(Kind.BATCH, body, payload_bytes=size))
        poll_until_quiet(hub)
    assert not recorder.frames
    assert recorder.closed[0].startswith("refused")


def test_a_frame_with_payload_crosses_between_two_hubs(hub: Hub, recorder: Recorder) -> None:
    address = hub.listen("tcp:127.0.0.1:0")
    other = Hub(Recorder())
    connection = other.connect(address)
    assert connection is not None
    pieces = [memoryview(b"0123"), memoryview(b"456789")]
    data, sent = frame(Kind.ANSWER, b"y", payload_bytes=10), list[int]()
    assert connection.send_with_payload(data, pieces, lambda: sent.append(1))
    poll_until_quiet(hub)
    other.close()
    assert sent == [1]
    assert recorder.frames == [(Kind.ANSWER, b"y")]
    assert bytes(recorder.payload[:10]) == b"0123456789"


def test_a_peer_that_takes_nothing_is_disconnected_at_the_limit(
    hub: Hub, recorder: Recorder, tmp_path: Path
) -> None:
    address = hub.listen(f"unix:{tmp_path}/s")
    with dial(address):
        hub.poll(0.1)
        (connection,) = hub.connections
        data = frame(Kind.BEAT, bytes(MAX_BODY_BYTES))
        sent = 0
        while connection.send(data):
            sent += len(data)
            assert sent < 4 * MAX_PENDING_BYTES
        poll_until_quiet(hub)
    assert recorder.closed == ["the peer is gone"]


def test_what_a_slow_peer_did_not_take_is_sent_when_it_reads(hub: Hub, tmp_path: Path) -> None:
    address = hub.listen(f"unix:{tmp_path}/s")
    data = frame(Kind.BEAT, bytes(MAX_BODY_BYTES))
    with dial(address) as peer:
        hub.poll(0.1)
        (connection,) = hub.connections
        for _ in range(4):
            assert connection.send(data)
        peer.settimeout(5)
        got = 0
        while got < 4 * len(data):
            hub.poll(0)
            got += len(peer.recv(1 << 20))
    assert got == 4 * len(data)


def test_alarm_rings_once_after_its_instant(hub: Hub) -> None:
    hub.alarm.set(1)
    assert hub.poll(1.0)
    assert not hub.poll(0.0)
    hub.alarm.set(None)
    assert not hub.poll(0.0)


def test_addresses_that_cannot_be_used_are_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither unix:PATH nor tcp:HOST:PORT"):
        make_socket("ftp:somewhere")
    with pytest.raises(InputError, match="cannot be listened on"):
        hub.listen(f"unix:{tmp_path}/no/such/folder")
    assert hub.connect(f"unix:{tmp_path}/nobody") is None
