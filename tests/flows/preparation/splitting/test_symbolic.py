"""A fixed batch becomes symbolic where every sample stays alone; elsewhere it is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from flows.preparation.splitting import split_model
from flows.preparation.splitting.running import open_session, relative_error, run_session
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.errors import InputError


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_in_inputs_and_reshapes_becomes_symbolic(tmp_path: Path, batch: int) -> None:
    path = tiny_models.residual_net(tmp_path / "m.onnx", batch=batch)
    split = split_model(path, name="m", blocks=3, out=tmp_path / "models")
    assert split.inputs[0].shape == (-1, tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE)
    rng = np.random.default_rng(0)
    shape = (batch, tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE)
    x = rng.standard_normal(shape).astype(np.float32)
    original = run_session(open_session(path, "original"), {"x": x})["y"]
    session = open_session(split.model_path, "symbolic")
    assert relative_error(run_session(session, {"x": x})["y"], original) <= 1e-6
    more = run_session(session, {"x": np.concatenate([x] * 3)})["y"]
    assert relative_error(more[-batch:], original) <= 1e-5


def test_a_target_in_a_constant_node_is_found(tmp_path: Path) -> None:
    target = numpy_helper.from_array(np.array([2, 2, 3], np.int64))
    nodes = [
        helper.make_node("Constant", [], ["target"], value=target),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, inputs={"x": [2, 6]}, outputs=["y"])
    split = split_model(path, name="m", blocks=2, out=tmp_path / "models")
    assert split.outputs[0].shape == (-1, 2, 3)
    assert split.legal_cuts == 1


def test_a_target_where_zero_means_zero_is_left_alone(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "target"], ["y"], allowzero=1)
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [node],
        inputs={"x": [1, 6]},
        outputs=["y"],
        constants={"target": np.array([1, 2, 3], np.int64)},
    )
    with pytest.raises(InputError, match="cannot run a batch of"):
        split_model(path, name="m", out=tmp_path / "models")


def test_a_batch_folded_into_another_dimension_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "back"], ["y"]),
    ]
    constants = {
        "rows": np.array([5, 8], np.int64),
        "back": np.array([1, 5, 8], np.int64),
        "w": rng.standard_normal((8, 8)).astype(np.float32),
    }
    path = tiny_models.save(
        tmp_path / "m.onnx", nodes, inputs={"x": [1, 5, 8]}, outputs=["y"], constants=constants
    )
    split = split_model(path, name="m", blocks=3, out=tmp_path / "models")
    assert split.outputs[0].shape == (-1, 5, 8)
    # Rows are no batch: nothing may be cut between the two Reshapes.
    assert split.legal_cuts == 0
    assert split.blocks == 1


@pytest.mark.parametrize("max_batch", [1, 8])
def test_a_layer_that_mixes_samples_is_refused(tmp_path: Path, max_batch: int) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, inputs={"x": ["n", 6]}, outputs=["y"])
    with pytest.raises(InputError, match=r"'y': a sample's result at batch 1 differs"):
        split_model(path, name="m", out=tmp_path / "models", max_batch=max_batch)


def test_a_batch_that_is_lost_on_the_way_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": [1, 6]}, outputs=["y"])
    with pytest.raises(InputError, match="dimension 0 is not the batch"):
        split_model(path, name="m", out=tmp_path / "models")


def test_an_output_whose_batch_is_another_dimension_is_refused_with_the_way_on(
    tmp_path: Path,
) -> None:
    """As recurrent layers give it, by time steps first."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0, 2])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": ["n", 20, 6]}, outputs=["y"])
    said = r"'y': shape \[20, \d, 6\] .* dimension 1 may be: transpose it in the model$"
    with pytest.raises(InputError, match=said):
        split_model(path, name="m", out=tmp_path / "models")


def test_a_model_that_cannot_run_another_batch_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "token"], ["y"], axis=1)]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": [1, 3]},
        outputs=["y"],
        constants={"token": np.ones((1, 2), np.float32)},
    )
    with pytest.raises(InputError, match="cannot run a batch of"):
        split_model(path, name="m", out=tmp_path / "models")


def test_a_recurrent_state_of_fixed_batch_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["t", "w", "r", "", "", "h0"], ["", "h"], hidden_size=3),
        helper.make_node("Squeeze", ["h", "first"], ["y"]),
    ]
    constants = {
        "w": rng.standard_normal((1, 9, 2)).astype(np.float32),
        "r": rng.standard_normal((1, 9, 3)).astype(np.float32),
        "h0": rng.standard_normal((1, 1, 3)).astype(np.float32),
        "first": np.array([0], np.int64),
    }
    path = tiny_models.save(
        tmp_path / "m.onnx", nodes, inputs={"x": [1, 4, 2]}, outputs=["y"], constants=constants
    )
    with pytest.raises(InputError, match="cannot run a batch of"):
        split_model(path, name="m", out=tmp_path / "models")


def test_initialisers_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx", layers=2)
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    path.write_bytes(model.SerializeToString())
    split = split_model(path, name="m", blocks=2, out=tmp_path / "models")
    assert [spec.name for spec in split.inputs] == ["x"]
