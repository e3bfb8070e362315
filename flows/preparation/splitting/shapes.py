"""Shapes computed at run time, made constant, so that they do not stand in the way of cuts.

Exporters write `x.view(x.size(0), -1)` as Shape, Gather, Concat and Reshape. Between the Shape and
the Reshape a tensor without a batch dimension is live, so nothing may be cut there. What derives
from shapes alone is a function of the batch: it is looked at for two batches, and a value that is
the same for both, or a Reshape target that grows with the batch in one place, becomes a constant.
Whether the model still treats every sample alone is found afterwards, by running it (`observing`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from flows.preparation.splitting.graph import (
    Layers,
    drop_unread,
    irregular_tensors,
    read_layers,
    reads,
)
from flows.preparation.splitting.inputs.values import ModelInputs
from flows.preparation.splitting.observing import LARGE_BATCH, SMALL_BATCH, run_batches

SOURCES = frozenset({"Shape", "Size"})


class Use(NamedTuple):
    """A computed shape `name` that a layer which computes no shape reads in input `slot`."""

    node: onnx.NodeProto
    slot: int
    name: str


def make_shapes_constant(path: Path, where: str, inputs: ModelInputs) -> None:
    """Rewrite the model file so that computed shapes are constants, as far as they can be.

    Raises:
        InputError: the model cannot be run at another batch.
    """
    model = onnx.load(path, load_external_data=False)
    uses = list(_uses(read_layers(model.graph)))
    if not uses:
        return
    names = sorted({use.name for use in uses})
    small, large = run_batches(path, where, names, inputs)
    for i, (node, slot, name) in enumerate(uses):
        target = slot == 1 and node.op_type == "Reshape"
        value = _constant(small[name], large[name], node if target else None)
        if value is not None:
            constant = numpy_helper.from_array(value, f"{name}__any_batch_{i}")
            model.graph.initializer.append(constant)
            node.input[slot] = constant.name
    drop_unread(model.graph)
    path.write_bytes(model.SerializeToString(deterministic=True))


def derived_from_shapes(layers: Layers) -> set[str]:
    """Tensors that are functions of shapes alone."""
    derived: set[str] = set()
    for node in layers.nodes:
        read = [name for name in reads(node) if name in layers.made_at]
        if node.op_type in SOURCES or all(name in derived for name in read):
            derived |= {name for name in node.output if name}
    return derived


def _uses(layers: Layers) -> Iterator[Use]:
    derived = derived_from_shapes(layers) - irregular_tensors(layers)
    for node in layers.nodes:
        if derived.issuperset(filter(None, node.output)):
            continue
        for slot, name in enumerate(node.input):
            if name in derived:
                yield Use(node, slot, name)


def _constant(
    small: NDArray[np.generic], large: NDArray[np.generic], reshape: onnx.NodeProto | None
) -> NDArray[np.generic] | None:
    """The value for any batch, from those at two; None where there is none."""
    if np.array_equal(small, large):
        return large
    if reshape is None or small.shape != large.shape:
        return None
    grows = np.flatnonzero(small != large)
    at = int(grows[0])
    if len(grows) > 1 or int(small[at]) * LARGE_BATCH != int(large[at]) * SMALL_BATCH:
        return None
    zero_copies = not any(a.name == "allowzero" and a.i for a in reshape.attribute)
    free = np.array(large)
    if -1 not in large:
        free[at] = -1
        return free
    free[at] = 0
    return free if zero_copies and at == 0 and large[at] == LARGE_BATCH else None
