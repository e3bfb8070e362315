"""Plans from profiles that were measured in half precision, and the engines they get."""

from pathlib import Path

import pytest

from flows.cli.main import run
from flows.clock import now_utc
from flows.files import read_cluster, read_plan, read_workload
from flows.planning import PlanOptions
from flows.planning.stored_plans import load_profiles, plan_step
from flows.preparation.building.tensorrt.engines import EngineOptions, engine_step
from flows.preparation.building.tensorrt.requests import EngineSettings
from flows.preparation.splitting.stored_split import read_split
from flows.workspace import Workspace, workspace
from tests.flows.preparation.building.tensorrt import stage_models as models
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import LOADED, WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact
from warehouse.profiles import CellRecord, add_cells

pytestmark = pytest.mark.slow

CLUSTER = """
gpu_classes: {L4: {}, A10: {}}
nodes:
  - {count: 1, gpu_class: L4, gpus: 1, nic_gbps: 10}
  - {count: 1, gpu_class: A10, gpus: 1, nic_gbps: 10}
"""
WORKLOAD = "models: [{name: tiny, slo_ms: 50}]"
SETTINGS = EngineSettings(library="tensorrt-rtx", compute_capabilities={"L4": "8.9", "A10": "8.6"})
# A block is fast on one class and slow on the other, so that two stages are best.
TIMES_US = {"L4": (1_000.0, 9_000.0), "A10": (9_000.0, 1_000.0)}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POOLPIPE_HOME", raising=False)
    monkeypatch.delenv("POOLPIPE_WAREHOUSE", raising=False)
    Path("gpus.yaml").write_text(CLUSTER)
    Path("workload.yaml").write_text(WORKLOAD)
    models.convolutions(Path("tiny.onnx"), layers=4)
    assert run(["split", "tiny.onnx", "--blocks", "2", "--max-batch", "2"]) == 0
    return workspace(Path("poolpipe.duckdb"))


def measure(work: Workspace, gpu_class: str, precision: str) -> None:
    """As `profile` leaves it: cells with the artifacts of every block."""
    split = read_split(work, "tiny")
    options = EngineOptions(batches=(1, 2), precision=precision, settings=SETTINGS)
    report = engine_step(work, split, [gpu_class], options)
    keys = {r.request.stage: r.key for r in report.results}
    cells = [
        CellRecord(
            block=block,
            gpu_class=gpu_class,
            share=WHOLE_GPU,
            basis=LOADED,
            batch=batch,
            mean_us=us * batch,
            artifact=keys[f"tiny blocks [{block}, {block + 1})"],
        )
        for block, us in enumerate(TIMES_US[gpu_class])
        for batch in (1, 2)
    ]
    with work.open() as warehouse:
        add_cells(warehouse, split.key, cells, now_utc())


def planned(work: Workspace) -> Plan:
    files = read_cluster(Path("gpus.yaml")), read_workload(Path("workload.yaml"))
    return plan_step(work, *files, PlanOptions()).plan


def crossing(plan: Plan) -> TensorSpec:
    """The tensor between the plan's two stages."""
    boundary = plan.models[0].pipelines[0].stages[0].boundary
    assert boundary is not None
    (spec,) = boundary
    return spec


def half(*artifacts: Artifact) -> list[bool]:
    return ["fp16" in artifact.options["precision"] for artifact in artifacts]


def with_engines(*more: str) -> list[Artifact]:
    """The artifacts of the stored plan's stages after `poolpipe engines`."""
    command = ["engines", "plan.json", "-o", "served.json", "--library", "tensorrt-rtx"]
    assert run([*command, "--capability", "L4=8.9", "--capability", "A10=8.6", *more]) == 0
    (pipeline,) = read_plan(Path("served.json")).models[0].pipelines
    names = [str(stage.artifact) for stage in pipeline.stages]
    return [Artifact.read(Path(".poolpipe/artifacts") / name) for name in names]


def plan_file() -> None:
    command = ["plan", "--cluster", "gpus.yaml", "--workload", "workload.yaml"]
    assert run([*command, "-o", "plan.json"]) == 0


def test_plan_of_fp16_profiles_has_fp16_boundaries_and_engines(work: Workspace) -> None:
    for gpu_class in TIMES_US:
        measure(work, gpu_class, "fp32")
    before = crossing(planned(work))
    for gpu_class in TIMES_US:
        measure(work, gpu_class, "fp16")
    plan = planned(work)
    first, second = plan.models[0].pipelines[0].stages
    boundary = crossing(plan)
    assert (before.dtype, boundary.dtype) == ("FP32", "FP16")
    assert first.boundary_bytes_per_sample == before.bytes_per_sample // 2
    assert [spec.dtype for spec in (*plan.models[0].inputs, *(second.boundary or ()))] == [
        "FP32",
        "FP32",
    ]
    plan_file()
    first_engine, second_engine = with_engines()
    assert first_engine.outputs == second_engine.inputs == (boundary,)
    assert half(first_engine, second_engine) == [True, True]


def test_classes_measured_in_different_precisions_keep_the_splits_types(work: Workspace) -> None:
    measure(work, "L4", "fp16")
    measure(work, "A10", "fp32")
    files = read_cluster(Path("gpus.yaml")), read_workload(Path("workload.yaml"))
    _, warnings = load_profiles(work, *files)
    assert any("L4 measured with other boundary types" in text for text in warnings)
    assert crossing(planned(work)).dtype == "FP32"
    plan_file()
    assert half(*with_engines()) == [True, False]
    assert half(*with_engines("--precision", "fp16")) == [True, True]
