"""Do the stages, one after another, still compute the model? A check that is able to fail.

Results are compared on random inputs at batch 1 and at the largest batch, before a final Softmax
(which squeezes differences) as well as after it. Layers run as they are written: what is fused differs between
the model and its stages, and with it the last bits, on which hangs which of two nearly equal boxes comes first. A model whose answer hardly depends on its input
would pass with any split, so such a model fails the check itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from flows.preparation.splitting.extracting import extract_stages
from flows.preparation.splitting.graph import irregular_tensors, read_layers
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.per_sample import tail_inputs
from flows.preparation.splitting.running import (
    Arrays,
    open_session,
    plain_options,
    random_inputs,
    relative_error,
    run_session,
    with_outputs,
)
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    import onnxruntime

MAX_ERROR = 1e-5
# Different samples must differ by this much more than what passes for equal.
DEPENDENCE_FACTOR = 10.0
SQUEEZING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
SEED = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCheck:
    """What was compared and found.

    Attributes:
        max_relative_error: over all batches and tensors, relative to the tensor's largest value.
        input_dependence: smallest relative difference between two samples' outputs, before a
            final Softmax.
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
    max_error: float = MAX_ERROR,
) -> SplitCheck:
    """Compare stages composed with the whole model.

    Args:
        split: the split to check.
        cuts: block indices at which stages begin, without 0; None makes every block a stage.
        max_batch: largest batch to try; None takes the split's.
        max_error: largest relative error that passes.

    Raises:
        InputError: they differ, or the answer does not depend on the input, with the numbers.
    """
    inner = range(1, split.blocks) if cuts is None else cuts
    edges = [0, *inner, split.blocks]
    stages = tuple(pairwise(edges))
    batches = tuple(sorted({1, max_batch or split.max_batch}))
    raw, wanted = _tensors_to_compare(split)
    feed = random_inputs(split.inputs, max(2, *batches), np.random.default_rng(SEED))
    whole = _Composition([split.model_path], wanted, split.name)
    dependence = _dependence(whole.run(feed), raw)
    if not dependence > DEPENDENCE_FACTOR * max_error:
        raise InputError(
            f"model {split.name!r}",
            f"its answers to different random inputs differ by only {dependence:.2g} relative: the"
            " answer does not depend on the input, so no split of it can be checked",
        )
    composed = _Composition(extract_stages(split, stages), wanted, split.name)
    worst = 0.0
    for batch in batches:
        part = {name: array[:batch] for name, array in feed.items()}
        expected = whole.run(part)
        got = composed.run(part)
        worst = max(worst, *(relative_error(got[name], expected[name]) for name in wanted))
    if not worst <= max_error:
        raise InputError(
            f"split of {split.name!r} into stages {[list(s) for s in stages]}",
            f"differs from the whole model by {worst:.2g} relative, more than {max_error:.0e}",
        )
    return SplitCheck(
        stages=stages,
        batches=batches,
        max_relative_error=worst,
        input_dependence=dependence,
        compared=wanted,
    )


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
    """What shows that answers depend on inputs, and all to be compared.

    The first are the outputs before a final Softmax, and what enters a part of one sample in place of its outputs.
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
    """Smallest relative difference between the results of samples 0 and 1; 1 where nothing was cut."""
    errors = (relative_error(results[n][:1], results[n][1:2]) for n in names)
    return min(errors, default=1.0)
