"""Values to run a model on while it is checked: samples, ranges, or what its graph allows.

Samples of a file come first. An input without them is drawn within its range; without a range,
within what the graph allows: indices of an embedding within its rows, UINT8 from 0 to 255, other
integers 0 or 1, floats around zero.
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from flows.preparation.splitting.graph import input_names
from flows.preparation.splitting.running import Arrays, random_inputs
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES

RANGE_OPTION, SAMPLES_OPTION = "--input-range", "--samples"
MOST_SAMPLE_BYTES = 1 << 30
# Two samples must be there to see that results differ.
LEAST_SAMPLES = 2
MOST_CONTRAST = 2.0
RESHAPING = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze"}
)
# A comparison with fewer values is a flag, not a table of indices.
LEAST_TABLE = 3
WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8})


class Range(NamedTuple):
    """Values from `low` to `high`, both included; whole numbers alone where `whole`."""

    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputValues:
    """Samples and ranges of inputs; an input without either is drawn freely.

    Attributes:
        ranges: input name to its range.
        samples: input name to samples [samples, ...]; all have the same number, at least two.
        file: file or folder of the samples, for complaints.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    samples: Mapping[str, NDArray[np.generic]] = field(
        default_factory=dict[str, NDArray[np.generic]]
    )
    file: Path | None = None

    def fit(self, specs: Sequence[TensorSpec], where: str) -> None:
        """Hold these values against the inputs of a model.

        Raises:
            InputError: an input that the model lacks, samples of another shape or type, or a range
                beyond the type.
        """
        known = {spec.name: spec for spec in specs}
        for name in (*self.ranges, *self.samples):
            if name not in known:
                raise InputError(where, f"has no input {name!r}; its inputs: {', '.join(known)}")
        for name, limits in self.ranges.items():
            kind = np.dtype(NUMPY_DTYPES[known[name].dtype])
            least, most = _limits_of(kind)
            if limits.low < least or limits.high > most:
                reason = f"{limits.low:g}..{limits.high:g} is beyond {known[name].dtype}"
                raise InputError(f"{RANGE_OPTION} {name}", reason)
        for name, array in self.samples.items():
            spec = known[name]
            if array.shape[1:] != tuple(spec.shape[1:]) or array.dtype != NUMPY_DTYPES[spec.dtype]:
                raise InputError(
                    f"{SAMPLES_OPTION}, {name!r}",
                    f"is {array.dtype} {list(array.shape)}; the model takes {spec.dtype}"
                    f" [samples, {', '.join(map(str, spec.shape[1:]))}]",
                )

    def not_finite(self) -> InputError | None:
        """The complaint about the first sample with a value that is NaN or infinite; None: none."""
        for name, array in self.samples.items():
            if np.issubdtype(array.dtype, np.floating):
                sample, *_ = np.nonzero(~np.isfinite(array))
                if len(sample):
                    where = f"{self.file or SAMPLES_OPTION}, {name!r}, sample {sample[0]}"
                    return InputError(where, "holds values that are not finite (NaN or infinity)")
        return None

    def with_allowed(self, graph: onnx.GraphProto) -> Self:
        """The same with the ranges that a graph asks of its inputs, within those given."""
        allowed = allowed_ranges(graph)
        given = {
            name: Range(*limits[:2], whole=name in allowed and allowed[name].whole)
            for name, limits in self.ranges.items()
        }
        return replace(self, ranges={**allowed, **given})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """The inputs of a model, or of a part of it, and the values to run it on."""

    specs: tuple[TensorSpec, ...]
    values: InputValues = field(default_factory=InputValues)

    def draw(self, batch: int, rng: np.random.Generator) -> Arrays:
        """One batch of every input [batch, ...]; samples in their order, again and again."""
        drawn = random_inputs(self.specs, batch, rng)
        for spec in self.specs:
            if spec.name in self.values.samples:
                given = self.values.samples[spec.name]
                drawn[spec.name] = given[np.arange(batch) % len(given)]
            elif spec.name in self.values.ranges:
                drawn[spec.name] = _within(self.values.ranges[spec.name], spec, batch, rng)
        return drawn


def read_ranges(texts: Iterable[str], where: str = RANGE_OPTION) -> dict[str, Range]:
    """Ranges by input, from texts such as `bytes=0..256`.

    Raises:
        InputError: not of that form, not finite, empty, or an input given twice.
    """
    found: dict[str, Range] = {}
    for text in texts:
        name, equals, limits = text.rpartition("=")
        low, dots, high = limits.partition("..")
        try:
            made = Range(float(low), float(high))
        except ValueError:
            made = Range(math.nan, math.nan)
        if not (equals and name and dots and math.isfinite(made.low) and math.isfinite(made.high)):
            raise InputError(where, f"{text!r} is not NAME=LOW..HIGH, both included, as x=0..255")
        if name in found or made.low > made.high:
            reason = "is given twice" if name in found else "ends below its beginning"
            raise InputError(where, f"{text!r} {reason}")
        found[name] = made
    return found


def read_samples(
    path: Path,
    size: Mapping[str, Sequence[int]] | None = None,
    known: Sequence[str] | None = None,
) -> Arrays:
    """Samples by input from an `.npz` file, or from all of a folder in the order of their names.

    Arrays are called as the inputs (or `inputs/<input>`, as files of `load --check`), each
    [samples, ...].

    Args:
        path: the file or folder.
        size: shapes without the batch that tell a size of a model from its others; files of other
            shapes are left out.
        known: names of the model's inputs, where they are known.

    Raises:
        InputError: no such file, none in the folder, not such a file, too large, an array of
            another name, fewer than two samples; or none of this size.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        there = "no .npz file there" if path.exists() else "no such file or folder"
        raise InputError(str(path), there)
    parts: list[Arrays] = []
    room = MOST_SAMPLE_BYTES
    for file in files:
        try:
            room -= _stated_bytes(file)
            if room < 0:
                most = f"more than {MOST_SAMPLE_BYTES >> 20} MiB of samples"
                raise InputError(str(file), most)
            with np.load(file, allow_pickle=False) as saved:
                names = [n for n in saved.files if not n.startswith(("outputs/", "rows/"))]
                parts.append({n.removeprefix("inputs/"): saved[n] for n in names})
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(str(file), "is not an .npz file of arrays") from error
    if size:
        parts = [part for part in parts if _is_of_size(part, size)]
    if not parts:
        shapes = ", ".join(f"{n}={'x'.join(map(str, s))}" for n, s in (size or {}).items())
        raise InputError(str(path), f"has no samples of the size {shapes}")
    if any(part.keys() != parts[0].keys() for part in parts):
        raise InputError(str(path), "its files do not hold the same inputs")
    try:
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError as error:
        raise InputError(
            str(path), "its arrays are not [samples, ...] of one shape each"
        ) from error
    _check_counts(joined, known, path)
    return joined


def _check_counts(joined: Arrays, known: Sequence[str] | None, path: Path) -> None:
    for name in joined:
        if known is not None and name not in known:
            reason = f"holds {name!r}, which is no input of the model; its inputs: "
            raise InputError(str(path), reason + ", ".join(known))
    counts = {name: len(array) for name, array in joined.items()}
    if not counts or len(set(counts.values())) > 1 or min(counts.values()) < LEAST_SAMPLES:
        listed = ", ".join(f"{count} of {name!r}" for name, count in counts.items()) or "none"
        reason = f"needs two samples or more, as many of every input; has {listed}"
        raise InputError(str(path), reason)


def _is_of_size(part: Arrays, size: Mapping[str, Sequence[int]]) -> bool:
    return all(n not in part or part[n].shape[1:] == tuple(s) for n, s in size.items())


def allowed_ranges(graph: onnx.GraphProto) -> dict[str, Range]:
    """Ranges that a graph asks of its inputs, for those where it does.

    An input is followed through layers that move values to those that use them as an index
    (`Gather`, `GatherElements`, `OneHot`), compare them with a row of whole numbers, or cast them
    to such.
    """
    constants = dict(_constants(graph))
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    found: dict[str, Range] = {}
    for name in input_names(graph):
        limits = [Range(0, 255, whole=True)] if kinds[name] == TensorProto.UINT8 else []
        limits += _asked_of(graph, name, constants)
        if limits:
            low = max(limit.low for limit in limits)
            high = min(limit.high for limit in limits)
            high = 1 if high == math.inf else high  # cast, and never an index
            found[name] = Range(low, max(low, high), whole=True)
    return found


def _asked_of(
    graph: onnx.GraphProto, name: str, constants: Mapping[str, onnx.TensorProto]
) -> Iterator[Range]:
    carried = {name}
    for node in graph.node:
        taken = [slot for slot, read in enumerate(node.input) if read in carried]
        if not taken:
            continue
        if node.op_type in RESHAPING or (node.op_type.startswith("Gather") and 0 in taken):
            carried |= set(node.output)
        limits = _asked_by(node, taken, constants)
        if limits is not None:
            yield limits


def _asked_by(
    node: onnx.NodeProto, taken: Sequence[int], constants: Mapping[str, onnx.TensorProto]
) -> Range | None:
    """A layer's limits on the values in its slots `taken`; None if it takes any."""
    kind = node.op_type
    if kind in {"Gather", "GatherElements"} and 1 in taken:
        data = constants.get(node.input[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return Range(0, data.dims[axis] - 1) if data is not None and data.dims else None
    if kind == "OneHot" and 0 in taken:
        depth = _whole_values(constants.get(node.input[1]))
        return Range(0, float(depth[0]) - 1) if depth.size else None
    if kind == "Equal":
        table = _whole_values(constants.get(node.input[1 - taken[0]]))
        return Range(float(table.min()), float(table.max())) if table.size >= LEAST_TABLE else None
    if kind == "Cast":
        target = next((a.i for a in node.attribute if a.name == "to"), 0)
        return Range(0, 1 if target == TensorProto.BOOL else math.inf) if target in WHOLE else None
    return None


def _whole_values(tensor: onnx.TensorProto | None) -> NDArray[np.float64]:
    """The numbers of a constant, flat; none where they are unknown or not whole."""
    kinds = {TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT}
    if tensor is None or tensor.external_data or tensor.data_type not in kinds:
        return np.zeros(0)
    values = numpy_helper.to_array(tensor).astype(np.float64).ravel()
    return values if np.array_equal(values, np.rint(values)) else np.zeros(0)


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Constants of a graph whose values are in the file."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], attribute.t


def _within(
    limits: Range, spec: TensorSpec, batch: int, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Values of a range; every sample has a level of its own, a power of even values."""
    shape, kind = (batch, *spec.shape[1:]), np.dtype(NUMPY_DTYPES[spec.dtype])
    levels = rng.uniform(1 / MOST_CONTRAST, MOST_CONTRAST, (batch,) + (1,) * (len(shape) - 1))
    even = rng.random(shape) ** levels
    if limits.whole or not np.issubdtype(kind, np.floating):
        low, high = math.ceil(limits.low), math.floor(min(limits.high, _limits_of(kind)[1]))
        return np.minimum(low + np.floor(even * (high - low + 1)), high).astype(kind)
    return (limits.low + even * (limits.high - limits.low)).astype(kind)


def _limits_of(kind: np.dtype[np.generic]) -> tuple[float, float]:
    if kind == np.bool_:
        return 0.0, 1.0
    whole = not np.issubdtype(kind, np.floating)
    info = np.iinfo(kind.name) if whole else np.finfo(kind.name)
    return float(info.min), float(info.max)


def _stated_bytes(path: Path) -> int:
    """Bytes of all arrays of an `.npz` as their headers state them; nothing of them is read."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, kind = read(stream)
                total += math.prod(shape) * kind.itemsize
    return total
