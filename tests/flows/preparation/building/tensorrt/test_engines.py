"""Engines of a split model, by the command and by the steps behind it."""

import json
from pathlib import Path

import pytest

from flows.cli.main import run
from flows.files import read_plan, write_plan
from flows.preparation.building.tensorrt.engines import EngineOptions, batches_up_to
from flows.preparation.building.tensorrt.requests import EngineSettings
from flows.preparation.profiling.gpu import ProfiledGpu, ProfiledGpuClass, gpu_profile_step
from flows.preparation.splitting.stored_split import read_split
from flows.workspace import find_plan, workspace
from tests.flows.preparation.building.tensorrt import stage_models as models
from tests.triton_backend.serving import small_plans as plans
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.mps import MpsDaemon
from warehouse.details import BuildFailure, build_failures

CLUSTER = """
gpu_classes: {L4-test: {}, V100: {}, near-cpu: {runtime: {cores: [0]}}}
nodes: [{count: 1, gpu_class: L4-test, gpus: 1, nic_gbps: 10}]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with one split model of two blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POOLPIPE_HOME", raising=False)
    monkeypatch.delenv("POOLPIPE_WAREHOUSE", raising=False)
    (tmp_path / "gpus.yaml").write_text(CLUSTER)
    models.convolutions(tmp_path / "tiny.onnx", layers=4)
    assert run(["split", "tiny.onnx", "--blocks", "2", "--max-batch", "2"]) == 0
    return tmp_path


def failures() -> list[BuildFailure]:
    """Engines that the warehouse knows cannot be built."""
    work = workspace()
    with work.open(read_only=True) as warehouse:
        return build_failures(warehouse, read_split(work, "tiny").key)


def build(*more: str) -> int:
    command = ["build", "--cluster", "gpus.yaml", "--runtime", "tensorrt", "--json"]
    return run([*command, "--library", "tensorrt-rtx", "--batch", "2", "--batch", "1", *more])


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_command_builds_what_it_can_and_names_what_it_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert build() == 1
    out, err = capsys.readouterr()
    report = json.loads(out)["tiny"]
    assert (report["built"], report["reused"], len(report["failures"])) == (3, 0, 3)
    assert {engine["gpu_class"] for engine in report["engines"]} == {"L4-test"}
    assert "left out for V100: tiny blocks [0, 1) and 2 more: compute capability 7.0" in err
    assert "near-cpu runs in onnxruntime, left out" in err
    kept = failures()
    assert [(f.first_block, f.last_block, f.gpu_class) for f in kept] == [
        (0, 1, "V100"),
        (0, 2, "V100"),
        (1, 2, "V100"),
    ]
    assert all("compute capability 7.0" in failure.reason for failure in kept)
    assert build("--capability", "V100=8.0") == 0
    report = json.loads(capsys.readouterr().out)["tiny"]
    assert (report["built"], report["reused"]) == (3, 3)
    assert failures() == []


@pytest.mark.slow
def test_command_in_fp16_keeps_the_loss_with_the_engines(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert build("--precision", "fp16") == 1
    report = json.loads(capsys.readouterr().out)["tiny"]
    folders = [project / ".poolpipe" / "artifacts" / e["artifact"] for e in report["engines"]]
    artifacts = [Artifact.read(folder) for folder in folders]
    assert [a.inputs[0].dtype for a in artifacts] == ["FP32", "FP16", "FP32"]
    assert all(0 < a.options["precision_loss"]["max_relative"] < 0.01 for a in artifacts)


@pytest.mark.slow
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("planned", "served", "batches"),
    [
        ("reservation-ahead", None, [1, 2, 4]),
        ("turns", None, [1, 2, 4]),
        ("deferred", None, [1, 2, 4, 6]),
        ("reservation-ahead", "eager", [1, 2, 4, 6]),
    ],
)
def test_stages_of_a_plan_get_engines_for_the_batches_that_its_policy_sends(
    planned: str, served: str | None, batches: list[int]
) -> None:
    x = plans.tensor("x", 8, 8, 8)
    table = (2_000, 3_000, 4_000, 5_000, 6_000, 7_000)
    stage = plans.stage((0, 2), "FAST", 0, latency_us_by_batch=table)
    plan = plans.plan(plans.model("tiny", (stage,), inputs=(x,), outputs=(x,), policy=planned))
    write_plan(Path("bare.json"), plan)
    command = ["engines", "bare.json", "-o", "served.json", "--library", "tensorrt-rtx"]
    options = [] if served is None else ["--policy", served]
    assert run([*command, "--capability", "FAST=8.9", *options]) == 0
    attached = read_plan(Path("served.json"))
    (built,) = attached.models[0].pipelines[0].stages
    assert built.artifact is not None
    assert attached.plan_id == plan.plan_id
    assert find_plan(workspace(Path("poolpipe.duckdb")), plan.plan_id) == attached
    artifact = Artifact.read(Path(".poolpipe/artifacts") / built.artifact)
    assert artifact.options["batches"] == batches
    assert artifact.max_batch == batches[-1]


@pytest.mark.usefixtures("project")
def test_stage_without_an_engine_stops_the_plan_with_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = plans.tensor("x", 8, 8, 8)
    plan = plans.plan(
        plans.model("tiny", (plans.stage((0, 2), "FAST", 0),), inputs=(x,), outputs=(x,))
    )
    write_plan(Path("bare.json"), plan)
    assert run(["engines", "bare.json", "-o", "served.json"]) == 2
    assert "its compute capability is not known; state it" in capsys.readouterr().err
    assert not Path("served.json").exists()


@pytest.mark.usefixtures("project")
def test_measuring_asks_which_gpu_stands_for_which_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["profile", "--cluster", "gpus.yaml", "--runtime", "tensorrt"]) == 2
    assert "--gpu: name a GPU for each class" in capsys.readouterr().err


def test_batches_are_powers_of_two_and_the_largest() -> None:
    assert batches_up_to(1) == (1,)
    assert batches_up_to(6) == (1, 2, 4, 6)
    assert batches_up_to(8) == (1, 2, 4, 8)


def test_no_such_precision() -> None:
    with pytest.raises(InputError, match="'int4' is none of fp32, fp16"):
        EngineOptions(precision="int4")


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_profiling_engines_needs_a_gpu_and_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    work = workspace(Path("poolpipe.duckdb"))
    split = read_split(work, "tiny")
    gpu = ProfiledGpu(name="none", daemon=MpsDaemon.in_folder(Path("mps"), ()))
    options = EngineOptions(batches=(1, 2), settings=EngineSettings(library="tensorrt-rtx"))
    with pytest.raises(InputError, match="GPU: "):
        gpu_profile_step(work, split, ProfiledGpuClass(name="L4-test", gpu=gpu), options)
    with pytest.raises(InputError, match=r"class 'V100': .*compute capability 7\.0"):
        gpu_profile_step(work, split, ProfiledGpuClass(name="V100", gpu=gpu), options)
