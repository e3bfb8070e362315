"""Artifacts of plans in which Python steps run on CPU cores, and other models elsewhere."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.tensorrt.requests import EngineSettings
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.release.artifacts import attach_engines, attach_steps
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import Artifact

WORKLOAD = """
models: [{name: net, slo_ms: 100}]
steps:
  - {name: scale, python: "shop:run", package: ./shop.py, inputs: {x: FP32 3}, outputs: {y: FP32 3}}
"""


def with_step() -> Plan:
    """A model on one class, a step on another."""
    tensors: dict[str, Any] = {"inputs": (tensor("x", 3),), "outputs": (tensor("y", 3),)}
    made = plan(
        model("net", (stage((0, 1), "FAST", 0),), **tensors),
        model("scale", (stage((0, 1), "SLOW", 1),), **tensors),
    )
    steps = (Step(name="scale", python="shop:run"),)
    return replace(made, workload=replace(made.workload, steps=steps))


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    (tmp_path / "shop.py").write_text("def run(x):\n    return x * 2")
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    work = Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")
    prepare_steps(work, list(read_steps(tmp_path / "workload.yaml").values()))
    return work


def test_steps_get_artifacts_where_other_models_wait_for_engines(work: Workspace) -> None:
    device = DeviceClass(name="SLOW", cores=(min(os.sched_getaffinity(0)),))
    found = attach_steps(work, with_step(), {"SLOW": device})
    (net, scale) = (one.pipelines[0].stages[0].artifact for one in found.models)
    assert net is None
    assert scale is not None
    artifact = Artifact.read(work.state.artifacts / scale)
    assert (artifact.runtime, artifact.gpu_class) == ("python_step", "SLOW")
    assert artifact.options["python"] == "shop:run"


def test_a_step_without_an_artifact_gets_no_engine_in_its_place(work: Workspace) -> None:
    alone = with_step()
    alone = replace(alone, models=alone.models[1:], pools=alone.pools[1:])
    with pytest.raises(InputError, match="'scale': is a Python step without an artifact"):
        attach_engines(work, alone, EngineSettings())
