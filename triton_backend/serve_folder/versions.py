"""Versions of a name: folders of one Triton model, of which each is a process of its own.

Triton hands a request of `/v2/models/NAME/versions/N` to the process that it started for the folder
`NAME/N`, and one without a version to that of the highest number. A load of the model starts the
processes of new folders, ends those of folders that are gone and leaves all others alone, as long
as the configuration is the same and no file in their folders is newer (Triton 2.51). So the
configuration of such a model names no generation, its `model.py` are written once, and Python keeps
no compiled file beside them.

Here: these folders, and names of files of their processes. Not here: which model a version is
(`contract.workload`), the configuration (`repository`).
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from triton_backend.serve_folder.files import write_whole

OF_VERSIONS = 0
"""In a configuration instead of the generation that the model begins with."""
_MODEL = "model.py"
_COMPILED = "__pycache__"  # as a file: Python then makes no folder of that name
_OF_PROCESS = ":"  # no name has it


def process_file(name: str, version: int) -> str:
    """Name of the files of a version's process."""
    return f"{name}{_OF_PROCESS}{version}"


def model_of_process(file: str) -> tuple[str, int | None]:
    """The model of a process by the name of its files, and its version where that has one."""
    name, _, version = file.partition(_OF_PROCESS)
    return name, int(version) if version.isdecimal() else None


def versions_in(model: Path) -> list[int]:
    """The versions that a model's folder has, ascending."""
    return sorted(int(one.name) for one in model.glob("*") if one.name.isdecimal())


def write_versions(model: Path, versions: Iterable[int], text: str) -> None:
    """Have a model's folder hold these versions at least; those that it has stay untouched."""
    for version in versions:
        place = model / str(version)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / _MODEL).exists():
            (place / _COMPILED).touch()
            write_whole(place / _MODEL, text)


def keep_versions(model: Path, versions: Iterable[int]) -> None:
    """Take all other versions out of a model's folder; the next load ends their processes."""
    kept = {*versions}
    for version in versions_in(model):
        if version not in kept:
            shutil.rmtree(model / str(version), ignore_errors=True)


def mark_changed(model: Path, version: int) -> None:
    """Have the next load of a model start this version's process again, and no other.

    Raises:
        OSError: the version is not there.
    """
    os.utime(model / str(version) / _MODEL)
