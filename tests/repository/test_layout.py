"""The repository keeps the shape its documents describe."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.repository.files import ROOT, tracked_files

TOP_LEVEL = {
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "flows",
    "triton_backend",
    "model_repo_templates",
    "warehouse",
    "tests",
    "scripts",
    "uv.lock",
    "prefect.yaml",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs",
    "LICENSE",
}
MAPPED = ("flows", "triton_backend", "model_repo_templates", "warehouse", "scripts")
MOST_FILES = 15  # Python files of one folder
MOST_LINES, MOST_PARAMETERS = 80, 25  # of one function
SELF_EVIDENT = {"__init__.py", "README.md", "conftest.py"}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    """Functions and methods of a file, nested ones too."""
    tree = ast.parse((ROOT / path).read_text())
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def function_lines(function: Function) -> int:
    """From `def` to the last line, without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameters(function: Function) -> int:
    """Those by position and those by name."""
    return len(function.args.args) + len(function.args.kwonlyargs)


def nearest_readme(path: Path) -> Path | None:
    """The README that maps a file: its folder's, or the next one above within the top folder."""
    for folder in path.parents:
        if folder == Path():
            return None
        if (ROOT / folder / "README.md").exists():
            return folder / "README.md"
    return None


def test_top_level_holds_only_what_was_agreed() -> None:
    top = {path.parts[0] for path in tracked_files()}
    assert {name for name in top if not name.startswith(".")} == TOP_LEVEL


@pytest.mark.parametrize("folder", MAPPED)
def test_every_file_of_a_folder_is_listed_in_the_readme_that_maps_it(folder: str) -> None:
    missing: list[str] = []
    for path in tracked_files():
        if path.parts[0] != folder or path.name in SELF_EVIDENT or path.suffix not in {".py", ""}:
            continue
        readme = nearest_readme(path)
        text = (ROOT / readme).read_text() if readme else ""
        if not re.search(rf"\b{re.escape(path.stem)}\b", text):
            missing.append(f"{path} in {readme}")
    assert missing == []


@pytest.mark.parametrize("folder", MAPPED)
def test_every_file_that_a_readme_maps_is_there(folder: str) -> None:
    files = [f"/{path}" for path in tracked_files() if path.parts[0] == folder]
    missing: list[str] = []
    for readme in (Path(path[1:]) for path in files if path.endswith("/README.md")):
        for row in re.findall(r"^\| (`.*?) \|", (ROOT / readme).read_text(), re.MULTILINE):
            names = re.findall(r"`([a-z0-9_/]+\.py)`", row)
            gone = [name for name in names if not any(f.endswith(f"/{name}") for f in files)]
            missing += [f"{name} in {readme}" for name in gone]
    assert missing == []


def test_every_folder_of_tests_is_listed() -> None:
    folders = {path.parts[1] for path in tracked_files() if path.parts[0] == "tests"}
    listed = set(re.findall(r"`([a-z_]+)`", (ROOT / "tests" / "README.md").read_text()))
    assert {name for name in folders if "." not in name} - listed == set()


def test_folders_are_at_most_four_levels_deep() -> None:
    deep = [
        str(path)
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[0] != "tests" and len(path.parts) > 5
    ]
    assert deep == []


def test_no_folder_holds_more_files_than_a_reader_keeps_in_mind() -> None:
    counts = Counter(
        str(path.parent)
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[0] != "tests"
    )
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_the_linters_settings_are_of_files_that_are_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    patterns = [pattern.replace("**", "**/*") for pattern in settings["per-file-ignores"]]
    names = [one for pattern in patterns for one in _alternatives(pattern)]
    assert [name for name in names if not any(ROOT.glob(name))] == []


def _alternatives(pattern: str) -> list[str]:
    """A pattern for each word in its braces."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    words, _, after = rest.partition("}")
    return [f"{before}{word}{after}" for word in words.split(",")]


def test_no_function_is_longer_or_takes_more_than_a_reader_holds_at_once() -> None:
    product = [path for path in tracked_files() if path.parts[0] in MAPPED and path.suffix == ".py"]
    found = [
        f"{path}:{function.name}"
        for path in product
        for function in functions(path)
        if function_lines(function) > MOST_LINES or parameters(function) > MOST_PARAMETERS
    ]
    assert found == []
