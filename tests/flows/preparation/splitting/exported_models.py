"""Small models for one sample, as exporters write them.

A detector of one picture, and one with a loop of its own.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.graphs.detector import add_heads

SIZE = 48
MOST = 6


def write_exported(
    path: Path, *, threshold: float = 0.9, around_one: bool = False, most: int = MOST
) -> Path:
    """Three convolutions and a choice of boxes for one picture.

    With `around_one`, the picture is taken out of its batch and put back before them, as detectors
    do that take pictures of many sizes.
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


def one_by_one(path: Path, samples: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """An exported file's answers sample by sample, and the rows of each."""
    session = onnxruntime.InferenceSession(str(path))
    given = session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]
    answers = [
        [np.asarray(one) for one in session.run(None, {given: samples[i : i + 1]})]
        for i in range(len(samples))
    ]
    found = {n: np.concatenate([a[i] for a in answers]) for i, n in enumerate(names)}
    return found | {"rows": np.array([len(answer[0]) for answer in answers])}


def write_looped(path: Path, *, limit: float = 60.0, width: int = 4) -> Path:
    """Layers, then a `Loop` that ends by a value, as a scripted `while` is exported.

    y = relu(x w), moved, then doubled and moved again and again, until it sums to `limit` or 20
    times.
    """
    rng = np.random.default_rng(7)
    values = {
        "w": np.abs(rng.standard_normal((width, width))).astype(np.float32),
        "half": np.full(1, 0.5, np.float32),
        "limit": np.array(limit, np.float32),
        "most": np.array(20),
        "true": np.array(True),  # noqa: FBT003  # a tensor
    }

    def state(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])

    def scalar(name: str, kind: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [])

    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "before"], ["doubled"]),
            helper.make_node("Add", ["doubled", "half"], ["after"]),
            helper.make_node("ReduceSum", ["after"], ["sum"], keepdims=0),
            helper.make_node("Less", ["sum", "limit"], ["on"]),
        ],
        "again",
        [scalar("turn", TensorProto.INT64), scalar("go", TensorProto.BOOL), state("before")],
        [scalar("on", TensorProto.BOOL), state("after")],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["first"]),
            helper.make_node("Add", ["first", "half"], ["moved"]),
            helper.make_node("Loop", ["most", "true", "moved"], ["y"], body=body),
        ],
        "looped",
        [state("x")],
        [state("y")],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path
