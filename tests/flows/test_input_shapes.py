import pytest

from flows.input_shapes import read_shapes
from triton_backend.contract.errors import InputError


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["3x4"], "is not NAME=SIZExSIZE"),
        (["x=3x"], "is not NAME=SIZExSIZE"),
        (["x=3x-4"], "is not NAME=SIZExSIZE"),
        (["x=3x0"], "has a size of 0"),
        (["x=3x4", "x=3x5"], "given twice"),
        ([f"x={'9' * 40}"], "is not NAME=SIZExSIZE"),
    ],
)
def test_texts_that_are_no_shape_are_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_shapes(texts)


def test_names_of_inputs_may_hold_an_equals_sign() -> None:
    assert read_shapes(["a=b:0=3x4", "x=5"]) == {"a=b:0": (3, 4), "x": (5,)}
