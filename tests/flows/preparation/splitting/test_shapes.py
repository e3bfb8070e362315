"""Shapes computed at run time become constants where they depend on the batch alone."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from flows.preparation.splitting import split_model
from flows.preparation.splitting.extracting import extract_stage
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


def unfolding(path: Path) -> Path:
    """The batch folded into the channels and back, as attention does with its heads."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Mul", ["n", "channels"], ["heads"]),
        helper.make_node("Concat", ["heads", "rest"], ["folded"], axis=0),
        helper.make_node("Reshape", ["a", "folded"], ["b"]),
        helper.make_node("Concat", ["n", "channels", "rest"], ["unfolded"], axis=0),
        helper.make_node("Reshape", ["b", "unfolded"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = tiny_models.conv_weights(1) | {
        "zero": np.array([0], np.int64),
        "channels": np.array([CHANNELS], np.int64),
        "rest": np.array([-1, SIZE], np.int64),
    }
    return tiny_models.save(path, nodes, inputs={"x": SHAPE}, outputs=["y"], constants=constants)


def test_a_target_with_a_size_left_open_is_unfolded_from_several_places_of_a_sample(
    tmp_path: Path,
) -> None:
    path = unfolding(tmp_path / "m.onnx")
    split = split_model(path, name="m", blocks=2, out=tmp_path / "models")
    operators = [node.op_type for node in onnx.load(split.model_path).graph.node]
    assert operators == ["Conv", "Reshape", "Reshape", "Relu"]
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


def reading_batch(path: Path, form: str) -> Path:
    """Convolutions; the batch is read off the input before them, and behind them it is needed."""
    read = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
    ]
    behind = {
        "none": [helper.make_node("Relu", ["c"], ["y"])],
        "range": [
            helper.make_node("Range", ["zero", "n", "one"], ["rows"]),
            helper.make_node("Gather", ["c", "rows"], ["y"], axis=0),
        ],
        "token": [
            helper.make_node("Unsqueeze", ["n", "axes"], ["lead"]),
            helper.make_node("Concat", ["lead", "rest"], ["target"], axis=0),
            helper.make_node("Expand", ["token", "target"], ["t"]),
            helper.make_node("Concat", ["t", "c"], ["y"], axis=2),
        ],
        "windows": [
            helper.make_node("Reshape", ["c", "halves"], ["w"]),
            helper.make_node("Size", ["x"], ["all"]),
            helper.make_node("Div", ["all", "of_half"], ["count"]),
            helper.make_node("Range", ["zero", "count", "one"], ["rows"]),
            helper.make_node("Gather", ["w", "rows"], ["v"], axis=0),
            helper.make_node("Reshape", ["v", "wholes"], ["y"]),
        ],
        "mean": [
            helper.make_node("Cast", ["n"], ["count"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", ["c", "count"], ["m"]),
            helper.make_node("Div", ["m", "count"], ["y"]),
        ],
    }[form]
    convolutions = [
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        tiny_models.conv(1, "b", "c"),
    ]
    constants = tiny_models.conv_weights(2) | {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "axes": np.array([0], np.int64),
        "rest": np.array([CHANNELS, 1, SIZE], np.int64),
        "token": np.ones((1, CHANNELS, 1, SIZE), np.float32),
        "halves": np.array([-1, CHANNELS // 2, SIZE, SIZE], np.int64),
        "wholes": np.array([-1, CHANNELS, SIZE, SIZE], np.int64),
        "of_half": np.array(CHANNELS // 2 * SIZE * SIZE, np.int64),
    }
    used = {name for node in (*behind, *convolutions, *read) for name in node.input}
    return tiny_models.save(
        path,
        [*(read if form != "none" else []), *convolutions, *behind],
        inputs={"x": SHAPE},
        outputs=["y"],
        constants={name: array for name, array in constants.items() if name in used},
    )


@pytest.mark.parametrize("form", ["range", "token", "windows", "mean"])
def test_a_batch_that_is_read_first_and_needed_last_forbids_no_cut(
    tmp_path: Path, form: str
) -> None:
    path = reading_batch(tmp_path / "m.onnx", form)
    other = reading_batch(tmp_path / "without.onnx", "none")
    split, without = (
        split_model(file, name="m", blocks=20, out=tmp_path / file.stem) for file in (path, other)
    )
    assert without.cuts == (0, 1, 2, 3, 4)
    assert split.boundaries[:3] == without.boundaries
    assert split.cuts[:4] == without.cuts[:4]
    for batch in (1, 4, 7):
        feed = random_inputs(split.inputs, batch, np.random.default_rng(batch))
        wanted = run_session(open_session(path, "model"), feed)["y"]
        found = feed
        for block in range(split.blocks):
            stage = extract_stage(split, block, block + 1)
            found = run_session(open_session(stage, "stage"), found)
        assert found["y"].shape == wanted.shape
        assert relative_error(found["y"], wanted) <= 1e-6


def test_a_shape_is_taken_from_what_its_reader_reads_anyway(tmp_path: Path) -> None:
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
    nodes = onnx.load(split.model_path).graph.node
    assert [node.op_type for node in nodes[:2]] == ["Relu", "Shape"]
    assert nodes[1].input == ["r"]
    assert split.cuts[:2] == (0, 1)
