"""Estimating each layer's run time with onnxruntime's own profiler.

The model runs as it will be served: fully optimised, one thread. Fusion leaves one kernel for
several layers; its time goes to the layer that gives the kernel its work (the convolution, not its
activation), and the layers fused into it count 0.
"""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from flows.clock import Stopwatch
from flows.preparation.splitting.graph import Layers, read_layers
from flows.preparation.splitting.running import open_session, quiet_options, random_inputs
from triton_backend.contract.tensors import TensorSpec

MIN_RUNS, MAX_RUNS = 8, 40
BUDGET_S = 1.5
KERNEL_SUFFIX = "_kernel_time"
# A fused kernel is named after one of its layers, or after the tensor that the last one makes.
MARK = "pp_layer_{}_"
MARKED = re.compile(r"pp_layer_(\d+)_")
SEED = 11


def layer_times_us(path: Path, where: str, inputs: Sequence[TensorSpec]) -> tuple[float, ...]:
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
        for slot, name in enumerate(node.output):
            if name and name not in kept:
                renamed[name] = f"{MARK.format(index)}out_{slot}"
                node.output[slot] = renamed[name]
    for node in graph.node:
        for slot, name in enumerate(node.input):
            node.input[slot] = renamed.get(name, name)
    return read_layers(graph)


def _profile(
    path: Path, where: str, inputs: Sequence[TensorSpec]
) -> dict[tuple[str, str], list[int]]:
    """Durations (µs) of every kernel over several runs, by kernel name and operator."""
    with tempfile.TemporaryDirectory() as folder:
        options = quiet_options()
        options.intra_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "layers")
        session = open_session(path, where, options)
        feed = random_inputs(inputs, 1, np.random.default_rng(SEED))
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
