"""Inputs drawn and read, answers compared."""

from pathlib import Path

import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import BYTES, BYTES_PER_ELEMENT, TensorSpec
from triton_backend.runtimes.texts import pack_texts
from triton_backend.serving.loadgen.payload import (
    NUMPY_TYPES,
    array_of,
    random_requests,
    raw_of,
    relative_error,
    requests_from_file,
    tolerance_of,
    without_dropped,
)

X = (TensorSpec(name="x", dtype="FP32", shape=(-1, 4)),)


@pytest.mark.parametrize("dtype", sorted(BYTES_PER_ELEMENT.keys() - {BYTES}))
def test_every_datatype_can_be_drawn(dtype: str) -> None:
    spec = TensorSpec(name="t", dtype=dtype, shape=(-1, 3))
    requests = random_requests((spec,), samples=2, rng=np.random.default_rng(0))
    array = requests[0].inputs["t"]
    assert array.shape == (2, 3)
    assert array.dtype == NUMPY_TYPES[dtype]
    assert array.nbytes == 2 * spec.bytes_per_sample


def test_a_file_is_cut_into_requests_in_its_order(tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    path = tmp_path / "samples.npz"
    np.savez(path, **{"inputs/x": x, "outputs/y": x * 2})
    requests = requests_from_file(path, X, samples=2)
    assert [request.inputs["x"][0, 0] for request in requests] == [0, 8]
    assert requests[1].expected is not None
    assert np.array_equal(requests[1].expected["y"], x[2:4] * 2)


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, 1e-4),
        ({"outputs/y": np.ones((2, 1), np.float16)}, 5e-3),
        ({"inputs/h": np.ones((2, 1), np.float16)}, 5e-3),
        ({"tolerance": np.array(0.01)}, 0.01),
    ],
    ids=["FP32", "FP16 out", "FP16 in", "stated"],
)
def test_a_right_answer_is_as_near_as_the_file_says_or_its_types_allow(
    tmp_path: Path, more: dict[str, np.ndarray], most: float
) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **{"inputs/x": np.zeros((2, 4), np.float32)} | more)
    assert tolerance_of(path) == most
    assert len(requests_from_file(path, X, samples=1)) == 2


def test_rows_of_their_own_number_stay_with_their_sample(tmp_path: Path) -> None:
    x, y = np.zeros((3, 4), np.float32), np.arange(5.0)
    path = tmp_path / "samples.npz"
    rows = np.array([2, 0, 3], np.uint64)
    np.savez(path, **{"inputs/x": x, "outputs/y": y, "rows/y": rows})
    requests = requests_from_file(path, X, samples=1)
    answers = [request.expected["y"].tolist() for request in requests if request.expected]
    assert answers == [[0, 1], [], [2, 3, 4]]
    np.savez(path, **{"inputs/x": x, "outputs/y": y, "rows/y": np.array([2, 0, 4])})
    with pytest.raises(InputError, match="rows/y: 6 rows, the output has others"):
        requests_from_file(path, X, samples=1)


@pytest.mark.parametrize(
    "rows",
    [
        np.array([2.0, 0.0, 3.0]),
        np.array([8, -6, 3]),
        np.array([[2, 0], [1, 1], [1, 0]]),
        np.array(["2", "0", "3"]),
        np.array(5),
    ],
)
def test_rows_that_are_no_numbers_of_rows_are_refused(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "samples.npz"
    x = np.zeros((3, 4), np.float32)
    np.savez(path, **{"inputs/x": x, "outputs/y": np.arange(5.0), "rows/y": rows})
    with pytest.raises(InputError, match=r"samples\.npz: rows/y: "):
        requests_from_file(path, X, samples=1)


def test_an_array_without_samples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **{"inputs/x": np.zeros((3, 4), np.float32), "seed": np.array(7)})
    with pytest.raises(InputError, match=r"samples\.npz: seed: has no samples"):
        requests_from_file(path, X, samples=1)


def test_inputs_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.npz"
    np.savez(path, **{"inputs/image": np.full((2, 6), 255, np.uint8)})
    with pytest.raises(InputError, match=r"texts\.npz: inputs/image: a text of"):
        requests_from_file(path, (TensorSpec.of_bytes("image", 100),), samples=1)


@pytest.mark.parametrize("said", [np.full((1, 6), 255, np.uint8), np.zeros(1, np.uint8)])
def test_an_answer_of_texts_is_compared_with_no_other_numbers(said: np.ndarray) -> None:
    given = np.array([b"cat"], np.object_)
    with pytest.raises(ValueError, match="outputs/word"):
        relative_error({"word": given}, {"word": said})


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"inputs/z": np.zeros((2, 4), np.float32)}, "no array 'inputs/x'"),
        ({"inputs/x": np.zeros((2, 4), np.float64)}, "does not fit"),
        ({"inputs/x": np.zeros((2, 5), np.float32)}, "does not fit"),
        ({"inputs/x": np.zeros((1, 4), np.float32)}, "one request takes 2"),
    ],
    ids=["missing", "type", "shape", "few"],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], reason: str
) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=reason):
        requests_from_file(path, X, samples=2)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not an \.npz file"):
        requests_from_file(path, X, samples=1)


def test_of_an_optional_module_that_was_dropped_no_rows_are_expected() -> None:
    boxes, cars = np.ones((1, 4)), np.ones((3, 2))
    expected, optional = {"boxes": boxes, "car": cars}, {"car": "cars.dropped"}
    for dropped, rows in ((True, 0), (False, 3)):
        answer = {"boxes": boxes, "car": cars[:0], "cars.dropped": np.array([dropped])}
        wanted = without_dropped(expected, answer, optional)
        assert {name: len(array) for name, array in wanted.items()} == {"boxes": 1, "car": rows}
        assert (relative_error(answer, wanted) == 0) == dropped
    assert without_dropped(expected, {"boxes": boxes}, optional).keys() == expected.keys()


def test_relative_error_is_measured_against_the_largest_expected_value() -> None:
    expected = {"y": np.array([10.0, 0.001])}
    assert relative_error({"y": np.array([10.0, 0.002])}, expected) == pytest.approx(1e-4)
    assert relative_error({"y": np.array([10.0, np.nan])}, expected) == float("inf")
    assert relative_error({"y": np.array([10.0])}, expected) == float("inf")
    assert relative_error({}, expected) == float("inf")


TEXTS = [b"", b"abc", b"\x00" * 9]


def test_texts_are_sent_behind_their_lengths_and_read_back() -> None:
    texts = np.empty(3, np.object_)
    texts[:] = TEXTS
    datatype, raw = raw_of(texts)
    assert (datatype, len(raw)) == ("BYTES", 3 * 4 + 12)
    assert array_of("BYTES", [3], raw).tolist() == TEXTS
    with pytest.raises(ValueError, match="no texts"):
        array_of("BYTES", [3], raw[:-1])


def test_texts_of_a_file_are_requests(tmp_path: Path) -> None:
    words = np.empty(3, np.object_)
    words[:] = [b"a", b"b", b"c"]
    file = tmp_path / "texts.npz"
    np.savez(file, **{"inputs/image": pack_texts(TEXTS), "outputs/n": np.arange(3.0)})
    specs = (TensorSpec.of_bytes("image", 100),)
    found = requests_from_file(file, specs, samples=1)
    assert [one.inputs["image"].tolist() for one in found] == [[text] for text in TEXTS]


def test_texts_are_right_only_where_they_are_equal() -> None:
    one, other = np.array([b"cat"], np.object_), np.array([b"cap"], np.object_)
    assert relative_error({"word": one}, {"word": one.copy()}) == 0
    assert relative_error({"word": one}, {"word": other}) == float("inf")


def test_random_texts_are_no_longer_than_allowed() -> None:
    specs = (TensorSpec.of_bytes("image", 5),)
    for one in random_requests(specs, samples=2, rng=np.random.default_rng(1)):
        assert [len(text) for text in one.inputs["image"].tolist()] == [5, 5]


def test_texts_of_an_answer_are_compared_with_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    said = pack_texts([b"a", b"longer", b""])
    x = np.zeros((2, 4), np.float32)
    rows = np.array([1, 2])
    np.savez(path, **{"inputs/x": x, "outputs/y": said, "rows/y": rows})
    first, second = requests_from_file(path, X, samples=1)
    assert first.expected is not None
    assert second.expected is not None
    given = np.array([b"longer", b""], np.object_)
    assert relative_error({"y": given}, second.expected) == 0
    assert relative_error({"y": given}, first.expected) == np.inf
    assert relative_error({"y": given[::-1]}, second.expected) == np.inf
