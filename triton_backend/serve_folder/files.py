"""Files written whole or not at all, and folders of one owner."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from triton_backend.contract.errors import InputError

PRIVATE = 0o600  # of what holds the token


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Generator[BinaryIO]:
    """A file to write to that is at `path` once all of it is written.

    On an error, such as a full disk, what was there before stays.

    Raises:
        OSError: it cannot be written.
    """
    fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            yield file
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file in one step; on a full disk what was there before stays.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path, mode=mode) as file:
        file.write(text.encode())


def make_private_folder(folder: Path) -> None:
    """Make a folder for this user alone; one that is there already must be such a folder.

    In a place where everybody may write, another user may have made it before us.

    Raises:
        InputError: it is another user's, others may enter it, or it is no folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise InputError(str(folder), f"is not this user's folder (owner {found.st_uid})")
    if found.st_mode & 0o077:
        raise InputError(str(folder), f"is open to others (mode {found.st_mode & 0o777:o})")
