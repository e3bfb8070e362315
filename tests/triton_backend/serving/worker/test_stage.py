"""Stages as a worker opens them.

A Python step runs where the plan's workload names its function.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.runtimes.python_step.step_folders import write_step
from tests.triton_backend.serving.small_plans import joined, model, plan, stage, tensor
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import REFUSED, REFUSED_BYTES
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness.workers import HealthRow
from triton_backend.serving.worker.scheduler_link import GatewayTime
from triton_backend.serving.worker.stage import LoadedStages, open_runtimes

X, Y = tensor("x", 3), tensor("y", 3)


def served(*steps: Step) -> Plan:
    refused = TensorSpec.of_bytes(REFUSED, REFUSED_BYTES)
    one = model(
        "scale", (stage((0, 1), "FAST", 0, artifact="step"),), inputs=(X,), outputs=(Y, refused)
    )
    made = plan(one)
    return replace(made, workload=replace(made.workload, steps=steps))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    source = f"import os\nos.mkdir({str(tmp_path / 'imported')!r})\ndef run(x):\n    return x * 2"
    write_step(tmp_path / "artifacts" / "step", source, inputs=[X], outputs=[Y])
    sys.modules.pop("shop", None)
    return tmp_path / "artifacts"


def test_a_step_that_the_workload_names_is_run(root: Path, tmp_path: Path) -> None:
    asked = served(Step(name="scale", python="shop:run"))
    deployment = deploy(tmp_path / "serve", asked, ServeOptions(artifacts=root))
    (loaded,) = open_runtimes(deployment, 0, SystemClock())
    x = np.ones((1, 3), np.float32)
    out = {"y": np.zeros((1, 3), np.float32), REFUSED: np.zeros((1, 244), np.uint8)}
    loaded.runtime.run({"x": x}, out)
    loaded.runtime.close()
    assert out["y"].tolist() == [[2, 2, 2]]
    assert not out[REFUSED].any()


@pytest.mark.parametrize("steps", [(), (Step(name="scale", python="shop:walk"),)])
def test_a_function_that_the_workload_does_not_name_is_not_imported(
    root: Path, tmp_path: Path, steps: tuple[Step, ...]
) -> None:
    deployment = deploy(tmp_path / "serve", served(*steps), ServeOptions(artifacts=root))
    with pytest.raises(InputError, match="'shop:run' is no step that the workload names"):
        open_runtimes(deployment, 0, SystemClock())
    assert not (tmp_path / "imported").exists()
    assert "shop" not in sys.modules


class Noted(HealthRow):
    """Notes how long runs are to take."""

    def __init__(self) -> None:
        self.runs_us: list[int] = []

    def busy(
        self, since_us: int, expected_us: int, pressure: float = 0.0, patience_us: int = 0
    ) -> None:
        del since_us, pressure, patience_us
        self.runs_us.append(expected_us)

    def idle(self) -> None: ...


def test_a_run_on_zeros_is_of_the_generation_that_is_asked_for(tmp_path: Path) -> None:
    """The one served last may only be prepared, with larger batches planned."""

    def planned(batch: int) -> Plan:
        latencies_us = (1_000, 2_000, 3_000, 4_000)
        only = stage((0, 1), "SLOW", 1, latency_us_by_batch=latencies_us)
        one = model("m", (only,), inputs=(X,), outputs=(Y,))
        (pipeline,) = one.model.pipelines
        return plan(one.replaced(pipelines=(replace(pipeline, batch=batch),)), plan_id=f"{batch}")

    served = deploy(tmp_path, planned(1), ServeOptions())
    prepared = deploy(tmp_path, planned(4), generation=2)
    clock = SystemClock()
    noted = Noted()
    stages = LoadedStages(open_runtimes(prepared, 0, clock), noted, GatewayTime(clock))
    for deployment in (served, prepared):
        stages.serve(deployment, 0)
    for deployment in (served, prepared):
        stages.run_on_zeros(deployment.tag)
    assert noted.runs_us == [1_000, 4_000]


def test_a_run_on_zeros_is_of_the_batch_that_a_stage_has_of_its_own(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(joined(2)), ServeOptions())
    clock, noted = SystemClock(), Noted()
    stages = LoadedStages(open_runtimes(deployment, 1, clock), noted, GatewayTime(clock))
    stages.serve(deployment, 1)
    stages.run_on_zeros(deployment.tag)
    assert noted.runs_us == [3_000]
