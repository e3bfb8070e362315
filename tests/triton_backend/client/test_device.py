"""Inputs, half precision, and how far answers are apart."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from triton_backend.client.device import Device, halved, largest_error, read_input
from triton_backend.client.errors import ClientError
from triton_backend.client.heads import Head, Heads, Tensor


def tensor(name: str, *shape: int, dtype: str = "FP32") -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape)


def test_floats_are_halved_unless_a_value_does_not_fit() -> None:
    arrays = {
        "a": np.array([[1.5, -2.0]], np.float32),
        "b": np.array([[1e6]], np.float32),
        "c": np.array([[7]], np.int64),
    }
    tensors = (tensor("a", 2), tensor("b", 1), tensor("c", 1, dtype="INT64"))
    sent = halved(arrays, tensors)
    assert {name: str(array.dtype) for name, array in sent.items()} == {
        "a.fp16": "float16",
        "b": "float32",
        "c": "int64",
    }
    assert sent["a.fp16"].tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize(("dtype", "white"), [("FP32", 1), ("UINT8", 255)])
def test_a_picture_is_resized_with_channels_first(tmp_path: Path, dtype: str, white: int) -> None:
    Image.new("RGB", (8, 6), (255, 0, 255)).save(tmp_path / "p.png")
    read = read_input(str(tmp_path / "p.png"), (tensor("x", 3, 2, 4, dtype=dtype),))["x"]
    assert read.shape == (1, 3, 2, 4)
    assert [int(channel.min()) for channel in read[0]] == [white, 0, white]


def test_files_of_arrays_are_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3), y=np.ones((1, 2)))
    read = read_input(str(tmp_path / "a.npz"), (tensor("x", 3), tensor("y", 2, dtype="INT64")))
    assert {name: (a.shape, str(a.dtype)) for name, a in read.items()} == {
        "x": ((1, 3), "float32"),
        "y": ((1, 2), "int64"),
    }


def test_an_answer_of_another_shape_is_wrong() -> None:
    expected = {"y": np.array([0.0, 4.0])}
    assert largest_error({"y": np.array([0.0, 3.0])}, expected) == 0.25
    assert largest_error({"y": np.zeros(3)}, expected) == largest_error({}, expected) == np.inf


def test_an_answer_with_other_numbers_that_are_none_is_wrong() -> None:
    odd = {"y": np.array([np.nan, 4.0, np.inf])}
    assert largest_error({"y": np.array([np.nan, 3.0, np.inf])}, odd) == 0.25
    assert largest_error({"y": np.array([0.0, 4.0, np.inf])}, odd) == np.inf
    assert largest_error(odd, {"y": np.array([0.0, 4.0, 1.0])}) == np.inf


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("words.npz", "could not convert string to float: 'a'"),
        ("large.png", "exceeds limit"),
        ("torn.png", "truncated"),
        ("none.npy", "No such file"),
    ],
)
def test_an_input_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    np.savez(tmp_path / "words.npz", x=np.full((3, 2, 4), "a"))
    Image.new("RGB", (80, 60)).save(tmp_path / "large.png")
    whole = tmp_path / "whole.png"
    Image.effect_noise((10, 10), 9).save(whole)
    (tmp_path / "torn.png").write_bytes(whole.read_bytes()[:-60])
    with pytest.raises(ClientError, match=why):
        read_input(str(tmp_path / name), (tensor("x", 3, 2, 4),))


def test_a_file_of_arrays_is_known_by_its_content(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    for name, value in (("a.npy", 1), ("b.npz", 0)):
        read = read_input(str(tmp_path / name), (tensor("x", 3),))["x"]
        assert read.tolist() == [[value] * 3]


def test_values_that_a_head_cannot_compute_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "0-1.onnx"
    table = numpy_helper.from_array(np.ones((4, 2), np.float32), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 3])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 3, 2])
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    graph = helper.make_graph([node], "g", [ids], [rows], [table])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), file)
    given = tensor("ids", 3, dtype="INT64")
    whole = Head(block=1, file=file, tensors=(tensor("rows", 3, 2),), head_us=None, tail_us=None)
    none = Head(block=0, file=None, tensors=(given,), head_us=0, tail_us=None)
    device = Device(Heads(folder=tmp_path, model="m", split="s", cuts=(none, whole)))
    with pytest.raises(ClientError, match=r"inputs: .*out of data bounds"):
        device.run(whole, {"ids": np.array([[0, 1, 4]])})
