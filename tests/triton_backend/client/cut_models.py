"""A small model whose tensors shrink on the way, split, with its heads."""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from flows.preparation.heads import export_heads
from flows.preparation.splitting import SplitModel, split_model
from tests.flows.preparation.splitting.tiny_models import save
from triton_backend.client.heads import Heads, read_heads, write_times

SIDE = 96
LAYERS = 4


def shrinking(path: Path) -> Path:
    """Convolutions that halve both sides.

    110,592 bytes in, then 73,728, 18,432, 4,608, ten scores.
    """
    rng = np.random.default_rng(4)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, np.ndarray] = {}
    given = "x"
    for layer in range(LAYERS):
        shape = (8, 3 if layer == 0 else 8, 3, 3)
        constants[f"w{layer}"] = (rng.standard_normal(shape) / 4).astype(np.float32)
        made = f"t{layer}"
        nodes.append(
            helper.make_node(
                "Conv", [given, f"w{layer}"], [made], made, pads=[1, 1, 1, 1], strides=[2, 2]
            )
        )
        given = made
    constants["all"] = rng.standard_normal((288, 10)).astype(np.float32)
    nodes += [
        helper.make_node("Flatten", [given], ["flat"]),
        helper.make_node("MatMul", ["flat", "all"], ["y"]),
    ]
    return save(
        path,
        nodes,
        inputs={"x": ["n", 3, SIDE, SIDE]},
        outputs=["y"],
        constants=constants,
    )


def split_shrinking(folder: Path) -> SplitModel:
    """The model `net`, a block per convolution."""
    times = folder / "times.json"
    times.write_text(json.dumps({f"t{layer}": 10.0 for layer in range(LAYERS)}))
    path = shrinking(folder / "net.onnx")
    return split_model(
        path, name="net", blocks=LAYERS, out=folder / "models", max_batch=4, layer_times=times
    )


def heads_of(split: SplitModel, folder: Path, heads_us: list[int]) -> Heads:
    """Its heads as a client has them, as if they took so long."""
    export_heads(split, folder, [4_000, 3_000, 2_000, 1_000])
    write_times(folder, heads_us)
    return read_heads(folder)
