"""Every script runs by one command from the repository root, by its path or as a module."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("**/*.py"))
COMMANDS = [path for path in SCRIPTS if '__name__ == "__main__"' in path.read_text()]


def module_of(path: Path) -> str:
    """`scripts/faults/probe.py` as `scripts.faults.probe`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", COMMANDS, ids=module_of)
def test_script_explains_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_no_script_takes_the_name_of_a_standard_module() -> None:
    """Run by its path, a script finds its neighbours before the standard library."""
    assert [path for path in SCRIPTS if path.stem in sys.stdlib_module_names] == []


def test_no_script_changes_where_modules_are_found() -> None:
    assert [path for path in SCRIPTS if re.search(r"\bsys\.path\b", path.read_text())] == []


def test_watchers_of_the_table_of_faults_find_it_where_it_was() -> None:
    forwarded = runpy.run_path(str(ROOT / "scripts" / "bench_faults.py"))["main"]
    assert forwarded.__module__ == "scripts.faults.bench_faults"
