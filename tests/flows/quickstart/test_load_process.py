"""The load generator as a process: an interrupt that comes early says nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

CODE = """
from pathlib import Path
from flows.quickstart.load_process import LoadRequest, run_load
try:
    run_load(
        LoadRequest(
            plan=Path("none.json"), url="127.0.0.1:1", protocol="grpc", duration_s=1.0,
            load_factor=None, seed=0, records=Path("none.npz"),
        ),
        keep_interrupted=True,
    )
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.parametrize("after_seconds", [0.02, 0.2])
def test_ctrl_c_while_the_generator_starts_says_nothing_of_it(
    tmp_path: Path, after_seconds: float
) -> None:
    ours, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    ) as parent:
        while not psutil.Process(parent.pid).children():
            time.sleep(0.01)
        time.sleep(after_seconds)
        os.killpg(parent.pid, signal.SIGINT)
        out, _ = parent.communicate(timeout=60)
    os.close(terminal)
    try:
        said = os.read(ours, 4096)
    except OSError:  # nothing is left of a terminal that was closed
        said = b""
    os.close(ours)
    assert (out, said) == (b"interrupted\n", b"")
