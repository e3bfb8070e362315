"""Tests that failed beside others, as `scripts/test` finds them to run them once more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.failed import few_failed

BESIDE = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range(4))
def test_of(number):
    assert number not in {1, 3} or pathlib.Path("mended").exists()
"""


def pytest_in(folder: Path, *options: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


@pytest.mark.slow
def test_a_few_that_failed_are_named_and_many_are_not(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_beside.py").write_text(BESIDE)
    cache = tmp_path / ".pytest_cache"
    assert few_failed(5, cache) == []
    assert pytest_in(tmp_path, "--cache-clear", "--numprocesses", "2") == 1
    names = ["test_beside.py::test_of[1]", "test_beside.py::test_of[3]"]
    assert few_failed(2, cache) == names
    assert few_failed(1, cache) == []
    again = ("--last-failed", "--last-failed-no-failures", "none")
    assert pytest_in(tmp_path, *again) == 1
    (tmp_path / "mended").touch()
    assert pytest_in(tmp_path, *again) == 0
    assert few_failed(5, cache) == []
