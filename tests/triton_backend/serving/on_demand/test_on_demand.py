"""Models that do not fit a GPU together: scheduler, fronts and a worker, without Triton."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.on_demand import MIB, on_demand_plan
from tests.triton_backend.serving.artifacts import write_stage
from tests.triton_backend.serving.small_plans import tensor
from tests.triton_backend.serving.system import Answer, LocalSystem, deploy, wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.worker.on_demand import OnDemandRuntime, Residents

pytestmark = pytest.mark.slow
PATIENT_US = 5_000_000
FACTORS = (2.0, 3.0, 5.0)


def onnx_plan(root: Path, plan_id: str = "on-demand", room_mib: int = 200) -> Plan:
    """Three models of 100 MiB, as planned, that multiply."""
    plan = on_demand_plan([100] * 3, room_mib, plan_id=plan_id, slo_us=PATIENT_US)
    models = [
        replace(
            model,
            inputs=(tensor("x", 3),),
            outputs=(tensor("y", 3),),
            pipelines=tuple(
                replace(p, stages=(replace(p.stages[0], artifact=artifact),))
                for p in model.pipelines
            ),
        )
        for model, factor in zip(plan.models, FACTORS, strict=True)
        for artifact in [write_stage(root, model.name, "Mul", factor, ("x", "y"))]
    ]
    return replace(plan, models=tuple(models))


def ask(system: LocalSystem, model: int, number: int) -> Callable[[], Answer]:
    return system.ask(f"m{model}", given(number), PATIENT_US)


def given(number: int) -> Arrays:
    return {"x": np.full((1, 3), number, np.float32)}


def residents_of(system: LocalSystem) -> Residents:
    (worker, _), *_ = system.workers.values()
    (runtime, *_) = (one.runtime for one in worker.loaded)
    assert isinstance(runtime, OnDemandRuntime)
    return runtime.residents


def test_every_answer_is_its_own_models_while_models_come_and_go(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    system = LocalSystem(tmp_path / "serve", onnx_plan(root), ServeOptions(artifacts=root))
    try:
        residents = residents_of(system)
        assert residents.loads == 0
        asked = [(model, n, ask(system, model, n)) for n in range(10) for model in range(3)]
        for model, number, answer in asked:
            found = answer()
            assert not isinstance(found, Refusal), found
            np.testing.assert_array_equal(found["y"], np.full((1, 3), FACTORS[model] * number))
        assert residents.loads >= 3
        assert len(residents.present) == 2
        for number in range(3):  # alone: there already from the second on
            before = residents.loads
            assert not isinstance(ask(system, 0, number)(), Refusal)
            assert residents.loads - before <= (number == 0)
        counted = system.status()["counters"]["stage_loads"]
        assert {key.split("/")[0] for key in counted} == {"m0", "m1", "m2"}
        assert sum(counted.values()) == residents.loads
        held = system.scheduler.call(system.scheduler.gateway.loaded_bytes)
        assert [*held.values()] == [residents.bytes_held] == [200 * MIB]
    finally:
        system.stop()


def test_a_load_that_fails_fails_its_batch_and_no_other(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    plan = onnx_plan(root)
    system = LocalSystem(tmp_path / "serve", plan, ServeOptions(artifacts=root))
    try:
        artifact = plan.models[1].pipelines[0].stages[0].artifact
        assert artifact is not None
        shutil.rmtree(root / artifact)
        refused = ask(system, 1, 1)()
        assert isinstance(refused, Refusal)
        assert refused.status == "INTERNAL"
        assert artifact in refused.message
        for model in (0, 2):
            assert not isinstance(ask(system, model, 1)(), Refusal)
        assert system.status()["workers"]["up"] == 1
        assert system.status()["counters"]["batches_failed"] == 1
    finally:
        system.stop()


def test_a_worker_goes_on_where_other_models_are_loaded_on_demand(tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    first = onnx_plan(root)
    system = LocalSystem(tmp_path / "serve", first, ServeOptions(artifacts=root))
    try:
        assert not isinstance(ask(system, 0, 1)(), Refusal)
        residents = residents_of(system)
        fewer = replace(
            first,
            plan_id="fewer",
            models=first.models[:2],
            workload=replace(first.workload, models=first.workload.models[:2]),
        )
        second = deploy(tmp_path / "serve", fewer, generation=2)
        assert [origin.generation for origin in second.origins] == [1]
        system.control("prepare", plan_id="fewer", generation=2)
        wait_for(lambda: system.status()["prepared"]["up"] == 1)
        system.control("swap", plan_id="fewer")
        assert not isinstance(ask(system, 0, 2)(), Refusal)
        assert residents.loads == 1  # still there
    finally:
        system.stop()
