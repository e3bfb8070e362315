"""Tensors at the edges of a stage's ONNX file, and the file's hash.

Here: tensor specifications with symbolic sizes fixed by option or refused, and a content hash that
spans weights kept in files beside the model. Not here: anything of TensorRT.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec

DTYPES: Mapping[int, str] = {
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.FLOAT: "FP32",
}
FLOATS: Mapping[int, str] = {
    onnx.TensorProto.FLOAT: "fp32",
    onnx.TensorProto.FLOAT16: "fp16",
    onnx.TensorProto.BFLOAT16: "bf16",
}
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSketch:
    """An output as the file declares it; a size that the file leaves open is None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdges:
    """Inputs in full, outputs as far as the file knows them, float types of the weights.

    `forwarded` names tensors that the stage hands on untouched; the engine does not see them.
    `unused` names those of them that no node reads.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[OutputSketch, ...]
    precision: str
    forwarded: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def engine_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that the engine takes."""
        return tuple(spec for spec in self.inputs if spec.name not in self.unused)

    @property
    def engine_outputs(self) -> tuple[OutputSketch, ...]:
        """Outputs that the engine computes."""
        return tuple(sketch for sketch in self.outputs if sketch.name not in self.forwarded)


def read_edges(path: Path, dimensions: Mapping[str, int]) -> StageEdges:
    """Read a stage's edges without reading weights that lie in other files.

    Args:
        path: the stage's ONNX file.
        dimensions: sizes for symbolic dimensions other than the batch, by symbol.

    Raises:
        InputError: not an ONNX file, a type TensorRT cannot take, a frozen batch dimension, or a
            symbolic dimension that `dimensions` does not fix.
    """
    model = _load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(
        _input_spec(path, value, dimensions)
        for value in model.graph.input
        if value.name not in constants
    )
    outputs = tuple(_output_sketch(path, value, dimensions) for value in model.graph.output)
    given, read = {spec.name for spec in inputs}, {n for x in model.graph.node for n in x.input}
    forwarded = tuple(sketch.name for sketch in outputs if sketch.name in given)
    return StageEdges(
        inputs=inputs,
        outputs=outputs,
        precision=_precision(model),
        forwarded=forwarded,
        unused=tuple(name for name in forwarded if name not in read),
    )


def without_forwarded(path: Path, edges: StageEdges) -> bytes:
    """The stage as the engine sees it; weights in other files stay there.

    Raises:
        InputError: the stage computes nothing.
    """
    model = _load(path)
    outputs = [x for x in model.graph.output if x.name not in edges.forwarded]
    inputs = [x for x in model.graph.input if x.name not in edges.unused]
    if not outputs:
        raise InputError(str(path), "computes nothing: every output is an input")
    del model.graph.output[:], model.graph.input[:]
    model.graph.output.extend(outputs)
    model.graph.input.extend(inputs)
    return model.SerializeToString()


def stage_hash(path: Path) -> str:
    """SHA-256 of a stage: its file and every file of weights beside it, in order of name.

    Raises:
        InputError: a file of weights is missing.
    """
    digest = hashlib.sha256()
    others = sorted({path.parent / name for name in _weight_files(_load(path))})
    for file in (path, *others):
        try:
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise InputError(str(path), f"weights cannot be read: {error}") from error
    return digest.hexdigest()


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors share no base with OSError
        raise InputError(str(path), f"not an ONNX model: {error}") from error


def _weight_files(model: onnx.ModelProto) -> Iterable[str]:
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            yield ExternalDataInfo(tensor).location


def _input_spec(path: Path, value: onnx.ValueInfoProto, fixed: Mapping[str, int]) -> TensorSpec:
    where = f"{path}: input {value.name!r}"
    shape = _declared_shape(value, fixed)
    if not shape or shape[0] is not None:
        raise InputError(where, "dimension 0 must be the batch, and symbolic")
    for axis, size in enumerate(shape[1:], start=1):
        if size is None:
            symbol = value.type.tensor_type.shape.dim[axis].dim_param or "?"
            raise InputError(
                where,
                f"dimension {axis} ({symbol!r}) is dynamic; "
                f"fix it: dimensions={{{symbol!r}: size}}",
            )
    sizes = tuple(-1 if size is None else size for size in shape)
    return TensorSpec(name=value.name, dtype=_dtype(where, value), shape=sizes)


def _output_sketch(
    path: Path, value: onnx.ValueInfoProto, fixed: Mapping[str, int]
) -> OutputSketch:
    where = f"{path}: output {value.name!r}"
    return OutputSketch(
        name=value.name, dtype=_dtype(where, value), shape=_declared_shape(value, fixed)
    )


def _declared_shape(value: onnx.ValueInfoProto, fixed: Mapping[str, int]) -> tuple[int | None, ...]:
    sizes = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        for dim in value.type.tensor_type.shape.dim
    ]
    symbols = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
    later = [fixed.get(s) if size is None else size for size, s in zip(sizes, symbols, strict=True)]
    return (*sizes[:1], *later[1:])


def _dtype(where: str, value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    if kind not in DTYPES:
        name = onnx.TensorProto.DataType.Name(kind) if kind else "a tensor without a type"
        raise InputError(where, f"TensorRT cannot take {name}")
    return DTYPES[kind]


def _precision(model: onnx.ModelProto) -> str:
    """Float types of weights and inputs: `fp32`, `fp16`, `bf16`, several joined by `+`."""
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in model.graph.input}
    return "+".join(sorted(FLOATS[kind] for kind in kinds if kind in FLOATS)) or "integer"
