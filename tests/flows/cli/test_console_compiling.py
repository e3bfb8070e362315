"""Kernels that are compiled are named on a terminal; elsewhere one line says that some are."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import ROOT

ADDED = """
from triton_backend.scheduler.compiled import entry

@entry
def doubled(number):
    return 2 * number

@entry
def tripled(number):
    return 3 * number
"""

# A library may log to the console what reaches the root, as Prefect does.
PROGRAM = """
import logging
from flows.cli.console import note_compiling
logging.basicConfig(level=logging.INFO)
note_compiling()
from added import doubled, tripled
print(doubled(21), doubled(4), tripled(3))
"""


def stderr_of(folder: Path, *, terminal: bool) -> str:
    """The stderr of the program on a terminal, or on a pipe."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0", "PYTHONPATH": f"{folder}:{ROOT}"}
    reading, writing = pty.openpty() if terminal else os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=writing,
            text=True,
            check=True,
        )
        assert done.stdout == "42 8 9\n"
        os.write(writing, b"end\n")  # a terminal gives a reader a line at a time
        said = ""
        while not said.endswith("end\n"):
            said += os.read(reading, 4096).decode().replace("\r\n", "\n")
        return said.removesuffix("end\n")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.slow
def test_kernels_that_are_compiled_are_said_once(tmp_path: Path) -> None:
    named = "note: compiling added.doubled, once per machine\n"
    for name, terminal, said in (
        ("one", True, named + named.replace("doubled", "tripled")),
        ("one", True, ""),
        ("another", False, "note: compiling kernels, once per machine\n"),
        ("another", False, ""),
    ):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "added.py").write_text(ADDED)
        assert stderr_of(folder, terminal=terminal) == said
