"""Stages of old opsets, converted to the least one that TensorRT's parser reads.

onnxruntime runs opsets from 6 on, TensorRT's parser reads them from 9 on. Here: the conversion, by
onnx's own converter, and the check that a converted stage answers as the original does. Not here:
which stages are built (`engines.py`).
"""

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import helper, version_converter

from flows.preparation.building.tensorrt.precision_loss import stage_inputs
from flows.preparation.splitting.checking import tolerance
from flows.preparation.splitting.running import (
    first_line,
    open_session,
    relative_error,
    run_session,
)
from triton_backend.contract.errors import InputError

LEAST_OPSET = 9
BATCHES = (2, 3)  # at which the answers are compared: a batch frozen at one of them differs


def opset_of(path: Path) -> int:
    """The version of ONNX's own operators that a file uses."""
    model = onnx.load(path, load_external_data=False)
    return next((one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}), 1)


def readable_stages(stages: Sequence[Path], folder: Path) -> list[Path]:
    """Stages as TensorRT's parser reads them: those of old opsets converted, into `folder`.

    Args:
        stages: ONNX files.
        folder: where the converted files go, named after the originals.

    Raises:
        InputError: one cannot be converted, with the operator, or answers otherwise then.
    """
    return [
        _converted(stage, folder / f"{stage.stem}.opset{LEAST_OPSET}.onnx")
        if opset_of(stage) < LEAST_OPSET
        else stage
        for stage in stages
    ]


def _converted(source: Path, target: Path) -> Path:
    """A stage converted and compared, in `target`."""
    model = onnx.load(source)
    where = f"{source}, opset {opset_of(source)}"
    try:
        converted = version_converter.convert_version(_with_sizes(model), LEAST_OPSET)
    except Exception as error:  # the converter's own errors share no public base class
        raise InputError(where, _reason(model, error)) from error
    for kind in ("input", "output"):
        edges = {edge.name: edge for edge in getattr(model.graph, kind)}
        for edge in getattr(converted.graph, kind):
            edge.CopyFrom(edges[edge.name])
    del converted.graph.value_info[:]
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(converted, target)
    _compare(source, target, where)
    return target


def _with_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with every open size a number, without which broadcasts are not converted."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    for edge in (*fixed.graph.input, *fixed.graph.output):
        for dim in edge.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = BATCHES[0]
    return fixed


def _reason(model: onnx.ModelProto, error: Exception) -> str:
    """The operator that cannot be converted, which is the first that cannot be by itself."""
    typed = onnx.shape_inference.infer_shapes(_with_sizes(model)).graph
    known = {edge.name: edge for edge in (*typed.value_info, *typed.input, *typed.output)}
    weights = {weight.name: weight for weight in typed.initializer}
    blamed = "an operator"
    for node in typed.node:
        given, made = (
            [known[name] for name in names if name in known and name not in weights]
            for names in (node.input, node.output)
        )
        own = [weights[name] for name in node.input if name in weights]
        alone = helper.make_model(
            helper.make_graph([node], "one", given, made, own),
            opset_imports=model.opset_import,
            ir_version=max(model.ir_version, 4),  # weights are no inputs
        )
        try:
            version_converter.convert_version(alone, LEAST_OPSET)
        except Exception:  # noqa: BLE001  # as above
            blamed = f"operator {node.op_type}" + (f" ({node.name!r})" if node.name else "")
            break
    return (
        f"{blamed} cannot be converted to opset {LEAST_OPSET}, the least that TensorRT reads"
        f" ({first_line(error)}); export the model with that or a later one"
    )


def _compare(source: Path, target: Path, where: str) -> None:
    """Compare the answers of a converted stage with those of the original.

    Raises:
        InputError: one differs by more than its type explains.
    """
    before, after = open_session(source, where), open_session(target, where)
    for batch in BATCHES:
        feed = stage_inputs(source, batch)
        expected, got = run_session(before, feed), run_session(after, feed)
        for name, array in expected.items():
            error = relative_error(got[name], array)
            if not error <= tolerance(array.dtype):
                reason = f"output {name!r} differs by {error:.1e} after conversion to opset"
                raise InputError(where, f"{reason} {LEAST_OPSET}; export the model with that")
