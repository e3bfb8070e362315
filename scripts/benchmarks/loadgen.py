#!/usr/bin/env python
"""How much the load generator can offer: small requests to a trivial endpoint on loopback.

    scripts/benchmarks/loadgen.py [--rate 3000] [--duration 10] [--protocol grpc|http]

Starts an endpoint in a process of its own that answers at once, loads it, and prints the rate
reached, how late requests left (send lag) and their latency.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store

pb: Any = service_pb2
INPUT = {"name": "x", "dtype": "FP32", "shape": [-1, 1000]}  # 4 KB


def plan(rate_rps: float) -> dict[str, Any]:
    """A plan of one model with no pools: all that the load generator reads."""
    return {
        "plan_id": "bench", "planner": "none", "options": {}, "solver": "none", "solve_seconds": 0,
        "objective": {"name": "throughput", "value": 1, "upper_bound": 1, "gap": 0},
        "cluster": {"gpu_classes": {}, "nodes": []},
        "workload": {"models": [{"name": "trivial", "slo_ms": 100}]},
        "gpus_used": {},
        "models": [{"name": "trivial", "slo_ms": 100, "throughput_rps": rate_rps,
                    "inputs": [INPUT], "pipelines": []}],
    }  # fmt: skip


async def serve_grpc(ready: Connection) -> None:
    """Answer ModelInfer with a fixed message."""
    answer = pb.ModelInferResponse(model_name="trivial").SerializeToString()

    async def infer(request: bytes, context: object) -> bytes:
        del request, context
        return answer

    # Refuse nothing: by default a gRPC server cancels requests when some 3,000 wait unread.
    most = 1_000_000
    options = [("grpc.server.max_pending_requests", most)]
    options.append(("grpc.server.max_pending_requests_hard_limit", most))
    server = grpc.aio.server(options=options)
    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
    server.add_generic_rpc_handlers((service,))
    ready.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


class TrivialHttp(asyncio.Protocol):
    """Answers whatever it is asked, once head and body are there."""

    ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"outputs":[]}'

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, length = head.lower().partition(b"\r\ncontent-length: ")
        if len(body) >= int(length.split(b"\r\n")[0] or 0):
            self._received = b""
            self._transport.write(self.ANSWER)


async def serve_http(ready: Connection) -> None:
    """Answer every request with the same few bytes."""
    server = await asyncio.get_running_loop().create_server(TrivialHttp, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def endpoint(protocol: str, ready: Connection) -> None:
    """The endpoint's process."""
    asyncio.run(serve_grpc(ready) if protocol == "grpc" else serve_http(ready))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=3000)
    parser.add_argument("--duration", type=float, default=10)
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    add_destinations(parser)
    options = parser.parse_args()
    ready, ready_child = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=endpoint, args=(options.protocol, ready_child), daemon=True
    )
    process.start()
    port = ready.recv()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(plan(options.rate)))
        command = [sys.executable, "-m", "triton_backend.serving.loadgen", "--plan", str(path)]
        command += ["--url", f"127.0.0.1:{port}", "--protocol", options.protocol, "--json"]
        command += ["--duration", str(options.duration), "--load-factor", "1"]
        done = subprocess.run(command, check=True, capture_output=True)
    process.terminate()
    summary = json.loads(done.stdout)
    model = summary["models"]["trivial"]
    rps = model["offered"] / summary["wall_seconds"]
    figures = [
        Figure(name=f"offered over {options.protocol}", value=rps, unit="1/s"),
        Figure(name="answered", value=model["served"] + model["late"], least=model["offered"]),
        Figure(name="failed", value=model["failed"], most=0),
    ]
    for name, lag in summary["send_lag_ms"].items():
        figures.append(Figure(name=f"send lag {name}", value=lag, unit="ms"))
    for name, latency in model["latency_ms"].items():
        figures.append(Figure(name=f"latency {name}", value=latency, unit="ms"))
    show(figures)
    for text, count in summary["messages"].items():
        print(f"{count} x {text}")
    store(options, "load", figures, {"raw": summary})
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
