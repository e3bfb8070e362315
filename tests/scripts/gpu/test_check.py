"""The GPU script where there is no GPU; with one it is run by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.preparation.splitting.running import open_session, run_session
from scripts.gpu.checks import CHECKS, Bench, Skipped
from scripts.gpu.paths import OnnxruntimePath, find_path
from tests.fakes.cuda import HostCuda
from tests.flows.preparation.building.tensorrt import stage_models as models
from tests.scripts.gpu.cpu_path import CpuPath
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.cuda import open_cuda

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu" / "check.py"


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", str(tmp_path / "summary.json")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("no GPU here, nothing to check: GPU: ")
    assert [line.split(": ")[0] for line in lines[1:-1]] == [f"skip   {name}" for name in CHECKS]
    summary = json.loads(lines[-1])
    assert summary["gpu"] is False
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert "Traceback" not in done.stderr


def test_opening_the_gpu_without_one_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("POOLPIPE_CUDART", "/nowhere/libcudart.so")
    with pytest.raises(InputError, match=r"^GPU: (there is no NVIDIA driver|none that)[^\n]*$"):
        open_cuda()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The script's bench on a GPU made of host memory, its model split and loaded."""
    made = Bench(
        work=tmp_path_factory.mktemp("bench"),
        model="squeezenet",
        quick=True,
        cuda=HostCuda(),
        path=CpuPath(),
    )
    assert CHECKS["build and load"](made)[0] is True
    return made


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "result"),
    [
        ("cuda door", True),
        ("outputs against onnxruntime", True),
        ("fp16", None),
        ("split against whole", True),
        ("latency by batch", True),
        ("sum of blocks", None),
    ],
)
def test_check_judges_what_it_measured(bench: Bench, check: str, result: bool | None) -> None:
    good, figure = CHECKS[check](bench)
    assert good is result
    assert json.dumps(figure, default=float)


def test_two_stages_that_take_twice_as_long_fail(bench: Bench) -> None:
    good, figure = CHECKS["two stages on one GPU"](bench)
    assert good is False
    assert figure["ratio"] == pytest.approx(2.0)


@pytest.mark.long
def test_fp16_error_on_the_gpu_is_near_the_one_predicted(bench: Bench) -> None:
    _, figure = CHECKS["fp16"](bench)
    assert figure["predicted_on_cpu"] < 0.05
    assert figure["relative_error"] < 0.05


@pytest.mark.parametrize("check", ["layer profile", "gateway with two pools"])
def test_what_a_path_cannot_do_is_skipped_with_its_reason(bench: Bench, check: str) -> None:
    with pytest.raises(Skipped, match="cpu"):
        CHECKS[check](bench)


def test_stages_are_given_back(bench: Bench) -> None:
    assert isinstance(bench.path, CpuPath)
    assert bench.path.opened
    assert all(stage.closed for stage in bench.path.opened)


def test_without_a_path_every_stage_check_is_skipped_with_the_complaints(tmp_path: Path) -> None:
    bench = Bench(work=tmp_path, model="squeezenet", quick=True, cuda=HostCuda())
    bench.complaints.append("torch-cuda: sees no GPU")
    with pytest.raises(Skipped, match="sees no GPU"):
        CHECKS["latency by batch"](bench)


def test_onnxruntimes_path_gives_the_models_answers(tmp_path: Path) -> None:
    """All of it but the device: here its provider is the CPU's."""
    stage = models.two_in_three_out(tmp_path / "m.onnx")
    opened = OnnxruntimePath(tmp_path, "cpu").open(stage, graphs=False)
    given = {"a": np.array([[1, 2, 3, 4]]), "b": np.array([[0.5, -3, 0, 1]], np.float32)}
    given = {name: given[name] for name in opened.inputs}
    expected = run_session(open_session(stage, "m"), given)
    for name, array in opened.run(given).items():
        np.testing.assert_array_equal(array, expected[name])
    assert opened.compute_us(given) > 0
    opened.close()


def test_paths_that_do_not_work_here_say_why(tmp_path: Path) -> None:
    complaints: list[str] = []
    found = find_path(tmp_path, complaints)
    assert found is not None or [line.partition(":")[0] for line in complaints] == [
        "tensorrt",
        "onnxruntime-cuda",
        "torch-cuda",
    ]
