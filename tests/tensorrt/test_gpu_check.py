"""The GPU script where there is no GPU; with one it is run by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_backend.core.errors import InputError
from triton_backend.engines.cuda import open_cuda

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


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
    summary = json.loads(lines[-1])
    assert summary["gpu"] is False
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert "Traceback" not in done.stderr


def test_opening_the_gpu_without_one_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("POOLPIPE_CUDART", "/nowhere/libcudart.so")
    with pytest.raises(InputError, match=r"^GPU: (there is no NVIDIA driver|none that)[^\n]*$"):
        open_cuda()
