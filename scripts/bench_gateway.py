"""What the gateway costs: requests per second it takes, and the latency it adds.

A real Triton server on this machine serves one emulated stage with 4 KB requests. Three figures:
`wrk` over HTTP (where it is installed) and `poolpipe load` over gRPC offer more than the gateway
takes; then 500 requests/s with batches of one, whose stage time is known, show the latency added.

    .venv/bin/python scripts/bench_gateway.py [--port 18040] [--seconds 10] [--output FILE]
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed import machine, store

from flows.release import admin, render
from triton_backend.core.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.core.plan import ModelPlan, Objective, Pipeline, PlacementRun, Plan, Stage
from triton_backend.core.tensors import TensorSpec
from triton_backend.core.workload import ModelDemand, Workload

STAGE_US = 1_000
SLO_US = 100_000
RATE_OFFERED = 4_000.0
RATE_QUIET = 500.0
WRK_CONNECTIONS = 64
HTTP_TARGET_RPS = 2_000.0
GRPC_TARGET_RPS = 1_500.0
ATTAINMENT_TARGET = 0.99
ADDED_LATENCY_MS = {"p50": 1.5, "p99": 5.0}


def one_stage_plan(batch: int, vgpus: int, rate_rps: float) -> Plan:
    """A model of one emulated stage that takes a millisecond at any batch."""
    stage = Stage(
        blocks=(0, 1),
        gpu_class="EMULATED",
        vgpu_divisor=1,
        vgpus=vgpus,
        latency_us=STAGE_US,
        transfer_us=0,
        latency_us_by_batch=(STAGE_US,) * batch,
        boundary_bytes_per_sample=0,
        placement=(PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus),),
    )
    pipeline = Pipeline(batch=batch, throughput_rps=rate_rps, latency_us=STAGE_US, stages=(stage,))
    model = ModelPlan(
        name="sink",
        slo_us=SLO_US,
        throughput_rps=rate_rps,
        pipelines=(pipeline,),
        inputs=(TensorSpec(name="input", dtype="UINT8", shape=(-1, 4096)),),
        outputs=(TensorSpec(name="output", dtype="UINT8", shape=(-1, 4096)),),
    )
    return Plan(
        plan_id=f"sink-{batch}",
        planner="by hand",
        options={},
        objective=Objective(name="throughput", value=1.0, upper_bound=1.0, gap=0.0),
        solver="none",
        solve_seconds=0.0,
        cluster=Cluster(
            name="one",
            gpu_classes=(GpuClass(name="EMULATED"),),
            nodes=(NodeGroup(count=1, gpu_class="EMULATED", gpus=vgpus, nic_gbps=100.0),),
        ),
        workload=Workload(models=(ModelDemand(name="sink", slo_us=SLO_US),)),
        gpus_used={"EMULATED": vgpus},
        models=(model,),
    )


class Served:
    """A plan served from a temporary folder while the context lasts."""

    def __init__(self, plan: Plan, port: int) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="poolpipe-bench-"))
        self.plan_file = self._root / "plan.json"
        self.plan_file.write_text(json.dumps(plan.to_dict()))
        self._folder = self._root / "serve"
        self._ports = admin.ServerPorts(http=port, grpc=port + 1, metrics=port + 2)
        render.render_repository(self._folder, plan, render.ServeOptions())

    def __enter__(self) -> admin.ServerState:
        return admin.start(self._folder, self._ports)

    def __exit__(self, *_: object) -> None:
        admin.stop(self._folder)
        shutil.rmtree(self._root)


def wrk(state: admin.ServerState, seconds: int) -> dict[str, Any] | None:
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
                f"http://{state.http_url}/v2/models/sink/infer",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("RESULT")]
    requests, failed, duration_us = map(int, line.split()[1:])
    return {"rps": requests / duration_us * 1e6, "not_2xx": failed, "requests": requests}


def load(state: admin.ServerState, plan_file: Path, rate: float, seconds: int) -> dict[str, Any]:
    """`poolpipe load` over gRPC at a rate, requests evenly spaced."""
    text = subprocess.run(
        [
            sys.executable,
            "-m",
            "triton_backend.serving.load",
            f"--plan={plan_file}",
            f"--url={state.grpc_url}",
            f"--rate={rate}",
            f"--duration={seconds}",
            "--arrivals=poisson",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return json.loads(text)["models"]["sink"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its target."""

    what: str
    figure: float | None
    target: str
    met: bool | None


def measure(port: int, seconds: int) -> tuple[list[Row], dict[str, Any]]:
    """All rows, and what they were made from."""
    raw: dict[str, Any] = {}
    full = Served(one_stage_plan(batch=16, vgpus=2, rate_rps=RATE_OFFERED), port)
    with full as state:
        raw["wrk_http"] = wrk(state, seconds)
        raw["load_grpc"] = load(state, full.plan_file, GRPC_TARGET_RPS, seconds)
        raw["status"] = state.control("status")["counters"]
    single = Served(one_stage_plan(batch=1, vgpus=4, rate_rps=RATE_QUIET), port)
    with single as state:
        raw["load_grpc_batch_1"] = load(state, single.plan_file, RATE_QUIET, seconds)
    http = raw["wrk_http"]["rps"] if raw["wrk_http"] else None
    added = {
        name: raw["load_grpc_batch_1"]["latency_ms"][name] - STAGE_US / 1000
        for name in ("p50", "p99")
    }
    attainment = raw["load_grpc"]["attainment"]
    rows = [
        Row(
            "requests/s, wrk over HTTP",
            http,
            f">= {HTTP_TARGET_RPS:.0f}",
            None if http is None else http >= HTTP_TARGET_RPS,
        ),
        Row(
            f"attainment at {GRPC_TARGET_RPS:.0f} requests/s, poolpipe load over gRPC",
            attainment,
            f">= {ATTAINMENT_TARGET}",
            attainment >= ATTAINMENT_TARGET,
        ),
        *(
            Row(
                f"added latency {name} at {RATE_QUIET:.0f} requests/s, ms",
                added[name],
                f"<= {limit}",
                added[name] <= limit,
            )
            for name, limit in ADDED_LATENCY_MS.items()
        ),
    ]
    return rows, raw


def main() -> int:
    """Run, print the table, exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18_040)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--output", type=Path, help="store figures, machine and versions here")
    options = parser.parse_args()
    rows, raw = measure(options.port, options.seconds)
    for row in rows:
        figure = "no wrk here" if row.figure is None else f"{row.figure:.2f}"
        verdict = {True: "met", False: "missed", None: "not measured"}[row.met]
        print(f"{row.what:64} {figure:>12}  {row.target:10} {verdict}")
    store(options.output, {"machine": machine(), "rows": [asdict(row) for row in rows], "raw": raw})
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
