"""One peer of a process: frames and tensors over a stream socket, in and out.

Reading and calling back happen in the one thread that polls (`event_loop`); `send` and the other
methods that send may be called from any thread. What a peer may make us hold is bounded: one frame
body while reading, `MAX_PENDING_BYTES` of frames that it does not take; a peer that exceeds either
is disconnected. Tensors that come are read straight into the memory that the handler names after it
has seen the header; tensors that wait to be sent stay in the memory of their sender, which is
called when they have left it.
"""

import contextlib
import logging
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Protocol

from triton_backend.serving.transport.authentication import (
    CHALLENGE_FRAME_BYTES,
    PROOF_BYTES,
    Challenge,
    Prover,
)
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    FrameError,
    Header,
    Kind,
    check_body,
    parse_header,
)

MAX_PENDING_BYTES = 8 << 20
_PIECES_AT_ONCE = 64
# A peer on a fast link takes tensors as quickly as they are copied; being woken for every piece
# that it has taken would cost a third more.
_STAY_SECONDS = 0.002
_LOG = logging.getLogger(__name__)
_READ_BYTES = 1 << 17
_WAKE_AT_BYTES = 1 << 19
_SOCKET_BUFFER_BYTES = 4 << 20
# A host that is cut off says nothing at all: both ends give the connection up after two seconds,
# so that neither waits for the other (or for TCP's growing pauses) when the host is back.
_SILENCE_SECONDS = 2
_PROBE_SECONDS = 1
_UCRED = struct.Struct("3i")  # process, user, group


class CloseReason(StrEnum):
    """Why a connection ended."""

    END_OF_STREAM = "the peer is gone"
    REFUSED = "refused"  # the peer sent what is not of this protocol, or not for it to say
    UNAUTHENTICATED = "unauthenticated"  # a TCP peer without a proof, or not in time
    INTERNAL_ERROR = "an error of ours"  # logged with its traceback
    REPLACED = "replaced by a newer connection of the same peer"
    NO_SEGMENT = "the peer has no shared memory"
    OVER = "its plan is over"


REFUSALS = frozenset({CloseReason.REFUSED, CloseReason.UNAUTHENTICATED})


class Handler(Protocol):
    """Callbacks of a connection."""

    def on_frame(self, connection: "Connection", header: Header, body: bytes) -> None:
        """A whole frame is here (its payload already where `payload_target` said).

        Raises:
            FrameError: the peer may not say this; it is disconnected.
        """
        ...

    def on_close(self, connection: "Connection", reason: CloseReason) -> None:
        """The connection ended or was ended; called once."""
        ...

    def payload_target(
        self, connection: "Connection", header: Header, body: bytes
    ) -> list[memoryview]:
        """Memory for the payload that follows, `header.payload_bytes` in all.

        Raises:
            FrameError: the payload is not wanted.
        """
        ...


@dataclass(slots=True)
class _Payload:
    """A frame with tensors that waits: its bytes, those to be sent up to its end, what to call."""

    size: int
    left: int
    sent: Callable[[], None]


class Connection:
    """One peer. `name` is for messages.

    Args:
        challenge: what the peer has to prove before it may say anything else; None: nothing.
        prover: answers the peer's challenge, which comes before all else; what is sent waits for
            it.
    """

    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        name: str,
        *,
        challenge: Challenge | None = None,
        prover: Prover | None = None,
    ) -> None:
        self.name = name
        self.closed = False
        self._challenge = challenge
        self._socket = sock
        self._epoll = epoll
        self._local = sock.family == socket.AF_UNIX
        # Sending; guarded by the lock
        self._lock = threading.Lock()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._payloads: deque[_Payload] = deque()
        self._payloads_sent = 0
        self._prover = prover
        self._challenge_frame = bytearray()
        self._mask = select.EPOLLIN
        # Receiving; of the thread that polls
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self._taken = 0
        self._least_bytes = 1
        self._header: Header | None = None
        self._body = b""
        self._payload: deque[memoryview] = deque()
        sock.settimeout(0)
        if self._local:  # a size set by hand would end TCP's own tuning
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        else:
            _notice_silence(sock)
        epoll.register(sock, self._mask)

    def fileno(self) -> int:
        """The descriptor polled."""
        return self._socket.fileno()

    def peer_pid(self) -> int:
        """The process that listens, or connected, at the other end of a Unix socket."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(credentials)[0])

    @property
    def authenticated(self) -> bool:
        """True if the peer has proven what it had to."""
        return self._challenge is None

    # Sending, from any thread

    def send(self, data: bytes) -> bool:
        """Send a frame, now or as soon as the peer takes it; False when the peer is gone."""
        with self._lock:
            if self.closed:
                return False
            if self._pending or self._prover is not None:
                return self._queue(memoryview(data))
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
            return sent == len(data) or self._queue(memoryview(data)[sent:])

    def send_with_payload(
        self, data: bytes, payload: Iterable[memoryview], sent: Callable[[], None]
    ) -> bool:
        """Send a frame and its tensors, now or as the peer takes them; False when it is gone.

        `sent` is called once the tensors may be changed, from this thread or from one that flushes.
        """
        pieces = [memoryview(data), *(piece.cast("B") for piece in payload)]
        size = sum(map(len, pieces))
        with self._lock:
            if self.closed:
                return False
            waiting = bool(self._pending)
            self._pending.extend(pieces)
            self._pending_bytes += size
            self._payloads.append(_Payload(size, self._pending_bytes, sent))
        return waiting or self._push_until(lambda: not self._pending, _STAY_SECONDS)

    def _queue(self, rest: memoryview) -> bool:
        self._pending_bytes += len(rest)
        frames_bytes = self._pending_bytes - sum(payload.size for payload in self._payloads)
        if frames_bytes > MAX_PENDING_BYTES:
            # Reported through the poll, as any other end.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return False
        self._pending.append(rest)
        self._watch_output()
        return True

    def _watch_output(self) -> None:
        """Have `flush` called when the peer takes data again, while something waits."""
        mask = select.EPOLLIN
        if self._pending and self._prover is None:
            mask |= select.EPOLLOUT
        if mask != self._mask and not self.closed:
            self._mask = mask
            self._epoll.modify(self._socket, mask)

    def flush(self) -> None:
        """The peer takes data again: send what waited."""
        with self._lock:
            if self.closed:
                return
            self._push()
            self._watch_output()
            done = self._done()
        for call in done:
            call()

    def drain(self, patience_s: float) -> None:
        """Wait until the first waiting tensors are sent, or none is for `patience_s`."""
        with self._lock:
            before = self._payloads_sent
            if not self._payloads:
                return
        self._push_until(lambda: self._payloads_sent > before, patience_s)

    def _push_until(self, enough: Callable[[], bool], patience_s: float) -> bool:
        """Send what waits, while the peer takes something every `patience_s`.

        False when it is gone. Other threads may send and read meanwhile: the socket stays as it is,
        and the lock is free during a wait. `enough` is asked under the lock whether to stop.
        """
        ready = select.poll()
        in_vain, left_bytes = False, 0
        while True:
            with self._lock:
                if self.closed:
                    return False
                alive = self._push()
                done = self._done()
                stuck = in_vain and self._pending_bytes == left_bytes
                over = not alive or stuck or not self._pending or enough()
                left_bytes = self._pending_bytes
                if over:
                    self._watch_output()
                ready.register(self._socket, select.POLLIN if self._prover else select.POLLOUT)
            for call in done:
                call()
            if over:
                return alive
            in_vain = not ready.poll(patience_s * 1000)

    def _prove(self) -> bool:
        """Answer the peer's challenge as soon as it is here.

        False when the peer is gone, or none.
        """
        if self._prover is None:
            return True
        try:
            missing = CHALLENGE_FRAME_BYTES - len(self._challenge_frame)
            piece = self._socket.recv(missing)
            self._challenge_frame += piece
            if len(piece) == missing:
                proof = self._prover.answer(bytes(self._challenge_frame))
                self._pending.appendleft(memoryview(proof))
                self._pending_bytes += len(proof)
                for payload in self._payloads:
                    payload.left += len(proof)
                self._prover = None
        except BlockingIOError:
            return True
        except (OSError, FrameError) as error:
            _LOG.warning("%s is not one of ours: %s", self.name, error)
            with contextlib.suppress(OSError):  # the polling thread sees its end
                self._socket.shutdown(socket.SHUT_RDWR)
            return False
        return bool(piece)

    def _push(self) -> bool:
        """Send what waits, as far as the socket takes it; False when the peer is gone."""
        if not self._prove():
            self._pending.clear()
            return False
        while self._pending and self._prover is None:
            try:
                taken = self._socket.sendmsg(list(islice(self._pending, _PIECES_AT_ONCE)))
            except BlockingIOError:
                return True
            except OSError:
                self._pending.clear()
                return False
            _advance(self._pending, taken)
            self._pending_bytes -= taken
            for payload in self._payloads:
                payload.left -= taken
        return True

    def _done(self) -> list[Callable[[], None]]:
        """Take out the calls whose tensors have been sent."""
        done: list[Callable[[], None]] = []
        while self._payloads and self._payloads[0].left <= 0:
            done.append(self._payloads.popleft().sent)
        self._payloads_sent += len(done)
        return done

    def close(self) -> None:
        """Close the socket; harmless when it is closed."""
        with self._lock:
            if not self.closed:
                self.closed = True
                with contextlib.suppress(OSError):
                    self._epoll.unregister(self._socket)
                self._socket.close()

    # Receiving, in the thread that polls

    def receive(self, handler: Handler) -> bool:
        """Read what is there and call the handler; False at the end of the stream.

        Raises:
            FrameError: the peer does not speak the protocol.
        """
        if self._prover is not None:
            return self._receive_challenge()
        try:
            got = self._read()
        except BlockingIOError:
            return True
        except OSError:
            return False
        if self._payload and got:
            _advance(self._payload, got)
            self._finish_payload(handler)
        elif got:
            self._filled += got
            self._parse(handler)
        return got > 0

    def _read(self) -> int:
        """Bytes read into the payload's memory, or behind what is in the buffer."""
        if self._payload:
            return self._socket.recv_into(self._payload[0])
        if not self._filled:
            return self._socket.recv_into(self._buffer)
        # No view may outlive the read: `_parse` makes the buffer larger for a large frame.
        with memoryview(self._buffer) as whole, whole[self._filled :] as room:
            return self._socket.recv_into(room)

    def _receive_challenge(self) -> bool:
        """Answer it, and send what has waited for that."""
        with self._lock:
            alive = self._push()
            self._watch_output()
            done = self._done()
        for call in done:
            call()
        return alive

    def _parse(self, handler: Handler) -> None:
        self._taken = 0
        try:
            while self._filled > self._taken and not self.closed and self._take_piece(handler):
                pass
        finally:
            # Also when the handler raised: no frame is handled twice.
            rest = self._filled - self._taken
            if rest:
                self._buffer[:rest] = self._buffer[self._taken : self._filled]
            self._filled = rest

    def _take_piece(self, handler: Handler) -> bool:
        """Take one frame or part of a payload out of the buffer; False: more is needed."""
        at, ready = self._taken, self._filled - self._taken
        if self._payload:
            count = min(len(self._payload[0]), ready)
            self._payload[0][:count] = self._buffer[at : at + count]
            self._taken += count
            _advance(self._payload, count)
            self._finish_payload(handler)
            return True
        if ready < HEADER_BYTES:
            return False
        header = parse_header(self._buffer, at)
        if self._challenge is not None and (
            header.kind is not Kind.PROOF or header.body_bytes != PROOF_BYTES
        ):
            raise FrameError(f"{header.kind.name} of {header.body_bytes} bytes before PROOF")
        size = HEADER_BYTES + header.body_bytes
        if ready < size:
            if size > len(self._buffer):  # a plan; `parse_header` knows the largest body
                self._buffer.extend(bytes(size - len(self._buffer)))
            return False
        body = bytes(self._buffer[at + HEADER_BYTES : at + size])
        self._taken += size
        check_body(header, body)
        if self._challenge is not None:
            self._challenge.check(body)
            self._challenge = None
            return True
        # On one host the tensors lie in shared memory; only TCP carries them behind the frame.
        if header.payload_bytes and not self._local:
            self._await_payload(handler, header, body)
        else:
            handler.on_frame(self, header, body)
        return True

    def _await_payload(self, handler: Handler, header: Header, body: bytes) -> None:
        target = handler.payload_target(self, header, body)
        if sum(len(piece) for piece in target) != header.payload_bytes:
            raise FrameError(f"payload of {header.payload_bytes} bytes does not fit")
        self._header, self._body = header, body
        self._payload = deque(piece for piece in target if len(piece))
        self._wake_at(header.payload_bytes)

    def _finish_payload(self, handler: Handler) -> None:
        if self._payload:
            self._wake_at(sum(len(piece) for piece in self._payload))
        elif self._header is not None:
            self._wake_at(1)
            header, self._header = self._header, None
            handler.on_frame(self, header, self._body)

    def _wake_at(self, missing_bytes: int) -> None:
        """Be woken only when so much is there: fewer, larger reads of a large payload."""
        least = min(missing_bytes, _WAKE_AT_BYTES)
        if least != self._least_bytes:
            self._least_bytes = least
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


def _advance(pieces: deque[memoryview], taken: int) -> None:
    """Drop the first `taken` bytes of a queue of pieces."""
    while pieces and taken >= len(pieces[0]):
        taken -= len(pieces.popleft())
    if taken:
        pieces[0] = pieces[0][taken:]


def _notice_silence(sock: socket.socket) -> None:
    """End a TCP connection whose peer acknowledges nothing."""
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, _SILENCE_SECONDS // _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _SILENCE_SECONDS * 1000)
