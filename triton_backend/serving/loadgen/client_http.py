"""KServe v2 over HTTP with the binary tensor extension and persistent connections.

Three classes, the outer on top: `HttpClient` makes requests and reads answers as bytes, `HttpPool`
keeps as many connections as requests are under way, `HttpConnection` speaks as much of HTTP/1.1 as
an inference server's answers need: a status line, headers and a body of stated length. Requests are
ready-made bytes, answers are cut out of the stream; a general client costs several times as much
per request as the call itself.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serve_folder.names import CLIENT_PARAMETER, PRIORITY_PARAMETER
from triton_backend.serving.loadgen.client import (
    Answer,
    Status,
    host_and_port,
    name_and_version,
    refused_or_error,
    spec_from_metadata,
)
from triton_backend.serving.loadgen.client_grpc import DATATYPES
from triton_backend.serving.loadgen.payload import NUMPY_TYPES, Arrays, array_of, raw_of

OK, UNAVAILABLE = 200, 503
JSON_BYTES = "inference-header-content-length"
HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 512


class HttpAnswer(NamedTuple):
    """Status code, headers (names in lower case) and body."""

    code: int
    headers: dict[str, str]
    body: bytes


Done = Callable[[HttpAnswer | OSError], None]


class HttpConnection(asyncio.Protocol):
    """One persistent connection.

    At most one request at a time; unusable after an error or once the server closed it.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: Done | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._body_bytes = 0
        self._searched = 0

    @property
    def usable(self) -> bool:
        """True if another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, done: Done) -> None:
        """Send a whole request; `done` is called once, with its answer or why none came."""
        if self._transport is None:
            done(ConnectionError("the connection is closed"))
            return
        self._waiting = done
        self._transport.write(request)

    def close(self, error: OSError | None = None) -> None:
        """Close at once, as an answer that still comes must not be read by anybody else."""
        if self._transport is not None:
            self._transport.abort()
        self._finish(error or ConnectionError("connection closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop: open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: gone."""
        self._transport = None
        reason = f"connection closed by the server ({exc})" if exc else "connection closed"
        self._finish(ConnectionError(reason))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: bytes came."""
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
        self._finish(HttpAnswer(code, headers, body))

    def _finish(self, answer: HttpAnswer | OSError) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(answer)


@dataclass(slots=True, eq=False)
class _Call:
    request: bytes
    done: Done
    timer: asyncio.TimerHandle | None = None
    connection: HttpConnection | None = None


class HttpPool:
    """Persistent connections to one endpoint, as many as requests are under way.

    All from one event loop. A request takes an idle connection or opens a new one, up to a limit;
    above it, requests wait their turn (which counts as latency, because latency runs from the
    intended send time).
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()
        self._opening: set[asyncio.Task[tuple[asyncio.Transport, HttpConnection]]] = set()
        self._queue: deque[_Call] = deque()
        self._closed = False

    def ask(self, request: bytes, *, give_up_s: float, done: Done) -> None:
        """Send a whole request; `done` is called once, with its answer or why none came."""
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


class HttpClient:
    """An HTTP endpoint `host:port`; see `client.Client`."""

    def __init__(self, address: str, *, connect_s: float = 10.0) -> None:
        host, port = host_and_port(address)
        self._address = address
        self._pool = HttpPool(host.strip("[]"), port)
        self._connect_s = connect_s

    async def connect(self) -> None:
        """See `Client`."""
        try:
            async with asyncio.timeout(self._connect_s):
                while True:
                    try:
                        await self._ask(self._get("/v2/health/live"))
                    except OSError:
                        await asyncio.sleep(0.05)
                    else:
                        return
        except TimeoutError as error:
            reason = f"nothing answers HTTP there within {self._connect_s:g} s"
            raise InputError(self._address, reason) from error

    async def describe(self, model: str) -> tuple[TensorSpec, ...]:
        """See `Client`."""
        answer = await self._ask(self._get(f"/v2/models/{model}"))
        data = json.loads(answer.body or b"{}")
        if answer.code != OK:
            reason = str(data.get("error", f"HTTP {answer.code}"))
            raise InputError(f"{self._address}: model {model!r}", reason)
        return tuple(spec_from_metadata(tensor) for tensor in data["inputs"])

    def encode(
        self,
        model: str,
        inputs: Arrays,
        *,
        deadline_us: int | None,
        priority: int = 0,
        client: str = "",
    ) -> bytes:
        """See `Client`."""
        parameters: dict[str, Any] = {"binary_data_output": True}
        if deadline_us is not None:
            parameters["timeout"] = deadline_us
        if priority:
            parameters[PRIORITY_PARAMETER] = priority
        if client:
            parameters[CLIENT_PARAMETER] = client
        typed = {name: raw_of(array) for name, array in inputs.items()}
        raw = {name: data for name, (_, data) in typed.items()}
        tensors = [
            {
                "name": name,
                "datatype": typed[name][0] or DATATYPES[array.dtype],
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(raw[name])},
            }
            for name, array in inputs.items()
        ]
        head = json.dumps({"inputs": tensors, "parameters": parameters}).encode()
        body = b"".join([head, *raw.values()])
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
            "Content-Length": str(len(body)),
        }
        name, version = name_and_version(model)
        path = f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"
        return self._request("POST", f"{path}/infer", headers) + body

    def send(self, request: bytes, *, give_up_s: float, done: Callable[[Answer], None]) -> None:
        """See `Client`."""
        self._pool.ask(request, give_up_s=give_up_s, done=lambda reply: done(_answer(reply)))

    def decode(self, answer: Answer) -> Arrays:
        """See `Client`."""
        content = answer.body or b""
        head = json.loads(content[: answer.json_bytes])
        if not isinstance(head, dict) or "outputs" not in head:
            raise ValueError("no outputs in the answer")
        sizes = [_binary_size(tensor) for tensor in head["outputs"]]
        starts = itertools.accumulate(sizes, initial=answer.json_bytes)
        return {
            tensor["name"]: _array(tensor, content[start : start + size])
            for tensor, start, size in zip(head["outputs"], starts, sizes, strict=False)
        }

    async def close(self) -> None:
        """See `Client`."""
        self._pool.close()
        await asyncio.sleep(0)  # lets the transports say that they are closed

    async def _ask(self, request: bytes) -> HttpAnswer:
        replied: asyncio.Future[HttpAnswer | OSError]
        replied = asyncio.get_running_loop().create_future()
        self._pool.ask(request, give_up_s=self._connect_s, done=replied.set_result)
        reply = await asyncio.shield(replied)
        if isinstance(reply, OSError):
            raise reply
        return reply

    def _get(self, path: str) -> bytes:
        return self._request("GET", path, {})

    def _request(self, verb: str, path: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"{verb} {path} HTTP/1.1", f"Host: {self._address}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _answer(reply: HttpAnswer | OSError) -> Answer:
    if isinstance(reply, TimeoutError):
        return Answer(Status.ERROR, message=str(reply))
    if isinstance(reply, OSError):
        return Answer(Status.ERROR, message=f"connection: {reply}")
    if reply.code == OK:
        length = int(reply.headers.get(JSON_BYTES, len(reply.body)))
        return Answer(Status.OK, reply.body, json_bytes=length)
    message = f"HTTP {reply.code}: {_error_text(reply.body)}"
    return refused_or_error(unavailable=reply.code == UNAVAILABLE, message=message)


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _binary_size(tensor: Mapping[str, Any]) -> int:
    return int(tensor.get("parameters", {}).get("binary_data_size", 0))


def _array(tensor: Mapping[str, Any], raw: bytes) -> np.ndarray:
    if "data" in tensor:
        kind = NUMPY_TYPES[tensor["datatype"]]
        return np.asarray(tensor["data"], kind).reshape(tensor["shape"])
    return array_of(tensor["datatype"], tensor["shape"], raw)
