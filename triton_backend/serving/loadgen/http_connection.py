"""One persistent HTTP/1.1 connection that asks, waits, and is asked again.

Here: as much of HTTP/1.1 as an inference server's answers need: a status line, headers and a body
of stated length. Requests are ready-made bytes, answers are cut out of the stream; a general
client costs several times as much per request as the call itself.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024


class HttpAnswer(NamedTuple):
    """Status code, headers (names in lower case) and body."""

    code: int
    headers: dict[str, str]
    body: bytes


Done = Callable[[HttpAnswer | OSError], None]


class HttpConnection(asyncio.Protocol):
    """At most one request at a time; unusable after an error or once the server closed it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: Done | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._body_bytes = 0
        self._searched = 0

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, done: Done) -> None:
        """Send a whole request; `done` is told its answer, or why none came, once."""
        if self._transport is None:
            done(ConnectionError("the connection is closed"))
            return
        self._waiting = done
        self._transport.write(request)

    def close(self, error: OSError | None = None) -> None:
        """Close at once, as an answer that still comes must not be read by anybody else."""
        if self._transport is not None:
            self._transport.abort()
        self._tell(error or ConnectionError("connection closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Told by the event loop: open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Told by the event loop: gone."""
        self._transport = None
        reason = f"connection closed by the server ({exc})" if exc else "connection closed"
        self._tell(ConnectionError(reason))

    def data_received(self, data: bytes) -> None:
        """Told by the event loop: bytes came."""
        self._received += data
        try:
            if self._head is None and not self._read_head():
                return
        except ValueError as error:
            self.close(ConnectionError(f"not an HTTP answer: {error}"))
            return
        if len(self._received) >= self._body_bytes:
            self._deliver()

    def _read_head(self) -> bool:
        """Parse the head when it is complete."""
        end = self._received.find(HEAD_END, self._searched)
        if end < 0:
            self._searched = max(0, len(self._received) - len(HEAD_END))
            if len(self._received) > MAX_HEAD_BYTES:
                raise ValueError(f"no end of headers in {MAX_HEAD_BYTES} bytes")
            return False
        lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if "content-length" not in headers:
            raise ValueError("no Content-Length")
        self._head = int(lines[0].split(" ", 2)[1]), headers
        self._body_bytes = int(headers["content-length"])
        del self._received[: end + len(HEAD_END)]
        return True

    def _deliver(self) -> None:
        assert self._head is not None
        code, headers = self._head
        body = bytes(self._received[: self._body_bytes])
        self._received.clear()
        self._head, self._searched = None, 0
        if headers.get("connection", "").lower() == "close" and self._transport is not None:
            self._transport.abort()
        self._tell(HttpAnswer(code, headers, body))

    def _tell(self, answer: HttpAnswer | OSError) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(answer)
