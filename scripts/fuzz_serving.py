"""Garbage at every door of a running system: nothing may crash, hang or answer wrongly.

A small real model is served by a real Triton on this machine. Then malformed frames go to every
socket (scheduler, fronts, workers): random bytes, truncated frames, frames of every kind with
random numbers and bodies; and malformed requests to the HTTP endpoint: broken JSON, wrong names,
types, shapes and sizes. Afterwards every process must be the one it was, and answers right.

    .venv/bin/python scripts/fuzz_serving.py [--count 10000] [--seed 0] [--port 18070]
"""

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from flows.release import admin, render
from triton_backend.core.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.core.plan import ModelPlan, Objective, Pipeline, PlacementRun, Plan, Stage
from triton_backend.core.tensors import TensorSpec
from triton_backend.core.workload import ModelDemand, Workload
from triton_backend.serving.wire import HEADER_BYTES, Kind, frame

MODEL = "sink"
INPUT_BYTES = 64
SLO_US = 200_000
CONNECTION_TIMEOUT_S = 5.0


def sink_plan() -> Plan:
    """One emulated model of two stages."""

    def stage(blocks: tuple[int, int], gpu: int) -> Stage:
        return Stage(
            blocks=blocks,
            gpu_class="EMULATED",
            vgpu_divisor=1,
            vgpus=1,
            latency_us=1_000,
            transfer_us=0,
            latency_us_by_batch=(1_000,),
            boundary_bytes_per_sample=256,
            placement=(PlacementRun(node=0, gpu=gpu, slot=0),),
        )

    stages = (stage((0, 1), 0), stage((1, 2), 1))
    pipeline = Pipeline(batch=1, throughput_rps=500.0, latency_us=2_000, stages=stages)
    model = ModelPlan(
        name=MODEL,
        slo_us=SLO_US,
        throughput_rps=500.0,
        pipelines=(pipeline,),
        inputs=(TensorSpec(name="input", dtype="UINT8", shape=(-1, INPUT_BYTES)),),
        outputs=(TensorSpec(name="output", dtype="UINT8", shape=(-1, 8)),),
    )
    return Plan(
        plan_id="fuzz",
        planner="by hand",
        options={},
        objective=Objective(name="throughput", value=1.0, upper_bound=1.0, gap=0.0),
        solver="none",
        solve_seconds=0.0,
        cluster=Cluster(
            name="one",
            gpu_classes=(GpuClass(name="EMULATED"),),
            nodes=(NodeGroup(count=1, gpu_class="EMULATED", gpus=2, nic_gbps=100.0),),
        ),
        workload=Workload(models=(ModelDemand(name=MODEL, slo_us=SLO_US),)),
        gpus_used={"EMULATED": 2},
        models=(model,),
    )


def bad_frame(draws: np.random.Generator) -> bytes:
    """Random bytes, or a well-formed header around nonsense, whole or cut short or changed."""
    body = draws.bytes(int(draws.integers(0, 200)))
    if draws.random() < 0.3:  # noqa: PLR2004  # three tenths are not even frames
        return body
    if draws.random() < 0.2:  # noqa: PLR2004  # some bodies are JSON of the wrong sort
        body = json.dumps({"role": str(draws.integers(9)), "generation": body.hex()[:9]}).encode()
    data = bytearray(
        frame(
            Kind(int(draws.choice(list(Kind)))),
            body,
            batch_id=int(draws.integers(-(2**62), 2**62)),
            stage=int(draws.integers(-3, 5)),
            plan_tag=int(draws.integers(0, 2**63)),
            payload_bytes=int(draws.choice([0, 64, 2**40])),
        )
    )
    if draws.random() < 0.3:  # noqa: PLR2004  # some get one byte changed
        data[int(draws.integers(len(data)))] ^= int(draws.integers(1, 256))
    if draws.random() < 0.3:  # noqa: PLR2004  # some are cut short
        del data[int(draws.integers(HEADER_BYTES)) :]
    return bytes(data)


def throw_frames(paths: list[Path], count: int, draws: np.random.Generator) -> Counter[str]:
    """Frames to every socket, each over a connection of its own; how each connection ended."""
    ends: Counter[str] = Counter()
    for number in range(count):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(CONNECTION_TIMEOUT_S)
            peer.connect(str(paths[number % len(paths)]))
            with contextlib.suppress(BrokenPipeError):
                peer.sendall(bad_frame(draws))
                peer.shutdown(socket.SHUT_WR)
            ends[read_to_end(peer)] += 1
    return ends


def read_to_end(peer: socket.socket) -> str:
    """Closed by the other side, or kept open, which nobody should."""
    try:
        while peer.recv(4096):
            pass
    except TimeoutError:
        return "left open"
    except ConnectionResetError:
        return "closed"
    return "closed"


def bad_request(draws: np.random.Generator) -> bytes:
    """A KServe request that is wrong in one or several places."""
    shape = [int(n) for n in draws.integers(-2, 100, int(draws.integers(0, 4)))]
    given = {
        "name": str(draws.choice(["input", "other", "", "x" * 5000])),
        "shape": shape if draws.random() < 0.7 else [1, INPUT_BYTES],  # noqa: PLR2004
        "datatype": str(draws.choice(["UINT8", "FP32", "BYTES", "NONE"])),
        "data": [int(n) for n in draws.integers(0, 300, int(draws.integers(0, 70)))],
    }
    body = json.dumps({"inputs": [given] * int(draws.integers(0, 3))}).encode()
    if draws.random() < 0.3:  # noqa: PLR2004  # some are cut short
        return body[: int(draws.integers(len(body)))]
    return body


def throw_requests(url: str, count: int, draws: np.random.Generator) -> Counter[int]:
    """Malformed requests; how often each HTTP status came."""
    statuses: Counter[int] = Counter()
    for _ in range(count):
        name = MODEL if draws.random() < 0.9 else "nobody"  # noqa: PLR2004
        request = urllib.request.Request(  # our own server
            f"http://{url}/v2/models/{name}/infer", data=bad_request(draws)
        )
        try:
            with urllib.request.urlopen(request, timeout=CONNECTION_TIMEOUT_S) as answer:  # noqa: S310
                statuses[answer.status] += 1
        except urllib.error.HTTPError as error:
            statuses[error.code] += 1
            error.close()
    return statuses


def right_answer(state: admin.ServerState) -> bool:
    """Whether a good request is answered with the tensor promised."""
    given = {"name": "input", "shape": [1, INPUT_BYTES], "datatype": "UINT8"}
    body = {"inputs": [{**given, "data": [7] * INPUT_BYTES}]}
    output = state.post(f"/v2/models/{MODEL}/infer", body)["outputs"][0]
    return output["shape"] == [1, 8] and len(set(output["data"])) == 1


def processes(state: admin.ServerState) -> dict[str, Any]:
    """Every process of the system by name."""
    stubs = {p.name: p.read_text().split()[0] for p in (state.folder / "pids").iterdir()}
    node = state.ask(render.node_model("EMULATED", 1), {})
    workers = {f"worker {w['vgpu']}": w["pid"] for w in node["workers"]}
    return {"triton": state.data["triton_pid"], **stubs, **workers}


def fuzz(folder: Path, port: int, count: int, seed: int) -> dict[str, Any]:
    """Serve, throw, compare."""
    draws = np.random.default_rng(seed)
    render.render_repository(folder, sink_plan(), render.ServeOptions())
    state = admin.start(folder, admin.ServerPorts(http=port, grpc=port + 1, metrics=port + 2))
    try:
        before = processes(state)
        sockets = sorted(p for p in Path(state.data["socket_folder"]).iterdir() if p.is_socket())
        frames = throw_frames(sockets, count // 2, draws)
        requests = throw_requests(state.http_url, count // 2, draws)
        counters = state.control("status")["counters"]
        return {
            "sockets": len(sockets),
            "frames": dict(frames),
            "requests_by_status": dict(requests),
            "same_processes": processes(state) == before,
            "right_answer_afterwards": right_answer(state),
            "refused_by_scheduler": counters["frames_refused"],
            "workers_lost": counters["workers_lost"],
        }
    finally:
        admin.stop(folder)


def main() -> int:
    """Run, print one JSON object; exit 1 when something gave way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=18_070)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="poolpipe-fuzz-") as folder:
        result = fuzz(Path(folder) / "serve", options.port, options.count, options.seed)
    print(json.dumps(result, indent=1))
    held = result["same_processes"] and result["right_answer_afterwards"]
    return 0 if held and "left open" not in result["frames"] else 1


if __name__ == "__main__":
    sys.exit(main())
