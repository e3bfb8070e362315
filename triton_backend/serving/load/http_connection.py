"""One persistent HTTP/1.1 connection that asks, waits, and is asked again.

Here: as much of HTTP/1.1 as an inference server's answers need: a status line, headers and a body
of stated length. Requests are ready-made bytes, answers are cut out of the stream; a general
client costs several times as much per request as the call itself.
"""

import asyncio
from typing import NamedTuple

HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024


class HttpAnswer(NamedTuple):
    """Status code, headers (names in lower case) and body."""

    code: int
    headers: dict[str, str]
    body: bytes


class HttpConnection(asyncio.Protocol):
    """At most one request at a time; unusable after an error or once the server closed it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._body_bytes = 0
        self._searched = 0

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send a whole request and wait for its answer.

        Raises:
            ConnectionError: the server closed the connection or did not speak HTTP.
        """
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            self._transport.abort()  # the answer may still come: nobody else must read it
            raise

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Told by the event loop: open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Told by the event loop: gone."""
        self._transport = None
        self._fail(f"connection closed by the server ({exc})" if exc else "connection closed")

    def data_received(self, data: bytes) -> None:
        """Told by the event loop: bytes came."""
        self._received += data
        try:
            if self._head is None and not self._read_head():
                return
        except ValueError as error:
            self._fail(f"not an HTTP answer: {error}")
            self.close()
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
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(HttpAnswer(code, headers, body))
        if headers.get("connection", "").lower() == "close":
            self.close()

    def _fail(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(ConnectionError(reason))
