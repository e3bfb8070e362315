"""Layer times of a GPU, and the cuts they give beside those of this machine's CPU."""

import json
import statistics
from pathlib import Path
from typing import Any

from flows.splitting.model import SplitModel
from flows.steps.layer_cuts import compare_cuts, gpu_layer_times_us
from scripts.gpu.paths import TensorrtPath
from triton_backend.engines.base import Artifact
from triton_backend.engines.tensorrt import open_tensorrt
from triton_backend.engines.tensorrt_layers import EngineDescription

RUNS = 20


def gpu_cuts(path: TensorrtPath, split: SplitModel) -> dict[str, Any]:
    """Profile the whole model at batch 1 and compare cuts.

    Raises:
        InputError: the profiler names layers that the engine's description lacks.
    """
    folder = path.artifact(split.model_path)
    times = _median_times(folder)
    description = EngineDescription.from_dict(json.loads((folder / "layers.json").read_text()))
    layers = description.of_profile(0)
    found = compare_cuts(split, gpu_layer_times_us(split, layers, times))
    return {"layers": len(layers), "timed": len(times), **found.to_dict()}


def _median_times(folder: Path) -> dict[str, float]:
    runtime = open_tensorrt(folder, Artifact.read(folder), use_graphs=False)
    try:
        runs = [runtime.layer_times_us(1) for _ in range(RUNS)]
    finally:
        runtime.close()
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
