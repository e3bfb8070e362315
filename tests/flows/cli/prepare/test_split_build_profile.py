"""From an ONNX file to a plan with artifacts, by commands alone."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.flows.cli.conftest import PLAN, Command
from tests.flows.preparation.splitting.tiny_models import residual_net
from triton_backend.runtimes.base import CUDA, Artifact


@pytest.fixture
def cpu_project(project: Path) -> Path:
    """A project with one CPU class and a model file."""
    residual_net(project / "tiny.onnx")
    core = min(os.sched_getaffinity(0))
    cluster = {
        "gpu_classes": {"cpu": {"runtime": {"cores": [core]}}},
        "nodes": [{"count": 1, "gpu_class": "cpu", "gpus": 1, "nic_gbps": 10}],
    }
    (project / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    (project / "workload.yaml").write_text("models: [{name: tiny, slo_ms: 1000}]")
    return project


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_project")
def test_a_model_is_split_built_profiled_and_planned(poolpipe: Command) -> None:
    split = ("split", "tiny.onnx", "--blocks", "2", "--max-batch", "2", "--json")
    first = poolpipe(*split).document
    assert (first["name"], first["blocks"], first["reused"]) == ("tiny", 2, False)
    assert len(first["boundary_bytes"]) == 1
    assert Path(first["folder"], "split.json").is_file()
    assert poolpipe(*split).document["reused"]

    built = poolpipe("build", "--cluster", "cluster.yaml", "--json").document["tiny"]["cpu"]
    assert [stage["blocks"] for stage in built] == [[0, 1], [0, 2], [1, 2]]

    profile = ("profile", "tiny", "--cluster", "cluster.yaml", "--seconds", "0.02", "--json")
    measured = poolpipe(*profile).document["tiny"]
    assert measured["artifacts"] == {"built": 0, "reused": 3}
    assert measured["cells"] == {"measured": 4, "reused": 0}
    assert poolpipe(*profile).document["tiny"]["cells"] == {"measured": 0, "reused": 4}

    shown = poolpipe(*profile[:-1]).out
    assert "sum of blocks / whole model: plans add blocks up; above 1 the model is faster" in shown

    plan = poolpipe(*PLAN, "--json").document
    (model,) = plan["models"]
    assert [spec["name"] for spec in model["inputs"]] == ["x"]
    assert model["split"] == first["key"]
    stages = [stage for pipeline in model["pipelines"] for stage in pipeline["stages"]]
    artifacts = {Path(".poolpipe/artifacts", stage["artifact"]) for stage in stages}
    assert all(folder.is_dir() for folder in artifacts)
    assert poolpipe("verify", plan["plan_id"]).code == 0

    exported = poolpipe("heads", "export", "tiny", "-o", "heads", "--json").document
    assert (exported["blocks"], exported["split"]) == (2, first["key"])
    assert exported["tails_known"]
    whole, tail, local = (cut["tail_us"] for cut in json.loads(Path("heads/cuts.json").read_text()))
    assert whole > tail > local == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_project")
def test_percents_are_measured_alone_and_beside_busy_copies(poolpipe: Command) -> None:
    core = min(os.sched_getaffinity(0))
    Path("cluster.yaml").write_text(
        f"gpu_classes: {{cpu: {{vgpu_percents: [40, 100], runtime: {{cores: [{core}]}}}}}}\n"
        "nodes: [{count: 1, gpu_class: cpu, gpus: 1, nic_gbps: 10}]\n"
    )
    poolpipe("split", "tiny.onnx", "--blocks", "1", "--max-batch", "1")
    profile = ("profile", "--cluster", "cluster.yaml", "--seconds", "0.02", "--json")
    for more, cells in (
        ((), {"measured": 2, "reused": 0}),
        (("--basis", "solo", "--basis", "loaded"), {"measured": 1, "reused": 2}),
    ):
        assert poolpipe(*profile, *more).document["tiny"]["cells"] == cells
    poolpipe("profiles", "export", "tables")
    rows = Path("tables", "block_latency_us.csv").read_text().splitlines()
    assert rows[0] == "model,gpu_class,vgpu_divisor,vgpu_percent,basis,block,batch,latency_us"
    assert [row.split(",")[2:5] for row in rows[1:]] == [
        ["1", "", "loaded"],
        ["", "40", "loaded"],
        ["", "40", "solo"],
    ]
    plan = poolpipe(*PLAN, "--planner", "gpulets", "-o", "plan.json")
    assert plan.code == 0, plan.err
    assert poolpipe("verify", "plan.json", "--profiles").code == 0


@pytest.mark.usefixtures("cpu_project")
def test_tables_are_shown_without_json(poolpipe: Command) -> None:
    shown = poolpipe("split", "tiny.onnx", "--name", "other", "--blocks", "2").out
    assert "bytes per sample" in shown
    assert "other: 2 blocks" in shown
    assert "artifacts" in poolpipe("build", "--cluster", "cluster.yaml").out


@pytest.mark.usefixtures("cpu_project")
@pytest.mark.parametrize("command", ["build", "profile"])
def test_a_model_that_was_never_split_is_named(command: str, poolpipe: Command) -> None:
    poolpipe("split", "tiny.onnx", "--blocks", "2", "--max-batch", "1")
    ran = poolpipe(command, "nobody", "--cluster", "cluster.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "model 'nobody': is not in poolpipe.duckdb; it has tiny" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_project")
def test_a_class_of_onnxruntime_on_a_gpu_is_built_and_says_where_no_cuda_is(
    poolpipe: Command,
) -> None:
    text = (
        Path("cluster.yaml")
        .read_text()
        .replace("  cpu:", "  P4:")
        .replace("class: cpu", "class: P4")
    )
    cluster = yaml.safe_load(text)
    cluster["gpu_classes"]["P4"]["runtime"] = {"kind": "onnxruntime", "provider": "cuda"}
    Path("cluster.yaml").write_text(yaml.safe_dump(cluster))
    assert poolpipe("split", "tiny.onnx", "--blocks", "2", "--max-batch", "2").code == 0
    built = poolpipe("build", "--cluster", "cluster.yaml", "--json").document["tiny"]["P4"]
    folders = [Path(".poolpipe/artifacts", stage["artifact"]) for stage in built]
    assert [Artifact.read(folder).device for folder in folders] == [CUDA] * 3
    refused = poolpipe("profile", "tiny", "--cluster", "cluster.yaml")
    assert refused.code == 2
    assert refused.err.startswith("poolpipe: class 'P4': is for a GPU, and onnxruntime")
    assert refused.err.endswith("no CUDA provider: install onnxruntime-gpu in its place\n")


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_project")
def test_pairs_are_measured_once_and_exported(poolpipe: Command) -> None:
    core = min(os.sched_getaffinity(0))
    Path("cluster.yaml").write_text(
        f"gpu_classes: {{cpu: {{vgpu_percents: [40, 60], runtime: {{cores: [{core}]}}}}}}\n"
        "nodes: [{count: 1, gpu_class: cpu, gpus: 1, nic_gbps: 10}]\n"
    )
    assert poolpipe("split", "tiny.onnx", "--blocks", "2", "--max-batch", "2").code == 0
    profile = ("profile", "--cluster", "cluster.yaml", "--seconds", "0.02", "--json")
    assert poolpipe(*profile).code == 0
    assert poolpipe(*profile, "--pairs").document == {"pairs_measured": {"cpu": 4}}
    assert poolpipe(*profile, "--pairs").document == {"pairs_measured": {"cpu": 0}}
    assert poolpipe("profiles", "export", "out").code == 0
    head, *rows = Path("out/pairs.csv").read_text().splitlines()
    assert head.startswith("gpu_class,model_1,batch_1,percent_1,model_2,batch_2,percent_2")
    cells = [row.split(",") for row in rows]
    assert {tuple(cell[:7]) for cell in cells} == {
        ("cpu", "tiny", "1", a, "tiny", b, c)
        for a, b, c in (("40", "1", "60"), ("40", "2", "60"), ("60", "2", "40"))
    } | {("cpu", "tiny", "2", "40", "tiny", "2", "60")}
    assert all(float(latency) > 0 for cell in cells for latency in cell[7:9])
    wrong = poolpipe(*profile, "--pairs", "--batch", "9")
    assert (wrong.code, "9 exceeds the 2 of 'tiny'" in wrong.err) == (2, True)
    wrong = poolpipe(*profile, "--pairs", "--runtime", "tensorrt")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
