"""Small ONNX models for the tests of splitting, each with one property under test."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 3
CHANNELS = 4
SIZE = 6


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: dict[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> Path:
    """Write a float model with the given nodes."""
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    path.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())
    return path


def conv_weights(count: int) -> dict[str, np.ndarray]:
    """`w0` … for 3 × 3 convolutions that keep their channels."""
    rng = np.random.default_rng(SEED)
    shape = (CHANNELS, CHANNELS, 3, 3)
    return {
        f"w{i}": (rng.standard_normal(shape) * np.sqrt(2 / (CHANNELS * 9))).astype(np.float32)
        for i in range(count)
    }


def conv(index: int, source: str, target: str) -> onnx.NodeProto:
    """Convolution number `index`."""
    return helper.make_node("Conv", [source, f"w{index}"], [target], pads=[1, 1, 1, 1])


def residual_net(path: Path, *, batch: int | str = "n") -> Path:
    """Two residual blocks, a shared scale, a constant computed by a node, Reshape and Softmax.

    With a fixed batch, the Reshape's target holds it.
    """
    lead = batch if isinstance(batch, int) else 0
    nodes = [
        helper.make_node("Sqrt", ["scale_squared"], ["scale"]),
        conv(0, "x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "scale"], ["c"]),
        conv(1, "c", "d"),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Add", ["c", "e"], ["f"]),
        helper.make_node("Mul", ["f", "scale"], ["g"]),
        conv(2, "g", "h"),
        helper.make_node("Add", ["g", "h"], ["i"]),
        helper.make_node("Reshape", ["i", "target"], ["j"]),
        helper.make_node("Softmax", ["j"], ["y"], axis=1),
    ]
    constants = conv_weights(3) | {
        "scale_squared": np.full((1, CHANNELS, 1, 1), 0.81, np.float32),
        "target": np.array([lead, CHANNELS * SIZE * SIZE], np.int64),
    }
    return save(
        path,
        nodes,
        inputs={"x": [batch, CHANNELS, SIZE, SIZE]},
        outputs=["y"],
        constants=constants,
    )


def chain(path: Path, layers: int = 4) -> Path:
    """Convolutions in a row."""
    names = ["x", *(f"t{i}" for i in range(layers - 1)), "y"]
    nodes = [conv(i, names[i], names[i + 1]) for i in range(layers)]
    return save(
        path,
        nodes,
        inputs={"x": ["n", CHANNELS, SIZE, SIZE]},
        outputs=["y"],
        constants=conv_weights(layers),
    )


def two_ended(path: Path) -> Path:
    """Two inputs, the second one needed last; two outputs, the first one made first."""
    nodes = [
        conv(0, "x", "early"),
        conv(1, "early", "t1"),
        conv(2, "t1", "t2"),
        conv(3, "t2", "t3"),
        helper.make_node("Add", ["t3", "late"], ["y"]),
    ]
    shape = ["n", CHANNELS, SIZE, SIZE]
    return save(
        path,
        nodes,
        inputs={"x": shape, "late": shape},
        outputs=["early", "y"],
        constants=conv_weights(4),
    )
