"""Small ONNX models for trying the builder out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Edge = tuple[str, int, Sequence[int | str]]


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Edge],
    outputs: Sequence[Edge],
    weights: Sequence[onnx.TensorProto] = (),
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*edge) for edge in inputs],
        [helper.make_tensor_value_info(*edge) for edge in outputs],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def convolutions(path: Path, *, channels: int = 8, layers: int = 3, size: int = 8) -> Path:
    """`x` through convolutions c0, c1, … each with a ReLU r0, r1, … to `y`."""
    rng = np.random.default_rng(7)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    before = "x"
    for i in range(layers):
        scale = 1 / np.sqrt(9 * channels)
        values = (rng.standard_normal((channels, channels, 3, 3)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        after = "y" if i == layers - 1 else f"t{i}"
        nodes += [
            helper.make_node("Conv", [before, f"w{i}"], [f"s{i}"], name=f"c{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"s{i}"], [after], name=f"r{i}"),
        ]
        before = after
    shape = ["N", channels, size, size]
    return save(path, nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], weights)


def two_in_three_out(path: Path) -> Path:
    """int64 `a` and float `b` to o1 = 2a·b, o2 = relu(b) and int64 s = 2a."""
    nodes = [
        helper.make_node("Add", ["a", "a"], ["s"], name="add"),
        helper.make_node("Cast", ["s"], ["f"], name="cast", to=FLOAT),
        helper.make_node("Mul", ["f", "b"], ["o1"], name="mul"),
        helper.make_node("Relu", ["b"], ["o2"], name="relu"),
    ]
    shape = ["N", 4]
    inputs = [("a", INT64, shape), ("b", FLOAT, shape)]
    return save(
        path, nodes, inputs, [("o1", FLOAT, shape), ("o2", FLOAT, shape), ("s", INT64, shape)]
    )


def one_node(
    path: Path,
    operator: str,
    shapes: tuple[Sequence[int | str], Sequence[int | str]],
    *,
    dtype: int = FLOAT,
    domain: str = "",
) -> Path:
    """`x` through one node named `only` to `y`."""
    node = helper.make_node(operator, ["x"], ["y"], name="only", domain=domain)
    return save(path, [node], [("x", dtype, shapes[0])], [("y", dtype, shapes[1])])


def hands_on(path: Path) -> Path:
    """Relu from `x` to `y`, and `skip` handed on untouched."""
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    x, skip = ("x", FLOAT, ["N", 4]), ("skip", FLOAT, ["N", 8])
    return save(path, [node], [x, skip], [("y", FLOAT, ["N", 4]), skip])


def frozen_batch(path: Path) -> Path:
    """A reshape to [1, 6], as exporters leave it."""
    node = helper.make_node("Reshape", ["x", "to"], ["y"], name="flatten")
    to = numpy_helper.from_array(np.array([1, 6], np.int64), "to")
    return save(path, [node], [("x", FLOAT, ["N", 3, 2])], [("y", FLOAT, [1, 6])], [to])


def with_weights_beside(path: Path, *, mebibytes: int) -> Path:
    """One matrix product whose weights lie in `<file>.data`."""
    width = 512
    depth = mebibytes * (1 << 20) // (4 * width)
    rng = np.random.default_rng(3)
    weights = numpy_helper.from_array(
        rng.standard_normal((width, depth), dtype=np.float32) / 32, "w"
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    save(path, [node], [("x", FLOAT, ["N", width])], [("y", FLOAT, ["N", depth])], [weights])
    onnx.save_model(
        onnx.load(path),
        path,
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=0,
    )
    return path
