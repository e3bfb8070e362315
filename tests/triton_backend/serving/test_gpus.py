"""Sharing of GPUs by a node's workers."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import mps_control, slices
from tests.fakes.plans import hand_stage
from tests.triton_backend.serving import small_plans as plans
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun
from triton_backend.runtimes.base import Artifact
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gpus import NodeGpus


def deployment(folder: Path, *, divisor: int) -> Deployment:
    """Stage 0 on TensorRT in parts of GPU 1 of the first node, stage 1 emulated."""
    x = plans.tensor("x", 3)
    (folder / "artifacts" / "engine").mkdir(parents=True)
    Artifact(
        runtime="tensorrt",
        gpu_class="FAST",
        inputs=(x,),
        outputs=(x,),
        max_batch=plans.BATCH,
        device="cuda",
    ).write(folder / "artifacts" / "engine")
    first = hand_stage(
        (0, 1),
        "FAST",
        PlacementRun(node=0, gpu=1, slot=0),
        (2_000, 3_000, 4_000, 5_000),
        vgpu_divisor=divisor,
        artifact="engine",
        boundary=(x,),
    )
    model = plans.model(
        "m", (first, plans.stage((1, 2), "SLOW", 1)), inputs=(x,), outputs=(plans.tensor("y", 3),)
    )
    plan = plans.plan(model)
    classes = (GpuClass(name="FAST", vgpu_divisors=(1, 2)), GpuClass(name="SLOW"))
    plan = replace(plan, cluster=replace(plan.cluster, gpu_classes=classes))
    return deploy(folder / "serve", plan, ServeOptions(artifacts=folder / "artifacts"))


def test_whole_gpu_needs_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    gpus = NodeGpus(deployment(tmp_path, divisor=1), "FAST")
    gpus.start()
    assert gpus.environment(0) == {"CUDA_VISIBLE_DEVICES": "1"}
    gpus.stop()


def test_a_mig_slice_is_named_by_its_uuid(tmp_path: Path) -> None:
    made = deployment(tmp_path, divisor=1)
    slices = replace(made.plan.cluster.nodes[0], devices=("MIG-a", "MIG-b"))
    cluster = replace(made.plan.cluster, nodes=(slices, made.plan.cluster.nodes[1]))
    made = Deployment(made.settings, 1, replace(made.plan, cluster=cluster))
    assert NodeGpus(made, "FAST").environment(0) == {"CUDA_VISIBLE_DEVICES": "MIG-b"}


@pytest.mark.slow
def test_workers_on_mig_get_their_slice_and_the_daemon_that_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU 0 has a 2g that two workers share and a 3g; of GPU 1 a 2g is used."""
    x = plans.tensor("x", 3)
    (tmp_path / "artifacts" / "engine").mkdir(parents=True)
    Artifact(
        runtime="tensorrt", gpu_class="G", inputs=(x,), outputs=(x,), max_batch=1, device="cuda"
    ).write(tmp_path / "artifacts" / "engine")
    plan = slices.slice_plan(
        ("3g", [(0, 0, 0)]),
        ("2g/2", [(0, 0, 1), (0, 0, 2)]),
        ("2g", [(0, 1, 0)]),
        artifact="engine",
    )
    models = tuple(replace(m, inputs=(x,), outputs=(x,)) for m in plan.models)
    plan = replace(plan, models=models)
    made = deploy(tmp_path / "serve", plan, ServeOptions(artifacts=tmp_path / "artifacts"))
    slices.install(tmp_path, ["2g.10gb", "3g.20gb"], ["3g.20gb", "2g.10gb"])
    monkeypatch.setenv("PATH", str(mps_control.install(tmp_path)))
    gpus = NodeGpus(made, "G")
    gpus.start()
    assert gpus.environment(0) == {"CUDA_VISIBLE_DEVICES": "MIG-0.1"}
    assert gpus.environment(3) == {"CUDA_VISIBLE_DEVICES": "MIG-1.1"}
    shared = gpus.environment(1)
    assert gpus.environment(2) == shared
    assert shared.keys() == {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
    }
    daemon = Path(shared["CUDA_MPS_PIPE_DIRECTORY"]) / "nvidia-cuda-mps-control.pid"
    assert daemon.read_text() == shared["CUDA_VISIBLE_DEVICES"] == "MIG-0.0"
    gpus.stop()
    assert not daemon.exists()
    slices.install(tmp_path, ["2g.10gb", "3g.20gb"])
    with pytest.raises(
        InputError, match=r"node G, MIG slices: the plan needs 2 of 2g\.10gb, 1 are"
    ):
        NodeGpus(made, "G").start()


@pytest.mark.slow
def test_part_of_a_gpu_runs_under_the_nodes_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mps_control.install(tmp_path)))
    gpus = NodeGpus(deployment(tmp_path, divisor=2), "FAST")
    gpus.start()
    environment = gpus.environment(0)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    daemon = Path(environment["CUDA_MPS_PIPE_DIRECTORY"]) / "nvidia-cuda-mps-control.pid"
    assert daemon.exists()
    gpus.stop()
    assert not daemon.exists()


def test_node_without_mps_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="leave vGPU divisors above 1 out"):
        NodeGpus(deployment(tmp_path, divisor=2), "FAST").start()


def test_stage_without_gpu_is_told_nothing(tmp_path: Path) -> None:
    gpus = NodeGpus(deployment(tmp_path, divisor=2), "SLOW")
    gpus.start()
    assert gpus.environment(1) == {}
