"""Python programs in a process of their own, with kernels compiled or as plain Python."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def printed_by(code: str, *arguments: str, compiled: bool, **environment: str) -> str:
    """The output of a program that may import the product and the tests.

    It fails where that fails.
    """
    own = {"NUMBA_DISABLE_JIT": "0" if compiled else "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ | own | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
