"""The quickstart's compile process neither stops nor outlives it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.quickstart.compile_process import compiling
from tests.interpreters import ROOT, printed_by

pytestmark = pytest.mark.slow


def test_a_failure_of_the_compiler_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with compiling():
        pass


def test_it_ends_with_a_block_that_fails() -> None:
    before = set(psutil.Process().children())
    with pytest.raises(KeyboardInterrupt), compiling():
        raise KeyboardInterrupt
    assert set(psutil.Process().children()) <= before


def test_the_scheduler_takes_its_kernels_from_where_the_program_left_them() -> None:
    folder = Path(os.environ.get("NUMBA_CACHE_DIR", ROOT / "triton_backend"))

    def kept() -> set[tuple[str, int]]:
        return {(str(file), file.stat().st_mtime_ns) for file in folder.rglob("*.nbc")}

    command = [sys.executable, "-m", "triton_backend.serving.gateway.warm_up"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "0"}
    subprocess.run(command, env=environment, check=True)
    left = kept()
    warm = "from triton_backend.scheduler.scheduler import Scheduler\n"
    warm += "from triton_backend.contract.events import Pause\n"
    warm += "from tests.fakes.plans import two_stages\n"
    warm += "print(Scheduler(two_stages()).handle(Pause(now_us=0)))"
    assert printed_by(warm, compiled=True) == "[]\n"
    assert kept() == left != set()
