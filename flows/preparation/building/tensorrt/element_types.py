"""Element types inside an ONNX graph: which tensors have which, and nodes that name or hold one."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from triton_backend.contract.errors import InputError

# Weights up to this size may be shapes or axes, which inference reads.
SMALL_BYTES = 1 << 16


def tensors_of_type(model: onnx.ModelProto, kind: int) -> frozenset[str]:
    """Names of all tensors of one element type.

    Raises:
        InputError: the type of a tensor that a node reads cannot be inferred.
    """
    graph = shape_inference.infer_shapes(_skeleton(model)).graph
    known = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input if name}
    if unknown := sorted(read - {name for name, found in known.items() if found}):
        raise InputError(
            f"graph {graph.name!r}", f"ONNX cannot tell the type of tensor {unknown[0]!r}"
        )
    return frozenset(name for name, found in known.items() if found == kind)


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its large weights, whose values do not decide any type."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    for tensor in small.graph.initializer:
        if len(tensor.raw_data) > SMALL_BYTES:
            tensor.raw_data = b""
    return small


def retype(node: onnx.NodeProto, *, source: int, target: int) -> None:
    """Let attributes that name or hold one float type name or hold another."""
    wanted = helper.tensor_dtype_to_np_dtype(target)
    for attribute in node.attribute:
        names_type = node.op_type == "Cast" and attribute.name == "to"
        if (names_type or attribute.name == "dtype") and attribute.i == source:
            attribute.i = target
        elif attribute.name == "value" and attribute.t.data_type == source:
            values = numpy_helper.to_array(attribute.t).astype(wanted)
            attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
        elif node.op_type == "Constant" and attribute.name in {"value_float", "value_floats"}:
            given = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.asarray(given, wanted))
            attribute.CopyFrom(helper.make_attribute("value", tensor))
