"""One peer of a process: frames and tensors over a stream socket, in and out.

Reading and calling back happen in the one thread that polls (`hub`); `Connection.send` may be called
from any thread. What a peer may make us hold is bounded: one frame body while reading,
`MAX_PENDING_BYTES` of frames it does not take; a peer that exceeds either is disconnected. Tensors
are read straight into the memory that the owner names after it has seen the header.
"""

import select
import socket
from collections import deque
from typing import Protocol

from triton_backend.serving.transport.outgoing import Outgoing, advance
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    FrameError,
    Header,
    check_body,
    parse_header,
)

_READ_BYTES = 1 << 17
_WAKE_AT_BYTES = 1 << 19
_SOCKET_BUFFER_BYTES = 4 << 20
# A host that is cut off says nothing at all: both ends give the connection up after two seconds,
# so that neither waits for the other (or for TCP's growing pauses) when the host is back.
_SILENCE_SECONDS = 2
_PROBE_SECONDS = 1


class Owner(Protocol):
    """Who is called when something happens on a connection."""

    def on_frame(self, connection: "Connection", header: Header, body: bytes) -> None:
        """A whole frame is here (its payload already where `payload_target` said)."""
        ...

    def on_close(self, connection: "Connection", reason: str) -> None:
        """The connection ended or was ended; it is told once."""
        ...

    def payload_target(
        self, connection: "Connection", header: Header, body: bytes
    ) -> list[memoryview]:
        """Memory for the payload that follows, `header.payload_bytes` in all.

        Raises:
            FrameError: the payload is not wanted.
        """
        ...


def _notice_silence(sock: socket.socket) -> None:
    """End a TCP connection whose peer acknowledges nothing."""
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, _SILENCE_SECONDS // _PROBE_SECONDS)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, _SILENCE_SECONDS * 1000)


class Connection(Outgoing):
    """One peer. `name` is for messages; `trusted` is False until a TCP peer showed the token."""

    def __init__(self, sock: socket.socket, epoll: select.epoll, name: str) -> None:
        super().__init__(sock, epoll)
        self.name = name
        self._local = sock.family == socket.AF_UNIX
        self.trusted = self._local
        self.role: str = ""
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

    def fileno(self) -> int:
        """The descriptor polled."""
        return self._socket.fileno()

    def receive(self, owner: Owner) -> bool:
        """Read what is there and tell the owner; False at the end of the stream.

        Raises:
            FrameError: the peer does not speak the protocol.
        """
        try:
            if self._payload:
                got = self._socket.recv_into(self._payload[0])
                if got:
                    advance(self._payload, got)
                    self._finish_payload(owner)
                return got > 0
            # No view may outlive the read: `_parse` makes the buffer larger for a large frame.
            with memoryview(self._buffer) as whole, whole[self._filled :] as room:
                got = self._socket.recv_into(room)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not got:
            return False
        self._filled += got
        self._parse(owner)
        return True

    def _parse(self, owner: Owner) -> None:
        self._taken = 0
        try:
            while self._filled > self._taken and not self.closed and self._take_piece(owner):
                pass
        finally:
            # Also when the owner raised: no frame is told twice.
            rest = self._filled - self._taken
            if rest:
                self._buffer[:rest] = self._buffer[self._taken : self._filled]
            self._filled = rest

    def _take_piece(self, owner: Owner) -> bool:
        """Take one frame or part of a payload out of the buffer; False: more is needed."""
        at, ready = self._taken, self._filled - self._taken
        if self._payload:
            count = min(len(self._payload[0]), ready)
            self._payload[0][:count] = self._buffer[at : at + count]
            self._taken += count
            advance(self._payload, count)
            self._finish_payload(owner)
            return True
        if ready < HEADER_BYTES:
            return False
        header = parse_header(self._buffer, at)
        size = HEADER_BYTES + header.body_bytes
        if ready < size:
            if size > len(self._buffer):  # a plan; `parse_header` knows the largest body
                self._buffer.extend(bytes(size - len(self._buffer)))
            return False
        body = bytes(self._buffer[at + HEADER_BYTES : at + size])
        self._taken += size
        check_body(header, body)
        # On one host the tensors lie in shared memory; only TCP carries them behind the frame.
        if header.payload_bytes and not self._local:
            self._await_payload(owner, header, body)
        else:
            owner.on_frame(self, header, body)
        return True

    def _await_payload(self, owner: Owner, header: Header, body: bytes) -> None:
        target = owner.payload_target(self, header, body)
        if sum(len(piece) for piece in target) != header.payload_bytes:
            raise FrameError(f"payload of {header.payload_bytes} bytes does not fit")
        self._header, self._body = header, body
        self._payload = deque(piece for piece in target if len(piece))
        self._wake_at(header.payload_bytes)

    def _finish_payload(self, owner: Owner) -> None:
        if self._payload:
            self._wake_at(sum(len(piece) for piece in self._payload))
        elif self._header is not None:
            self._wake_at(1)
            header, self._header = self._header, None
            owner.on_frame(self, header, self._body)

    def _wake_at(self, missing_bytes: int) -> None:
        """Be told only when so much is there: fewer, larger reads of a large payload."""
        least = min(missing_bytes, _WAKE_AT_BYTES)
        if least != self._least_bytes:
            self._least_bytes = least
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
