"""A graph that is given how far a line is padded, beside the same graph at that width."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.splitting.running import run_session
from flows.quickstart.padding import PADDED, take_padding

onnxruntime = pytest.importorskip("onnxruntime")
WIDTH, DEEP = 64, 4


def recogniser() -> onnx.ModelProto:
    """Convolutions with strides, squeeze-and-excitation, a pool, attention and a last Softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "first": rng.normal(size=(DEEP, 3, 3, 3)),
        "second": rng.normal(size=(DEEP, 1, 5, 5)),
        "squeezed": rng.normal(size=(DEEP, DEEP, 1, 1)),
        "bias": rng.normal(size=(1, DEEP, 1, 1)),
        "last": rng.normal(size=(DEEP, 7)),
    }

    def conv(name: str, reads: str, kernel: int, step: int, group: int = 1) -> onnx.NodeProto:
        return helper.make_node(
            "Conv",
            [reads, name],
            [f"{name}.y"],
            kernel_shape=[kernel] * 2,
            pads=[kernel // 2] * 4,
            strides=[step] * 2,
            group=group,
        )

    nodes = [
        conv("first", "x", 3, 2),
        helper.make_node("Add", ["first.y", "bias"], ["shifted"]),
        conv("second", "shifted", 5, 1, DEEP),
        helper.make_node("GlobalAveragePool", ["second.y"], ["mean"]),
        conv("squeezed", "mean", 1, 1),
        helper.make_node("Sigmoid", ["squeezed.y"], ["gate"]),
        helper.make_node("Mul", ["second.y", "gate"], ["gated"]),
        helper.make_node("AveragePool", ["gated"], ["pooled"], kernel_shape=[4, 2], strides=[4, 2]),
        helper.make_node("Squeeze", ["pooled"], ["row"], axes=[2]),
        helper.make_node("Transpose", ["row"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("Unsqueeze", ["keys"], ["query"], axes=[1]),
        helper.make_node("Unsqueeze", ["row"], ["key"], axes=[1]),
        helper.make_node("MatMul", ["query", "key"], ["alike"]),
        helper.make_node("Softmax", ["alike"], ["weight"], axis=3),
        helper.make_node("MatMul", ["weight", "query"], ["seen"]),
        helper.make_node("Squeeze", ["seen"], ["flat"], axes=[1]),
        helper.make_node("MatMul", ["flat", "last"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=2),
    ]
    line = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, "width"])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "lines", [line], [found], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


def run(model: onnx.ModelProto, **given: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    providers = ["CPUExecutionProvider"]
    return run_session(
        onnxruntime.InferenceSession(model.SerializeToString(), providers=providers), given
    )


@pytest.mark.parametrize("width", [8, 31, 32, 33, 45, WIDTH])
def test_a_padded_line_is_read_as_at_its_own_width(width: int) -> None:
    given_padding = recogniser()
    steps = take_padding(given_padding.graph, WIDTH)
    given_padding.graph.output.append(helper.make_tensor_value_info(steps, TensorProto.FLOAT, None))
    line = np.random.default_rng(width).normal(size=(2, 3, 8, width)).astype(np.float32)
    wanted = run(recogniser(), x=line)["y"]
    whole = np.zeros((2, 3, 8, WIDTH), np.float32)
    whole[..., :width] = line
    found = run(given_padding, x=whole, **{PADDED: np.array([width, WIDTH])})
    count = wanted.shape[1]
    assert found[steps].sum(axis=1).tolist() == [count, WIDTH // 4]
    assert found[steps][0, :count].all()
    assert np.allclose(found["y"][0, :count], wanted[0], atol=1e-6)
    assert np.allclose(found["y"][1], run(recogniser(), x=whole)["y"][1], atol=1e-6)


@pytest.mark.parametrize("said", [-5, 0, 10 * WIDTH])
def test_a_padding_that_cannot_be_is_brought_within_the_line(said: int) -> None:
    given_padding = recogniser()
    take_padding(given_padding.graph, WIDTH)
    line = np.ones((1, 3, 8, WIDTH), np.float32)
    nearest = np.array([min(max(said, 1), WIDTH)])
    found, wanted = (
        run(given_padding, x=line, **{PADDED: at})["y"] for at in (np.array([said]), nearest)
    )
    assert np.isfinite(found).all()
    assert np.array_equal(found, wanted)
