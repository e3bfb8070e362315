"""What is asked of Linux's scheduler, in a process of its own."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_short_slices_are_asked_for_a_process_and_its_threads() -> None:
    code = """
import threading
from pathlib import Path
from triton_backend.serving.transport.sched_tuning import SLICE_NS, ask_for_short_slices
taken = ask_for_short_slices()
def slice_ns():
    lines = Path("/proc/thread-self/sched").read_text().splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("se.slice")), None)
told = []
thread = threading.Thread(target=lambda: told.append(slice_ns()))
thread.start()
thread.join()
assert not taken or told[0] in {None, SLICE_NS}, told
"""
    subprocess.run([sys.executable, "-c", code], check=True)
