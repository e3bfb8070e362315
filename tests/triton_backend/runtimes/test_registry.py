"""Artifacts that cannot be opened are refused by name."""

from pathlib import Path

import pytest

from tests.triton_backend.runtimes.stages import spec, write_doubling
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.registry import load_runtime


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
    with pytest.raises(InputError, match="unknown runtime 'abacus', known: onnxruntime"):
        load_runtime(tmp_path)


def test_the_clock_never_wakes_early_and_never_runs_back() -> None:
    clock = SystemClock()
    for ahead_us in (0, 50, 500):
        target_us = clock.now_us() + ahead_us
        clock.sleep_until_us(target_us)
        assert clock.now_us() >= target_us
    before_us = clock.thread_cpu_us()
    assert clock.thread_cpu_us() >= before_us
