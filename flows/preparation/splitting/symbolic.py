"""Giving a model a symbolic batch dimension, or refusing it with the reason.

A fixed batch sits in the inputs' first dimension and in constants that Reshape takes as its target.
Both are rewritten here; whether the result really treats every sample alone is found by running it
(`observe.py`), because no rule about single nodes can promise that.
"""

import numpy as np
import onnx
from onnx import numpy_helper

from flows.preparation.splitting.graph import input_names
from triton_backend.contract.errors import InputError

BATCH = "batch"


def make_batch_symbolic(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return `model`, other sizes fixed, with dimension 0 of inputs and outputs symbolic.

    Raises:
        InputError: inputs disagree about the batch, or there is no input.
    """
    fixed = _fixed_batch(model.graph, where)
    if fixed is not None:
        model = _with_free_reshapes(model, fixed)
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and value.name in {
            *input_names(model.graph),
            *(o.name for o in model.graph.output),
        }:
            dims[0].Clear()
            dims[0].dim_param = BATCH
    del model.graph.value_info[:]
    return model


def _fixed_batch(graph: onnx.GraphProto, where: str) -> int | None:
    """The batch the inputs are fixed to; None where it is symbolic already."""
    names = set(input_names(graph))
    batches: dict[str, int | None] = {}
    for value in graph.input:
        if value.name not in names:
            continue
        first = value.type.tensor_type.shape.dim[0]
        batches[value.name] = first.dim_value if first.HasField("dim_value") else None
    if not batches:
        raise InputError(where, "the model has no input")
    if len(set(batches.values())) > 1:
        raise InputError(where, f"inputs disagree about the batch, dimension 0: {batches}")
    return next(iter(batches.values()))


def _with_free_reshapes(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Rewrite the fixed batch in the constant targets of Reshape nodes."""
    shapes = _static_shapes(model)
    constants = _integer_constants(model.graph)
    added: list[onnx.TensorProto] = []
    for i, node in enumerate(model.graph.node):
        if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx"):
            continue
        target = constants.get(node.input[1])
        if target is None or node.input[0] in constants or _zero_means_zero(node):
            continue
        free = _free_target(target, shapes.get(node.input[0]), batch)
        if free is None:
            continue
        name = f"{node.input[1]}__any_batch_{i}"
        added.append(numpy_helper.from_array(np.array(free, np.int64), name))
        node.input[1] = name
    model.graph.initializer.extend(added)
    return model


def _free_target(target: list[int], source: list[int] | None, batch: int) -> list[int] | None:
    """The Reshape target without the fixed batch; None where nothing has to change.

    0 copies the source's dimension 0, where that is the batch; -1 takes what is left, where the
    batch is folded with another dimension on one of the two sides.
    """
    if not target or target[0] <= 0:
        return None
    front = source[0] if source else batch
    if front == target[0] == batch:
        return [0, *target[1:]]
    folded = front % batch == 0 and target[0] % batch == 0 and batch > 1
    if -1 not in target and (batch in (front, target[0]) or folded):
        return [-1, *target[1:]]
    return None


def _zero_means_zero(node: onnx.NodeProto) -> bool:
    return any(a.name == "allowzero" and a.i == 1 for a in node.attribute)


def _integer_constants(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Small integer vectors by name: initialisers and Constant nodes."""
    tensors = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    return {
        name: [int(v) for v in numpy_helper.to_array(t).ravel()]
        for name, t in tensors.items()
        if t.data_type == onnx.TensorProto.INT64
        and len(t.dims) == 1
        and t.data_location != onnx.TensorProto.EXTERNAL
    }


def _static_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Shapes at the fixed batch, as far as shape inference finds them."""
    inferred = onnx.shape_inference.infer_shapes(model)
    values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    shapes: dict[str, list[int]] = {}
    for value in values:
        dims = value.type.tensor_type.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = [d.dim_value for d in dims]
    return shapes
