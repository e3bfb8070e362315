"""A function as a stage.

What it is given, what it may give, and what a bad sample costs the others.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.triton_backend.runtimes.python_step.step_folders import write_step
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, REFUSED, counts_of
from triton_backend.runtimes.registry import load_runtime
from triton_backend.runtimes.texts import pack_texts, unpack_texts

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 2))
Y = TensorSpec(name="y", dtype="FP32", shape=(-1, 2))
Y_ROWS = TensorSpec(name="y_rows", dtype="INT64", shape=(-1,))
TEXT = TensorSpec.of_bytes("text", 16)
MOST = 3
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs source text on inputs and gives the outputs, refusals as texts."""

    def running(source: str, inputs: dict[str, Any], outputs: list[TensorSpec], **more: Any) -> Any:
        takes = [TEXT if a.dtype == np.uint8 else X for a in inputs.values()]
        step = load_runtime(write_step(tmp_path, source, inputs=takes, outputs=outputs, **more))
        batch = len(next(iter(inputs.values())))
        varying = counts_of(spec.name for spec in outputs)
        out = {
            spec.name: np.full(
                (batch, *((MOST,) if spec.name in varying else ()), *spec.shape[1:]),
                99,
                NUMPY_DTYPES[spec.dtype],
            )
            for spec in step.outputs
        }
        try:
            step.run(inputs, out)
        finally:
            step.close()
        return {**out, REFUSED: [text.decode() for text in unpack_texts(out[REFUSED])]}

    return running


def numbers(batch: int) -> dict[str, Any]:
    return {"x": np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)}


def test_inputs_and_arguments_come_by_name(run: Run) -> None:
    source = "def run(x, *, factor):\n    return x.astype('float64') * factor"
    given = numbers(3)
    found = run(source, given, [Y], arguments={"factor": 2.5})
    assert found["y"].tolist() == (given["x"] * 2.5).tolist()
    assert found[REFUSED] == ["", "", ""]


WIDE = TensorSpec(name="y", dtype="FP32", shape=(-1, 2, 4))
Y_SHAPE = TensorSpec(name="y_shape", dtype="INT64", shape=(-1, 2))


def test_rows_of_shapes_of_their_own_lie_at_the_beginning_and_say_their_shapes(run: Run) -> None:
    source = """
import numpy as np


def run(x):
    return {"y": [np.full((2, int(row[0]) + 2), row[1], "float64") for row in x]}
"""
    found = run(source, {"x": np.array([[1, 5], [2, 6], [0, 7]], np.float32)}, [WIDE, Y_SHAPE])
    assert found[REFUSED] == ["", "", ""]
    assert found["y_shape"].tolist() == [[2, 3], [2, 4], [2, 2]]
    assert found["y"][:, 0].tolist() == [[5, 5, 5, 0], [6, 6, 6, 6], [7, 7, 0, 0]]


def test_a_row_without_room_is_refused_and_a_wrong_one_fails(run: Run) -> None:
    source = "def run(x):\n    return {'y': [[[1.0] * int(row[0])] * 2 for row in x]}"
    given = {"x": np.array([[5, 0], [4, 0]], np.float32)}
    found = run(source, given, [WIDE, Y_SHAPE])
    assert found[REFUSED] == ["INVALID_ARG a row of 'y' is 2x5, there is room for 2x4", ""]
    assert found["y_shape"].tolist() == [[0, 0], [2, 4]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("[[1], [1, 2]]", "INTERNAL step shop:run: TypeError: a row of 'y' is no array: setting"),
        ("1.0", "INTERNAL step shop:run: TypeError: a row of 'y' has 0 dimensions"),
        ("[[1j] * 4] * 2", "INTERNAL step shop:run: TypeError: Cannot cast array"),
    ],
)
def test_a_row_that_is_none_fails_in_one_line(run: Run, row: str, reason: str) -> None:
    found = run(f"def run(x):\n    return {{'y': [{row}]}}", numbers(1), [WIDE, Y_SHAPE])
    assert found[REFUSED][0].startswith(reason)


def test_a_function_may_say_the_shapes_itself(run: Run) -> None:
    said = "{'y': [[[1.0] * 4] * 2] * len(x), 'y_shape': [[2, 3]] * len(x)}"
    source = f"def run(x):\n    return {said}"
    found = run(source, numbers(2), [WIDE, Y_SHAPE])
    assert found["y_shape"].tolist() == [[2, 3], [2, 3]]
    assert (found["y"] == 1).all()


def test_a_function_does_not_write_into_its_inputs(run: Run) -> None:
    found = run("def run(x):\n    x[:] = 0\n    return x", numbers(1), [Y])
    assert found[REFUSED] == ["INVALID_ARG assignment destination is read-only"]


def test_a_sample_that_is_refused_costs_none_but_itself(run: Run) -> None:
    source = """
def run(x):
    if (x > 3).any():
        raise ValueError("above 3\\nand more")
    if (x == 0).any():
        raise KeyError("zero")
    return x + 1
"""
    found = run(source, numbers(3), [Y])
    assert found[REFUSED] == [
        "INTERNAL step shop:run: KeyError: 'zero'",
        "",
        "INVALID_ARG above 3",
    ]
    assert found["y"].tolist() == [[0, 0], [3, 4], [0, 0]]


@pytest.mark.parametrize("error", ["SystemExit(3)", "MemoryError()", "RecursionError('deep')"])
def test_whatever_a_function_raises_is_an_answer(run: Run, error: str) -> None:
    found = run(f"def run(x):\n    raise {error}", numbers(1), [Y])
    assert found[REFUSED][0].startswith(f"INTERNAL step shop:run: {error.partition('(')[0]}")


def test_a_refusal_that_is_no_text_costs_none_but_its_sample(run: Run) -> None:
    source = """
def run(x):
    if (x == 0).any():
        raise ValueError("not \\ud800")
    return x
"""
    found = run(source, numbers(2), [Y])
    assert found[REFUSED] == ["INVALID_ARG not \\ud800", ""]
    assert found["y"].tolist() == [[0, 0], [2, 3]]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("x[:, :1]", "TypeError: 'y' is of shape [1, 1], [1, 2] is stated"),
        ("x[:0]", "TypeError: 'y' is of shape [0, 2], [1, 2] is stated"),
        ("x.astype(complex)", "TypeError: 'y' is complex128, FP32 is stated"),
        ("{'z': x}", "KeyError: \"returned no 'y'\""),
    ],
)
def test_what_is_not_as_stated_is_an_error(run: Run, made: str, reason: str) -> None:
    found = run(f"def run(x):\n    return {made}", numbers(1), [Y])
    assert found[REFUSED] == [f"INTERNAL step shop:run: {reason}"]


def test_rows_of_each_sample_are_a_list_and_no_more_than_fit(run: Run) -> None:
    source = "def run(x):\n    return [[row] * int(row[0]) for row in x]"
    found = run(source, numbers(3), [Y, Y_ROWS])  # 0, 2 and 4 rows, of which 3 fit
    assert found["y_rows"].tolist() == [0, 2, 3]
    assert found["y"].reshape(-1, 2)[:5].tolist() == [[2, 3]] * 2 + [[4, 5]] * 3


def test_rows_may_come_with_their_counts(run: Run) -> None:
    source = "def run(x):\n    return {'y': x[:2], 'y_rows': [2, 0, 0]}"
    found = run(source, numbers(3), [Y, Y_ROWS])
    assert found["y_rows"].tolist() == [2, 0, 0]
    assert found["y"].reshape(-1, 2)[:2].tolist() == [[0, 1], [2, 3]]


def test_a_refused_sample_has_no_rows(run: Run) -> None:
    source = """
def run(x):
    if (x > 3).any():
        raise ValueError("no")
    return [[row] for row in x]
"""
    found = run(source, numbers(3), [Y, Y_ROWS])
    assert found["y_rows"].tolist() == [1, 1, 0]
    assert found["y"].reshape(-1, 2)[:2].tolist() == [[0, 1], [2, 3]]


def test_texts_come_as_bytes_and_go_as_bytes(run: Run) -> None:
    said = TensorSpec.of_bytes("said", 8)
    source = "def run(text):\n    return [t.decode().upper() for t in text]"
    found = run(source, {"text": pack_texts([b"abc", b"", b"x" * 9])}, [said])
    assert unpack_texts(found["said"])[:2] == [b"ABC", b""]
    assert found[REFUSED][2].endswith("'said' is not 1 texts of at most 8 bytes")


@pytest.mark.parametrize(
    ("made", "outputs"), [("[[1.0], [2.0, 3.0]]", [Y]), ("[[[1.0, 2.0, 3.0]]]", [Y, Y_ROWS])]
)
def test_what_is_no_array_is_the_functions_mistake(
    run: Run, made: str, outputs: list[TensorSpec]
) -> None:
    found = run(f"def run(x):\n    return {made}", numbers(1), outputs)
    said = "INTERNAL step shop:run: TypeError: 'y' is no array of FP32: "
    assert found[REFUSED][0].startswith(said)


def test_a_whole_number_that_its_type_does_not_hold_is_an_error(run: Run) -> None:
    small = TensorSpec(name="y", dtype="INT8", shape=(-1, 2))
    source = "def run(x):\n    return x.astype('int64') * 100"
    found = run(source, numbers(2), [small])  # 0 and 100, 200 and 300
    assert found["y"].tolist() == [[0, 100], [0, 0]]
    said = "INTERNAL step shop:run: TypeError: 'y' has 200, which INT8 does not hold"
    assert found[REFUSED] == ["", said]


def test_a_reason_that_is_no_text_costs_none_but_its_sample(run: Run) -> None:
    source = """
import json

def run(text):
    for one in text:
        if one != b"ok":
            raise ValueError(f"no label {json.loads(one)}")
    return [one for one in text]
"""
    said = TensorSpec.of_bytes("said", 16)
    given = {"text": pack_texts([b"ok", b'"\\ud800"', b"ok"])}
    found = run(source, given, [said])
    assert unpack_texts(found["said"]) == [b"ok", b"", b"ok"]
    assert found[REFUSED] == ["", "INVALID_ARG no label \\ud800", ""]


@pytest.mark.parametrize("given", ["3", "None", "t[0]"])
def test_what_is_no_text_is_not_given_as_one(run: Run, given: str) -> None:
    said = TensorSpec.of_bytes("said", 8)
    found = run(
        f"def run(text):\n    return [{given} for t in text]", {"text": pack_texts([b"\3"])}, [said]
    )
    kind = "NoneType" if given == "None" else "int"
    assert found[REFUSED] == [f"INTERNAL step shop:run: TypeError: 'said' has a {kind}, not a text"]
