"""Texts as rows: their length before them."""

import numpy as np
import pytest

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.texts import pack_texts, put_tensor, put_text, unpack_texts

TEXTS = [b"", b"a", b"\x00\xff\x00", b"x" * 300]


def test_texts_come_back_as_they_were() -> None:
    packed = pack_texts(TEXTS)
    assert packed.shape == (4, 304)
    assert unpack_texts(packed) == TEXTS


def test_rows_take_what_is_narrower_and_forget_what_lay_there() -> None:
    rows = np.full((4, 400), 7, np.uint8)
    put_tensor(rows, pack_texts(TEXTS))
    assert unpack_texts(rows) == TEXTS


def test_a_text_without_room_is_refused() -> None:
    with pytest.raises(InvariantError, match="5 bytes, 4 fit"):
        put_text(np.zeros(8, np.uint8), b"12345")


def test_a_length_beyond_its_row_is_refused() -> None:
    rows = pack_texts([b"abc"])
    rows[0, :4] = 255
    with pytest.raises(InvariantError, match="a text of 4294967295 bytes in a row of 3"):
        unpack_texts(rows)


def test_bytes_have_room_for_the_longest_and_one_element_for_clients() -> None:
    spec = TensorSpec.of_bytes("image", 1000)
    assert (spec.bytes_per_sample, spec.max_bytes, spec.seen_shape) == (1004, 1000, (-1,))
    assert TensorSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize("shape", [(-1,), (-1, 4), (-1, 8, 8), (-1, 1 << 29)])
def test_bytes_of_another_form_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="tensor 'x': BYTES of shape"):
        TensorSpec(name="x", dtype="BYTES", shape=shape)
