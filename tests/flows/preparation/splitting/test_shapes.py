"""Shapes computed at run time become constants where they depend on the batch alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from flows.preparation.splitting import split_model
from flows.preparation.splitting.running import (
    open_session,
    random_inputs,
    relative_error,
    run_session,
)
from tests.flows.preparation.splitting import tiny_models
from tests.flows.preparation.splitting.tiny_models import CHANNELS, SIZE

SHAPE = ["n", CHANNELS, SIZE, SIZE]


def flattening(path: Path, rest: int) -> Path:
    """Convolutions, and at the end `view(x.size(0), rest)` with the size read off the input."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        tiny_models.conv(1, "b", "c"),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["c", "target"], ["y"]),
    ]
    constants = tiny_models.conv_weights(2) | {
        "zero": np.array([0], np.int64),
        "rest": np.array([rest], np.int64),
    }
    return tiny_models.save(path, nodes, inputs={"x": SHAPE}, outputs=["y"], constants=constants)


@pytest.mark.parametrize("rest", [-1, CHANNELS * SIZE * SIZE])
def test_a_target_that_grows_with_the_batch_does_not_forbid_cuts(tmp_path: Path, rest: int) -> None:
    path = flattening(tmp_path / "m.onnx", rest)
    split = split_model(path, name="m", blocks=4, out=tmp_path / "models")
    operators = [node.op_type for node in onnx.load(split.model_path).graph.node]
    assert operators == ["Conv", "Relu", "Conv", "Reshape"]
    assert split.legal_cuts == 3
    feed = random_inputs(split.inputs, 5, np.random.default_rng(0))
    before, after = (
        run_session(open_session(p, "model"), feed)["y"] for p in (path, split.model_path)
    )
    assert relative_error(after, before) <= 1e-6


def test_a_size_that_is_the_same_for_every_batch_becomes_a_constant(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "two"], ["height"]),
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Cast", ["height"], ["h"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", ["a", "h"], ["y"]),
    ]
    constants = tiny_models.conv_weights(1) | {"two": np.array([2], np.int64)}
    path = tiny_models.save(
        tmp_path / "m.onnx", nodes, inputs={"x": SHAPE}, outputs=["y"], constants=constants
    )
    split = split_model(path, name="m", blocks=2, out=tmp_path / "models")
    graph = onnx.load(split.model_path).graph
    assert [node.op_type for node in graph.node] == ["Conv", "Div"]


def test_a_shape_that_no_constant_can_stand_for_stays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Expand", ["token", "s"], ["t"]),
        helper.make_node("Add", ["r", "t"], ["y"]),
    ]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", 4]},
        outputs=["y"],
        constants={"token": np.ones((1, 4), np.float32)},
    )
    split = split_model(path, name="m", blocks=4, out=tmp_path / "models")
    operators = [node.op_type for node in onnx.load(split.model_path).graph.node]
    assert operators == ["Shape", "Relu", "Expand", "Add"]
    assert split.cuts == (0, 3, 4)
