"""Python steps beside the same functions in Triton's own Python backend, in one server.

`decode` turns a JPEG of a megapixel into a tensor, as the first step of a picture model; `empty`
gives back what it is given. Each is served as a step of ours, in a worker behind the gateway, and
as a model of Triton's Python backend, which goes on beside the plan. One client asks the two in
turn over gRPC, one request at a time, and compares their answers.

    .venv/bin/python scripts/benchmarks/applications/python_step.py [--count 300]
"""

import argparse
import io
import os
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tritonclient import grpc

from flows.clock import Stopwatch
from flows.device_class import DeviceClass
from flows.files import read_workload
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.release.artifacts import attach_artifacts
from flows.release.beside import models_beside
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served, stop_when_terminated
from triton_backend.contract.cluster import Cluster
from triton_backend.runtimes.python_step.pictures import decode
from triton_backend.serve_folder.settings import ServeOptions

ROOT = Path(__file__).parents[3]
HEIGHT, WIDTH, SIDE, VALUES = 1_000, 1_000, 224, 1_000
MOST_BYTES = 2_000_000
CLASS, SLO_MS, RATE_RPS, VGPUS = "CPU", 2_000, 2, 2
WARM_UP = 20
FACTOR = 1.2
PATIENT_US = 10_000_000
RIVAL = "_in_triton"
WORKLOAD = f"""
steps:
  - name: decode
    python: triton_backend.runtimes.python_step.pictures:decode
    package: triton_backend
    inputs: {{image: BYTES}}
    max_bytes: {{image: {MOST_BYTES}}}
    outputs: {{made: FP32 3x{SIDE}x{SIDE}}}
    arguments: {{height: {SIDE}, width: {SIDE}}}
    samples: photos
    max_batch: 1
  - name: empty
    python: bench_step.empty:empty
    package: ./bench_step
    inputs: {{image: FP32 {VALUES}}}
    outputs: {{made: FP32 {VALUES}}}
    max_batch: 1
models:
  - {{name: decode, slo_ms: {SLO_MS}, rate_rps: {RATE_RPS}}}
  - {{name: empty, slo_ms: {SLO_MS}, rate_rps: {RATE_RPS}}}
"""
EMPTY = '''
"""A step that does nothing."""


def empty(image):
    return image
'''
# The same functions, called as the Python backend calls: one request, one tensor.
CALLS = {
    "decode": f"decode(list(given), height={SIDE}, width={SIDE})",
    "empty": "empty(given)",
}
IMPORTS = {
    "decode": "from triton_backend.runtimes.python_step.pictures import decode",
    "empty": "from bench_step.empty import empty",
}
MODEL = """
import site

for folder in [{folders}]:
    site.addsitedir(folder)

import triton_python_backend_utils as triton
{imports}


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = triton.get_input_tensor_by_name(request, "image").as_numpy()
            made = triton.Tensor("made", {call})
            answers.append(triton.InferenceResponse([made]))
        return answers
"""
CONFIGURATION = """
backend: "python"
max_batch_size: 0
input [ {{ name: "image" data_type: {kind} dims: [ {given} ] }} ]
output [ {{ name: "made" data_type: TYPE_FP32 dims: [ {made} ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
DIMS = {
    "decode": {"kind": "TYPE_STRING", "given": "1", "made": f"1, 3, {SIDE}, {SIDE}"},
    "empty": {"kind": "TYPE_FP32", "given": f"1, {VALUES}", "made": f"1, {VALUES}"},
}
Floats = NDArray[np.float64]


def photo(seed: int) -> bytes:
    """A JPEG of a megapixel: smooth colours with grain, as a camera writes it."""
    draws = np.random.default_rng(seed)
    coarse = Image.fromarray(draws.integers(40, 216, (12, 12, 3), np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
    grain = draws.normal(0, 6, smooth.shape).astype(np.int16)
    with io.BytesIO() as file:
        Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, "JPEG")
        return file.getvalue()


def write_rivals(folder: Path, steps: Path) -> Path:
    """A repository of the functions as models of Triton's Python backend."""
    for name, call in CALLS.items():
        place = folder / f"{name}{RIVAL}" / "1"
        place.mkdir(parents=True)
        folders = f"{str(ROOT)!r}, {str(steps)!r}"
        text = MODEL.format(folders=folders, imports=IMPORTS[name], call=call)
        (place / "model.py").write_text(text)
        (place.parent / "config.pbtxt").write_text(CONFIGURATION.format(**DIMS[name]))
    return folder


def prepared(folder: Path) -> tuple[Any, ServeOptions]:
    """The steps as a plan of real artifacts, and the rivals beside it."""
    (folder / "photos").mkdir()
    (folder / "photos" / "first").write_bytes(photo(0))
    (folder / "bench_step").mkdir()
    (folder / "bench_step" / "__init__.py").touch()
    (folder / "bench_step" / "empty.py").write_text(textwrap.dedent(EMPTY))
    workload = folder / "workload.yaml"
    workload.write_text(WORKLOAD)
    work = Workspace(state=ProjectState(home=folder / "state"), warehouse=folder / "w.duckdb")
    device = DeviceClass(name=CLASS, cores=tuple(sorted(os.sched_getaffinity(0))))
    limits = MeasureLimits(min_runs=3, max_seconds=0.1)
    for step in prepare_steps(work, list(read_steps(workload).values())):
        profile_step(work, step, [OnnxRuntimeClass(device=device)], limits=limits)
    cluster = {
        "name": "here",
        "gpu_classes": {CLASS: {"hourly_cost": 1.0}},
        "nodes": [{"count": 1, "gpu_class": CLASS, "gpus": VGPUS, "nic_gbps": 10}],
    }
    asked = PlanOptions(objective="cost", time_limit_s=20)
    found = plan_step(
        work, Cluster.from_dict(cluster), read_workload(workload), asked, robust=False
    )
    plan = attach_artifacts(work, found.plan, {CLASS: device})
    beside = models_beside([write_rivals(folder / "models", folder)], plan).beside
    return plan, ServeOptions(artifacts=work.state.artifacts, beside=beside)


def given_to(name: str) -> grpc.InferInput:
    """The tensor of every request."""
    if name == "decode":
        found = grpc.InferInput("image", [1], "BYTES")
        found.set_data_from_numpy(np.array([photo(1)], np.object_))
        return found
    found = grpc.InferInput("image", [1, VALUES], "FP32")
    found.set_data_from_numpy(np.arange(VALUES, dtype=np.float32)[None])
    return found


def ask(client: grpc.InferenceServerClient, model: str, given: grpc.InferInput) -> Any:
    """The answer, and how long it took (ms)."""
    watch = Stopwatch()
    answer = client.infer(model, [given], timeout=PATIENT_US)
    took_ms = 1e3 * watch.seconds()
    assert answer is not None
    return answer.as_numpy("made"), took_ms


def in_turn(url: str, name: str, count: int) -> tuple[Floats, int]:
    """Latencies (ms) [count, 2] of the step and its rival, and how many answers were unlike."""
    given, unlike = given_to(name), 0
    took_ms = np.zeros((count, 2))
    with grpc.InferenceServerClient(url) as client:
        for number in range(-WARM_UP, count):
            ours, first_ms = ask(client, name, given)
            theirs, second_ms = ask(client, name + RIVAL, given)
            unlike += not np.array_equal(ours, theirs)
            if number >= 0:
                took_ms[number] = first_ms, second_ms
    return took_ms, unlike


def function_ms(count: int = 30) -> float:
    """Median time of the picture's function in this process."""
    picture, took_ms = photo(1), list[float]()
    for _ in range(count):
        watch = Stopwatch()
        decode([picture], height=SIDE, width=SIDE)
        took_ms.append(1e3 * watch.seconds())
    return float(np.median(took_ms))


def figures_of(name: str, took_ms: Floats, unlike: int) -> list[Figure]:
    """Median latencies and their ratio."""
    ours, theirs = np.median(took_ms, axis=0).tolist()
    tails = np.quantile(took_ms, 0.99, axis=0)
    note = f"p99 {tails[0]:.2f} and {tails[1]:.2f} ms"
    return [
        Figure(name=f"{name}: p50 as a step", value=ours, unit="ms"),
        Figure(name=f"{name}: p50 in Triton's Python backend", value=theirs, unit="ms"),
        Figure(name=f"{name}: p50, step / backend", value=ours / theirs, most=FACTOR, note=note),
        Figure(name=f"{name}: answers unlike", value=unlike, most=0),
    ]


def main() -> int:
    """Prepare, serve, ask in turn; exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="requests to each")
    parser.add_argument("--port", type=int, default=18_700, help="HTTP; gRPC and metrics follow")
    add_destinations(parser)
    asked = parser.parse_args()
    stop_when_terminated()
    rows: dict[str, tuple[Floats, int]] = {}
    with tempfile.TemporaryDirectory(prefix="poolpipe-step-") as folder:
        plan, options = prepared(Path(folder))
        with Served(plan, asked.port, options) as served:
            for name in CALLS:
                rows[name] = in_turn(served.state.grpc_url, name, asked.count)
    alone = Figure(name="decode: median of the function alone", value=function_ms(), unit="ms")
    figures = [figure for name, row in rows.items() for figure in figures_of(name, *row)]
    details = {name: took_ms.tolist() for name, (took_ms, _) in rows.items()}
    return conclude(asked, "python-step", [alone, *figures], details)


if __name__ == "__main__":
    sys.exit(main())
