"""KServe v2 over HTTP with the binary tensor extension and persistent connections.

Here: requests and answers as bytes. Not here: connections (`http_pool`, `http_connection`).
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serving.loadgen.client import (
    Answer,
    Status,
    refused_or_error,
    spec_from_metadata,
)
from triton_backend.serving.loadgen.client_grpc import DATATYPES
from triton_backend.serving.loadgen.http_connection import HttpAnswer
from triton_backend.serving.loadgen.http_pool import HttpPool
from triton_backend.serving.loadgen.payload import NUMPY_TYPES, Arrays

OK, UNAVAILABLE = 200, 503
JSON_BYTES = "inference-header-content-length"


class HttpClient:
    """An HTTP endpoint `host:port`; see `client.Client`."""

    def __init__(self, address: str, *, connect_s: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InputError("--url", f"{address!r} is not host:port")
        self._address = address
        self._pool = HttpPool(host.strip("[]"), int(port))
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

    def encode(self, model: str, inputs: Arrays, *, deadline_us: int | None) -> bytes:
        """See `Client`."""
        parameters: dict[str, Any] = {"binary_data_output": True}
        if deadline_us is not None:
            parameters["timeout"] = deadline_us
        raw = {name: np.ascontiguousarray(array).tobytes() for name, array in inputs.items()}
        tensors = [
            {
                "name": name,
                "datatype": DATATYPES[array.dtype],
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
        return self._request("POST", f"/v2/models/{model}/infer", headers) + body

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
    kind = NUMPY_TYPES[tensor["datatype"]]
    if "data" in tensor:
        return np.asarray(tensor["data"], kind).reshape(tensor["shape"])
    return np.frombuffer(raw, kind).reshape(tensor["shape"])
