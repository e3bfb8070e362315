"""Running models while splitting: sessions, random inputs, and how far results are apart."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES

Arrays = dict[str, NDArray[np.generic]]
FATAL_ONLY = 4  # failures are raised, and may be expected
PART = 1 << 15  # elements, in double precision a quarter of a megabyte


def quiet_options() -> onnxruntime.SessionOptions:
    """Session options for runs whose time does not matter."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    # Threads that spin while they wait make every run slower on a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def plain_options() -> onnxruntime.SessionOptions:
    """Session options for runs of layers as they are written.

    Two models of the same layers agree to the bit. Which layers are fused depends on what is known
    of shapes, and the last bits on what is fused.
    """
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def open_session(
    path: Path, where: str, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    """Load a model file on the CPU.

    Raises:
        InputError: onnxruntime cannot load it; the reason is its own.
    """
    try:
        return onnxruntime.InferenceSession(
            str(path), options or quiet_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own exceptions share no public base class
        raise InputError(where, f"onnxruntime cannot load it: {first_line(error)}") from error


def run_session(
    session: onnxruntime.InferenceSession, feed: Mapping[str, NDArray[np.generic]]
) -> Arrays:
    """All outputs by name, for the inputs among `feed`."""
    names = [output.name for output in session.get_outputs()]
    given = {item.name: feed[item.name] for item in session.get_inputs()}
    results = session.run(names, given)
    return {name: np.asarray(array) for name, array in zip(names, results, strict=True)}


def with_outputs(path: Path, names: Sequence[str], target: Path) -> Path:
    """Copy a model file to `target` (same folder, for its external data) with outputs added."""
    model = onnx.load(path, load_external_data=False)
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    target.write_bytes(model.SerializeToString())
    return target


def random_inputs(specs: Sequence[TensorSpec], batch: int, rng: np.random.Generator) -> Arrays:
    """One batch of inputs; every sample has a level and a contrast of its own.

    Plain noise would look the same to a network that averages over the picture.
    """
    return {spec.name: _random_tensor(spec, batch, rng) for spec in specs}


def _random_tensor(spec: TensorSpec, batch: int, rng: np.random.Generator) -> NDArray[np.generic]:
    shape = (batch, *spec.shape[1:])
    dtype = NUMPY_DTYPES[spec.dtype]
    if not np.issubdtype(dtype, np.floating):
        return rng.integers(0, 2, size=shape).astype(dtype)
    per_sample = (batch,) + (1,) * (len(shape) - 1)
    values = rng.standard_normal(shape) * rng.uniform(0.5, 1.5, per_sample)
    return (values + rng.standard_normal(per_sample)).astype(dtype)


def relative_error(got: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Largest difference, relative to the largest magnitude expected; inf where not comparable.

    Compared a part at a time: of large tensors whole copies in double precision take most of the
    time.
    """
    if got.shape != expected.shape:
        return float("inf")
    left, right = got.reshape(-1), expected.reshape(-1)
    scale = difference = 0.0
    for begin in range(0, right.size, PART):
        part = slice(begin, begin + PART)
        a, b = np.asarray(left[part], np.float64), np.asarray(right[part], np.float64)
        largest = float(np.abs(b).max())
        if not (math.isfinite(float(np.abs(a).max())) and math.isfinite(largest)):
            return float("inf")
        scale = max(scale, largest)
        difference = max(difference, float(np.abs(a - b).max()))
    return difference / scale if scale else difference


def first_line(error: Exception) -> str:
    """The first line of a foreign error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
