"""Tiny ONNX stages as artifacts, so that a served answer can be computed by hand."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fakes.plans import HandModel
from tests.triton_backend.serving.small_plans import BATCH, model, stage, tensor
from triton_backend.runtimes.base import Artifact

FACTOR = 3.0
OFFSET = 1.0


def write_stage(root: Path, name: str, operator: str, number: float, ends: tuple[str, str]) -> str:
    """An artifact that adds or multiplies a constant: `ends` are its input and output tensor."""
    given, made = ends
    constant = numpy_helper.from_array(np.array([number], dtype=np.float32), "number")
    node = helper.make_node(operator, [given, "number"], [made])
    return _write(root, name, node, ((given,), made), [constant])


def write_join(root: Path, name: str, operator: str, given: tuple[str, str], made: str) -> str:
    """An artifact that puts two tensors together."""
    return _write(root, name, helper.make_node(operator, given, [made]), (given, made), [])


def _write(
    root: Path,
    name: str,
    node: onnx.NodeProto,
    ends: tuple[tuple[str, ...], str],
    constants: list[onnx.TensorProto],
) -> str:
    folder = root / name
    folder.mkdir(parents=True)
    inputs, made = ends

    def rows(tensor_name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor_name, TensorProto.FLOAT, ["batch", 3])

    graph = helper.make_graph([node], name, list(map(rows, inputs)), [rows(made)], constants)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    Artifact(
        runtime="onnxruntime",
        gpu_class="CPU",
        inputs=tuple(tensor(one, 3) for one in inputs),
        outputs=(tensor(made, 3),),
        max_batch=BATCH,
        files={"model": "model.onnx"},
        options={"cores": [0], "threads": 1, "stretch": 1.0},
    ).write(folder)
    return name


def affine(
    root: Path,
    name: str = "affine",
    boundary_type: str = "FP32",
    second_on: tuple[str, int, int] = ("SLOW", 1, 0),
) -> HandModel:
    """y = x * FACTOR + OFFSET in two stages, by default on two nodes (class, node, GPU)."""
    first = write_stage(root, f"{name}-0", "Mul", FACTOR, ("x", "middle"))
    second = write_stage(root, f"{name}-1", "Add", OFFSET, ("middle", "y"))
    boundary = (tensor("middle", 3, dtype=boundary_type),)
    gpu_class, node, gpu = second_on
    stages = (
        stage((0, 1), "FAST", 0, artifact=first, boundary=boundary),
        stage((1, 2), gpu_class, node, gpu=gpu, artifact=second),
    )
    return model(name, stages, inputs=(tensor("x", 3),), outputs=(tensor("y", 3),))
