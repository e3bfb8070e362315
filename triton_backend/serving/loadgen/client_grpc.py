"""KServe v2 over gRPC: one channel or several in turn, bytes in and bytes out.

The request is serialised once per payload and the answer is not parsed unless a caller looks at
it, so a call costs the event loop little more than gRPC's own work.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

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
from triton_backend.serving.loadgen.payload import NUMPY_TYPES, Arrays, array_of, raw_of

SERVICE = "/inference.GRPCInferenceService"
RECONNECT_MS = 250
MAX_MESSAGE_BYTES = 2**31 - 1
DATATYPES = {np.dtype(kind): name for name, kind in NUMPY_TYPES.items() if name != "BF16"}

pb: Any = service_pb2  # generated at import time: no names a type checker could see


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files of a TLS connection: the authority to trust, and a pair for mutual TLS."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            InputError: one cannot be read, or of the pair only one is given.
        """
        if (self.certificate is None) != (self.key is None):
            raise InputError("--cert and --key", "are given together or not at all")
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.authority),
            certificate_chain=_read(self.certificate),
            private_key=_read(self.key),
        )


def _read(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error


class GrpcClient:
    """A gRPC endpoint `host:port`, over TLS where `tls` is given; see `client.Client`."""

    def __init__(
        self,
        address: str,
        *,
        connect_s: float = 10.0,
        tls: Tls | None = None,
        connections: int = 1,
    ) -> None:
        options = [
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # An endpoint that comes back is found at once, or its time away would look longer.
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
            # Channels to one address share a connection otherwise.
            ("grpc.use_local_subchannel_pool", int(connections > 1)),
        ]
        host_and_port(address)  # gRPC would look for another address until the time is over
        self._address = address
        self._connect_s = connect_s
        credentials = None if tls is None else tls.credentials()
        self._channels = [
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
            for _ in range(connections)
        ]
        self._calls: set[asyncio.Task[Answer]] = set()
        self._infer = cycle(
            [channel.unary_unary(f"{SERVICE}/ModelInfer") for channel in self._channels]
        )
        self._metadata = self._channels[0].unary_unary(
            f"{SERVICE}/ModelMetadata",
            request_serializer=pb.ModelMetadataRequest.SerializeToString,
            response_deserializer=pb.ModelMetadataResponse.FromString,
        )

    async def connect(self) -> None:
        """See `Client`."""
        try:
            async with asyncio.timeout(self._connect_s):
                for channel in self._channels:
                    await channel.channel_ready()
        except TimeoutError as error:
            reason = f"nothing answers gRPC there within {self._connect_s:g} s"
            raise InputError(self._address, reason) from error

    async def describe(self, model: str) -> tuple[TensorSpec, ...]:
        """See `Client`."""
        try:
            answer = await self._metadata(pb.ModelMetadataRequest(name=model))
        except grpc.aio.AioRpcError as error:
            raise InputError(f"{self._address}: model {model!r}", str(error.details())) from error
        return tuple(
            spec_from_metadata({"name": t.name, "datatype": t.datatype, "shape": list(t.shape)})
            for t in answer.inputs
        )

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
        name, version = name_and_version(model)
        request = pb.ModelInferRequest(model_name=name, model_version=version)
        if deadline_us is not None:
            request.parameters["timeout"].int64_param = deadline_us
        if priority:
            request.parameters[PRIORITY_PARAMETER].int64_param = priority
        if client:
            request.parameters[CLIENT_PARAMETER].string_param = client
        for name, array in inputs.items():
            tensor = request.inputs.add()
            datatype, raw = raw_of(array)
            tensor.name, tensor.datatype = name, datatype or DATATYPES[array.dtype]
            tensor.shape.extend(array.shape)
            request.raw_input_contents.append(raw)
        return request.SerializeToString()

    def send(self, request: bytes, *, give_up_s: float, done: Callable[[Answer], None]) -> None:
        """See `Client`."""
        call = asyncio.get_running_loop().create_task(self._ask(request, give_up_s))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        call.add_done_callback(lambda ended: done(ended.result()))

    async def _ask(self, request: bytes, give_up_s: float) -> Answer:
        try:
            return Answer(Status.OK, await next(self._infer)(request, timeout=give_up_s))
        except grpc.aio.AioRpcError as error:
            code = error.code()
            unavailable = code == grpc.StatusCode.UNAVAILABLE
            return refused_or_error(
                unavailable=unavailable, message=f"{code.name}: {error.details()}"
            )

    def decode(self, answer: Answer) -> Arrays:
        """See `Client`."""
        try:
            response = pb.ModelInferResponse.FromString(answer.body)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        outputs = zip(response.outputs, response.raw_output_contents, strict=True)
        return {
            tensor.name: array_of(tensor.datatype, tensor.shape, raw) for tensor, raw in outputs
        }

    async def close(self) -> None:
        """See `Client`."""
        for channel in self._channels:
            await channel.close()
