"""Engines really built, as models of Triton's TensorRT backend: names and shapes must be theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as untyped

from flows.preparation.building.tensorrt.build import build_engines
from flows.preparation.building.tensorrt.requests import EngineRequest, EngineSettings
from flows.release.container.bundle import ContainerOptions, render_container
from tests.flows.preparation.building.tensorrt import stage_models as models
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.tensorrt.layers import EngineDescription
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
model_config_pb2: Any = untyped  # made by protobuf, without types
CLASS = "L4-rendered"  # builds of a class wait for one another, machine-wide


@pytest.mark.parametrize("make", [models.convolutions, models.hands_on])
def test_a_built_engine_has_the_tensors_its_configuration_says(tmp_path: Path, make: Any) -> None:
    request = EngineRequest(
        stage="whole", onnx=make(tmp_path / "m.onnx"), gpu_class=CLASS, batches=(1, 4)
    )
    report = build_engines(
        [request],
        tmp_path / "artifacts",
        EngineSettings(library="tensorrt-rtx", compute_capabilities={CLASS: "8.9"}),
    )
    (built,) = report.results
    artifact = Artifact.read(built.folder)
    served = model(
        "real",
        (stage((0, 1), "FAST", 0, artifact=built.key),),
        inputs=artifact.inputs,
        outputs=artifact.outputs or (tensor("y", 8),),
    )
    bundle = render_container(
        plan(served),
        tmp_path / "bundle",
        ContainerOptions(serve=ServeOptions(artifacts=tmp_path / "artifacts")),
    )
    (name,) = bundle.stage_models
    place = bundle.folder / "nodes" / "poolpipe-fast-0" / "repository" / name
    read = text_format.Parse((place / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    engine = EngineDescription.from_dict(json.loads((built.folder / "layers.json").read_text()))
    assert {(t.name, True) for t in read.input} | {(t.name, False) for t in read.output} == {
        (t.name, t.is_input) for t in engine.tensors
    }
    dims = {tensor.name: list(tensor.dims) for tensor in (*read.input, *read.output)}
    specs = {spec.name: list(spec.shape[1:]) for spec in (*artifact.inputs, *artifact.outputs)}
    assert dims.items() <= specs.items()
    assert (read.max_batch_size, list(read.instance_group[0].profile)) == (4, ["0", "1"])
    assert (place / "1" / "model.plan").read_bytes() == (built.folder / "engine.plan").read_bytes()
