"""Processes of copies: what interrupts their parent does not make them say anything."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import time
from flows.preparation.profiling.copies import Copies, CopyProcess
with Copies() as copies:
    copies.processes.append(CopyProcess())
    print(copies.processes[0].pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after_seconds", [0.02, 0.1, 0.3])
def test_ctrl_c_while_a_copy_starts_says_nothing_of_it(after_seconds: float) -> None:
    root = str(Path(__file__).parents[4])
    with subprocess.Popen(
        [sys.executable, "-c", f"try:\n exec({CODE!r})\nexcept KeyboardInterrupt: pass"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        copy = int(parent.stdout.readline())
        time.sleep(after_seconds)
        os.killpg(parent.pid, signal.SIGINT)
        _, said = parent.communicate(timeout=60)
    assert said == ""
    assert not Path(f"/proc/{copy}").exists()
