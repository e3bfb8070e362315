"""Measuring whole and divided GPUs; the stages run on the CPU, MPS is a program of our own."""

from pathlib import Path

import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.profiling.gpu import GpuMeasured, ProfiledGpu, measure_on_gpu
from flows.preparation.profiling.measure import CellKey, MeasuredCell, MeasureLimits, ProfileTarget
from tests.fakes import mps_control
from tests.flows.preparation.building.tensorrt import stage_models as models
from tests.triton_backend.serving.small_plans import tensor
from triton_backend.contract.shares import LOADED, SOLO
from triton_backend.runtimes.mps import MpsDaemon

pytestmark = pytest.mark.slow

QUICK = MeasureLimits(warm_up=1, min_runs=2, max_runs=2, max_seconds=0.1)


@pytest.fixture
def target(tmp_path: Path) -> ProfileTarget:
    shape = tensor("x", 8, 8, 8)
    built = build_stage(
        models.convolutions(tmp_path / "m.onnx"),
        (shape,),
        (tensor("y", 8, 8, 8),),
        device_class=DeviceClass(name="card", cores=(0,)),
        max_batch=2,
        root=tmp_path / "artifacts",
    )
    return ProfileTarget(
        model="m",
        block=0,
        gpu_class="card",
        artifact=built.folder,
        parts=((150, LOADED), (60, SOLO), (300, LOADED)),
        batches=(1, 2),
    )


def measure(target: ProfileTarget, folder: Path) -> tuple[GpuMeasured, list[CellKey], MpsDaemon]:
    daemon = MpsDaemon.in_folder(folder / "mps", ())
    cells: list[MeasuredCell] = []
    measured = measure_on_gpu(
        [target], ProfiledGpu(name="0", daemon=daemon), done=(), store=cells.append, limits=QUICK
    )
    return measured, [cell.key for cell in cells], daemon


def test_whole_gpu_first_then_its_parts_under_a_daemon_that_ends(
    target: ProfileTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mps_control.install(tmp_path)))
    measured, keys, daemon = measure(target, tmp_path)
    assert measured == GpuMeasured(cells=6)
    assert keys == [
        CellKey("m", 0, "card", *part, batch)
        for part in ((300, LOADED), (150, LOADED), (60, SOLO))
        for batch in (1, 2)
    ]
    assert not daemon.running()


def test_without_mps_the_whole_gpu_is_measured_and_the_rest_left_out(
    target: ProfileTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    measured, keys, _ = measure(target, tmp_path)
    assert [key.share for key in keys] == [300, 300]
    assert measured.cells == 2
    assert measured.left_out is not None
    assert "leave vGPU divisors above 1 out" in measured.left_out
