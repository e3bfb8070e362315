"""Packages of steps: what is imported, and what is not."""

import importlib.metadata
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.triton_backend.runtimes.python_step.step_folders import write_step
from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.python_step.package import (
    PYTHON_OPTION,
    RUNTIME,
    VERSION_OPTION,
    check_named,
    installed_version,
    load_function,
    write_package,
)

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 2))


def artifact_in(folder: Path, source: str, python: str = "shop:run") -> Artifact:
    write_step(folder, source, inputs=[X], outputs=[X], python=python)
    return Artifact.read(folder)


def test_two_versions_of_a_package_are_two_functions(tmp_path: Path) -> None:
    old = artifact_in(tmp_path / "old", "SAID = 'old'\ndef run(): return SAID")
    new = artifact_in(tmp_path / "new", "SAID = 'new'\ndef run(): return SAID")
    functions = [load_function(tmp_path / "old", old), load_function(tmp_path / "new", new)]
    assert [function() for function in functions] == ["old", "new"]


def test_a_package_is_its_folder(tmp_path: Path) -> None:
    inner = tmp_path / "market" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "market" / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (inner / "work.py").write_text("from market.other import N\ndef run(): return N")
    (tmp_path / "market" / "other.py").write_text("N = 7")
    folder = tmp_path / "artifact"
    asked = artifact_in(folder, "", python="market.inner.work:run")
    write_package(tmp_path / "market", "market", folder / "package.zip")
    assert load_function(folder, asked)() == 7


def test_the_same_files_give_the_same_zip(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("x = 1")
    found = [write_package(tmp_path / "shop.py", "shop", tmp_path / n) for n in ("a", "b")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def walk(): ...", "module shop has no function 'run'"),
        ("run = 3", "module shop has no function 'run'"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def run(:", "SyntaxError"),
    ],
)
def test_what_cannot_be_imported_is_refused(tmp_path: Path, source: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        load_function(tmp_path, artifact_in(tmp_path, source))


def test_a_zip_with_more_than_its_package_is_refused_and_not_imported(tmp_path: Path) -> None:
    asked = artifact_in(tmp_path, "def run(): ...")
    with ZipFile(tmp_path / "package.zip", "a") as archive:
        archive.writestr("numpy.py", "raise SystemExit")
    sys.modules.pop("shop", None)
    with pytest.raises(InputError, match=r"its package holds 'numpy.py', which is no part of it"):
        load_function(tmp_path, asked)
    assert "shop" not in sys.modules


def test_a_package_does_not_take_the_place_of_one_that_is_loaded(tmp_path: Path) -> None:
    asked = artifact_in(tmp_path, "def run(): ...", python="json:run")
    with pytest.raises(InputError, match="'json' is the name of another package"):
        load_function(tmp_path, asked)


def test_an_installed_package_is_the_version_that_was_prepared(tmp_path: Path) -> None:
    here = installed_version("numpy", "here")
    options = {PYTHON_OPTION: "numpy:tanh", VERSION_OPTION: here}
    asked = Artifact(
        runtime=RUNTIME, gpu_class="c", inputs=(X,), outputs=(X,), max_batch=1, options=options
    )
    assert load_function(tmp_path, asked)(0.0) == 0.0
    other = Artifact(
        runtime=RUNTIME,
        gpu_class="c",
        inputs=(X,),
        outputs=(X,),
        max_batch=1,
        options={**options, VERSION_OPTION: "numpy 0.1"},
    )
    with pytest.raises(InputError, match=r"numpy numpy 0.1 was prepared, numpy .* is installed"):
        load_function(tmp_path, other)
    with pytest.raises(InputError, match="package 'nowhere' is not installed here"):
        installed_version("nowhere", "here")


def test_installed_packages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that loads one step after the other would read hundreds of files for each."""
    first = installed_version("numpy", "here")

    def never() -> None:
        pytest.fail("they were read again")

    monkeypatch.setattr(importlib.metadata, "packages_distributions", never)
    assert installed_version("numpy", "here") == first


def test_a_function_that_no_step_names_is_refused(tmp_path: Path) -> None:
    asked = artifact_in(tmp_path, "")
    check_named(asked, [Step(name="a", python="shop:run")], "artifact")
    with pytest.raises(InputError, match=r"'shop:run' is no step .* names \(shop:walk\)"):
        check_named(asked, [Step(name="a", python="shop:walk")], "artifact")
    with pytest.raises(InputError, match=r"names \(none\)"):
        check_named(asked, [], "artifact")
