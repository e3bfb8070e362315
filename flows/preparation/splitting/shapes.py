"""Shapes computed at run time, made constant or local, so that they stand in the way of no cut.

Exporters write `x.view(x.size(0), -1)` as Shape, Gather, Concat and Reshape. Between the Shape and
the Reshape a tensor without a batch dimension is live, so nothing may be cut there. What derives
from shapes alone is a function of the batch: it is looked at for two batches, and a value that is
the same for both, or a Reshape target that grows with the batch in one place, becomes a constant.
Any other is computed again beside its reader, from the batch of a tensor that is read there anyway.
Whether the model still treats every sample alone is found afterwards, by running it (`observing`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from flows.preparation.splitting.graph import (
    CONTROL_FLOW,
    Layers,
    drop_unread,
    irregular_tensors,
    node_label,
    read_layers,
    reads,
)
from flows.preparation.splitting.inputs.values import ModelInputs
from flows.preparation.splitting.observing import LARGE_BATCH, SMALL_BATCH, run_batches

SOURCES = frozenset({"Shape", "Size"})
OLDEST_OPSET = 7  # from which on a number is multiplied into a vector without more ado


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
    layers = read_layers(model.graph)
    uses = list(_uses(layers))
    if not uses:
        return
    irregular = irregular_tensors(layers)
    reshaped = {use.node.output[0] for use in uses if _is_target(use)} - irregular
    names = sorted({use.name for use in uses} | reshaped)
    small, large = run_batches(path, where, names, inputs)
    left: list[Use] = []
    for i, use in enumerate(uses):
        node, slot, name = use
        value = large[name] if np.array_equal(small[name], large[name]) else None
        if value is None and _is_target(use) and node.output[0] in reshaped:
            value = _target(small[node.output[0]].shape, large[node.output[0]].shape)
        if value is None:
            left += [] if node.op_type in CONTROL_FLOW else [use]
            continue
        constant = numpy_helper.from_array(value, f"{name}__any_batch_{i}")
        model.graph.initializer.append(constant)
        node.input[slot] = constant.name
    opset = next(one.version for one in model.opset_import if one.domain in {"", "ai.onnx"})
    if left and opset >= OLDEST_OPSET:
        _compute_beside_readers(model.graph, left, _look(path, where, model.graph, inputs))
    drop_unread(model.graph)
    path.write_bytes(model.SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Tensors that derive from shapes alone, at two batches, and shapes of the tensors beside them.

    Attributes:
        derived: name to values.
        shapes: of other tensors; their sizes do not depend on values.
    """

    derived: Mapping[str, tuple[NDArray[np.generic], NDArray[np.generic]]]
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


def _look(path: Path, where: str, graph: onnx.GraphProto, inputs: ModelInputs) -> _Seen:
    layers = read_layers(graph)
    derived = derived_from_shapes(layers) - irregular_tensors(layers)
    shapes = {
        spec.name: ((SMALL_BATCH, *spec.shape[1:]), (LARGE_BATCH, *spec.shape[1:]))
        for spec in inputs.specs
    }
    beside = {
        name
        for use in _uses(layers)
        for name in reads(use.node)
        if name in layers.made_at and name not in derived and name not in shapes
    } - irregular_tensors(layers)
    small, large = run_batches(path, where, sorted(derived | beside), inputs)
    return _Seen(
        derived={name: (small[name], large[name]) for name in derived},
        shapes=shapes | {name: (small[name].shape, large[name].shape) for name in beside},
    )


def _compute_beside_readers(graph: onnx.GraphProto, uses: Sequence[Use], seen: _Seen) -> None:
    made_by = {name: node for node in graph.node for name in node.output}
    of_reader: dict[str, list[Use]] = {}
    for use in uses:
        of_reader.setdefault(use.node.output[0], []).append(use)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        found = of_reader.get(node.output[0], [])
        batch = _batch_of(node, seen)
        if found and batch is not None:
            copies = _Copies(graph, made_by, seen, f"__beside_{node.output[0]}", batch)
            for use in found:
                node.input[use.slot] = copies.of(use.name)
            nodes += copies.nodes
        nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


class _Batch(NamedTuple):
    """Dimension `axis` of `tensor` has `times` places for each sample."""

    tensor: str
    axis: int
    times: int


def _batch_of(node: onnx.NodeProto, seen: _Seen) -> _Batch | None:
    for name in reads(node):
        for axis, (few, many) in enumerate(zip(*seen.shapes.get(name, ((), ())), strict=False)):
            if few and few * LARGE_BATCH == many * SMALL_BATCH:
                return _Batch(name, axis, few // SMALL_BATCH)
    return None


class _Copies:
    """Nodes that compute derived tensors again for one reader, in order."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        made_by: Mapping[str, onnx.NodeProto],
        seen: _Seen,
        tag: str,
        batch: _Batch,
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._graph, self._made_by, self._seen, self._tag = graph, made_by, seen, tag
        self._named: dict[str, str] = {}
        # Names of copies end with the tag; these do not.
        shape = self._add("Shape", f"{tag}.shape", batch.tensor)
        axis = self._constant(f"{tag}.axis", batch.axis)
        places = self._add("Gather", f"{tag}.places", shape, axis)
        times = self._constant(f"{tag}.times", batch.times)
        self._batch = self._add("Div", f"{tag}.batch", places, times)

    def of(self, name: str) -> str:
        """The copy of a derived tensor; any other tensor itself."""
        if name in self._named or name not in self._seen.derived:
            return self._named.get(name, name)
        made, (few, many) = self._made_by[name], self._seen.derived[name]
        if np.array_equal(few, many):
            self._named[name] = self._constant(f"{name}{self._tag}", few)
        elif made.op_type in SOURCES:
            self._named[name] = self._shape(name, few.astype(np.int64), many.astype(np.int64))
        else:
            read = [self.of(one) if one else "" for one in made.input]
            copy = onnx.NodeProto.FromString(made.SerializeToString())
            copy.name = f"{node_label(made)}{self._tag}"
            copy.input[:] = read
            copy.output[:] = [f"{one}{self._tag}" if one else "" for one in made.output]
            self.nodes.append(copy)
            self._named |= dict(zip(made.output, copy.output, strict=True))
        return self._named[name]

    def _shape(self, name: str, few: NDArray[np.int64], many: NDArray[np.int64]) -> str:
        """A shape is so much of every sample, and so much of none."""
        step = (many - few) // (LARGE_BATCH - SMALL_BATCH)
        made = f"{name}{self._tag}"
        of_each = self._constant(f"{made}.of_each", step)
        grown = self._add("Mul", f"{made}.grown", self._batch, of_each)
        rest = self._constant(f"{made}.of_none", few - SMALL_BATCH * step)
        return self._add("Add", made, grown, rest)

    def _constant(self, name: str, value: Any) -> str:
        made = numpy_helper.from_array(np.asarray(value), name)
        self._graph.initializer.append(made)
        return made.name

    def _add(self, kind: str, name: str, *read: str) -> str:
        self.nodes.append(helper.make_node(kind, read, [name], name=name))
        return name


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


def _is_target(use: Use) -> bool:
    return use.slot == 1 and use.node.op_type == "Reshape"


def _target(small: tuple[int, ...], large: tuple[int, ...]) -> NDArray[np.int64] | None:
    """The target of a Reshape for any batch, from its results' shapes at two; None without one."""
    grows = [at for at, (few, many) in enumerate(zip(small, large, strict=False)) if few != many]
    if len(grows) != 1 or len(small) != len(large) or 0 in large:
        return None
    (at,) = grows
    if small[at] * LARGE_BATCH != large[at] * SMALL_BATCH:
        return None
    return np.array([*large[:at], -1, *large[at + 1 :]], np.int64)
