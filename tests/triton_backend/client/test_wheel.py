"""The client's wheel, alone in a fresh virtual environment."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.repository.files import ROOT
from tests.triton_backend.client.cut_models import heads_of, split_shrinking

pytestmark = pytest.mark.slow
BUILD = ("build", "--wheel", "--quiet", str(ROOT / "triton_backend" / "client"))


def uv(*arguments: object, offline: bool = False) -> bool:
    """True if a command of uv succeeds.

    As everywhere here, with what is cached where it is offline.
    """
    beside = Path(sys.executable).with_name("uv")
    command = [str(beside) if beside.exists() else "uv", *map(str, arguments)]
    if offline:
        command.append("--offline")
    return subprocess.run(command, check=False, timeout=120, cwd=ROOT).returncode == 0


def install(wheel: Path, folder: Path) -> Path:
    """A virtual environment with the wheel; its Python.

    Without an index: with this one's packages.
    """
    python = folder / "bin" / "python"
    assert uv("venv", "--quiet", "--python", sys.executable, folder)
    into = ("pip", "install", "--quiet", "--python", python, wheel)
    if not uv(*into):
        assert uv(*into, "--no-deps", offline=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_it_measures_and_runs_without_the_product(tmp_path: Path) -> None:
    built = ("--out-dir", tmp_path)
    assert uv(*BUILD, *built) or uv(*BUILD, *built, offline=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = install(wheel, tmp_path / "venv")
    split = split_shrinking(tmp_path)
    folder = heads_of(split, tmp_path / "heads", [0] * 5).folder

    def ran(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    program = str(python.with_name("poolpipe-client"))
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('triton_backend') is not None)"
    ran(str(python), "-c", code)
    measured = json.loads(ran(program, "measure", str(folder), "--json"))
    assert measured["split"] == split.key
    first, *others = measured["heads_us"]
    assert first == 0 < min(others)
    asked = ("--url", "127.0.0.1:1", "--slo-ms", "900", "--rps", "4", "--duration", "1", "--json")
    done = json.loads(ran(program, "run", str(folder), *asked))
    assert (done["offered"], done["served"], done["on_device"]) == (4, 4, 4)
    assert done["max_error"] == 0
