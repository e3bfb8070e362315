"""Layer times of a GPU, and the cuts they give beside those of this machine's CPU."""

from typing import Any

from flows.preparation.profiling.gpu_layers import (
    compare_cuts,
    engine_layer_times_us,
    gpu_layer_times_us,
)
from flows.preparation.splitting.model import SplitModel
from scripts.gpu.paths import TensorrtPath


def gpu_cuts(path: TensorrtPath, split: SplitModel) -> dict[str, Any]:
    """Profile the whole model at batch 1 and compare cuts.

    Raises:
        InputError: the profiler names layers that the engine's description lacks.
    """
    layers, times = engine_layer_times_us(path.artifact(split.model_path), 1)
    found = compare_cuts(split, gpu_layer_times_us(split, layers, times))
    return {"layers": len(layers), "timed": len(times), **found.to_dict()}
