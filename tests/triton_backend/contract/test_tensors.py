"""Tensor specifications."""

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import (
    BYTES_PER_ELEMENT,
    LENGTH_BYTES,
    MOST_BYTES,
    TensorSpec,
    total_bytes_per_sample,
)

IMAGE = TensorSpec(name="image", dtype="FP32", shape=(-1, 3, 4, 5))


def test_bytes_are_those_of_one_sample() -> None:
    mask = TensorSpec(name="mask", dtype="BOOL", shape=(-1, 7))
    assert (IMAGE.bytes_per_sample, mask.bytes_per_sample) == (240, 7)
    assert total_bytes_per_sample((IMAGE, mask)) == 247
    assert total_bytes_per_sample(()) == 0


def test_every_type_has_the_bytes_of_its_name() -> None:
    for dtype, size in BYTES_PER_ELEMENT.items():
        bits = int("".join(filter(str.isdigit, dtype)) or 8)
        assert size == bits // 8, dtype


def test_the_plain_form_goes_there_and_back() -> None:
    assert TensorSpec.from_dict(IMAGE.to_dict()) == IMAGE


def test_a_text_has_at_most_its_room() -> None:
    room = MOST_BYTES + LENGTH_BYTES
    assert TensorSpec(name="text", dtype="BYTES", shape=(-1, room)).shape == (-1, room)
    with pytest.raises(InputError, match=f"at most {MOST_BYTES} bytes"):
        TensorSpec(name="text", dtype="BYTES", shape=(-1, room + 1))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("FLOAT", (-1, 2)), ("FP32", ()), ("FP32", (1, 2)), ("FP32", (-1, 0)), ("FP32", (-1, -1))],
)
def test_an_impossible_tensor_is_named(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="'image'"):
        TensorSpec(name="image", dtype=dtype, shape=shape)
