"""The loss of a model by half precision: its outputs in fp16 against fp32.

Here: running both forms of a chain of stages and comparing their last outputs.
Not here: the conversion (`half.py`).
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.building.tensorrt.element_types import retype, tensors_of_type
from triton_backend.contract.errors import InputError

SEED = 20250702
ERRORS_ONLY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLoss:
    """How the outputs of a converted model differ from the original's.

    Attributes:
        samples: how many samples were compared.
        max_absolute: largest difference of one value.
        max_relative: the same over the largest value of its output tensor.
        same_top1: fraction of samples whose largest value stays at its place, over all outputs.
        clipped_weights: weights beyond fp16's range, set to its edge.
        computed_by: what ran both; fp16 on a CPU rounds between operators, not inside them.
    """

    samples: int
    max_absolute: float
    max_relative: float
    same_top1: float
    clipped_weights: int
    computed_by: str

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for an artifact's options and reports."""
        return asdict(self)


def measure_loss(
    stages: Sequence[Path], converted: Sequence[Path], *, samples: int, clipped_weights: int
) -> PrecisionLoss:
    """Run both chains on the same random samples and compare the outputs of the last stages.

    Raises:
        InputError: an output that was finite is not finite any more.
    """
    inputs = stage_inputs(stages[0], samples)
    expected = _run_chain([onnx.load(path) for path in stages], inputs)
    found = _run_chain([rounding_twin(onnx.load(path)) for path in converted], inputs)
    absolute = relative = 0.0
    same = total = 0
    for name in expected:
        reference, got = expected[name].astype(np.float64), found[name].astype(np.float64)
        if np.all(np.isfinite(reference)) and not np.all(np.isfinite(got)):
            raise InputError(
                str(converted[-1]), f"output {name!r} leaves fp16's range: keep this model in fp32"
            )
        largest = float(np.max(np.abs(got - reference), initial=0.0))
        absolute = max(absolute, largest)
        relative = max(relative, largest / max(float(np.max(np.abs(reference))), 1e-30))
        flat = reference.reshape(samples, -1), got.reshape(samples, -1)
        same += int(np.count_nonzero(flat[0].argmax(axis=1) == flat[1].argmax(axis=1)))
        total += samples
    return PrecisionLoss(
        samples=samples,
        max_absolute=absolute,
        max_relative=relative,
        same_top1=same / total,
        clipped_weights=clipped_weights,
        computed_by=f"onnxruntime {onnxruntime.__version__}, fp32 rounded to fp16 between "
        "operators",
    )


def stage_inputs(path: Path, samples: int) -> dict[str, NDArray[Any]]:
    """Inputs of a stage: standard normal floats and small integers, from a fixed seed."""
    rng = np.random.default_rng(SEED)
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    made: dict[str, NDArray[Any]] = {}
    for value in graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = (samples, *(max(dim.dim_value, 1) for dim in kind.shape.dim[1:]))
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        floats = np.issubdtype(dtype, np.floating)
        values = rng.standard_normal(shape) if floats else rng.integers(0, 2, shape)
        made[value.name] = values.astype(dtype)
    return made


def _run_chain(
    stages: Sequence[onnx.ModelProto], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Outputs of the last stage; every tensor made so far is at hand for later stages."""
    at_hand = dict(inputs)
    names: list[str] = []
    for stage in stages:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        with tempfile.TemporaryDirectory() as folder:  # a model above 2 GB has no other way in
            path = Path(folder) / "stage.onnx"
            onnx.save_model(stage, path, save_as_external_data=True)
            session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        names = [output.name for output in session.get_outputs()]
        feed = {given.name: at_hand[given.name] for given in session.get_inputs()}
        made: list[Any] = list(session.run(names, feed))
        at_hand |= dict(zip(names, made, strict=True))
    return {name: at_hand[name] for name in names}


def rounding_twin(model: onnx.ModelProto) -> onnx.ModelProto:
    """An fp16 model as a GPU computes it: operators in fp32, every fp16 result rounded.

    onnxruntime's CPU has few fp16 kernels and, left to itself, carries values between fp16
    operators in fp32, which hides the loss. Pairs of casts written into the graph stay.
    """
    graph = model.graph
    halves = tensors_of_type(model, TensorProto.FLOAT16)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        rounded = [name for name in node.output if name in halves]
        names = [f"{name}__exact" if name in halves else name for name in node.output]
        del node.output[:]
        node.output.extend(names)
        retype(node, source=TensorProto.FLOAT16, target=TensorProto.FLOAT)
        nodes.append(node)
        for name in rounded:
            nodes.append(_cast(f"{name}__exact", f"{name}__half", TensorProto.FLOAT16))
            nodes.append(_cast(f"{name}__half", name, TensorProto.FLOAT))
    weights = [_widened(tensor) for tensor in graph.initializer]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(weights)
    for value in (*graph.input, *graph.output):
        if value.name in halves:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def _widened(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if tensor.data_type != TensorProto.FLOAT16:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"round_{target}", to=kind)
