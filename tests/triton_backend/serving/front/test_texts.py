"""Texts between clients and slots, and refusals of steps."""

from typing import Any

import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.texts import pack_texts, unpack_texts
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.texts import SeenOutputs, packed

MODEL = ModelPlan(
    name="shop",
    slo_us=1,
    throughput_rps=1.0,
    pipelines=(),
    outputs=(
        TensorSpec(name="y", dtype="FP32", shape=(-1, 2)),
        TensorSpec.of_bytes("word", 8),
    ),
)


def objects(*values: Any) -> np.ndarray:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def test_texts_of_a_request_take_what_they_need() -> None:
    rows = packed("here", objects(b"abc", b""), 1_000)
    assert rows.shape == (2, 7)
    assert unpack_texts(rows) == [b"abc", b""]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (objects(b"ab", b"abcd"), r"here: 4 bytes, at most 3 are taken \(max_bytes\)"),
        (objects("abc"), "here: a str, not bytes"),
        (np.zeros(3, np.uint8), r"here: uint8 of shape \(3,\), not BYTES"),
        (objects(b"a").reshape(1, 1), r"here: object of shape \(1, 1\), not BYTES"),
    ],
)
def test_what_is_no_text_or_too_long_is_refused(array: np.ndarray, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        packed("here", array, 3)


def test_clients_see_texts_and_nothing_that_is_hidden() -> None:
    outputs: dict[str, Any] = {
        "y": np.ones((1, 2), np.float32),
        "word": pack_texts([b"cat"]),
        "before.refused": pack_texts([b""]),
    }
    seen = SeenOutputs(MODEL).seen(outputs)
    assert isinstance(seen, dict)
    assert sorted(seen) == ["word", "y"]
    assert seen["word"].tolist() == [b"cat"]
    assert seen["y"] is outputs["y"]


def test_one_row_that_is_refused_refuses_the_request() -> None:
    outputs: dict[str, Any] = {
        "y": np.ones((2, 2), np.float32),
        "word": pack_texts([b"", b""]),
        "net.refused": np.empty((0, 1), np.uint8),
        "before.refused": pack_texts([b"", b"INVALID_ARG no picture"]),
    }
    seen = SeenOutputs(MODEL).seen(outputs)
    assert seen == Refusal("INVALID_ARG", "model 'shop', module 'before': no picture")
