"""A recogniser of lines that is given how far a line is padded: one width stands for all widths.

A line is padded at its right, and what a recogniser reads hangs on how far: a convolution sees the
end, squeeze-and-excitation the mean of all columns, attention every column. The OCR package pads to
a width of its own for every six lines; a served model has one width. So the graph gets a second
input, `padded`, the width to which a line would have been padded, and computes what it would
there: columns beyond are zero where a convolution reads them and outside means and attention.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PADDED = "padded"
_FAR_BELOW = 1e9  # any score of attention


class _Scale(NamedTuple):
    """Lines at one stride of the graph.

    Attributes:
        wide: tensor [batch, 1, 1, 1], how many columns of each line are its own.
        columns: how many there are.
        own: tensor [batch, 1, 1, columns], 1 for a line's own and 0 beyond.
    """

    wide: str
    columns: int
    own: str


def take_padding(graph: onnx.GraphProto, width: int) -> str:
    """Fix the width of a graph's input [batch, channels, height, width] and let `padded` say less.

    Attributes of its layers are as in files of operator sets before 13.

    Returns:
        the name of a tensor [batch, steps] (FP32): 1 where a step of the output is one of the
        padded line's, 0 beyond it.
    """
    line = graph.input[0]
    line.type.tensor_type.shape.dim[3].dim_value = width
    batch = line.type.tensor_type.shape.dim[0].dim_param
    graph.input.append(helper.make_tensor_value_info(PADDED, TensorProto.INT64, [batch]))
    layers = list(graph.node)
    del graph.node[:]
    number = _add(graph, "Cast", f"{PADDED}.number", PADDED, to=TensorProto.FLOAT)
    shape = _constant(graph, f"{PADDED}.shape", [-1, 1, 1, 1], np.int64)
    scales = [_scale(graph, _add(graph, "Reshape", f"{PADDED}.0", number, shape), width)]
    scale_of = {line.name: 0}
    for node in layers:
        at = max((scale_of.get(name, -1) for name in node.input), default=-1)
        if at < 0:
            graph.node.append(node)
            continue
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        made = list(node.output)
        if node.op_type == "GlobalAveragePool":
            _add_mean(graph, node, scales[at])
        else:
            if given.get("kernel_shape", (1, 1))[1] > 1:
                _read_own(graph, node, scales[at])
            elif node.op_type == "Softmax" and node is not layers[-1]:
                _attend_own(graph, node, scales[at])
            graph.node.append(node)
        if given.get("strides", (1, 1))[1] > 1:
            scales.append(_coarser(graph, scales[at], given))
            at += 1
        scale_of |= dict.fromkeys(made, at)
    return _add(graph, "Squeeze", f"{PADDED}.steps", scales[-1].own, axes=[1, 2])


def _constant(
    graph: onnx.GraphProto, name: str, value: Any, kind: type[np.generic] = np.float32
) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value, kind), name))
    return name


def _add(graph: onnx.GraphProto, kind: str, name: str, *reads: str, **attributes: Any) -> str:
    """One more node, at the end; its result has its name."""
    graph.node.append(helper.make_node(kind, list(reads), [name], name=name, **attributes))
    return name


def _scale(graph: onnx.GraphProto, wide: str, columns: int) -> _Scale:
    """A width that cannot be is brought to the nearest that can."""
    least = _constant(graph, f"{wide}.least", 1)
    most = _constant(graph, f"{wide}.most", columns)
    within = _add(graph, "Clip", f"{wide}.within", wide, least, most)
    places = _constant(graph, f"{wide}.places", np.arange(columns).reshape(1, 1, 1, -1))
    inside = _add(graph, "Less", f"{wide}.inside", places, within)
    own = _add(graph, "Cast", f"{wide}.own", inside, to=TensorProto.FLOAT)
    return _Scale(within, columns, own)


def _coarser(graph: onnx.GraphProto, scale: _Scale, given: dict[str, Any]) -> _Scale:
    """Behind a layer with a stride: as many columns as it makes of a line's own."""
    step, pads = given["strides"][1], given.get("pads", (0, 0, 0, 0))
    more = pads[1] + pads[3] - given["kernel_shape"][1] + step
    name = f"{scale.wide}.next"
    longer = _add(
        graph, "Add", f"{name}.longer", scale.wide, _constant(graph, f"{name}.more", more)
    )
    parts = _add(graph, "Div", f"{name}.parts", longer, _constant(graph, f"{name}.step", step))
    return _scale(graph, _add(graph, "Floor", name, parts), (scale.columns + more) // step)


def _read_own(graph: onnx.GraphProto, node: onnx.NodeProto, scale: _Scale) -> None:
    node.input[0] = _add(graph, "Mul", f"{node.output[0]}.own", node.input[0], scale.own)


def _add_mean(graph: onnx.GraphProto, node: onnx.NodeProto, scale: _Scale) -> None:
    """The mean over a line's own columns: that over all, times how many all are of them."""
    name = node.output[0]
    _read_own(graph, node, scale)
    node.output[0] = f"{name}.of_all"
    graph.node.append(node)
    columns = _constant(graph, f"{name}.columns", scale.columns)
    _add(
        graph, "Mul", name, node.output[0], _add(graph, "Div", f"{name}.times", columns, scale.wide)
    )


def _attend_own(graph: onnx.GraphProto, node: onnx.NodeProto, scale: _Scale) -> None:
    name = node.output[0]
    less = _add(graph, "Sub", f"{name}.less", scale.own, _constant(graph, f"{name}.one", 1))
    kept = _add(graph, "Mul", f"{name}.kept", less, _constant(graph, f"{name}.far", _FAR_BELOW))
    node.input[0] = _add(graph, "Add", f"{name}.own", node.input[0], kept)
