"""Shapes of rows, as places in the list of sizes; what has none is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from triton_backend.runtimes.base import REFUSED, REFUSED_BYTES
from triton_backend.runtimes.texts import pack_texts, unpack_texts
from triton_backend.serving.transport.wire import FrameError
from triton_backend.serving.worker.sizes import places_of

SIZES = (3, 48, 320), (3, 48, 640)


def shapes(*rows: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


def test_each_row_has_the_place_of_its_shape() -> None:
    views = {"x_shape": shapes(SIZES[1], SIZES[0], SIZES[1])}
    assert places_of("x_shape", SIZES, views) == [1, 0, 1]


def test_a_row_of_no_size_is_refused_with_the_list_and_costs_none_but_itself() -> None:
    refused = np.zeros((3, 4 + REFUSED_BYTES), np.uint8)
    refused[2, : 4 + 7] = pack_texts([b"earlier"])[0]
    views = {"x_shape": shapes((3, 48, 500), SIZES[1], (0, 0, 0)), REFUSED: refused}
    assert places_of("x_shape", SIZES, views) == [0, 1, 0]
    assert unpack_texts(refused) == [
        b"INVALID_ARG x_shape 3x48x500 is none of the sizes served: 3x48x320, 3x48x640",
        b"",
        b"earlier",
    ]


def test_a_stage_that_refuses_nothing_fails_its_batch() -> None:
    with pytest.raises(FrameError, match="x_shape 1x1x1 is none of the sizes served: 3x48x320, 3"):
        places_of("x_shape", SIZES, {"x_shape": shapes((1, 1, 1))})
