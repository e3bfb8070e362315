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
