"""The tests are the tree of the product again: from a module to its tests and back."""

import re
from pathlib import Path

from tests.conftest import BEGIN
from tests.repository.files import ROOT, tracked_files

PRODUCT = ("flows", "triton_backend", "warehouse", "scripts")
FILES = [path for path in tracked_files() if path.suffix == ".py"]
MODULES = {path for path in FILES if path.parts[0] in PRODUCT and path.name != "__init__.py"}
TESTS = {path for path in FILES if path.parts[0] == "tests" and path.name.startswith("test_")}
# Of each folder, also of those below it.
BELOW: dict[Path, list[Path]] = {}
for each in MODULES:
    for above in each.parents:
        BELOW.setdefault(above, []).append(each)


def named_in_the_readme() -> set[Path]:
    """Tests of more than one module, which tests/README.md lists with what they are about."""
    text = (ROOT / "tests" / "README.md").read_text()
    found = re.findall(r"^\| `(tests/[a-z_/]+/test_[a-z_]+\.py)`", text, re.MULTILINE)
    return {Path(name) for name in found}


def modules_of(test: Path) -> set[Path]:
    """Modules and packages whose name a test file's name begins with, in the folder it mirrors."""
    folder, name = Path(*test.parts[1:-1]), test.stem.removeprefix("test_")
    depth = len(folder.parts)
    names = {Path(m.parts[depth]).stem.strip("_") for m in BELOW.get(folder, ())}
    return {folder / n for n in names if name == n or name.startswith(f"{n}_")}


def test_every_test_file_is_of_a_module_or_named_as_one_of_several() -> None:
    own = {test for test in TESTS if test.parts[1] in PRODUCT}
    assert {test for test in own - named_in_the_readme() if not modules_of(test)} == set()


def test_every_test_that_the_readme_names_is_there() -> None:
    assert named_in_the_readme() - TESTS == set()


def test_every_file_and_folder_that_begins_is_there() -> None:
    there = {place for test in TESTS for place in (test, *test.parents)}
    assert {Path("tests", name) for name in BEGIN} - there == set()


def test_every_folder_of_the_product_has_tests_of_its_own() -> None:
    folders = {module.parent for module in MODULES if module.parts[0] != "scripts"}
    tested = {Path(*test.parts[1:-1]) for test in TESTS}
    for test in TESTS:
        tested |= modules_of(test)
    assert folders - tested == set()


def test_no_helper_has_the_name_of_another() -> None:
    helpers = [
        path.stem
        for path in FILES
        if path.parts[0] == "tests" and path not in TESTS and path.name != "conftest.py"
    ]
    assert sorted(helpers) == sorted(set(helpers))
