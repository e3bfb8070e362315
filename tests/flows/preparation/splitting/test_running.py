"""How far two results are apart, of any size."""

import numpy as np
import pytest

from flows.preparation.splitting.running import PART, relative_error

SEVERAL = (3, PART // 2)  # elements of two parts, the last one short


def test_large_tensors_are_as_far_apart_as_their_largest_difference() -> None:
    rng = np.random.default_rng(1)
    expected = rng.standard_normal(SEVERAL).astype(np.float32)
    for at in ((0, 0), (1, 7), (2, PART // 2 - 1)):
        got = expected.copy()
        got[at] += 3.0
        wide = np.asarray(got, np.float64), np.asarray(expected, np.float64)
        wanted = np.abs(wide[0] - wide[1]).max() / np.abs(wide[1]).max()
        assert relative_error(got, expected) == wanted
        assert relative_error(got[:, ::2], expected[:, ::2]) in {wanted, 0.0}


def test_the_scale_is_that_of_the_whole_tensor() -> None:
    expected = np.zeros(SEVERAL, np.int64)
    expected[2, -1] = -8
    got = expected.copy()
    got[0, 0] = 2
    assert relative_error(got, expected) == 0.25
    assert relative_error(got, np.zeros_like(expected)) == 8.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (2, -1)])
def test_what_is_not_finite_cannot_be_compared(value: float, at: tuple[int, int]) -> None:
    finite = np.ones(SEVERAL, np.float32)
    other = finite.copy()
    other[at] = value
    pairs = ((other, finite), (finite, other), (other, other))
    assert [relative_error(*pair) for pair in pairs] == [float("inf")] * 3


def test_shapes_are_compared_first_and_nothing_differs_from_nothing() -> None:
    assert relative_error(np.zeros((2, 3)), np.zeros((3, 2))) == float("inf")
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
