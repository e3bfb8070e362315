"""Payloads, and the answers that must come back.

Here: input tensors drawn from a seed or read from a file of samples, cut into the requests of a
model, and the comparison of an answer with what was expected.
Not here: how tensors look on the wire (`client_grpc`, `client_http`).

A file of samples is an `.npz` with one array `inputs/<tensor>` per input and one `outputs/<tensor>`
per output that is to be compared, all with the sample as dimension 0. Of an output with rows of
their own number, as applications give, it has the rows of one sample after the other and, as
`rows/<tensor>`, how many each sample has. Texts (BYTES) lie in it as `runtimes.texts` packs them:
rows of UINT8, the length before each. It may state `tolerance`, the largest relative error of a
right answer.
"""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.tensors import BYTES, LENGTH_BYTES, TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.texts import unpack_texts

Arrays = Mapping[str, NDArray[np.generic]]
TURNS = 4096  # after which the entries of a model's requests come in the same order again
RANDOM_TEXT_BYTES = 64
RANDOM_REQUESTS = 8  # different requests of a model that has no file of samples
RIGHT, RIGHT_OF_HALF = 1e-4, 5e-3  # largest relative error of a right answer; in FP16
# numpy has no BF16: the upper half of a float32 is carried as its bits.
_TEXT_DIMENSIONS = 2  # texts, and their bytes
NUMPY_TYPES: Mapping[str, type[np.generic]] = {**NUMPY_DTYPES, "BF16": np.uint16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Tensors of one request and, where known, of its answer.

    Attributes:
        entry: number of the model's entry that they open.
        deadline_us: an answer after it is late; None: what holds for the model.
    """

    inputs: Arrays
    expected: Arrays | None = None
    entry: int = 0
    deadline_us: int | None = None


def random_requests(
    specs: tuple[TensorSpec, ...], *, samples: int, rng: np.random.Generator
) -> list[Payload]:
    """`RANDOM_REQUESTS` requests of `samples` samples each; floats are standard normal."""
    return [
        Payload(inputs={spec.name: _random(spec, samples, rng) for spec in specs})
        for _ in range(RANDOM_REQUESTS)
    ]


def turns_of(
    requests: Sequence[Payload], shares: Sequence[float], rng: np.random.Generator
) -> list[int]:
    """`TURNS` requests by number.

    Each is for an entry drawn by its share, whose requests take turns.
    """
    own = [
        cycle([i for i, one in enumerate(requests) if one.entry == n]) for n in range(len(shares))
    ]
    part = np.asarray(shares if sum(shares) else [1.0] * len(shares))
    return [next(own[entry]) for entry in rng.choice(len(shares), size=TURNS, p=part / part.sum())]


def requests_from_file(path: Path, specs: tuple[TensorSpec, ...], *, samples: int) -> list[Payload]:
    """Requests of `samples` samples each, in the file's order.

    Raises:
        InputError: not such a file, an input is missing or of the wrong type or shape, or it has
            fewer samples than one request takes.
    """
    arrays = _load(path)
    arrays.pop("tolerance", None)
    inputs = _named(arrays, "inputs/")
    outputs, rows = _named(arrays, "outputs/"), _named(arrays, "rows/")
    for spec in specs:
        _check_input(path, spec, inputs.get(spec.name))
    for name, array in arrays.items():
        if not array.ndim:
            raise InputError(f"{path}: {name}", "has no samples")
    for name, given in rows.items():
        if given.dtype.kind not in "iu" or given.ndim > 1 or np.less(given, 0).any():
            raise InputError(f"{path}: rows/{name}", "are not one number of rows for each sample")
    counted = {f"outputs/{name}" for name in rows}
    counts = {name: len(array) for name, array in arrays.items() if name not in counted}
    if len(set(counts.values())) != 1:
        raise InputError(str(path), f"arrays of different numbers of samples: {counts}")
    inputs = {name: _texts_of(path, specs, name, array) for name, array in inputs.items()}
    total = next(iter(counts.values()))
    if total < samples:
        raise InputError(str(path), f"{total} samples, one request takes {samples}")
    begins = {n: np.append(0, np.cumsum(given, dtype=np.int64)) for n, given in rows.items()}
    for name, ends in begins.items():
        if name not in outputs or len(outputs[name]) != ends[-1]:
            raise InputError(f"{path}: rows/{name}", f"{ends[-1]} rows, the output has others")
    return [
        Payload(
            inputs={spec.name: inputs[spec.name][at : at + samples] for spec in specs},
            expected={
                name: array[begins[name][at] : begins[name][at + samples]]
                if name in begins
                else array[at : at + samples]
                for name, array in outputs.items()
            }
            or None,
        )
        for at in range(0, total - samples + 1, samples)
    ]


def tolerance_of(path: Path) -> float:
    """Largest relative error of a right answer: as the file states, or as its types allow.

    Raises:
        InputError: not such a file, or it states no number above zero.
    """
    arrays = _load(path)
    stated = arrays.get("tolerance")
    if stated is None:
        half = any(array.dtype == np.float16 for array in arrays.values())
        return RIGHT_OF_HALF if half else RIGHT
    if stated.size != 1 or stated.dtype.kind != "f" or not float(stated.item()) > 0:
        raise InputError(f"{path}: tolerance", "is one number above zero")
    return float(stated.item())


def raw_of(array: NDArray[np.generic]) -> tuple[str | None, bytes]:
    """A tensor as it is sent, and its datatype where that does not follow from numpy's.

    Texts are objects.
    """
    if array.dtype != np.object_:
        return None, np.ascontiguousarray(array).tobytes()
    texts: list[bytes] = array.reshape(-1).tolist()
    return BYTES, b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in texts)


def array_of(datatype: str, shape: Sequence[int], raw: bytes) -> NDArray[Any]:
    """A tensor of an answer; texts are objects.

    Raises:
        ValueError: the bytes are not of that type and shape.
    """
    if datatype != BYTES:
        return np.frombuffer(raw, NUMPY_TYPES[datatype]).reshape(shape)
    texts: list[bytes] = []
    at = 0
    while at + LENGTH_BYTES <= len(raw):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(raw[at:begin], "little")
        texts.append(raw[begin:at])
    if at != len(raw):
        raise ValueError(f"{len(raw)} bytes that are no texts")
    return _objects(texts).reshape(shape)


def _objects(texts: Sequence[bytes]) -> NDArray[Any]:
    found = np.empty(len(texts), np.object_)
    found[:] = texts
    return found


def relative_error(answer: Arrays, expected: Arrays) -> float:
    """Largest |answer - expected| over the largest |expected|, the worst of all tensors.

    Infinite where a tensor is missing, has another shape or holds what is not a number.

    Raises:
        ValueError: an answer of texts is expected to be other numbers.
    """
    worst = 0.0
    for name, wanted in expected.items():
        got = answer.get(name)
        if got is not None and got.dtype == np.object_ and wanted.dtype == np.uint8:
            wanted = _texts_expected(name, wanted)  # noqa: PLW2901  # as a file has them
        if got is None or got.shape != wanted.shape:
            return float("inf")
        if np.object_ in (got.dtype, wanted.dtype):
            if not np.array_equal(got, wanted):
                return float("inf")
            continue
        reference = wanted.astype(np.float64)
        difference = float(np.max(np.abs(got.astype(np.float64) - reference), initial=0.0))
        scale = float(np.max(np.abs(reference), initial=0.0))
        error = difference / scale if scale else difference
        if not np.isfinite(error):
            return float("inf")
        worst = max(worst, error)
    return worst


def without_dropped(expected: Arrays, answer: Arrays, optional: Mapping[str, str]) -> Arrays:
    """The expected answer without the optional modules that it names as dropped.

    No rows of them.

    Args:
        expected: of an answer with all of them.
        answer: as it came.
        optional: by output of an optional module, the output that says whether it was dropped.
    """
    dropped = {name for name, said in optional.items() if said in answer and answer[said].any()}
    return {name: array[:0] if name in dropped else array for name, array in expected.items()}


def _random(spec: TensorSpec, samples: int, rng: np.random.Generator) -> NDArray[np.generic]:
    if spec.max_bytes is not None:
        most = min(spec.max_bytes, RANDOM_TEXT_BYTES)
        return _objects([rng.bytes(most) for _ in range(samples)])
    kind = np.dtype(NUMPY_TYPES[spec.dtype])
    shape = (samples, *spec.shape[1:])
    if spec.dtype == "BF16":
        bits = rng.standard_normal(shape, dtype=np.float32).view(np.uint32)
        return (bits >> 16).astype(np.uint16)
    if kind.kind == "f":
        return rng.standard_normal(shape, dtype=np.float32).astype(kind)
    return rng.integers(0, 2, size=shape).astype(kind)  # 0 and 1 are legal for every index and flag


def _load(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(str(path), f"not an .npz file of samples: {error}") from error


def _named(arrays: Arrays, prefix: str) -> dict[str, NDArray[np.generic]]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _texts_of(
    path: Path, specs: Sequence[TensorSpec], name: str, array: NDArray[np.generic]
) -> NDArray[np.generic]:
    """An input of a file as it is sent: rows of texts as objects."""
    if any(spec.name == name and spec.dtype == BYTES for spec in specs):
        try:
            return _objects(unpack_texts(array))
        except InvariantError as error:
            raise InputError(f"{path}: inputs/{name}", str(error)) from error
    return array


def _texts_expected(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An output of a file, as texts that an answer is compared with."""
    if array.ndim != _TEXT_DIMENSIONS:
        raise ValueError(f"outputs/{name} of the file is no rows of texts")
    try:
        return _objects(unpack_texts(array))
    except InvariantError as error:
        raise ValueError(f"outputs/{name} of the file: {error}") from error


def _check_input(path: Path, spec: TensorSpec, array: NDArray[np.generic] | None) -> None:
    if array is None:
        raise InputError(str(path), f"no array 'inputs/{spec.name}'")
    if spec.dtype == BYTES and array.dtype == np.uint8 and array.ndim == _TEXT_DIMENSIONS:
        return
    if array.dtype != NUMPY_TYPES[spec.dtype] or array.shape[1:] != spec.shape[1:]:
        raise InputError(
            f"{path}: inputs/{spec.name}",
            f"{array.dtype} {list(array.shape)} does not fit {spec.dtype} {list(spec.shape)}",
        )
