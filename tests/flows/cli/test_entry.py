"""Interrupts of the program while it starts."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# An interrupt comes while the named module is imported.
PROGRAM = """
import os, signal, sys
from importlib import import_module

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv[1]
sys.meta_path.insert(0, Interrupting())
program = getattr(import_module("{module}"), "{function}")
sys.argv[1:] = ["plan", "--help"]
program()
"""


def interrupted(module: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The program of the package, interrupted while it imports a module."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    entry, function = scripts["poolpipe"].split(":")
    program = before + PROGRAM.format(module=entry, function=function)
    return subprocess.run(
        [sys.executable, "-c", program, module],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["typer", "flows.cli.registry", "flows.cli.serve.rollout"])
def test_an_interrupt_while_modules_are_imported_ends_quietly(module: str) -> None:
    done = interrupted(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_program_that_was_started_to_ignore_interrupts_ignores_them() -> None:
    done = interrupted("typer", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    assert (done.returncode, done.stderr) == (0, "")
