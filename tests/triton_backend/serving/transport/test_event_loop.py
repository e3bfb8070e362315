import contextlib
import os
import resource
import socket
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.transport import event_loop
from triton_backend.serving.transport.authentication import (
    CHALLENGE_FRAME_BYTES,
    PROOF_BYTES,
    Challenge,
    Prover,
)
from triton_backend.serving.transport.connection import MAX_PENDING_BYTES, CloseReason, Connection
from triton_backend.serving.transport.event_loop import (
    AWAY_US,
    LOGGED_PER_SECOND,
    MAX_UNPROVEN,
    PROOF_US,
    EventLoop,
    close_inherited_sockets,
    make_socket,
)
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    FrameError,
    Header,
    Kind,
    frame,
)

KEY = b"the key"


@pytest.mark.slow
def test_a_forked_process_keeps_no_connection_of_its_parent_open() -> None:
    """As one of a model that Triton forks while it serves: peers see the end, the port is free."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    server, _ = listener.accept()
    woken, waking = socket.socketpair()  # as Triton's HTTP threads have
    (read_closed, say_closed), (read_end, say_end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # it has all five
        os.close(say_end)  # so that it ends with its parent
        os.write(say_closed, bytes([close_inherited_sockets()]))
        os.read(read_end, 1)
        os._exit(0)
    with client, woken:
        closed = os.read(read_closed, 1)[0]
        for ours in (server, listener, waking):
            ours.close()
        client.settimeout(5)
        woken.settimeout(5)
        assert closed >= 5
        assert client.recv(1) == b""
        assert woken.recv(1) == b""
        socket.create_server(("127.0.0.1", port)).close()
        os.write(say_end, b"x")
        os.waitpid(child, 0)
    for fd in (read_closed, say_closed, read_end, say_end):
        os.close(fd)


class HandClock(SystemClock):
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.us = 10_000_000

    def now_us(self) -> int:
        return self.us


class Recorder:
    """Notes what it is told; takes payloads of up to 64 bytes."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, bytes]] = []
        self.closed: list[CloseReason] = []
        self.payload = bytearray(64)
        self.failing: Exception | None = None

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        assert not connection.closed
        if self.failing is not None:
            raise self.failing
        self.frames.append((header.kind, body))

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
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
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def loop(recorder: Recorder, clock: HandClock) -> Iterator[EventLoop]:
    made = EventLoop(recorder, clock, KEY)
    yield made
    made.close()


def poll_until_quiet(loop: EventLoop) -> None:
    for _ in range(8):
        loop.poll(0.002)


def dial(address: str) -> socket.socket:
    sock, target = make_socket(address)
    sock.connect(target)
    return sock


def dial_and_prove(loop: EventLoop, address: str, prover: Prover | None = None) -> socket.socket:
    """A TCP peer that has answered the challenge."""
    sock = dial(address)
    sock.settimeout(5)
    poll_until_quiet(loop)
    sock.sendall((prover or Prover(KEY, address)).answer(sock.recv(CHALLENGE_FRAME_BYTES)))
    poll_until_quiet(loop)
    return sock


def test_frames_arrive_whole_and_in_order_however_they_are_cut(
    loop: EventLoop, recorder: Recorder, tmp_path: Path
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    bodies = [b"", b"abc", bytes(70_000), b"z"]
    stream = b"".join(frame(Kind.HELLO, body) for body in bodies)
    with dial(address) as peer:
        for start in range(0, len(stream), 999):
            peer.sendall(stream[start : start + 999])
            loop.poll(0.01)
        poll_until_quiet(loop)
    assert recorder.frames == [(Kind.HELLO, body) for body in bodies]


def test_a_large_frame_may_arrive_in_any_two_parts(
    loop: EventLoop, recorder: Recorder, tmp_path: Path
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    body = bytes(300_000)
    data = frame(Kind.HELLO, body)
    for first in (10, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, 131_073):
        recorder.frames.clear()
        with dial(address) as peer:
            peer.sendall(data[:first])
            loop.poll(1)
            loop.poll(1)
            sender = threading.Thread(target=peer.sendall, args=(data[first:],))
            sender.start()
            poll_until_quiet(loop)
            while sender.is_alive() and not recorder.closed:
                loop.poll(0.01)
            sender.join()
            poll_until_quiet(loop)
        assert recorder.frames == [(Kind.HELLO, body)], first
        poll_until_quiet(loop)
    assert recorder.closed == [CloseReason.END_OF_STREAM] * 5


def test_an_error_of_ours_costs_one_connection_and_is_logged_as_ours(
    loop: EventLoop, recorder: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    recorder.failing = KeyError("ours")
    with dial(address) as bad:
        bad.sendall(frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
        recorder.failing = None
        with dial(address) as good:
            good.sendall(frame(Kind.HEARTBEAT))
            poll_until_quiet(loop)
    assert recorder.frames == [(Kind.HEARTBEAT, b"")]
    assert recorder.closed[0] is CloseReason.INTERNAL_ERROR
    assert "KeyError: 'ours'" in caplog.text


@pytest.mark.long
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(garbage=st.binary(min_size=50, max_size=500))
def test_garbage_costs_its_sender_the_connection_and_nobody_else(
    loop: EventLoop, recorder: Recorder, tmp_path: Path, garbage: bytes
) -> None:
    recorder.frames.clear()
    recorder.closed.clear()
    address = loop.listen(f"unix:{tmp_path}/g{len(loop.connections)}")
    with dial(address) as bad, dial(address) as good:
        bad.sendall(garbage)
        good.sendall(frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
        assert recorder.frames == [(Kind.HEARTBEAT, b"")]
        assert CloseReason.REFUSED in recorder.closed
    poll_until_quiet(loop)


def test_payload_of_another_host_lands_in_the_memory_its_owner_named(
    loop: EventLoop, recorder: Recorder
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    payload = bytes(range(40))
    with dial_and_prove(loop, address) as peer:
        peer.sendall(frame(Kind.BATCH, b"x", payload_bytes=40) + payload[:7])
        poll_until_quiet(loop)
        assert not recorder.frames
        peer.sendall(payload[7:] + frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
    assert recorder.frames == [(Kind.BATCH, b"x"), (Kind.HEARTBEAT, b"")]
    assert bytes(recorder.payload[:40]) == payload


@pytest.mark.parametrize(("body", "size"), [(b"refuse", 10), (b"", 65)])
def test_payload_that_is_not_wanted_or_does_not_fit_is_refused(
    loop: EventLoop, recorder: Recorder, body: bytes, size: int
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    with dial_and_prove(loop, address) as peer:
        peer.sendall(frame(Kind.BATCH, body, payload_bytes=size))
        poll_until_quiet(loop)
    assert not recorder.frames
    assert recorder.closed[0] is CloseReason.REFUSED


def test_a_frame_with_payload_crosses_between_two_loops(
    loop: EventLoop, recorder: Recorder
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    other = EventLoop(Recorder(), SystemClock(), KEY)
    connection = other.connect(address)
    assert connection is not None
    pieces = [memoryview(b"0123"), memoryview(b"456789")]
    data, sent = frame(Kind.ANSWER, b"y", payload_bytes=10), list[int]()
    assert connection.send_with_payload(data, pieces, lambda: sent.append(1))
    assert not sent  # the proof comes first
    while not sent:
        loop.poll(0.002)
        other.poll(0.002)
    poll_until_quiet(loop)
    other.close()
    assert sent == [1]
    assert recorder.frames == [(Kind.ANSWER, b"y")]
    assert bytes(recorder.payload[:10]) == b"0123456789"


def test_a_peer_that_takes_nothing_is_disconnected_at_the_limit(
    loop: EventLoop, recorder: Recorder, tmp_path: Path
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    with dial(address):
        loop.poll(0.1)
        (connection,) = loop.connections
        data = frame(Kind.HEARTBEAT, bytes(MAX_BODY_BYTES))
        sent = 0
        while connection.send(data):
            sent += len(data)
            assert sent < 4 * MAX_PENDING_BYTES
        poll_until_quiet(loop)
    assert recorder.closed == [CloseReason.END_OF_STREAM]


def test_what_a_slow_peer_did_not_take_is_sent_when_it_reads(
    loop: EventLoop, tmp_path: Path
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    data = frame(Kind.HEARTBEAT, bytes(MAX_BODY_BYTES))
    with dial(address) as peer:
        loop.poll(0.1)
        (connection,) = loop.connections
        for _ in range(4):
            assert connection.send(data)
        peer.settimeout(5)
        got = 0
        while got < 4 * len(data):
            loop.poll(0)
            got += len(peer.recv(1 << 20))
    assert got == 4 * len(data)


def test_timer_expires_once_after_its_instant(loop: EventLoop) -> None:
    loop.timer.set(1)
    assert loop.poll(1.0)
    assert not loop.poll(0.0)
    loop.timer.set(None)
    assert not loop.poll(0.0)


def test_addresses_that_cannot_be_used_are_named(loop: EventLoop, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither unix:PATH nor tcp:HOST:PORT"):
        make_socket("ftp:somewhere")
    with pytest.raises(InputError, match="cannot be listened on"):
        loop.listen(f"unix:{tmp_path}/no/such/folder")
    assert loop.connect(f"unix:{tmp_path}/nobody") is None


# Strangers


def test_a_peer_that_proves_it_belongs_to_the_system_is_heard(
    loop: EventLoop, recorder: Recorder
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    with dial_and_prove(loop, address) as peer:
        assert len(loop.connections) == 1
        peer.sendall(frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
    assert recorder.frames == [(Kind.HEARTBEAT, b"")]


@pytest.mark.parametrize(
    "first",
    [
        frame(Kind.HEARTBEAT),
        frame(Kind.PROOF, bytes(PROOF_BYTES)),
        frame(Kind.PROOF, bytes(PROOF_BYTES + 1)),
        frame(Kind.PROOF),
        frame(Kind.HELLO, bytes(MAX_BODY_BYTES))[:HEADER_BYTES],  # not waited for
    ],
)
def test_a_peer_that_says_anything_else_first_is_closed_and_nobody_hears_it(
    loop: EventLoop, recorder: Recorder, first: bytes
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    with dial(address) as peer:
        loop.poll(1)
        assert loop.connections == ()
        peer.sendall(first + frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
    assert recorder.frames == []
    assert recorder.closed == [CloseReason.UNAUTHENTICATED]


def test_a_proof_is_good_for_one_key_one_address_and_one_connection(
    loop: EventLoop, recorder: Recorder
) -> None:
    address, other = loop.listen("tcp:127.0.0.1:0"), loop.listen("tcp:127.0.0.1:0")
    with dial(address) as peer:
        loop.poll(1)
        used = Prover(KEY, address).answer(peer.recv(CHALLENGE_FRAME_BYTES))
    for prover in (Prover(b"another key", address), Prover(KEY, other)):
        dial_and_prove(loop, address, prover).close()
    with dial(address) as again:
        loop.poll(1)
        again.sendall(used)
        poll_until_quiet(loop)
    assert recorder.frames == []
    assert recorder.closed.count(CloseReason.UNAUTHENTICATED) == 3


def test_a_listener_that_is_none_of_ours_gets_no_proof(
    loop: EventLoop, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = loop.connect(f"tcp:127.0.0.1:{listener.getsockname()[1]}")
        assert connection is not None
        connection.send(frame(Kind.BATCH, b"secret"))
        accepted, _ = listener.accept()
        accepted.settimeout(5)
        with accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(CHALLENGE_FRAME_BYTES, b"\n"))
            poll_until_quiet(loop)
            assert accepted.recv(100) == b""
    assert recorder.closed == [CloseReason.END_OF_STREAM]
    assert "is not one of ours" in caplog.text


def test_a_peer_without_a_proof_is_closed_in_time_though_nothing_else_happens(
    loop: EventLoop, recorder: Recorder, clock: HandClock
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    with dial(address), dial_and_prove(loop, address):
        poll_until_quiet(loop)
        clock.us += PROOF_US - 1
        poll_until_quiet(loop)
        assert recorder.closed == []
        clock.us += 1
        loop.poll(None)  # returns by itself
        assert recorder.closed == [CloseReason.UNAUTHENTICATED]
        assert len(loop.connections) == 1


def test_of_many_peers_without_a_proof_the_oldest_make_room(
    loop: EventLoop, recorder: Recorder
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    strangers = [dial(address) for _ in range(MAX_UNPROVEN + 2)]
    for _ in strangers:
        loop.poll(0.1)
    with dial_and_prove(loop, address):
        assert len(loop.connections) == 1
    assert recorder.closed == [CloseReason.UNAUTHENTICATED] * 3
    for stranger in strangers:
        stranger.close()


def test_what_is_refused_is_logged_a_few_times_a_second(
    loop: EventLoop, clock: HandClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    for _ in range(4 * LOGGED_PER_SECOND):
        with dial(address) as peer:
            peer.sendall(bytes(HEADER_BYTES))
            poll_until_quiet(loop)
    assert len(caplog.records) == LOGGED_PER_SECOND
    clock.us += 1_000_000
    with dial(address) as peer:
        peer.sendall(bytes(HEADER_BYTES))
        poll_until_quiet(loop)
    assert caplog.records[-2].getMessage() == f"and {3 * LOGGED_PER_SECOND} more"


@contextlib.contextmanager
def no_descriptor_left() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_descriptor_left_nobody_is_accepted_for_a_while(
    loop: EventLoop,
    recorder: Recorder,
    clock: HandClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")
    with dial(address) as known:
        loop.poll(1)
        sock, target = make_socket(address)
        with sock, no_descriptor_left():
            sock.connect(target)
            poll_until_quiet(loop)
            poll_until_quiet(loop)
            assert [r.getMessage() for r in caplog.records] == [
                f"{address}: accepts no connection for 0.05 s: [Errno 24] Too many open files"
            ]
            assert loop.connect(address) is None
            known.sendall(frame(Kind.HEARTBEAT))
            loop.poll(1)
            assert recorder.frames == [(Kind.HEARTBEAT, b"")]
            clock.us += 50_000
            loop.poll(None)  # returns by itself, and accepts again
            poll_until_quiet(loop)
            assert "for 0.10 s" in caplog.text
        clock.us += 100_000
        sock.close()
        with dial(address) as later:
            loop.poll(None)
            poll_until_quiet(loop)
            later.sendall(frame(Kind.HEARTBEAT))
            poll_until_quiet(loop)
    assert len(recorder.frames) == 2


def test_a_handler_that_fails_at_the_end_of_a_connection_harms_nobody_else(
    loop: EventLoop, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = loop.listen(f"unix:{tmp_path}/s")

    def fail(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(recorder, "on_close", fail)
    dial(address).close()
    poll_until_quiet(loop)
    with dial(address) as peer:
        peer.sendall(frame(Kind.HEARTBEAT))
        poll_until_quiet(loop)
    poll_until_quiet(loop)
    assert recorder.frames == [(Kind.HEARTBEAT, b"")]
    assert loop.connections == ()


@pytest.mark.long
def test_a_peer_that_is_read_while_another_thread_waits_for_it_is_not_gone(
    loop: EventLoop, recorder: Recorder
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        connection = loop.connect(address)
        assert connection is not None
        peer, _ = listener.accept()
        with peer:
            peer.sendall(Challenge(KEY, address).frame)
            loop.poll(1)
            payload = memoryview(
                bytes(16 << 20)
            )  # more than the kernel takes for who does not read
            connection.send_with_payload(frame(Kind.BATCH), [payload], lambda: None)
            waiting = threading.Thread(target=connection.drain, args=(0.3,))
            waiting.start()
            alive = [connection.receive(recorder)]
            while waiting.is_alive():
                alive.append(connection.receive(recorder))
            waiting.join()
    assert all(alive)


class HeldResolver:
    """Knows every name, and answers when it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()
        self.fails = False

    def __call__(self, host: str, *_: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        self.let_go.wait()
        if self.fails:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldResolver]:
    made = HeldResolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    monkeypatch.setattr(event_loop, "_CONNECT_SECONDS", 0.01)
    yield made
    made.let_go.set()


def test_a_resolver_that_hangs_keeps_no_other_peer_waiting(
    loop: EventLoop, recorder: Recorder, clock: HandClock, resolver: HeldResolver
) -> None:
    address = loop.listen("tcp:127.0.0.1:0")
    named = address.replace("127.0.0.1", "worker.test")
    other = loop.connect(address)
    assert other is not None
    assert loop.connect(named) is None
    clock.us += AWAY_US
    assert loop.connect(named) is None
    assert resolver.asked == ["worker.test"]
    poll_until_quiet(loop)
    other.send(frame(Kind.HEARTBEAT, b"batch"))
    poll_until_quiet(loop)
    assert recorder.frames == [(Kind.HEARTBEAT, b"batch")]
    resolver.let_go.set()
    wait_for(lambda: connects(loop, clock, named))


def connects(loop: EventLoop, clock: HandClock, address: str) -> bool:
    clock.us += AWAY_US
    return loop.connect(address) is not None


def test_a_host_that_is_known_is_reached_while_the_resolver_is_away(
    loop: EventLoop, clock: HandClock, resolver: HeldResolver
) -> None:
    named = loop.listen("tcp:127.0.0.1:0").replace("127.0.0.1", "worker.test")
    resolver.let_go.set()
    loop.look_up("worker.test")
    wait_for(lambda: connects(loop, clock, named))
    resolver.fails = True
    assert loop.connect(named) is not None
    resolver.let_go.clear()
    assert all(loop.connect(named) for _ in range(3))


def test_a_host_that_did_not_answer_is_left_alone_for_a_moment(
    loop: EventLoop, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    connect = socket.socket.connect

    def unanswered(sock: socket.socket, target: Any) -> None:
        tried.append(target)
        if target[0] == "127.0.0.9":
            raise TimeoutError
        connect(sock, target)

    monkeypatch.setattr(event_loop.socket.socket, "connect", unanswered)
    for port in (1, 2):  # of two workers of one host
        assert loop.connect(f"tcp:127.0.0.9:{port}") is None
    assert len(tried) == 1
    clock.us += AWAY_US
    assert loop.connect("tcp:127.0.0.9:2") is None
    assert len(tried) == 2
    for _ in range(2):  # where the host answers that no process is there, one may be there at once
        assert loop.connect("tcp:127.0.0.1:1") is None
    assert len(tried) == 4
