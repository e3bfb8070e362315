"""Run time of every layer of a model: estimated here, or read from a file measured elsewhere.

Here the model runs under onnxruntime's own profiler as it will be served: fully optimised, one
thread. Fusion leaves one kernel for several layers; its time goes to the layer that gives the
kernel its work (the convolution, not its activation), and the layers fused into it count 0.

A file is a JSON object, node label to microseconds; it takes the place of this machine's own times
when a model is split for a GPU class (`poolpipe layer-times` writes one).
"""

import json
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from flows.clock import Stopwatch
from flows.files import write_text
from flows.preparation.splitting.graph import (
    Layers,
    node_label,
    read_layers,
    rename_tensors,
    subgraphs,
)
from flows.preparation.splitting.inputs.values import ModelInputs
from flows.preparation.splitting.running import open_session, quiet_options
from triton_backend.contract.errors import InputError

MIN_RUNS, MAX_RUNS = 8, 40
BUDGET_S = 1.5
KERNEL_SUFFIX = "_kernel_time"
# A fused kernel is named after one of its layers, or after the tensor that the last one makes.
MARK = "pp_layer_{}_"
INNER = "pp_inner_"
MARKED = re.compile(r"pp_layer_(\d+)_")
SEED = 11


def layer_times_us(path: Path, where: str, inputs: ModelInputs) -> tuple[float, ...]:
    """Run time of every layer at batch 1, in microseconds: the least of several runs.

    Other work on the machine only ever adds to a run's time, so the least is the nearest.

    Raises:
        InputError: onnxruntime cannot load the model.
    """
    model = onnx.load(path, load_external_data=False)
    layers = _mark(model.graph)
    marked = path.with_name(f".timing-{path.name}")
    marked.write_bytes(model.SerializeToString())
    try:
        events = _profile(marked, where, inputs)
    finally:
        marked.unlink()
    times = [0.0] * len(layers.nodes)
    for (name, operator), durations in events.items():
        index = _layer_of(name, operator, layers)
        if index is not None:
            times[index] += min(durations)
    return tuple(times)


def _mark(graph: onnx.GraphProto) -> Layers:
    """Name every layer, and every tensor that is not an output, after the layer's index."""
    kept = {o.name for o in graph.output}
    renamed: dict[str, str] = {}
    for index, node in enumerate(read_layers(graph).nodes):
        node.name = MARK.format(index)
        for inner in subgraphs(node):
            _hide(inner)
        for slot, name in enumerate(node.output):
            if name and name not in kept:
                renamed[name] = f"{MARK.format(index)}out_{slot}"
    for node in graph.node:
        rename_tensors(node, renamed)
    return read_layers(graph)


def _hide(graph: onnx.GraphProto) -> None:
    """Let no kernel of a graph inside a layer go by a layer's name.

    The layer's time holds theirs.
    """
    for number, node in enumerate(graph.node):
        node.name = f"{INNER}{number}"
        for inner in subgraphs(node):
            _hide(inner)


def _profile(path: Path, where: str, inputs: ModelInputs) -> dict[tuple[str, str], list[int]]:
    """Durations (µs) of every kernel over several runs, by kernel name and operator."""
    with tempfile.TemporaryDirectory() as folder:
        options = quiet_options()
        options.intra_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "layers")
        session = open_session(path, where, options)
        feed = inputs.draw(1, np.random.default_rng(SEED))
        watch, runs = Stopwatch(), 0
        while runs < MIN_RUNS or (runs < MAX_RUNS and watch.seconds() < BUDGET_S):
            session.run(None, feed)
            runs += 1
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    durations: dict[tuple[str, str], list[int]] = {}
    for event in events:
        name, details = str(event["name"]), event.get("args", {})
        if event.get("cat") == "Node" and name.endswith(KERNEL_SUFFIX):
            key = (name.removesuffix(KERNEL_SUFFIX), str(details.get("op_name", "")))
            durations.setdefault(key, []).append(int(event["dur"]))
    return durations


def _layer_of(kernel: str, operator: str, layers: Layers) -> int | None:
    """The layer a kernel's time belongs to; None for kernels that only reorder memory."""
    found = MARKED.search(kernel)
    if kernel.startswith(INNER):
        return None
    if found:
        index = int(found.group(1))
    else:
        named = [layers.made_at[o] for o in layers.outputs if o and kernel.startswith(o)]
        if not named:
            return None
        index = named[0]
    operator = operator.removeprefix("Fused")
    at: int | None = index
    while at is not None and at >= 0 and layers.nodes[at].op_type != operator:
        makers = [layers.made_at[n] for n in layers.nodes[at].input if n in layers.made_at]
        at = makers[0] if makers else None
    return at if at is not None and at >= 0 else index


def write_times(path: Path, layers: Layers, times_us: tuple[float, ...]) -> None:
    """Write the times of all layers, in their order.

    Raises:
        InputError: the file cannot be written.
    """
    named = {node_label(n): round(t, 3) for n, t in zip(layers.nodes, times_us, strict=True)}
    write_text(path, json.dumps(named, indent=1) + "\n")


def read_times(path: Path) -> dict[str, float]:
    """Microseconds by node label.

    Raises:
        InputError: it is not a file of layer times.
    """
    try:
        data = json.loads(path.read_text())
        times = {str(name): float(us) for name, us in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"not a file of layer times: {error}") from error
    for name, us in times.items():
        if not math.isfinite(us) or us < 0:
            raise InputError(f"{path}, {name!r}", f"{us} is no time in microseconds")
    return times


def times_of(layers: Layers, times_us: Mapping[str, float], where: str) -> tuple[float, ...]:
    """The time of every layer; one that is not named was fused into another, and takes 0.

    Raises:
        InputError: a node named is none of the model's layers, or no layer takes any time.
    """
    labels = [node_label(node) for node in layers.nodes]
    unknown = set(times_us) - set(labels)
    if unknown:
        raise InputError(where, f"{min(unknown)!r} is no layer of the model")
    times = tuple(times_us.get(label, 0.0) for label in labels)
    if not sum(times):
        raise InputError(where, "no layer takes any time")
    return times
