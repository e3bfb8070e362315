"""Opening a model file, and refusing what cannot be split with one clear reason."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, inliner

from flows.files import check_is_file
from flows.preparation.splitting.graph import sort_nodes, subgraphs
from flows.preparation.splitting.inputs.states import refuse_state
from triton_backend.contract.errors import InputError

RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
# Below this IR version a file must list its initialisers as inputs; none is written that way here.
OLDEST_IR_WRITTEN = 8
INLINE_UP_TO_BYTES = 1 << 30  # protobuf ends at 2 GiB
DATA_SUFFIX = ".data"


def load_skeleton(path: Path) -> onnx.ModelProto:
    """Load a model without its external data and check that it can be split at all.

    Local functions are inlined and initialisers are taken off the list of inputs.

    Raises:
        InputError: no such file, not ONNX, no layers, optional values, random operators, state,
            weights in a file that is not there.
    """
    where = str(path)
    check_is_file(path)
    try:
        # Whatever the name ends with: onnx would read `.json` or `.txt` as a text of its own.
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise InputError(where, "is not an ONNX file") from error
    if not model.ir_version or not model.opset_import:
        raise InputError(where, "is not an ONNX file (no IR version or operator set in it)")
    if not model.graph.node:
        raise InputError(where, "the model has no layers (zero nodes)")
    if model.functions:
        model = inliner.inline_local_functions(model)
    _refuse_unsupported(model, where)
    refuse_state(model.graph, where)
    _refuse_lost_weights(model, path)
    sorted_here = sort_nodes(model.graph)
    try:
        onnx.checker.check_model(model if sorted_here else where)
    except (onnx.checker.ValidationError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(where, f"is not a valid ONNX model: {reason}") from error
    constants = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, OLDEST_IR_WRITTEN)
    return model


def load_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Read the data a skeleton refers to, from the folder of its file.

    Raises:
        InputError: a data file is missing or too short.
    """
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise InputError(str(path), f"its external data cannot be read: {error}") from error
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")  # inline data has no location, as in an inline file


def save_model(
    model: onnx.ModelProto, path: Path, *, inline_up_to_bytes: int = INLINE_UP_TO_BYTES
) -> None:
    """Write a model; its weights go to `<path>.data` where they are larger than stated.

    The same model gives the same bytes.
    """
    if weight_bytes(model.graph) > inline_up_to_bytes:
        onnx.save(
            model,
            path,
            save_as_external_data=True,
            location=path.name + DATA_SUFFIX,
            size_threshold=1024,
        )
        return
    path.write_bytes(model.SerializeToString(deterministic=True))


def weight_bytes(graph: onnx.GraphProto) -> int:
    """Bytes of all initialisers."""
    return sum(tensor_bytes(t) for t in graph.initializer)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of one initialiser, from its shape and type."""
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _refuse_lost_weights(model: onnx.ModelProto, path: Path) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and not (path.parent / entry.value).exists():
                reason = f"its weights are in {entry.value!r}, which is not in its folder"
                raise InputError(str(path), f"{reason}: copy it there")


def _refuse_unsupported(model: onnx.ModelProto, where: str) -> None:
    for node in _nodes(model.graph):
        place = f"{where}, node {node.name or '(unnamed)'!r}"
        if node.op_type.startswith("Optional"):
            raise InputError(place, f"{node.op_type} makes values that are not tensors")
        if node.op_type in RANDOM:
            raise InputError(place, f"{node.op_type} gives another answer on every run")
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            raise InputError(f"{where}, {value.name!r}", "is not a tensor; only tensors are served")


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)
