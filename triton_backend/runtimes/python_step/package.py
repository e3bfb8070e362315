"""The package of a step: a zip in its artifact, or one that is installed.

Imported when a stage is opened. Only the package that the workload names is imported here; what it
imports in turn is its own affair. A zip holds that one package, so it can stand for no other.
Stages of two artifacts may hold two versions of a package: each is imported again, and the
functions of the one before keep theirs.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
import zipimport
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile, ZipFile, ZipInfo

from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact

RUNTIME = "python_step"
PACKAGE_FILE, SAMPLES_FILE = "package", "samples"
PYTHON_OPTION, ARGUMENTS_OPTION, VERSION_OPTION = "python", "arguments", "package_version"
MOST_PACKAGE_BYTES = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
Function = Callable[..., Any]


def check_named(artifact: Artifact, steps: Iterable[Step], where: str) -> None:
    """Refuse an artifact whose function no step of the workload is.

    Raises:
        InputError: naming the function, and those that the workload has.
    """
    if artifact.runtime != RUNTIME:
        return
    wanted, named = artifact.options.get(PYTHON_OPTION), [step.python for step in steps]
    if wanted not in named:
        known = ", ".join(named) or "none"
        raise InputError(where, f"{wanted!r} is no step that the workload names ({known})")


def load_function(folder: Path, artifact: Artifact) -> Function:
    """The function of a step's artifact.

    Raises:
        InputError: the package or the function cannot be imported, with the reason.
    """
    python = str(artifact.options.get(PYTHON_OPTION, ""))
    step = Step(name="step", python=python)
    where = f"{folder}, step {python}"
    module_name, _, name = python.partition(":")
    file = artifact.files.get(PACKAGE_FILE)
    try:
        if file is None:
            _check_version(artifact, step.package, where)
        else:
            _put_in_place(folder / file, step.package, where)
        module = importlib.import_module(module_name)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # the package's own code may raise anything
        raise InputError(where, f"cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(where, f"module {module_name} has no function {name!r}")
    return function


def _check_version(artifact: Artifact, package: str, where: str) -> None:
    wanted, here = artifact.options.get(VERSION_OPTION), installed_version(package, where)
    if wanted != here:
        raise InputError(where, f"{package} {wanted} was prepared, {here} is installed here")


def installed_version(package: str, where: str) -> str:
    """The version of the distribution that has a package; nothing is imported.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise InputError(where, f"package {package!r} is not installed here")
    names = _distributions().get(package, ())
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names)))


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Those installed when the process first asks, by package: each one's files are read."""
    return importlib.metadata.packages_distributions()


def _put_in_place(file: Path, package: str, where: str) -> None:
    """Make the package of a zip the one that an import of its name finds."""
    try:
        with ZipFile(file) as archive:
            _check_entries(archive.infolist(), package, where)
    except (OSError, BadZipFile) as error:
        raise InputError(where, f"its package {file.name} cannot be read: {error}") from error
    held = sys.modules.get(package)
    origin = getattr(held, "__file__", None) or ""
    if held is not None and origin.startswith(f"{file}/"):
        return  # a stage before it has it already
    if held is not None and not isinstance(
        getattr(held, "__loader__", None), zipimport.zipimporter
    ):
        raise InputError(where, f"{package!r} is the name of another package, which is loaded here")
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]
    spec = zipimport.zipimporter(str(file)).find_spec(package)
    if spec is None or spec.loader is None:
        raise InputError(where, f"{file.name} has no package {package!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise


def _check_entries(entries: Iterable[ZipInfo], package: str, where: str) -> None:
    """Check that a zip holds one package, nothing else, within the limits."""
    size = 0
    for entry in entries:
        parts = PurePosixPath(entry.filename).parts
        if not parts or ".." in parts or parts[0] not in {package, f"{package}.py"}:
            raise InputError(where, f"its package holds {entry.filename!r}, which is no part of it")
        size += entry.file_size
    if size > MOST_PACKAGE_BYTES:
        raise InputError(where, f"its package has {size} bytes, at most {MOST_PACKAGE_BYTES}")


def write_package(source: Path, package: str, target: Path) -> str:
    """Write a package's files (or a module's one) into a zip; the same files give the same bytes.

    Returns:
        SHA-256 of the zip.

    Raises:
        InputError: it is not there, another's name, or too large.
    """
    named = {package, f"{package}.py"}
    if source.name not in named or not source.exists():
        raise InputError(str(source), f"is not there, or not called {' or '.join(sorted(named))}")
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    kept = [f for f in files if f.is_file() and "__pycache__" not in f.parts]
    size = sum(file.stat().st_size for file in kept)
    if size > MOST_PACKAGE_BYTES:
        raise InputError(str(source), f"has {size} bytes, at most {MOST_PACKAGE_BYTES}")
    with ZipFile(target, "w") as archive:
        for file in kept:
            name = file.relative_to(source.parent).as_posix()
            archive.writestr(ZipInfo(name, _EPOCH), file.read_bytes())
    return hashlib.sha256(target.read_bytes()).hexdigest()
