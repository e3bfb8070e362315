"""A small detector for one picture, as exporters write them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.graphs.detector import add_heads

SIZE = 48
MOST = 6


def write_exported(
    path: Path, *, threshold: float = 0.9, around_one: bool = False, most: int = MOST
) -> Path:
    """Three convolutions and a choice of boxes for one picture.

    With `around_one`, the picture is taken out of its batch and put back before them, as detectors do that
    take pictures of many sizes.
    """
    rng = np.random.default_rng(5)
    nodes: list[onnx.NodeProto] = []
    constants = {
        "mean": rng.standard_normal((3, 1, 1)).astype(np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
    }
    source = "image"
    if around_one:
        nodes = [
            helper.make_node("Split", ["image", "one"], ["picture"], axis=0),
            helper.make_node("Squeeze", ["picture", "zero"], ["flat"]),
            helper.make_node("Sub", ["flat", "mean"], ["plain"]),
            helper.make_node("Unsqueeze", ["plain", "zero"], ["again"]),
            helper.make_node("Concat", ["again"], ["batched"], axis=0),
        ]
        source = "batched"
    for i, channels in enumerate((3, 8, 8)):
        weights = rng.standard_normal((8, channels, 3, 3)) * np.sqrt(2 / (9 * channels))
        constants[f"w{i}"] = weights.astype(np.float32)
        nodes += [
            helper.make_node("Conv", [source, f"w{i}"], [f"c{i}"], pads=[1] * 4, strides=[2, 2]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
        ]
        source = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    add_heads(model, source, threshold=threshold, seed=3, most=most)
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return path
