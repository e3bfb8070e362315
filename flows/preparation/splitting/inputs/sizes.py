"""Open sizes of a model's inputs, fixed in the graph to those that are given.

Exporters leave height, width or length open. Blocks, slots and profiles need them, so that a model
is split for one size, or once for each of several. Only dimension 0, the batch, stays open. Here:
checking sizes before memory is taken, writing them into the graph. Not here: the texts that state
sizes (`flows.input_shapes`), the batch (`symbolic`).
"""

import math
import re
from collections.abc import Mapping, Sequence

import onnx
import psutil

from flows.input_shapes import OPTION
from flows.preparation.splitting.graph import KSERVE_DTYPES, input_names
from triton_backend.contract.errors import InputError

Shapes = Mapping[str, Sequence[int]]
# A request of one sample; a picture of 4096 x 4096 in FP32 takes 192 MiB.
MOST_BYTES = 1 << 28
NAMED = re.compile(r"[A-Za-z]\w*")
PICTURE_RANK = 4
PICTURE_SIZE = re.compile(r"\[\s*([1-9]\d{0,5})\s*,\s*([1-9]\d{0,5})\s*\]")
# As many as `observing` looks at with every inner tensor.
COMPARED_SAMPLES = 3


def open_inputs(model: onnx.ModelProto) -> set[str]:
    """Names of the inputs with an open size beside the batch."""
    return {name for name, value in _inputs(model.graph).items() if _open(value)}


def fix_sizes(model: onnx.ModelProto, shapes: Shapes, where: str) -> None:
    """Write sizes into the inputs of `model`; inner shapes and outputs are inferred again.

    A dimension with a name is fixed wherever inputs have that name.

    Args:
        model: the model, its weights loaded or not.
        shapes: input name to its sizes without the batch; inputs without open sizes may be left
            out.
        where: what to call the model.

    Raises:
        InputError: an input of another name or rank, another size than the file's, a shape that
            holds no element or too many; or sizes stay open: the message lists them all.
    """
    inputs = _inputs(model.graph)
    for value in inputs.values():
        _require_batch(value, where)
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        listed = "; ".join(_in_words(value) for value in inputs.values())
        raise InputError(where, f"has no input {unknown[0]!r}; its inputs: {listed}")
    named: dict[str, int] = {}
    fixed = False
    for name, sizes in shapes.items():
        fixed |= _fix(inputs[name], sizes, named, where)
    for dim in [dim for value in inputs.values() for dim in _dims(value)[1:]]:
        if not dim.HasField("dim_value") and dim.dim_param in named:
            dim.dim_value = named[dim.dim_param]
    if any(_open(value) for value in inputs.values()):
        raise InputError(where, _advice(model, inputs))
    for value in inputs.values():
        _check_bytes(value, where)
    if fixed:
        _infer_again(model, where)


def _require_batch(value: onnx.ValueInfoProto, where: str) -> None:
    """Refuse an input without dimensions; sizes below 0, as old exporters write them, are open."""
    if not value.type.tensor_type.HasField("shape") or not _dims(value):
        place = f"{where}, input {value.name!r}"
        raise InputError(
            place,
            "has no batch dimension (a scalar or an unknown shape); make a value that never "
            "changes an initializer of the model",
        )
    for dim in _dims(value):
        if dim.HasField("dim_value") and dim.dim_value < 0:
            dim.Clear()


def _fix(
    value: onnx.ValueInfoProto, sizes: Sequence[int], named: dict[str, int], where: str
) -> bool:
    """Fix the sizes of one input; whether any was open."""
    place, dims = f"{where}, input {value.name!r}", _dims(value)[1:]
    given = "x".join(map(str, sizes))
    if len(sizes) != len(dims):
        asked = f"{_in_words(value)} takes {len(dims)} sizes beside the batch, not {given}"
        raise InputError(place, asked)
    fixed = False
    for i, (dim, size) in enumerate(zip(dims, sizes, strict=True), start=1):
        if dim.HasField("dim_value"):
            if dim.dim_value != size:
                raise InputError(place, f"dimension {i} is {dim.dim_value} in the file, not {size}")
            continue
        label = dim.dim_param
        if NAMED.fullmatch(label) and named.setdefault(label, size) != size:
            raise InputError(place, f"{label!r} is {named[label]} elsewhere, and {size} here")
        dim.dim_value = size
        fixed = True
    return fixed


def _check_bytes(value: onnx.ValueInfoProto, where: str) -> None:
    dims = [dim.dim_value for dim in _dims(value)]
    place = f"{where}, input {value.name!r}"
    if any(size < 1 for size in dims[1:]) or (
        _dims(value)[0].HasField("dim_value") and not dims[0]
    ):
        raise InputError(place, f"shape {dims} holds no element")
    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    needed = math.prod(dims[1:]) * kind.itemsize
    if needed > MOST_BYTES:
        most = f"at most {MOST_BYTES >> 20} MiB are taken"
        raise InputError(place, f"a sample of {dims[1:]} has {needed >> 20} MiB; {most}")


def _infer_again(model: onnx.ModelProto, where: str) -> None:
    """Forget the shapes that held for open sizes, and infer those of the sizes fixed.

    Raises:
        InputError: layers do not fit, and sizes are no multiples of what the graph asks for.
    """
    del model.graph.value_info[:]
    for dim in [dim for output in model.graph.output for dim in _dims(output)]:
        if dim.dim_value < 1:
            dim.Clear()
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        multiple = _multiple(model.graph)
        sizes = [d.dim_value for v in _inputs(model.graph).values() for d in _dims(v)[2:]]
        if any(size % multiple for size in sizes):
            layer = str(error).splitlines()[0].rpartition("Inference error(s): ")[2]
            reason = f"height and width must be multiples of {multiple}: {layer}"
            raise InputError(f"{where}, {OPTION}", reason) from error
        inferred = onnx.shape_inference.infer_shapes(model)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    model.graph.value_info.extend(inferred.graph.value_info)
    _check_memory(inferred.graph, where)


def _check_memory(graph: onnx.GraphProto, where: str) -> None:
    """Refuse sizes at which the inner tensors of the samples compared do not fit the memory."""
    needed = 0
    for value in graph.value_info:
        kind = value.type.tensor_type.elem_type
        if kind in KSERVE_DTYPES:
            counts = [max(dim.dim_value, 1) for dim in _dims(value)]
            itemsize = onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
            needed += COMPARED_SAMPLES * math.prod(counts) * itemsize
    free = psutil.virtual_memory().available
    if needed > free:
        said = f"inner tensors of {COMPARED_SAMPLES} samples take {needed >> 20} MiB"
        raise InputError(f"{where}, {OPTION}", f"{said}; {free >> 20} MiB are free here")


def _advice(model: onnx.ModelProto, inputs: Mapping[str, onnx.ValueInfoProto]) -> str:
    """Open sizes of every input, the options to give, and what the file suggests, in one line."""
    opened = {name: value for name, value in inputs.items() if _open(value)}
    listed = "; ".join(_in_words(value) for value in opened.values())
    size = _picture_size(model)
    options: list[str] = []
    hints: list[str] = []
    known = True
    for name, value in opened.items():
        dims = _dims(value)
        sizes = [str(d.dim_value) if d.HasField("dim_value") else "SIZE" for d in dims[1:]]
        if len(dims) == PICTURE_RANK and size is not None and sizes[-2:] == ["SIZE", "SIZE"]:
            sizes[-2:] = map(str, size)
        known = known and "SIZE" not in sizes
        if dims[0].dim_value > 1:
            hints.append(f"the batch is the first dimension; transpose {name} where it is another")
        options.append(f"{OPTION} {name}={'x'.join(sizes)}")
    multiple = _multiple(model.graph)
    if known:
        hints.append("these sizes are in the file's metadata")
    if multiple > 1:
        hints.append(f"height and width: multiples of {multiple}")
    said = f" ({', '.join(hints)})" if hints else ""
    return f"open sizes in {listed}; give {' '.join(options)}{said}"


def _picture_size(model: onnx.ModelProto) -> tuple[int, int] | None:
    """Height and width that a trainer left in the file's metadata."""
    text = next((entry.value for entry in model.metadata_props if entry.key == "imgsz"), "")
    found = PICTURE_SIZE.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def _multiple(graph: onnx.GraphProto) -> int:
    """Product of strides on the longest way where ways of several strides meet again; else 1.

    Layers that enlarge (Resize, Upsample, ConvTranspose) give a size that must be that of the
    tensor they are joined with.
    """
    if not any(n.op_type in {"Resize", "Upsample", "ConvTranspose"} for n in graph.node):
        return 1
    stride = dict.fromkeys(input_names(graph), 1)
    deepest = 1
    for node in graph.node:
        before = max((stride.get(name, 0) for name in node.input), default=0)
        if not before:
            continue
        own = next((max(a.ints) for a in node.attribute if a.name == "strides" and a.ints), 1)
        shrinks = node.op_type in {"Conv", "MaxPool", "AveragePool"}
        enlarges = node.op_type in {"Resize", "Upsample", "ConvTranspose"}
        after = before * own if shrinks else 1 if enlarges else before
        deepest = max(deepest, after)
        stride |= dict.fromkeys(node.output, after)
    return deepest


def _in_words(value: onnx.ValueInfoProto) -> str:
    """`x [batch, 3, height, ?]`."""
    dims = [
        str(d.dim_value) if d.HasField("dim_value") else _label(d.dim_param) if i else "batch"
        for i, d in enumerate(_dims(value))
    ]
    return f"{value.name} [{', '.join(dims)}]"


def _label(param: str) -> str:
    return param if NAMED.fullmatch(param) else "?"


def _open(value: onnx.ValueInfoProto) -> bool:
    return any(not dim.HasField("dim_value") for dim in _dims(value)[1:])


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _inputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    names = set(input_names(graph))
    return {value.name: value for value in graph.input if value.name in names}
