"""Inputs, half precision, and how far answers are apart."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_backend.client.device import halved, largest_error, read_input
from triton_backend.client.heads import Tensor


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
