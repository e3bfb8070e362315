"""Tiny ONNX stages as artifacts on disk."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact

WIDTH = 3


def spec(name: str, dtype: str = "FP32", width: int = WIDTH) -> TensorSpec:
    """A tensor of `width` elements per sample."""
    return TensorSpec(name=name, dtype=dtype, shape=(-1, width))


def write_doubling(folder: Path, *, forwards: str | None = None, **options: object) -> Artifact:
    """A stage y = x + x; with `forwards`, that tensor also goes in and comes out unchanged."""
    names = ["x"] if forwards is None else ["x", forwards]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
        for name in ("x", "y", *names[1:])
    }
    outputs = ["y", *names[1:]]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "doubling",
        [values[n] for n in names],
        [values[n] for n in outputs],
    )
    opset = [helper.make_opsetid("", 17)]
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "m.onnx")
    artifact = Artifact(
        runtime="onnxruntime",
        gpu_class="cpu",
        inputs=tuple(map(spec, names)),
        outputs=tuple(map(spec, outputs)),
        max_batch=4,
        files={"model": "m.onnx"},
        options=options,
    )
    artifact.write(folder)
    return artifact


def write_crops(folder: Path, most: int) -> Artifact:
    """A stage that repeats every sample x x[0] times, 0 to `most`, and gives the counts."""
    numbers = helper.make_tensor("numbers", TensorProto.FLOAT, [1, most], list(range(most)))
    zero = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("Constant", [], ["numbers"], value=numbers),
        helper.make_node("Constant", [], ["zero"], value=zero),
        helper.make_node("Constant", [], ["one"], value=helper.make_tensor("1", 7, [1], [1])),
        helper.make_node("Slice", ["x", "zero", "one", "one"], ["wanted"]),  # [batch, 1]
        helper.make_node("Less", ["numbers", "wanted"], ["kept"]),  # [batch, most]
        helper.make_node("Cast", ["kept"], ["kept_numbers"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["kept_numbers", "one"], ["crops_rows"], keepdims=0),
        helper.make_node("NonZero", ["kept"], ["places"]),  # [2, rows]
        helper.make_node("Gather", ["places", "zero"], ["whose"], axis=0),  # [1, rows]
        helper.make_node("Squeeze", ["whose", "zero"], ["samples"]),
        helper.make_node("Gather", ["x", "samples"], ["crops"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "crops",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [
            helper.make_tensor_value_info("crops", TensorProto.FLOAT, ["rows", WIDTH]),
            helper.make_tensor_value_info("crops_rows", TensorProto.INT64, ["batch"]),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "model.onnx")
    artifact = Artifact(
        runtime="onnxruntime",
        gpu_class="cpu",
        inputs=(spec("x"),),
        outputs=(spec("crops"), TensorSpec(name="crops_rows", dtype="INT64", shape=(-1,))),
        max_batch=4,
        files={"model": "model.onnx"},
        options={"cores": [0], "threads": 1, "stretch": 1.0},
    )
    artifact.write(folder)
    return artifact
