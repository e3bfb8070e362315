"""A detector exported with its post-processing is split.

Block after block it gives what the file gives.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from flows.preparation.splitting import SplitModel, extract_stages, split_model
from tests.flows.preparation.splitting.exported_models import (
    SIZE,
    one_by_one,
    write_exported,
    write_looped,
)
from triton_backend.contract.errors import InputError


def pictures(number: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(9)
    levels = rng.uniform(0.3, 2.0, (number, 1, 1, 1))
    return (rng.standard_normal((number, 3, SIZE, SIZE)) * levels).astype(np.float32)


def block_by_block(split: SplitModel, images: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    known: dict[str, NDArray[Any]] = {split.inputs[0].name: images}
    for path in extract_stages(split, [(i, i + 1) for i in range(split.blocks)]):
        session = onnxruntime.InferenceSession(str(path))
        given = {one.name: known[one.name] for one in session.get_inputs()}
        names = [one.name for one in session.get_outputs()]
        known = dict(zip(names, map(np.asarray, session.run(None, given)), strict=True))
    return known


@pytest.mark.long
@pytest.mark.parametrize("around_one", [False, True])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_detector_block_by_block_gives_the_boxes_of_the_file(
    tmp_path: Path, batch: int, *, around_one: bool
) -> None:
    path = write_exported(tmp_path / "m.onnx", around_one=around_one)
    split = split_model(path, name="m", out=tmp_path / "models", blocks=4)
    assert split.blocks == 4
    images = pictures(batch)
    expected, got = one_by_one(path, images), block_by_block(split, images)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
    assert batch == 1 or len({*expected["rows"].tolist()}) > 1


@pytest.mark.parametrize("batch", [1, 5])
def test_a_loop_that_values_end_is_kept_whole(tmp_path: Path, batch: int) -> None:
    path = write_looped(tmp_path / "m.onnx")
    split = split_model(path, name="m", out=tmp_path / "models", blocks=2)
    assert split.blocks == 2
    rng = np.random.default_rng(batch)
    x = rng.uniform(0, 5, (batch, 4)) * 10.0 ** -np.arange(batch)[:, np.newaxis]
    x = x.astype(np.float32)
    expected = one_by_one(path, x)["y"]
    np.testing.assert_allclose(block_by_block(split, x)["y"], expected, rtol=1e-5)
    assert {spec.shape for spec in split.outputs} == {(-1, 4)}  # as many rows as samples


def test_outputs_are_rows_with_one_count_for_each_sample(tmp_path: Path) -> None:
    split = split_model(
        write_exported(tmp_path / "m.onnx"), name="m", out=tmp_path / "models", blocks=3
    )
    assert {spec.name: (spec.dtype, spec.shape) for spec in split.outputs} == {
        "boxes": ("FP32", (-1, 4)),
        "scores": ("FP32", (-1,)),
        "labels": ("INT64", (-1,)),
        "rows": ("INT64", (-1,)),
    }
    assert split.check["input_dependence"] > 0.01


def test_a_batch_of_which_no_sample_has_a_box_gives_no_rows(tmp_path: Path) -> None:
    path = write_exported(tmp_path / "m.onnx", threshold=0.999999)
    split = split_model(path, name="m", out=tmp_path / "models", blocks=2)
    got = block_by_block(split, pictures(3))
    assert got["boxes"].shape == (0, 4)
    assert got["rows"].tolist() == [0, 0, 0]


@pytest.mark.long
def test_post_processing_stays_in_the_last_block(tmp_path: Path) -> None:
    split = split_model(
        write_exported(tmp_path / "m.onnx"), name="m", out=tmp_path / "models", blocks=20
    )
    last, before = extract_stages(split, [(split.blocks - 1, split.blocks), (0, split.blocks - 1)])
    kinds = [{node.op_type for node in onnx.load(path).graph.node} for path in (last, before)]
    assert "Loop" in kinds[0]
    assert kinds[1] <= {"Conv", "Relu", "Reshape", "Transpose", "Softmax"}


def test_control_flow_before_all_layers_leaves_one_block(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 2])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    split = split_model(tmp_path / "m.onnx", name="m", out=tmp_path / "models")
    assert split.blocks == 1
    (remark,) = split.remarks()
    assert remark.startswith("its control flow takes one sample")
    assert SplitModel.read(split.folder).remarks() == split.remarks()
    session = onnxruntime.InferenceSession(str(split.model_path))
    x = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 0]], np.float32)
    y, rows = session.run(["y", "rows"], {"x": x})
    assert np.asarray(y).tolist() == [[0, 1], [0, 3], [0, 0]]
    assert np.asarray(rows).tolist() == [2, 0, 1]


def test_a_second_dimension_that_varies_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "places",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 40])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"output 'y': only dimension 0 may depend on the sample"):
        split_model(tmp_path / "m.onnx", name="m", out=tmp_path / "models")
