"""The cost of the gateway: requests per second, CPU time of a request, and added latency.

A real Triton server on this machine serves one emulated stage with 4 KB requests. `wrk` over HTTP
(where it is installed) and `poolpipe load` over gRPC offer more than the gateway takes; 1,500
requests/s show the CPU time that a request costs, by process; 500 requests/s with batches of one,
whose stage time is known, show the latency added, over HTTP and over gRPC. Beside it, in turns and
at the same rate, run two trivial models of Triton's Python backend that do nothing: one that
answers at once, and one that answers from a thread of its own as the gateway must. They show how
much of all this is Triton, its protocol and the load generator on the same cores.

    .venv/bin/python scripts/benchmarks/gateway.py [--port 18040] [--seconds 10] [--rounds 3]
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from flows.release.server import admin
from flows.release.server.running import ServerState
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import PARTS, cpu_seconds
from scripts.benchmarks.served import stop_when_terminated
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

STAGE_US = 1_000
SLO_US = 100_000
RATE_OFFERED = 4_000.0
RATE_QUIET = 500.0
WRK_CONNECTIONS = 64
HTTP_TARGET_RPS = 2_000.0
GRPC_TARGET_RPS = 1_500.0
ATTAINMENT_TARGET = 0.99
ADDED_LATENCY_MS = {"p50": 1.5, "p99": 5.0}
CPU_TARGET_MS = 1.0
# Of the trivial model that answers from a thread: its requests/s, its median latency.
RATE_SHARE_TARGET, ADDED_FACTOR_TARGET = 0.85, 1.6
PROTOCOLS = ("http", "grpc")
SINK, FROM_THREAD = "sink", "from_thread"
FLOOR_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input {{ name: "input" data_type: TYPE_UINT8 dims: [-1, 4096] }}
output {{ name: "output" data_type: TYPE_UINT8 dims: [-1, 4096] }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
FLOORS = {
    "at_once": """
import triton_python_backend_utils as triton

def answer(request):
    tensor = triton.Tensor("output", request.inputs()[0].as_numpy())
    return triton.InferenceResponse([tensor])

class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]
""",
    FROM_THREAD: """
import queue
import sys
import threading
import triton_python_backend_utils as triton

class TritonPythonModel:
    def initialize(self, args):
        sys.setswitchinterval(5e-4)
        self.queue = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            sender, array = self.queue.get()
            answer = triton.InferenceResponse([triton.Tensor("output", array)])
            sender.send(answer, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def execute(self, requests):
        for request in requests:
            self.queue.put((request.get_response_sender(), request.inputs()[0].as_numpy()))
""",
}


def one_stage_plan(batch: int, vgpus: int, rate_rps: float, name: str = SINK) -> Plan:
    """A model of one emulated stage that takes a millisecond at any batch."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    stage = hand_stage((0, 1), "EMULATED", place, (STAGE_US,) * batch)
    model = hand_model(
        name,
        hand_pipeline(stage, batch=batch, rate_rps=rate_rps),
        slo_us=SLO_US,
        inputs=(TensorSpec(name="input", dtype="UINT8", shape=(-1, 4096)),),
        outputs=(TensorSpec(name="output", dtype="UINT8", shape=(-1, 4096)),),
    )
    node = NodeGroup(count=1, gpu_class="EMULATED", gpus=vgpus, nic_gbps=100.0)
    return hand_plan(model, nodes=[node], plan_id=f"{name}-{batch}")


class Served:
    """A plan, and the trivial models beside it, served from a temporary folder while it lasts."""

    def __init__(self, plan: Plan, port: int) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="poolpipe-bench-"))
        self._plan = plan
        self._folder = self._root / "serve"
        self._ports = Endpoints(http=port, grpc=port + 1, metrics=port + 2)
        render_repository(self._folder, plan, ServeOptions())
        for name, code in FLOORS.items():
            model = self._folder / "repository" / name
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(FLOOR_CONFIG.format(name=name))
            (model / "1" / "model.py").write_text(code)

    def plan_file(self, model: str = SINK) -> Path:
        """A plan whose only model is this one, for the load generator."""
        path = self._root / f"{model}.json"
        plan = self._plan
        if model != SINK:
            plan = replace(plan, models=(replace(plan.models[0], name=model),))
        path.write_text(json.dumps(plan.to_dict()))
        return path

    def __enter__(self) -> ServerState:
        stop_when_terminated()
        return admin.start(self._folder, self._ports)

    def __exit__(self, *_: object) -> None:
        admin.stop(self._folder)
        shutil.rmtree(self._root)


def wrk(state: ServerState, model: str, seconds: int) -> dict[str, Any] | None:
    """Requests per second of `wrk` over HTTP with 4 KB of binary input; None without wrk."""
    program = shutil.which("wrk")
    if program is None:
        return None
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "shape": [1, 4096],
                    "datatype": "UINT8",
                    "parameters": {"binary_data_size": 4096},
                }
            ],
            "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
        }
    )
    script = "\n".join(
        [
            'wrk.method = "POST"',
            f"wrk.body = [[{header}]] .. string.rep('a', 4096)",
            'wrk.headers["Content-Type"] = "application/octet-stream"',
            f'wrk.headers["Inference-Header-Content-Length"] = "{len(header)}"',
            "local failed = 0",
            "done = function(summary)",
            '  io.write(string.format("RESULT %d %d %d\\n", summary.requests,',
            "    summary.errors.status, summary.duration))",
            "end",
        ]
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        text = subprocess.run(
            [
                program,
                "-t1",
                f"-c{WRK_CONNECTIONS}",
                f"-d{seconds}s",
                f"-s{file.name}",
                f"http://{state.http_url}/v2/models/{model}/infer",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("RESULT")]
    requests, failed, duration_us = map(int, line.split()[1:])
    return {"rps": requests / duration_us * 1e6, "not_2xx": failed, "requests": requests}


def load(
    state: ServerState, plan_file: Path, rate: float, seconds: int, protocol: str = "grpc"
) -> dict[str, Any]:
    """`poolpipe load` at a rate, Poisson arrivals."""
    text = subprocess.run(
        [
            sys.executable,
            "-m",
            "triton_backend.serving.loadgen",
            f"--plan={plan_file}",
            f"--url={state.grpc_url if protocol == 'grpc' else state.http_url}",
            f"--protocol={protocol}",
            f"--rate={rate}",
            f"--duration={seconds}",
            "--arrivals=poisson",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (row,) = json.loads(text)["models"].values()
    return row


def throughput(port: int, seconds: int, rounds: int) -> tuple[list[Figure], dict[str, Any]]:
    """Requests per second that the gateway takes, beside a trivial model; medians over rounds."""
    full = Served(one_stage_plan(batch=16, vgpus=2, rate_rps=RATE_OFFERED), port)
    taken: dict[str, list[dict[str, Any]]] = {SINK: [], FROM_THREAD: []}
    with full as state:
        for _ in range(rounds):
            for model, rows in taken.items():
                row = wrk(state, model, seconds)
                if row is not None:
                    rows.append(row)
        grpc = load(state, full.plan_file(), GRPC_TARGET_RPS, seconds)
        raw = {
            "wrk_http": taken,
            "load_grpc": grpc,
            "status": state.control("status")["counters"],
        }

    def rate_rps(model: str) -> float | None:
        return median(row["rps"] for row in taken[model]) if taken[model] else None

    ours, trivial = rate_rps(SINK), rate_rps(FROM_THREAD)
    what = f"attainment at {GRPC_TARGET_RPS:.0f} requests/s, poolpipe load over gRPC"
    figures = [
        Figure(name="requests/s, wrk over HTTP", value=ours, unit="1/s", least=HTTP_TARGET_RPS),
        Figure(
            name="  of a trivial Python model, answering from a thread", value=trivial, unit="1/s"
        ),
        Figure(
            name="requests/s, wrk over HTTP, of those of that trivial model",
            value=None if ours is None or trivial is None else ours / trivial,
            least=RATE_SHARE_TARGET,
        ),
        Figure(name=what, value=grpc["attainment"], least=ATTAINMENT_TARGET),
    ]
    return figures, raw


def cpu_per_request(port: int, seconds: int, rounds: int) -> tuple[list[Figure], dict[str, Any]]:
    """CPU time of a request by process at a busy rate; medians over rounds that take turns."""
    full = Served(one_stage_plan(batch=16, vgpus=2, rate_rps=RATE_OFFERED), port)
    turns = [(name, protocol) for name in (SINK, FROM_THREAD) for protocol in PROTOCOLS]
    runs: dict[tuple[str, str], list[dict[str, float]]] = {turn: [] for turn in turns}
    with full as state:
        for _ in range(rounds):
            for name, protocol in turns:
                before, own_s = cpu_seconds(state, name), _children_s()
                row = load(state, full.plan_file(name), GRPC_TARGET_RPS, seconds, protocol)
                after = cpu_seconds(state, name)
                spent_s = {part: after[part] - before[part] for part in PARTS}
                spent_s |= {"all": sum(spent_s.values()), "load": _children_s() - own_s}
                runs[name, protocol].append(
                    {part: value * 1e3 / row["offered"] for part, value in spent_s.items()}
                    | {"attainment": row["attainment"]}
                )
        status = state.control("status")["counters"]

    def typical(model: str, protocol: str, part: str) -> float:
        return median(run[part] for run in runs[model, protocol])

    at = f"at {GRPC_TARGET_RPS:.0f} requests/s"
    figures: list[Figure] = []
    for protocol in PROTOCOLS:
        figures.append(
            Figure(
                name=f"CPU per request {at} over {protocol}",
                value=typical(SINK, protocol, "all"),
                unit="ms",
                most=CPU_TARGET_MS,
                note=f"attainment {typical(SINK, protocol, 'attainment'):.3f}",
            )
        )
        figures += [
            Figure(name=f"  {part}, {protocol}", value=typical(SINK, protocol, part), unit="ms")
            for part in (*PARTS, "load")
        ]
        figures.append(
            Figure(
                name=f"  of a trivial Python model over {protocol}, answering from a thread",
                value=typical(FROM_THREAD, protocol, "all"),
                unit="ms",
            )
        )
    taken = {f"{name}, {protocol}": rows for (name, protocol), rows in runs.items()}
    return figures, {"cpu_ms": taken, "status": status}


def _children_s() -> float:
    """CPU time of the load generators that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def added_latency(port: int, seconds: int, rounds: int) -> tuple[list[Figure], dict[str, Any]]:
    """Latency beyond the stage's at a quiet rate; median over rounds that take turns."""
    single = Served(one_stage_plan(batch=1, vgpus=4, rate_rps=RATE_QUIET), port)
    turns = [(name, protocol) for name in (SINK, *FLOORS) for protocol in PROTOCOLS]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {turn: [] for turn in turns}
    with single as state:
        for _ in range(rounds):
            for name, protocol in turns:
                plan_file = single.plan_file(name)
                row = load(state, plan_file, RATE_QUIET, seconds, protocol)
                runs[name, protocol].append(row["latency_ms"])

    def typical(model: str, protocol: str, quantile: str) -> float:
        return median(run[quantile] for run in runs[model, protocol])

    at = f"at {RATE_QUIET:.0f} requests/s"
    figures = [
        Figure(
            name=f"added latency {q} {at} over {protocol} (all but the stage itself)",
            value=typical(SINK, protocol, q) - STAGE_US / 1000,
            unit="ms",
            most=limit,
        )
        for protocol in PROTOCOLS
        for q, limit in ADDED_LATENCY_MS.items()
    ]
    figures += [
        Figure(
            name=f"added latency p50 {at} over {protocol}, of that of the model that answers"
            " from a thread",
            value=(typical(SINK, protocol, "p50") - STAGE_US / 1000)
            / typical(FROM_THREAD, protocol, "p50"),
            most=ADDED_FACTOR_TARGET,
        )
        for protocol in PROTOCOLS
    ]
    figures += [
        Figure(
            name=f"  {q} of a trivial Python model over {protocol}, answering {how}",
            value=typical(model, protocol, q),
            unit="ms",
        )
        for model, how in (("at_once", "at once"), (FROM_THREAD, "from a thread"))
        for protocol in PROTOCOLS
        for q in ADDED_LATENCY_MS
    ]
    taken = {f"{name}, {protocol}": row for (name, protocol), row in runs.items()}
    return figures, {"latency_ms": taken}


def main() -> int:
    """Run, print the table, exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=18_040)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="in which all take turns")
    parser.add_argument("--only", choices=("throughput", "cpu", "latency"))
    add_destinations(parser)
    options = parser.parse_args()
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    each = max(options.seconds // 2, 1)
    if options.only in (None, "throughput"):
        found, raw["throughput"] = throughput(options.port, each, options.rounds)
        figures += found
    if options.only in (None, "cpu"):
        found, raw["cpu"] = cpu_per_request(options.port, options.seconds, options.rounds)
        figures += found
    if options.only in (None, "latency"):
        found, raw["latency"] = added_latency(options.port, each, options.rounds)
        figures += found
    return conclude(options, "gateway", figures, raw)


if __name__ == "__main__":
    sys.exit(main())
