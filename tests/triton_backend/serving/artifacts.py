"""Tiny ONNX stages as artifacts, so that a served answer can be computed by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fakes.plans import HandModel
from tests.triton_backend.serving.small_plans import BATCH, model, stage, tensor
from triton_backend.runtimes.base import Artifact

FACTOR = 3.0
OFFSET = 1.0
SLOW_SIDE = 1500  # of a slow stage's matrices; 50 to 300 ms on one core


def write_stage(root: Path, name: str, operator: str, number: float, ends: tuple[str, str]) -> str:
    """An artifact that adds or multiplies a constant: `ends` are its input and output tensor."""
    given, made = ends
    constant = numpy_helper.from_array(np.array([number], dtype=np.float32), "number")
    node = helper.make_node(operator, [given, "number"], [made])
    return _write(root, name, [node], ((given,), made), [constant])


def write_join(root: Path, name: str, operator: str, given: tuple[str, str], made: str) -> str:
    """An artifact that puts two tensors together."""
    nodes = [helper.make_node(operator, given, [made])]
    return _write(root, name, nodes, (given, made), [])


def write_slow_stage(root: Path, name: str, number: float, ends: tuple[str, str]) -> str:
    """An artifact that adds a constant, and nothing times the sum of a large product of matrices.

    Its time is its own: a pause of the machine makes a run later, not many times as long as
    `stretch` would.
    """
    given, made = ends
    nodes = [
        helper.make_node("ReduceMean", [given], ["mean"], keepdims=0),
        helper.make_node("Expand", ["mean", "side"], ["square"]),
        helper.make_node("MatMul", ["square", "square"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", [given, "number"], ["added"]),
        helper.make_node("Add", ["added", "nothing"], [made]),
    ]
    constants = [
        numpy_helper.from_array(np.array([SLOW_SIDE, SLOW_SIDE], dtype=np.int64), "side"),
        numpy_helper.from_array(np.array(0.0, dtype=np.float32), "zero"),
        numpy_helper.from_array(np.array([number], dtype=np.float32), "number"),
    ]
    return _write(root, name, nodes, ((given,), made), constants)


def _write(
    root: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    ends: tuple[tuple[str, ...], str],
    constants: list[onnx.TensorProto],
) -> str:
    folder = root / name
    folder.mkdir(parents=True)
    inputs, made = ends

    def rows(tensor_name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(tensor_name, TensorProto.FLOAT, ["batch", 3])

    graph = helper.make_graph(nodes, name, list(map(rows, inputs)), [rows(made)], constants)
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
