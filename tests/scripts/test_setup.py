"""The script that makes the virtual environment, with a Python and a uv that do next to nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"
PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) echo 3.11 ;;
  "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/bin/activate ;;
esac
"""
UV = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'uv 1'\ntrue\n"


@pytest.mark.slow
@pytest.mark.parametrize(("made_last", "makes"), [("activate", False), (None, True)])
def test_an_environment_that_was_not_made_to_its_end_is_made_again(
    tmp_path: Path, made_last: str | None, *, makes: bool
) -> None:
    project, tools, begun = tmp_path / "project", tmp_path / "tools", tmp_path / "project/.venv/bin"
    for folder in (project / "scripts", tools, begun):
        folder.mkdir(parents=True)
    for file, text in (
        (tools / "python3.11", PYTHON),
        (tools / "uv", UV),
        (begun / "python", PYTHON),
    ):
        file.write_text(text)
        file.chmod(0o755)
    if made_last is not None:
        (begun / made_last).touch()
    shutil.copy(SETUP, project / "scripts")
    for file in ("pyproject.toml", "uv.lock"):
        (project / file).touch()
    done = subprocess.run(
        [project / "scripts" / "setup"],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("making .venv with" in done.stderr) == makes
    assert (begun / "activate").is_file()
