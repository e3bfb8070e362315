"""Layer times of a split model, measured on the GPU here, into a file to split by."""

from pathlib import Path

import onnx

from flows.preparation.engines import EngineOptions, whole_engine
from flows.preparation.layer_cuts import gpu_layer_times_us
from flows.preparation.profiling.layers import engine_layer_times_us
from flows.preparation.splitting.graph import read_layers
from flows.preparation.splitting.layer_times import write_times
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace


def write_gpu_times(
    work: Workspace, split: SplitModel, gpu_class: str, options: EngineOptions, path: Path
) -> None:
    """Measure a model's layers on the GPU here, at the largest batch, for `split --layer-times`.

    Raises:
        InputError: no GPU, or the whole model has no engine for the class.
    """
    folder = whole_engine(work, split, gpu_class, options)
    layers, times = engine_layer_times_us(folder, max(options.batches))
    graph = onnx.load(split.model_path, load_external_data=False).graph
    write_times(path, read_layers(graph), gpu_layer_times_us(split, layers, times))
