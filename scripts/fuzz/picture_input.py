"""Hostile pictures and bodies to a BYTES input: refused in one line or answered, nothing lost.

Two endpoints whose first step decodes pictures are prepared, planned and served by a real Triton:
`photo` (the ready step `decode`, then a model) and, with the extra `ocr`, `lines` (the OCR
example's `page` and `crops` around a model that takes what is dark for text). Then come hostile
requests over HTTP and gRPC, half of them odd pictures in good requests, half good pictures in bad
ones, with good requests among them, whose answers are compared with the same steps and models in
this process. Afterwards every process must be the one it was and hold as much memory as after the
first tenth, and no log may have a traceback or a warning of a library.

    .venv/bin/python scripts/fuzz/picture_input.py [--count 10000] [--good 1000] [--seed 0]
"""

import argparse
import http.client
import importlib.util
import json
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.clock import Stopwatch
from flows.device_class import DeviceClass
from flows.files import read_workload
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.release.artifacts import attach_artifacts
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served, stop_when_terminated
from scripts.fuzz.bodies import (
    Body,
    good_message,
    hostile_body,
    hostile_message,
    pb,
    picture_body,
)
from scripts.fuzz.pictures import good_picture, hostile_picture
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.python_step import ocr
from triton_backend.runtimes.python_step.pictures import decode
from triton_backend.runtimes.texts import pack_texts
from triton_backend.serve_folder.settings import ServeOptions

PHOTO, LINES = "photo", "lines"
SIDE, CLASSES = 16, 5
HEIGHT, WIDTH = 224, 160
MOST_BYTES = 4_000_000  # as in the OCR example
VGPUS, SLO_MS, CLASS = 6, 30_000, "CPU"
SAMPLES, SEED = 4, 99
THREADS, TIMEOUT_S, LYING_TIMEOUT_S = 4, 40.0, 1.0
TENTH, HALF = 10, 0.5
MEMORY_FRACTION = 0.05
INFER = "/inference.GRPCInferenceService/ModelInfer"
SERVER = "tritonserver"
RIGHT, WRONG, ANSWERED, REFUSED, CLOSED = "right", "wrong", "answered", "refused", "closed"
FAILED, LONG, LOST = "failed", "refused in several lines", "no answer"
# Mistakes of a client, as HTTP and gRPC say them.
REFUSALS = range(400, 500)
CODES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
}
# Triton's own front ends say so of what they cannot parse, with 500 or INTERNAL.
PARSERS = re.compile("(?i)unable to parse|failed to parse|unsupported compression")
LINE_END = re.compile(r"[\r\n]")
NOISE = re.compile(rb"Traceback|\w*Warning: ")
WITH_OCR = importlib.util.find_spec(ocr.PACKAGE) is not None
STEPS = f"""
steps:
  - name: decode
    python: triton_backend.runtimes.python_step.pictures:decode
    package: triton_backend
    inputs: {{image: BYTES}}
    max_bytes: {{image: {MOST_BYTES}}}
    outputs: {{pixels: FP32 3x{SIDE}x{SIDE}}}
    arguments: {{height: {SIDE}, width: {SIDE}}}
    samples: photos
    max_batch: 1
"""
OCR_STEPS = f"""
  - name: page
    python: triton_backend.runtimes.python_step.ocr:page
    package: triton_backend
    inputs: {{image: BYTES}}
    max_bytes: {{image: {MOST_BYTES}}}
    outputs: {{pixels: FP32 3x{HEIGHT}x{WIDTH}}}
    arguments: {{height: {HEIGHT}, width: {WIDTH}}}
    samples: photos
    max_batch: 1
  - name: crops
    python: triton_backend.runtimes.python_step.ocr:crops
    package: triton_backend
    inputs: {{image: BYTES, likely: FP32 1x{HEIGHT}x{WIDTH}}}
    max_bytes: {{image: {MOST_BYTES}}}
    outputs: {{box: FP32 4x2, box_rows: INT64, crop: UINT8 {ocr.CROP_BYTES}, crop_rows: INT64}}
    samples: crops.npz
    max_batch: 1
"""
MODELS = f"""
models:
  - name: {PHOTO}
    model: net
    before: decode
    slo_ms: {SLO_MS}
    rate_rps: 4
    outputs: {{scores: model.scores}}
"""
APPLICATIONS = f"""
applications:
  - name: {LINES}
    slo_ms: {SLO_MS}
    rate_rps: 4
    modules:
      - {{name: page, model: page, inputs: {{image: request.image}}}}
      - {{name: dark, model: dark, inputs: {{pixels: page.pixels}}}}
      - name: crops
        model: crops
        max_rows_given: {ocr.MOST_LINES}
        inputs: {{image: request.image, likely: dark.likely}}
    outputs: {{boxes: crops.box}}
"""
Pixels = NDArray[np.float32]


def write_models(folder: Path) -> dict[str, Path]:
    """`net`, scores of a small picture; `dark`, how likely each pixel of a page is text."""
    weights = np.random.default_rng(2).standard_normal((CLASSES, 3, 3, 3)).astype(np.float32) / 4
    net = [
        helper.make_node("Conv", ["pixels", "weights"], ["felt"]),
        helper.make_node("GlobalAveragePool", ["felt"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["scores"]),
    ]
    dark = [
        helper.make_node("ReduceMean", ["pixels"], ["grey"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["grey", "steep"], ["slope"]),
        helper.make_node("Sigmoid", ["slope"], ["likely"]),
    ]
    steep = numpy_helper.from_array(np.array([-8.0], np.float32), "steep")
    made = {"net": _graph(net, (3, SIDE, SIDE), "scores", (CLASSES,), ("weights", weights))}
    if WITH_OCR:
        values = ("steep", numpy_helper.to_array(steep))
        made["dark"] = _graph(dark, (3, HEIGHT, WIDTH), "likely", (1, HEIGHT, WIDTH), values)
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in made}


def _graph(
    nodes: list[Any],
    given: tuple[int, ...],
    name: str,
    shape: tuple[int, ...],
    values: tuple[str, NDArray[np.float32]],
) -> onnx.ModelProto:
    taken, found = (
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", *sizes])]
        for tensor, sizes in (("pixels", given), (name, shape))
    )
    constants = [numpy_helper.from_array(values[1], values[0])]
    graph = helper.make_graph(nodes, "made", taken, found, constants)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


class Here:
    """Models and steps in this process: what a good request must be answered."""

    def __init__(self, models: Mapping[str, Path]) -> None:
        self._sessions = {
            name: onnxruntime.InferenceSession(str(path)) for name, path in models.items()
        }

    def likely(self, picture: bytes) -> Pixels:
        """How likely each pixel of a page is text."""
        pixels = ocr.page([picture], height=HEIGHT, width=WIDTH)
        return np.asarray(self._sessions["dark"].run(None, {"pixels": pixels})[0])

    def answer(self, endpoint: str, picture: bytes) -> Pixels:
        """Scores of a photo; boxes of lines."""
        if endpoint == LINES:
            return ocr.crops([picture], self.likely(picture))["box"][0]
        pixels = decode([picture], height=SIDE, width=SIDE)
        return np.asarray(self._sessions["net"].run(None, {"pixels": pixels})[0])


def prepared(folder: Path) -> tuple[Plan, ServeOptions, Here]:
    """The endpoints as a plan of real artifacts, as `steps`, `profile` and `plan` make it."""
    models = write_models(folder)
    here = Here(models)
    draws = np.random.default_rng(SEED)
    samples = [good_picture(draws) for _ in range(SAMPLES)]
    (folder / "photos").mkdir()
    for number, picture in enumerate(samples):
        (folder / "photos" / str(number)).write_bytes(picture)
    if WITH_OCR:
        likely = np.concatenate([here.likely(picture) for picture in samples])
        np.savez(folder / "crops.npz", image=pack_texts(samples), likely=likely)
    workload = folder / "workload.yaml"
    parts = (STEPS, OCR_STEPS, MODELS, APPLICATIONS) if WITH_OCR else (STEPS, MODELS)
    workload.write_text("".join(parts))
    work = Workspace(state=ProjectState(home=folder / "state"), warehouse=folder / "w.duckdb")
    device = DeviceClass(name=CLASS, cores=tuple(sorted(os.sched_getaffinity(0))))
    splits = [
        *prepare_steps(work, list(read_steps(workload).values())),
        *(split_step(work, path, name, blocks=1, max_batch=1) for name, path in models.items()),
    ]
    limits = MeasureLimits(min_runs=3, max_seconds=0.05)
    for split in splits:
        profile_step(work, split, [OnnxRuntimeClass(device=device)], limits=limits)
    cluster = {
        "name": "here",
        "gpu_classes": {CLASS: {"hourly_cost": 1.0}},
        "nodes": [{"count": 1, "gpu_class": CLASS, "gpus": VGPUS, "nic_gbps": 10}],
    }
    options = PlanOptions(objective="cost", time_limit_s=20)
    found = plan_step(
        work, Cluster.from_dict(cluster), read_workload(workload), options, robust=False
    )
    plan = attach_artifacts(work, found.plan, {CLASS: device})
    return plan, ServeOptions(artifacts=work.state.artifacts), here


class Outcome(NamedTuple):
    """How a request ended.

    Attributes:
        kind: what was wrong with it; "good".
        end: one of the words above.
        said: status and reason.
    """

    kind: str
    end: str
    said: str = ""


class Reply(NamedTuple):
    """A status as HTTP or gRPC says it, the reason, the answer's values."""

    status: str
    end: str
    reason: str = ""
    values: Pixels | None = None


def _ended(status: str, *, answered: bool, refused: bool, reason: str) -> Reply:
    # Triton repeats the name of a tensor that it does not know, with any other characters in it.
    said = LONG if LINE_END.search(reason.strip()) else REFUSED
    refused = refused or bool(PARSERS.match(reason))
    end = ANSWERED if answered else (said if refused else FAILED)
    return Reply(status, end, reason[:200])


class Sender:
    """Ways into a served system. Connections to HTTP are of one request each."""

    def __init__(self, served: Served) -> None:
        host, _, port = served.state.http_url.rpartition(":")
        self._address = host, int(port)
        self._channel = grpc.insecure_channel(served.state.grpc_url)
        self._infer = self._channel.unary_unary(INFER)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def http(self, endpoint: str, body: Body) -> Reply:
        """A body as it is, behind its own headers."""
        lines = [f"POST /v2/models/{endpoint}/infer HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in body.headers]
        data = "\r\n".join([*lines, "", ""]).encode() + body.data
        timeout_s = TIMEOUT_S if body.honest else LYING_TIMEOUT_S
        sent = False
        with socket.create_connection(self._address, timeout_s) as peer:
            try:
                # The server may have refused it already, and answers all the same.
                sent = _send(peer, data)
                with http.client.HTTPResponse(peer) as reply:
                    reply.begin()
                    return _of_http(reply, reply.read())
            except TimeoutError:
                return Reply("", LOST if body.honest else CLOSED)
            except (OSError, http.client.HTTPException) as error:
                return Reply("", LOST if body.honest and sent else CLOSED, repr(error))

    def grpc(self, message: bytes) -> Reply:
        """A message as it is."""
        try:
            data = self._infer(message, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code, reason = error.code(), str(error.details())
            return _ended(code.name, answered=False, refused=code in CODES, reason=reason)
        answer = pb.ModelInferResponse.FromString(data)
        values = np.frombuffer(answer.raw_output_contents[0], np.float32)
        return Reply("OK", ANSWERED, values=values)


def _send(peer: socket.socket, data: bytes) -> bool:
    try:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
    except TimeoutError:
        raise
    except OSError:
        return False
    return True


def _of_http(reply: http.client.HTTPResponse, data: bytes) -> Reply:
    status = str(reply.status)
    if reply.status == http.client.OK:
        begin = int(reply.headers.get("Inference-Header-Content-Length") or len(data))
        return Reply(status, ANSWERED, values=np.frombuffer(data[begin:], np.float32))
    try:
        reason = str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        reason = data.decode(errors="replace")
    return _ended(status, answered=False, refused=reply.status in REFUSALS, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thrower:
    """Draws requests by their number and sends them."""

    sender: Sender
    here: Here
    endpoints: tuple[str, ...]
    seed: int
    every: int  # so many requests to a good one

    def throw(self, number: int) -> Outcome:
        """Request `number`: the same for the same seed."""
        draws = np.random.default_rng([self.seed, number])
        endpoint = str(draws.choice(self.endpoints))
        over_http = bool(draws.random() < HALF)
        if number % self.every == 0:
            return self._good(draws, endpoint, over_http=over_http)
        if draws.random() < HALF:
            kind, picture = hostile_picture(draws)
            reply = self._ask(endpoint, picture, over_http=over_http)
            kind = f"picture, {kind}"
        elif over_http:
            kind, body = hostile_body(draws, good_picture(draws))
            reply = self.sender.http(endpoint, body)
            kind = f"HTTP, {kind}"
        else:
            kind, message = hostile_message(draws, endpoint, good_picture(draws))
            reply = self.sender.grpc(message)
            kind = f"gRPC, {kind}"
        return Outcome(kind, reply.end, f"{reply.status} {reply.reason}".strip())

    def _ask(self, endpoint: str, picture: bytes, *, over_http: bool) -> Reply:
        if over_http:
            return self.sender.http(endpoint, picture_body(picture))
        return self.sender.grpc(good_message(endpoint, picture).SerializeToString())

    def _good(self, draws: np.random.Generator, endpoint: str, *, over_http: bool) -> Outcome:
        picture = good_picture(draws)
        reply = self._ask(endpoint, picture, over_http=over_http)
        if reply.values is None:
            return Outcome("good", reply.end, f"{reply.status} {reply.reason}".strip())
        wanted = self.here.answer(endpoint, picture).reshape(-1)
        same = reply.values.shape == wanted.shape and np.allclose(
            reply.values, wanted, rtol=1e-4, atol=1e-6
        )
        return Outcome("good", RIGHT if same else WRONG)


def memory_mb(served: Served) -> dict[str, float]:
    """Memory of Triton's server and of all other processes of the system.

    Pages that several of them map are counted once (proportional set size).
    """
    held = {"server": 0.0, "ours": 0.0}
    for process in served.processes():
        whose = "server" if process.name() == SERVER else "ours"
        held[whose] += process.memory_full_info().pss / 1e6
    return held


def identities(served: Served) -> set[tuple[int, float]]:
    """Every process of the system, with the instant it began."""
    return {(process.pid, process.create_time()) for process in served.processes()}


def noise_in_logs(served: Served) -> list[str]:
    """Lines of logs that a library or an unexpected error of ours wrote."""
    found: list[str] = []
    for log in sorted((served.folder / "logs").rglob("*")):
        if log.is_file():
            lines = log.read_bytes().splitlines()
            found += [line.decode(errors="replace") for line in lines if NOISE.search(line)]
    return found


def fuzz(
    served: Served, here: Here, *, count: int, good: int, seed: int
) -> tuple[list[Figure], dict[str, Any]]:
    """Throw `count` hostile and `good` good requests, compare."""
    sender = Sender(served)
    thrower = Thrower(
        sender=sender,
        here=here,
        endpoints=(PHOTO, LINES) if WITH_OCR else (PHOTO,),
        seed=seed,
        every=count // good + 1,
    )
    before, watch = identities(served), Stopwatch()
    numbers = range(good * thrower.every)
    outcomes: list[Outcome] = []
    memory: list[dict[str, float]] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for part in np.array_split(numbers, TENTH):
            outcomes += threads.map(thrower.throw, part.tolist())
            memory.append(memory_mb(served))
    seconds = watch.seconds()
    sender.close()
    status = served.state.control("status")
    details = {
        "seconds": seconds,
        "memory_mb": memory,
        "changed": len(before ^ identities(served)),
        "workers": status["workers"],
        "workers_lost": status["counters"]["workers_lost"],
        "noise": noise_in_logs(served)[:20],
        "ends": _by_kind(outcomes),
        "said": _said(outcomes),
    }
    return figures_of(outcomes, details), details


def _by_kind(outcomes: list[Outcome]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for one in outcomes:
        found.setdefault(one.kind, Counter())[one.end] += 1
    return {kind: dict(found[kind]) for kind in sorted(found)}


def _said(outcomes: list[Outcome]) -> dict[str, list[str]]:
    """A few statuses and reasons of each end that should not be."""
    found: dict[str, list[str]] = {}
    for one in outcomes:
        if one.end in {FAILED, LONG, LOST, WRONG} or (one.kind == "good" and one.end != RIGHT):
            found.setdefault(f"{one.kind}: {one.end}", []).append(one.said)
    return {kind: sorted(set(texts))[:5] for kind, texts in found.items()}


def figures_of(outcomes: list[Outcome], details: Mapping[str, Any]) -> list[Figure]:
    """Figures of all that came back, and of the system afterwards."""
    good = Counter(one.end for one in outcomes if one.kind == "good")
    hostile = Counter(one.end for one in outcomes if one.kind != "good")
    first, last = details["memory_mb"][0], details["memory_mb"][-1]
    mb = {whose: f"{first[whose]:.0f} -> {last[whose]:.0f} MB" for whose in first}
    thrown = ", ".join(f"{end}: {n}" for end, n in sorted(hostile.items()))
    fine = hostile[ANSWERED] + hostile[REFUSED] + hostile[CLOSED]
    return [
        Figure(name="hostile requests", value=hostile.total(), note=thrown),
        Figure(
            name="  neither answered, nor refused in one line, nor closed where a length lied",
            value=hostile.total() - fine,
            most=0,
        ),
        Figure(
            name="good requests not answered right",
            value=good.total() - good[RIGHT],
            most=0,
            note=f"of {good.total()}",
        ),
        Figure(name="processes that are not the same", value=details["changed"], most=0),
        Figure(name="workers lost", value=details["workers_lost"], most=0),
        Figure(name="tracebacks and warnings in logs", value=len(details["noise"]), most=0),
        Figure(
            name="memory of fronts and workers at the end, of that after the first tenth",
            value=last["ours"] / first["ours"],
            most=1 + MEMORY_FRACTION,
            note=mb["ours"],
        ),
        Figure(
            name="memory of Triton's server, likewise",
            value=last["server"] / first["server"],
            note=mb["server"],
        ),
        Figure(name="time of all requests", value=details["seconds"], unit="s"),
    ]


def main() -> int:
    """Prepare, serve, throw, print; exit 1 when something gave way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="hostile requests")
    parser.add_argument("--good", type=int, default=1_000, help="good ones among them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=19_560, help="HTTP; gRPC and metrics follow")
    add_destinations(parser)
    asked = parser.parse_args()
    stop_when_terminated()
    with tempfile.TemporaryDirectory(prefix="poolpipe-fuzz-") as folder:
        plan, options, here = prepared(Path(folder))
        with Served(plan, asked.port, options) as served:
            figures, details = fuzz(
                served, here, count=asked.count, good=asked.good, seed=asked.seed
            )
    return conclude(asked, "fuzz-pictures", figures, details)


if __name__ == "__main__":
    sys.exit(main())
