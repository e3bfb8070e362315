"""Times of a model's layers on a GPU, and the cuts that these times lead to.

TensorRT's profiler times fused layers; here their times go back to the ONNX nodes they do the work
of, and from there into the same grouping that splitting uses. Reads neither warehouse nor state
folder, because a machine with a GPU may be bare.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx

from flows.preparation.splitting.graph import node_label, read_layers
from flows.preparation.splitting.grouping import group_layers
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.observing import boundary_specs
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.tensorrt.layers import EngineDescription, EngineLayer, node_times_us
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCuts:
    """Cuts by GPU times beside those the model was split at.

    Attributes:
        split_at, gpu: layer positions where blocks begin, as in `SplitModel.cuts`.
        shares: fraction of the GPU's time that each block of `split_at` takes; 1/N each would be
            even.
        gpu_shares: the same for the blocks of `gpu`.
    """

    split_at: tuple[int, ...]
    gpu: tuple[int, ...]
    shares: tuple[float, ...]
    gpu_shares: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for reports."""
        return {
            "split_at": list(self.split_at),
            "gpu": list(self.gpu),
            "cuts_in_common": len(set(self.split_at[1:-1]) & set(self.gpu[1:-1])),
            "largest_share_split_at": max(self.shares),
            "largest_share_gpu": max(self.gpu_shares),
        }


def gpu_layer_times_us(
    split: SplitModel, layers: tuple[EngineLayer, ...], layer_times_us: Mapping[str, float]
) -> tuple[float, ...]:
    """Time of every layer of a split model, in the order that cuts count them.

    Args:
        split: the model, whose file the engine was built from.
        layers: of the engine, one optimisation profile.
        layer_times_us: by the engine's layer names.

    Raises:
        InputError: the engine is of another model.
    """
    graph = onnx.load(split.model_path, load_external_data=False).graph
    labels = [node_label(node) for node in graph.node]
    times = node_times_us(layers, layer_times_us, labels)
    return tuple(times[node_label(node)] for node in read_layers(graph).nodes)


def compare_cuts(split: SplitModel, times_us: tuple[float, ...]) -> GpuCuts:
    """Group a model's layers by other times than it was split by, into as many blocks."""
    model = onnx.load(split.model_path, load_external_data=False)
    layers = read_layers(model.graph)
    where = str(split.model_path)
    crossing = boundary_specs(split.model_path, where, layers, split.model_inputs())
    legal = {
        position: live
        for position, live in crossing.legal_cuts(layers).items()
        if crossing.proven(live) or position in split.cuts
    }
    sizes = {position: total_bytes_per_sample(live) for position, live in legal.items()}
    grouping = group_layers(times_us, sizes, split.blocks)
    return GpuCuts(
        split_at=split.cuts,
        gpu=grouping.cuts,
        shares=_shares(times_us, split.cuts),
        gpu_shares=_shares(times_us, grouping.cuts),
    )


def _shares(times_us: tuple[float, ...], cuts: tuple[int, ...]) -> tuple[float, ...]:
    total = sum(times_us)
    return tuple(sum(times_us[first:last]) / total for first, last in pairwise(cuts))
