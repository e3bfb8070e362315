"""Running a model and looking: which tensors carry the batch, and whether samples stay alone.

Shapes found by running hold for every operator; rules about operators do not. A tensor may cross a
boundary only if its dimension 0 is the batch, its other dimensions are fixed, and the row of a
sample does not depend on which batch the sample is in (batches may be formed again).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

from flows.preparation.splitting.graph import KSERVE_DTYPES, TAIL_NAME, Layers, irregular_tensors
from flows.preparation.splitting.inputs.values import ModelInputs
from flows.preparation.splitting.running import (
    Arrays,
    first_line,
    open_session,
    quiet_options,
    relative_error,
    run_session,
    with_outputs,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import counts_of

SMALL_BATCH, LARGE_BATCH = 2, 3
MOST_ALONE = 8  # samples that are also run each alone
# Kernels differ between batch sizes in the last bits; a mix-up of samples shows as order 1.
SAMPLE_TOLERANCE = 1e-4
HALF_SAMPLE_TOLERANCE = 5e-3
# Results that differ by less, relative, are taken for the same.
SAME = 1e-4
SEED = 7
NUMPY_TO_KSERVE = {
    np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)): name
    for code, name in KSERVE_DTYPES.items()
}


def input_specs(model: onnx.ModelProto, names: Sequence[str], where: str) -> tuple[TensorSpec, ...]:
    """Specs of the model's inputs, batch symbolic.

    Raises:
        InputError: an element type that clients cannot send.
    """
    values = {value.name: value.type.tensor_type for value in model.graph.input}
    specs: list[TensorSpec] = []
    for name in names:
        dtype = KSERVE_DTYPES.get(values[name].elem_type)
        if dtype is None:
            raise InputError(f"{where}, input {name!r}", "element type is not served")
        dims = tuple(d.dim_value for d in values[name].shape.dim)[1:]
        specs.append(TensorSpec(name=name, dtype=dtype, shape=(-1, *dims)))
    return tuple(specs)


def output_specs(
    path: Path, where: str, layers: Layers, inputs: ModelInputs, max_batch: int
) -> tuple[TensorSpec, ...]:
    """Specs of the outputs.

    Found at batch 1, 2 and the largest, at least 3, comparing the results of samples: of the first
    `MOST_ALONE` each alone and of two together with those in the largest batch. Rows of
    outputs that are counted (`runtimes/base.py`) are those of the samples one after the other.

    Raises:
        InputError: a batch cannot be run, an output has no batch dimension or is not counted as it
            says, or a sample's result depends on its batch.
    """
    session = open_session(path, where)
    max_batch = max(max_batch, LARGE_BATCH)
    feed = inputs.draw(max_batch, np.random.default_rng(SEED))
    # A layer that runs sample by sample was compared sample by sample.
    alone = {name for node in layers.nodes if node.name == TAIL_NAME for name in node.output}
    whole = _run(session, feed, where)
    _check_rows(whole, max_batch, where)
    # A layer may choose by a sum over the batch: few samples would often choose alike.
    for batch, samples in ((1, min(max_batch, MOST_ALONE)), (SMALL_BATCH, SMALL_BATCH)):
        parts = [
            _run(session, {k: v[i : i + batch] for k, v in feed.items()}, where)
            for i in range(0, samples, batch)
        ]
        part = _joined(parts, batch, where)
        for name, expected in first_samples(whole, samples).items():
            if part[name].shape[1:] != expected.shape[1:]:
                shapes = f"{list(part[name].shape)} and {list(expected.shape)}"
                raise InputError(f"{where}, output {name!r}", f"has shapes {shapes} at two batches")
            error = 0.0 if name in alone else relative_error(part[name], expected)
            if not error <= sample_tolerance(expected.dtype, half=layers.half):
                if not np.isfinite(error) and (unfit := inputs.values.not_finite()) is not None:
                    raise unfit
                scaled = any(n.op_type == "DynamicQuantizeLinear" for n in layers.nodes)
                why = (
                    "it is quantised by the range of the whole batch, quantise it with fixed ranges"
                    if scaled
                    else "export it with a dynamic batch, each sample alone"
                )
                raise InputError(
                    f"{where}, output {name!r}",
                    f"a sample's result at batch {batch} differs from the one at batch"
                    f" {max_batch} by {error:.2g} relative: {why}",
                )
    specs: list[TensorSpec] = []
    for name, array in whole.items():
        dtype = NUMPY_TO_KSERVE.get(array.dtype)
        if dtype is None:
            raise InputError(f"{where}, output {name!r}", "its type or shape cannot be served")
        specs.append(TensorSpec(name=name, dtype=dtype, shape=(-1, *array.shape[1:])))
    return tuple(specs)


def sample_tolerance(kind: np.dtype[np.generic], *, half: bool = False) -> float:
    """Largest relative difference of a sample in two batches; `half`: layers compute in FP16."""
    return HALF_SAMPLE_TOLERANCE if half or kind == np.float16 else SAMPLE_TOLERANCE


def first_samples(results: Arrays, samples: int) -> Arrays:
    """The results of the first samples of a batch, by output."""
    counts = counts_of(results)
    return {
        name: array[: int(results[counts[name]][:samples].sum()) if name in counts else samples]
        for name, array in results.items()
    }


def _joined(parts: Sequence[Arrays], batch: int, where: str) -> Arrays:
    """The results of batches as those of one, by output."""
    for part in parts:
        _check_rows(part, batch, where)
    for name in parts[0]:
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) > 1:
            several = " and ".join(str([batch, *shape]) for shape in sorted(shapes))
            raise InputError(f"{where}, output {name!r}", f"has shapes {several} for two samples")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _check_rows(results: Arrays, batch: int, where: str) -> None:
    counts = counts_of(results)
    for name, array in results.items():
        place, shape = f"{where}, output {name!r}", list(array.shape)
        count = results[counts[name]] if name in counts else None
        if count is None and array.shape[:1] != (batch,):
            reason = f"shape {shape} at batch {batch}: dimension 0 is not the batch"
            if batch in shape:
                reason += f", dimension {shape.index(batch)} may be: transpose it in the model"
            raise InputError(place, reason)
        if count is not None and (count.dtype != np.int64 or len(array) != count.sum()):
            reason = f"shape {shape}, but {counts[name]!r} is {count.dtype} {count.tolist()}"
            raise InputError(place, reason)


class Crossing(NamedTuple):
    """Tensors that may cross a boundary.

    Attributes:
        specs: of each, by name.
        moved: names of those that differ between two samples.
    """

    specs: dict[str, TensorSpec]
    moved: frozenset[str]

    def legal_cuts(self, layers: Layers) -> dict[int, tuple[TensorSpec, ...]]:
        """Every position where all live tensors may cross, with these tensors."""
        legal: dict[int, tuple[TensorSpec, ...]] = {}
        for position in range(1, len(layers.nodes)):
            live = layers.live_at(position)
            if live and all(tensor in self.specs for tensor in live):
                legal[position] = tuple(self.specs[tensor] for tensor in live)
        return legal

    def proven(self, live: Sequence[TensorSpec]) -> bool:
        """Two samples differ in a boundary, so that comparing it can show an error."""
        return any(spec.name in self.moved for spec in live)


NOWHERE = Crossing({}, frozenset())
"""For a model that stays whole."""


def boundary_specs(path: Path, where: str, layers: Layers, inputs: ModelInputs) -> Crossing:
    """All tensors that may cross a boundary.

    Raises:
        InputError: the model cannot be run with its inner tensors as outputs.
    """
    irregular = irregular_tensors(layers)
    names = [
        n
        for n in layers.made_at
        if n in layers.last_use and n not in layers.inputs and n not in irregular
    ]
    small, large = run_batches(path, where, names, inputs)
    specs = {spec.name: spec for spec in inputs.specs} | batch_specs(names, small, large)
    large |= inputs.draw(LARGE_BATCH, np.random.default_rng(SEED))
    moved = (n for n in specs if relative_error(large[n][:1], large[n][1:2]) > SAME)
    return Crossing(specs, frozenset(moved))


def batch_specs(names: Sequence[str], small: Arrays, large: Arrays) -> dict[str, TensorSpec]:
    """Specs of those tensors seen at two batches that may cross a boundary, by name."""
    specs = (_spec(name, small, large) for name in names)
    return {spec.name: spec for spec in specs if spec is not None}


def run_batches(
    path: Path, where: str, names: Sequence[str], inputs: ModelInputs
) -> tuple[Arrays, Arrays]:
    """Inner tensors at `SMALL_BATCH` and at `LARGE_BATCH`, which begins with the same samples.

    Raises:
        InputError: the model cannot be run with its inner tensors as outputs.
    """
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    probe = with_outputs(path, names, path.with_name(f".observe-{path.name}"))
    try:
        session = open_session(probe, where, options)
    finally:
        probe.unlink()
    feed = inputs.draw(LARGE_BATCH, np.random.default_rng(SEED))
    small = _run(session, {name: array[:SMALL_BATCH] for name, array in feed.items()}, where)
    return small, _run(session, feed, where)


def _spec(name: str, small: Arrays, large: Arrays) -> TensorSpec | None:
    """The spec of one tensor seen at two batches; None where it may not cross a boundary."""
    few, many = small[name], large[name]
    dtype = NUMPY_TO_KSERVE.get(many.dtype)
    rows = few.shape[:1] == (SMALL_BATCH,) and many.shape[:1] == (LARGE_BATCH,)
    if dtype is None or not rows or few.shape[1:] != many.shape[1:] or not many.size:
        return None
    if relative_error(few, many[:SMALL_BATCH]) > sample_tolerance(many.dtype):
        return None
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *many.shape[1:]))


def _run(session: onnxruntime.InferenceSession, feed: Arrays, where: str) -> Arrays:
    batch = len(next(iter(feed.values())))
    try:
        return run_session(session, feed)
    except Exception as error:  # onnxruntime's own exceptions share no public base class
        raise InputError(where, f"cannot run a batch of {batch}: {first_line(error)}") from error
