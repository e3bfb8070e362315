"""Persistent connections to one HTTP endpoint, as many as requests are under way.

A request takes an idle connection or opens a new one, up to a limit; above it, requests wait their
turn (which counts as latency, because latency runs from the intended send time).
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from triton_backend.serving.loadgen.http_connection import Done, HttpAnswer, HttpConnection

MAX_CONNECTIONS = 512


@dataclass(slots=True, eq=False)
class _Call:
    request: bytes
    done: Done
    timer: asyncio.TimerHandle | None = None
    connection: HttpConnection | None = None


class HttpPool:
    """All from one event loop."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._opening: set[asyncio.Task[tuple[asyncio.Transport, HttpConnection]]] = set()
        self._queue: deque[_Call] = deque()
        self._closed = False

    def ask(self, request: bytes, *, give_up_s: float, done: Done) -> None:
        """Send a whole request; `done` is told its answer, or why none came, once."""
        call = _Call(request, done)
        call.timer = asyncio.get_running_loop().call_later(
            give_up_s, self._give_up, call, give_up_s
        )
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._start(connection, call)
                return
            self._open.discard(connection)
        self._queue.append(call)
        self._grow()

    def close(self) -> None:
        """Close every connection, also those that are being opened."""
        self._closed = True
        for opening in self._opening:
            opening.cancel()
        for connection in list(self._open):
            connection.close()

    def _grow(self) -> None:
        """Open another connection, where more wait than are being opened."""
        opening = len(self._opening)
        if opening < len(self._queue) and len(self._open) + opening < MAX_CONNECTIONS:
            loop = asyncio.get_running_loop()
            made = loop.create_task(loop.create_connection(HttpConnection, *self._address))
            self._opening.add(made)
            made.add_done_callback(self._opened)

    def _opened(self, made: "asyncio.Task[tuple[asyncio.Transport, HttpConnection]]") -> None:
        self._opening.discard(made)
        if made.cancelled():
            return
        error = made.exception()
        if error is None:
            connection = made.result()[1]
            if self._closed:
                connection.close()
                return
            self._open.add(connection)
            self._use(connection)
        elif self._queue:
            self._end(self._queue.popleft(), OSError(str(error)))
            self._grow()

    def _use(self, connection: HttpConnection) -> None:
        """Send what has waited longest, or keep the connection for what comes."""
        if not connection.usable:
            self._open.discard(connection)
            self._grow()
        elif self._queue:
            self._start(connection, self._queue.popleft())
        else:
            self._idle.append(connection)

    def _start(self, connection: HttpConnection, call: _Call) -> None:
        call.connection = connection

        def answered(answer: HttpAnswer | OSError) -> None:
            self._end(call, answer)
            self._use(connection)

        connection.ask(call.request, answered)

    def _give_up(self, call: _Call, after_s: float) -> None:
        late = TimeoutError(f"no answer within {after_s:g} s")
        if call.connection is not None:
            call.connection.close(late)
        else:
            self._queue.remove(call)
            self._end(call, late)

    @staticmethod
    def _end(call: _Call, answer: HttpAnswer | OSError) -> None:
        if call.timer is not None:
            call.timer.cancel()
        call.done(answer)
