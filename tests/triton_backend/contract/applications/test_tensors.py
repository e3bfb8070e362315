"""Tensors at the ends of edges, where rows choose among sizes of a model."""

from collections.abc import Sequence

import pytest

from tests.triton_backend.contract.applications.test_sizes import PAGES
from triton_backend.contract.applications import Application, check_tensors, widest
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.tensors import TensorSpec

Tensors = dict[str, tuple[Sequence[TensorSpec], Sequence[TensorSpec]]]


def tensor(name: str, *shape: int, dtype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))


def known(**changes: tuple[Sequence[TensorSpec], Sequence[TensorSpec]]) -> Tensors:
    width = tensor("width", dtype="INT64")
    line = tensor("line", 3, 48, 640), tensor("line_shape", 3, dtype="INT64"), width
    tensors: Tensors = {
        "finder": ([tensor("page", 3, 100)], [tensor("box", 4)]),
        "cut": ([tensor("box", 4)], line),
        "speller": ([tensor("symbols", 80)], [tensor("text", 5)]),
    }
    for columns in (320, 640):
        gives = [tensor("symbols", columns // 8), tensor("certain")]
        tensors[f"reader@3x48x{columns}"] = [tensor("x", 3, 48, columns), width], gives
    return tensors | changes


def check(**changes: tuple[Sequence[TensorSpec], Sequence[TensorSpec]]) -> tuple[TensorSpec, ...]:
    return check_tensors(Application.read(Fields(PAGES)), known(**changes).__getitem__)


def test_rows_have_room_for_the_largest_size_and_answers_that_of_the_widest() -> None:
    assert check() == (tensor("page", 3, 100),)
    both = [tensor("symbols", 40), tensor("symbols", 80)]
    assert widest("here", both) == tensor("symbols", 80)


def outputs(*specs: TensorSpec) -> Tensors:
    return {"cut": ([tensor("box", 4)], [*specs, tensor("width", dtype="INT64")])}


SHAPE = tensor("line_shape", 3, dtype="INT64")
WRONG: list[tuple[Tensors, str]] = [
    (outputs(tensor("line", 3, 48, 320), SHAPE), r"no room for FP32 \[3, 48, 640\]"),
    (outputs(tensor("line", 3, 48, 640, dtype="FP16"), SHAPE), "no room for FP32"),
    (outputs(tensor("line", 144, 640), SHAPE), "no room for FP32"),
    (outputs(tensor("line", 3, 48, 640)), r"needs an output 'line_shape' \(INT64 3\)"),
    (
        outputs(tensor("line", 3, 48, 640), tensor("line_shape", 2, dtype="INT64")),
        r"needs an output 'line_shape' \(INT64 3\)",
    ),
    ({"speller": ([tensor("symbols", 40)], [tensor("text", 5)])}, r"read.symbols is FP32 \[80\]"),
]


@pytest.mark.parametrize(("changes", "reason"), WRONG)
def test_rows_that_cannot_choose_are_refused(changes: Tensors, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check(**changes)


def test_two_sizes_of_one_shape_are_refused() -> None:
    tensors = known()
    tensors["reader@3x48x320"] = tensors["reader@3x48x640"]
    with pytest.raises(InputError, match=r"is \[3, 48, 640\], as of 'read@3x48x320'"):
        check(**tensors)


def test_sizes_that_answer_with_other_types_are_refused() -> None:
    tensors = known()
    inputs, gives = tensors["reader@3x48x320"]
    tensors["reader@3x48x320"] = inputs, [tensor("symbols", 40, dtype="INT64"), gives[1]]
    with pytest.raises(InputError, match=r"is FP32 .* of one size, INT64 "):
        check(**tensors)
