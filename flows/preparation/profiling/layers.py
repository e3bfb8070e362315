"""Times of an engine's layers, by TensorRT's profiler on the GPU that this process sees."""

import json
import statistics
from pathlib import Path

from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.tensorrt.layers import EngineDescription, EngineLayer
from triton_backend.runtimes.tensorrt.runtime import open_tensorrt

RUNS = 20
LAYERS_NAME = "layers.json"


def engine_layer_times_us(
    folder: Path, batch: int
) -> tuple[tuple[EngineLayer, ...], dict[str, float]]:
    """Layers of the optimisation profile of a planned batch size, and the median time of each.

    Raises:
        InputError: no GPU, or the engine cannot be loaded here.
    """
    artifact = Artifact.read(folder)
    profile = list(artifact.options["batches"]).index(batch)
    runtime = open_tensorrt(folder, artifact, use_graphs=False)
    try:
        runs = [runtime.layer_times_us(batch) for _ in range(RUNS)]
    finally:
        runtime.close()
    description = EngineDescription.from_dict(json.loads((folder / LAYERS_NAME).read_text()))
    times = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return description.of_profile(profile), times
