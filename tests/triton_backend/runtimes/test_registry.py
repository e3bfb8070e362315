"""Artifacts that cannot be opened are refused by name."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import triton_backend.runtimes
from tests.triton_backend.runtimes.stages import spec, write_doubling
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.registry import load_runtime, runtime_names


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = write_doubling(tmp_path / "a", cores=[0], threads=2, stretch=1.5)
    assert Artifact.read(tmp_path / "a") == written


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.json: not an artifact manifest"):
        load_runtime(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"runtime": "onnxruntime"}'])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(InputError, match="not an artifact manifest"):
        load_runtime(tmp_path)


def test_an_unknown_runtime_is_refused_with_those_known(tmp_path: Path) -> None:
    Artifact(
        runtime="abacus", gpu_class="c", inputs=(spec("x"),), outputs=(spec("y"),), max_batch=1
    ).write(tmp_path)
    known = "unknown runtime 'abacus', known: emulated, onnxruntime, python_step, tensorrt"
    with pytest.raises(InputError, match=known):
        load_runtime(tmp_path)


def test_a_runtime_is_one_module_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "abacus.py").write_text("def open_stage(folder, artifact, **_): return artifact")
    monkeypatch.setattr(
        triton_backend.runtimes, "__path__", [*triton_backend.runtimes.__path__, str(tmp_path)]
    )
    asked = Artifact(
        runtime="abacus", gpu_class="c", inputs=(spec("x"),), outputs=(spec("y"),), max_batch=1
    )
    asked.write(tmp_path)
    assert load_runtime(tmp_path) == asked
    assert runtime_names() == ("abacus", "emulated", "onnxruntime", "python_step", "tensorrt")


@pytest.mark.parametrize("name", ["mps", "base", "..cluster", "os", ""])
def test_a_module_that_is_no_runtime_is_not_run(tmp_path: Path, name: str) -> None:
    Artifact(
        runtime=name, gpu_class="c", inputs=(spec("x"),), outputs=(spec("y"),), max_batch=1
    ).write(tmp_path)
    with pytest.raises(InputError, match="unknown runtime"):
        load_runtime(tmp_path)


def test_a_manifest_from_before_devices_were_stated_is_read(tmp_path: Path) -> None:
    for runtime, options, device in (
        ("tensorrt", {}, "cuda"),
        ("onnxruntime", {"device": "cuda"}, "cuda"),
        ("onnxruntime", {"cores": [0]}, "cpu"),
    ):
        write_doubling(tmp_path / "a", cores=[0])
        path = tmp_path / "a" / "engine.json"
        data = {**json.loads(path.read_text()), "runtime": runtime, "options": options}
        del data["device"]
        path.write_text(json.dumps(data))
        assert Artifact.read(tmp_path / "a").device == device
        shutil.rmtree(tmp_path / "a")


@pytest.mark.slow
def test_onnxruntime_tells_its_makers_nothing(tmp_path: Path) -> None:
    """It would write to the home folder when it is imported."""
    for module in ("flows.preparation.splitting.running", "triton_backend.runtimes.onnxruntime"):
        environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
        environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
        subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True)
        assert list(tmp_path.iterdir()) == []


def test_the_clock_never_wakes_early_and_never_runs_back() -> None:
    clock = SystemClock()
    for ahead_us in (0, 50, 500):
        target_us = clock.now_us() + ahead_us
        clock.sleep_until_us(target_us)
        assert clock.now_us() >= target_us
    before_us = clock.thread_cpu_us()
    assert clock.thread_cpu_us() >= before_us
