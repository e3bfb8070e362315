"""onnxruntime's CUDA provider where onnxruntime has none: said, never replaced by the CPU."""

from pathlib import Path

import onnxruntime
import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_cuda_stage, build_stage
from tests.flows.preparation.building.tensorrt import stage_models as models
from tests.triton_backend.serving.small_plans import tensor
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.registry import load_runtime

X, Y = tensor("x", 8, 8, 8), tensor("y", 8, 8, 8)


def test_artifact_for_a_gpu_is_another_than_for_a_cpu(tmp_path: Path) -> None:
    stage = models.convolutions(tmp_path / "m.onnx")
    cpu = DeviceClass(name="card", cores=(0,))
    on_cpu = build_stage(stage, (X,), (Y,), device_class=cpu, max_batch=2, root=tmp_path)
    on_gpu = build_cuda_stage(stage, (X,), (Y,), gpu_class="card", max_batch=2, root=tmp_path)
    assert on_cpu.key != on_gpu.key
    assert Artifact.read(on_gpu.folder).device == "cuda"
    again = build_cuda_stage(stage, (X,), (Y,), gpu_class="card", max_batch=2, root=tmp_path)
    assert again.reused


def test_stage_for_a_gpu_never_runs_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    stage = models.convolutions(tmp_path / "m.onnx")
    built = build_cuda_stage(stage, (X,), (Y,), gpu_class="card", max_batch=2, root=tmp_path)
    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    reason = "is there a GPU" if has_cuda else "install onnxruntime-gpu in its place"
    with pytest.raises(InputError, match=reason):
        load_runtime(built.folder)
