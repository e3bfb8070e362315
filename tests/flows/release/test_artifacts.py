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
from flows.release.artifacts import attach_engines, attach_steps, with_artifacts_in_force
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


def test_stages_that_the_plan_in_force_has_too_keep_its_artifacts() -> None:
    both = plan(model("net", (stage((0, 1), "FAST", 0), stage((1, 2), "SLOW", 1))))
    in_force = with_artifacts(both, "head", "tail")
    found = with_artifacts_in_force(both, in_force)
    assert artifacts_of(found) == ["head", "tail"]
    assert found.plan_id == both.plan_id
    assert artifacts_of(with_artifacts_in_force(with_artifacts(both, "own", None), in_force)) == [
        "own",
        "tail",
    ]


@pytest.mark.parametrize(
    "other",
    [
        plan(model("net", (stage((0, 1), "SLOW", 1), stage((1, 2), "FAST", 0)))),
        plan(model("another", (stage((0, 1), "FAST", 0), stage((1, 2), "SLOW", 1)))),
        plan(model("net", (stage((0, 2), "FAST", 0),))),
    ],
    ids=["class", "model", "blocks"],
)
def test_a_stage_of_another_class_model_or_blocks_gets_no_artifact(other: Plan) -> None:
    both = plan(model("net", (stage((0, 1), "FAST", 0), stage((1, 2), "SLOW", 1))))
    found = with_artifacts_in_force(other, with_artifacts(both, "head", "tail"))
    assert artifacts_of(found)[0] is None


def test_a_stage_of_larger_batches_or_another_split_gets_no_artifact() -> None:
    both = plan(model("net", (stage((0, 1), "FAST", 0), stage((1, 2), "SLOW", 1))))
    in_force = with_artifacts(both, "head", "tail")
    (net,) = both.models
    (line,) = net.pipelines
    longer = tuple(
        replace(one, latency_us_by_batch=(*one.latency_us_by_batch, 10**6)) for one in line.stages
    )
    larger = replace(both, models=(replace(net, pipelines=(replace(line, stages=longer),)),))
    assert artifacts_of(with_artifacts_in_force(larger, in_force)) == [None, None]
    split_again = replace(both, models=(replace(net, split="another"),))
    assert artifacts_of(with_artifacts_in_force(split_again, in_force)) == [None, None]


def with_artifacts(made: Plan, *names: str | None) -> Plan:
    (net,) = made.models
    (line,) = net.pipelines
    stages = (replace(one, artifact=name) for one, name in zip(line.stages, names, strict=True))
    pipelines = (replace(line, stages=tuple(stages)),)
    return replace(made, models=(replace(net, pipelines=pipelines),))


def artifacts_of(made: Plan) -> list[str | None]:
    return [placed[2].artifact for placed in made.placed_stages()]
