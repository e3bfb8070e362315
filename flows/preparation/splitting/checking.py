"""Do the stages, one after another, still compute the model? A check that is able to fail.

Every boundary and every output is compared, on random inputs or samples, at batch 1 and at the
largest batch; outputs before a final Softmax (which squeezes differences) as well as after it.
Layers run as they are written: what is fused differs between the model and its stages, and with it
the last bits, on which hangs which of two nearly equal boxes comes first. A boundary that two
inputs do not change would pass with any split, so that no cut is made there; answers that their
input does not change are accepted where boundaries show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from flows.preparation.splitting.extracting import extract_stages
from flows.preparation.splitting.graph import irregular_tensors, node_label, read_layers
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.observing import SAME
from flows.preparation.splitting.per_sample import tail_inputs
from flows.preparation.splitting.running import (
    Arrays,
    open_session,
    plain_options,
    relative_error,
    run_session,
    with_outputs,
)
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    import onnxruntime

# Largest error relative to the tensor's largest magnitude; integers and booleans must be equal.
FLOAT_ERROR, HALF_ERROR = 1e-5, 2e-3
SQUEEZING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
SEED = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCheck:
    """The comparison and its result.

    Attributes:
        max_relative_error: over all batches and tensors, relative to the tensor's largest value.
        input_dependence: smallest relative difference between two samples' outputs, before a
            final Softmax; 0 where answers do not depend on the input.
        compared: names of the tensors compared.
    """

    stages: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    max_relative_error: float
    input_dependence: float
    compared: tuple[str, ...]


def check_split(
    split: SplitModel,
    cuts: Sequence[int] | None = None,
    *,
    max_batch: int | None = None,
    allow_unproven: bool = False,
) -> SplitCheck:
    """Compare stages composed with the whole model.

    Args:
        split: the split to check.
        cuts: block indices at which stages begin, without 0; None makes every block a stage.
        max_batch: largest batch to try; None takes the split's.
        allow_unproven: accept also where neither answers nor boundaries depend on the input.

    Raises:
        InputError: they differ, with the numbers and the first layer that does; or neither an
            answer nor a boundary depends on the input.
    """
    inner = range(1, split.blocks) if cuts is None else cuts
    edges = [0, *inner, split.blocks]
    stages = tuple(pairwise(edges))
    batches = tuple(sorted({1, max_batch or split.max_batch}))
    raw, ends = _tensors_to_compare(split)
    crossing = tuple(
        spec.name
        for edge in edges[1:-1]
        for spec in split.boundaries[edge - 1]
        if spec.name not in {given.name for given in split.inputs}
    )
    wanted = tuple(dict.fromkeys((*crossing, *ends)))
    rows = max(2, *batches)
    feed = split.model_inputs().draw(rows, np.random.default_rng(SEED))
    whole = _Composition([split.model_path], wanted, split.name)
    seen = whole.run(feed)
    dependence = _dependence(seen, raw)
    moves = any(_dependence(seen, (name,)) > SAME for name in crossing)
    if not (dependence > SAME or moves or allow_unproven):
        raise InputError(
            f"model {split.name!r}",
            f"its answers to different inputs differ by only {dependence:.2g} relative, and no"
            " boundary shows a difference: the answer does not depend on the input, so no split"
            " of it can be checked; give inputs that matter (--samples, --input-range), or"
            " --allow-unproven",
        )
    composed = _Composition(extract_stages(split, stages), wanted, split.name)
    worst, half = 0.0, read_layers(onnx.load(split.model_path, load_external_data=False).graph).half
    for batch in batches:
        part = {name: array[:batch] for name, array in feed.items()}
        expected = seen if batch == rows else whole.run(part)
        got = composed.run(part)
        for name in wanted:
            error = relative_error(got[name], expected[name])
            worst = max(worst, error)
            most = tolerance(expected[name].dtype, half=half)
            if not error <= most:
                raise InputError(
                    f"split of {split.name!r} into stages {[list(s) for s in stages]}",
                    f"differs from the whole model by {error:.2g} relative at {name!r},"
                    f" more than {most:.0e}; {_first_difference(split, stages, part)}",
                )
    return SplitCheck(
        stages=stages,
        batches=batches,
        max_relative_error=worst,
        input_dependence=dependence,
        compared=wanted,
    )


def tolerance(kind: np.dtype[np.generic], *, half: bool = False) -> float:
    """Largest relative error of a tensor; `half`: layers of its model compute in FP16."""
    if not np.issubdtype(kind, np.floating):
        return 0.0
    return HALF_ERROR if half or kind == np.float16 else FLOAT_ERROR


def _first_difference(split: SplitModel, stages: Sequence[tuple[int, int]], feed: Arrays) -> str:
    """The first layer whose result differs between the model and its stages, in words."""
    layers = read_layers(onnx.load(split.model_path, load_external_data=False).graph)
    irregular = irregular_tensors(layers)
    names = tuple(n for n, at in layers.made_at.items() if at >= 0 and n not in irregular)
    expected = _Composition([split.model_path], names, split.name).run(feed)
    got = _Composition(extract_stages(split, stages), names, split.name).run(feed)
    for name in names:
        if name not in got or name not in expected:
            continue
        most = tolerance(expected[name].dtype, half=layers.half)
        if not relative_error(got[name], expected[name]) <= most:
            node = layers.nodes[layers.made_at[name]]
            layer = f"{node_label(node)!r} ({node.op_type})"
            return f"the first layer that differs is {layer}, in {name!r}"
    return "no single layer does"


class _Composition:
    """Stages run one after another, with inner tensors made visible where they are compared."""

    def __init__(self, paths: Sequence[Path], wanted: tuple[str, ...], where: str) -> None:
        self._sessions: list[onnxruntime.InferenceSession] = []
        for path in paths:
            made = read_layers(onnx.load(path, load_external_data=False).graph).made_at
            seen = with_outputs(
                path,
                [n for n in wanted if made.get(n, -1) >= 0],
                path.with_name(f".check-{path.name}"),
            )
            try:
                self._sessions.append(open_session(seen, where, plain_options()))
            finally:
                seen.unlink()

    def run(self, feed: Arrays) -> Arrays:
        """Everything that was given in or came out on the way."""
        known = dict(feed)
        for session in self._sessions:
            known |= run_session(session, known)
        return known


def _tensors_to_compare(split: SplitModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors that show that answers depend on inputs, and all to compare.

    The first are the outputs before a final Softmax, and what enters a part of one sample in place
    of its outputs.
    """
    layers = read_layers(onnx.load(split.model_path, load_external_data=False).graph)
    irregular = irregular_tensors(layers)
    entering = (name for name in tail_inputs(layers) if name not in layers.inputs)
    raw: dict[str, None] = dict.fromkeys(entering)
    for name in layers.outputs:
        if name in irregular:
            continue
        maker = layers.nodes[layers.made_at[name]]
        inner = maker.op_type in SQUEEZING and maker.input[0] in layers.made_at
        raw[maker.input[0] if inner else name] = None
    crossing = [spec.name for spec in split.stage_inputs(split.blocks - 1)]
    raw = raw or {name: None for name in crossing if name not in layers.inputs}
    return tuple(raw), tuple(dict.fromkeys((*raw, *layers.outputs)))


def _dependence(results: Arrays, names: tuple[str, ...]) -> float:
    """Smallest relative difference between the results of samples 0 and 1.

    1 where nothing was cut.
    """
    errors = (relative_error(results[n][:1], results[n][1:2]) for n in names)
    return min(errors, default=1.0)
