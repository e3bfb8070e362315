"""Models of another Triton repository that the same server loads beside the plan's, unchanged.

    <place>/beside/<model>/...   folders of our own with a link to every file of the model's

Their repository is only read: Python writes its caches into the folder of the links. Here: which
they are, and the links. Not here: how they are found (`flows.release.beside`), how they are loaded
(`serving.server.beside`).
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from triton_backend.contract.errors import InputError

BESIDE_NAME = "beside"
MOST_FILES = 100_000  # of a model
_CACHE = "__pycache__"  # the server's Python makes its own, beside the links


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The models beside a plan.

    Attributes:
        folders: where each lies, by name, in the order in which they are loaded.
        completes: Triton completes configurations, as it does by default. Every load of a Python
            model, of the plan's too, then takes about a second longer.
    """

    folders: Mapping[str, Path]
    completes: bool = False

    def check(self, where: str, served: Iterable[str], others: Iterable[str] = ()) -> None:
        """Refuse a plan that cannot be served beside them.

        Args:
            where: the plan, in complaints.
            served: names of its models and applications.
            others: names that its server has beside those.

        Raises:
            InputError: it has the name of a model beside it.
        """
        names = set(served)
        for name in self.folders:
            if name in names or name in others:
                reason = f"is the name of a model beside the plan too ({self.folders[name]})"
                raise InputError(f"{where}, model {name!r}", reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in the settings."""
        return {
            "folders": {name: str(folder) for name, folder in self.folders.items()},
            "completes": self.completes,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls(
            folders={name: Path(folder) for name, folder in data["folders"].items()},
            completes=bool(data["completes"]),
        )


def link_model(place: Path, name: str, folder: Path) -> None:
    """Make the links of a model again, in the `beside` folder of a gateway's own.

    Raises:
        OSError: a folder cannot be read, or a link not be made.
        InputError: the model has too many files.
    """
    target = place / BESIDE_NAME / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for number, file in enumerate(_files(folder, ())):
        if number == MOST_FILES:
            raise InputError(str(folder), f"has more than {MOST_FILES} files")
        if file.is_dir():
            (target / file.relative_to(folder)).mkdir()
        else:
            (target / file.relative_to(folder)).symlink_to(file)


def _files(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Folders and files below a folder, each folder before its files; links are followed once."""
    here = os.path.realpath(folder)
    for file in sorted(folder.iterdir()):
        if file.name == _CACHE or (file.is_dir() and os.path.realpath(file) in (*above, here)):
            continue
        yield file
        if file.is_dir():
            yield from _files(file, (*above, here))
