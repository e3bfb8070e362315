"""Hostile pictures at the steps that decode them, in this process."""

import warnings

import numpy as np
import pytest

from scripts.fuzz.pictures import KINDS, good_picture, hostile_picture
from triton_backend.runtimes.python_step import ocr
from triton_backend.runtimes.python_step.pictures import decode

EACH = 12
HEIGHT, WIDTH = 96, 64


def test_the_same_seed_draws_the_same_pictures() -> None:
    one, other = (np.random.default_rng(3) for _ in range(2))
    assert [hostile_picture(one) for _ in range(50)] == [hostile_picture(other) for _ in range(50)]


def test_good_pictures_are_decoded() -> None:
    draws = np.random.default_rng(1)
    pictures = [good_picture(draws) for _ in range(20)]
    assert decode(pictures, height=8, width=8).shape == (20, 3, 8, 8)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_refused_in_one_line_or_decoded(kind: str) -> None:
    draws = np.random.default_rng(len(kind))
    for _ in range(EACH):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                shape = decode([KINDS[kind](draws)], height=8, width=8).shape
            except ValueError as error:
                said = str(error)
            else:
                said = ""
                assert shape == (1, 3, 8, 8)
            assert "\n" not in said


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_refused_or_read_as_a_page(kind: str) -> None:
    pytest.importorskip(ocr.PACKAGE, reason="needs the extra `ocr`")
    draws = np.random.default_rng(len(kind))
    for _ in range(EACH):
        picture = KINDS[kind](draws)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                pixels = ocr.page([picture], height=HEIGHT, width=WIDTH)
            except ValueError:
                continue
            likely = (pixels.mean(axis=1, keepdims=True) < 0).astype(np.float32)
            (boxes,) = ocr.crops([picture], likely)["box"]
        assert len(boxes) <= ocr.MOST_LINES
