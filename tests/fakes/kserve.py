"""Real KServe v2 endpoints that answer at once: second adapters of the server, in this process."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
from aiohttp import web
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

pb: Any = service_pb2  # generated at import time
Reply = Callable[[dict[str, NDArray[np.float32]], int | None], NDArray[np.float32]]


class RefusedError(Exception):
    """Answer UNAVAILABLE with this text."""


def doubled(inputs: dict[str, NDArray[np.float32]], timeout_us: int | None) -> NDArray[np.float32]:
    del timeout_us
    return inputs["x"] * 2


@contextlib.asynccontextmanager
async def grpc_sink(
    reply: Reply = doubled, credentials: grpc.ServerCredentials | None = None
) -> AsyncGenerator[str]:
    """A gRPC endpoint with models of input `x` [-1, 4] and output `y`; gives its address."""

    async def infer(request: Any, context: Any) -> object:
        arrays = {
            t.name: np.frombuffer(raw, np.float32).reshape(t.shape)
            for t, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        timeout = request.parameters["timeout"].int64_param if request.parameters else None
        try:
            y = reply(arrays, timeout)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        response = pb.ModelInferResponse(model_name=request.model_name)
        tensor = response.outputs.add()
        tensor.name, tensor.datatype = "y", "FP32"
        tensor.shape.extend(y.shape)
        response.raw_output_contents.append(y.tobytes())
        return response

    async def metadata(request: Any, context: Any) -> object:
        if request.name == "unknown":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        response = pb.ModelMetadataResponse(name=request.name)
        tensor = response.inputs.add()
        tensor.name, tensor.datatype = "x", "FP32"
        tensor.shape.extend([-1, 4])
        return response

    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(
            infer,
            pb.ModelInferRequest.FromString,
            pb.ModelInferResponse.SerializeToString,
        ),
        "ModelMetadata": grpc.unary_unary_rpc_method_handler(
            metadata,
            pb.ModelMetadataRequest.FromString,
            pb.ModelMetadataResponse.SerializeToString,
        ),
    }
    server = grpc.aio.server()
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server.add_generic_rpc_handlers((service,))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def http_sink(reply: Reply = doubled) -> AsyncGenerator[str]:
    """The same over HTTP with the binary tensor extension."""

    async def infer(request: web.Request) -> web.Response:
        body = await request.read()
        length = int(request.headers["Inference-Header-Content-Length"])
        head = json.loads(body[:length])
        tensor = head["inputs"][0]
        x = np.frombuffer(body[length:], np.float32).reshape(tensor["shape"])
        try:
            y = reply({"x": x}, head.get("parameters", {}).get("timeout"))
        except RefusedError as error:
            return web.json_response({"error": str(error)}, status=503)
        parameters = {"binary_data_size": y.nbytes}
        output = {"name": "y", "datatype": "FP32", "shape": y.shape, "parameters": parameters}
        answer = json.dumps({"outputs": [output]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(answer))}
        return web.Response(body=answer + y.tobytes(), headers=headers)

    async def metadata(request: web.Request) -> web.Response:
        if request.match_info["model"] == "unknown":
            return web.json_response({"error": "no such model"}, status=404)
        return web.json_response(
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": []}
        )

    async def live(request: web.Request) -> web.Response:
        del request
        return web.Response()

    app = web.Application()
    app.router.add_post("/v2/models/{model}/infer", infer)
    app.router.add_get("/v2/models/{model}", metadata)
    app.router.add_get("/v2/health/live", live)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        server = site._server
        assert isinstance(server, asyncio.Server)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
