"""A process that compiles the gateway's kernels while this one compiles the simulator's."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def compiling() -> Generator[None]:
    """Compile and cache the scheduler's kernels for the server by the end of the block.

    Where that fails, or the block does, the server compiles them itself.
    """
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "triton_backend.serving.gateway.warm_up"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield
        process.wait()
    finally:
        process.kill()
        process.wait()
