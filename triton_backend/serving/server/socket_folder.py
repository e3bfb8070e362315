"""The folder of a system's sockets: held while it serves, removed when it was abandoned.

Keeper and tritonserver hold a lock on a file in it, which the kernel lets go when the last of them
is gone, however it ended, and in whatever container. So a start can tell the folders of killed
systems from those of living ones, and removes them with what they name: the segments of shared
memory of that system, and the empty folders that Triton's Python backend made for it.

Not here: folders without the lock, those of other users, and this system's own.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from triton_backend.serve_folder.files import make_private_folder
from triton_backend.serving.transport.shared_memory import remove_segments

LOCK_NAME, ENVIRONMENTS_NAME = "held", "environments"
_NAME = re.compile(r"poolpipe-[0-9a-f]{8}")
_LOG = logging.getLogger(__name__)


def hold(folder: Path) -> int:
    """Make the folder where it is not there, and hold it until the descriptor is closed.

    Raises:
        InputError: it is not this user's alone.
        OSError: it cannot be made.
    """
    while True:
        make_private_folder(folder)
        path = folder / LOCK_NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another start removed it just now
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_at(path, fd):
            return fd
        os.close(fd)


def note_environments(folder: Path, environments: Iterable[Path]) -> None:
    """Write down more folders of Python environments of this system; a full disk is no error."""
    with contextlib.suppress(OSError), (folder / ENVIRONMENTS_NAME).open("a") as file:
        file.writelines(f"{path}\n" for path in sorted(environments))


def remove_abandoned(own: Path) -> None:
    """Remove the folders of systems of this user beside a folder that no process holds."""
    for folder in own.parent.glob("poolpipe-*"):
        if folder != own and _NAME.fullmatch(folder.name):
            with contextlib.suppress(OSError):  # held, without a lock, or gone
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove it.

    Raises:
        OSError: it is held, has no lock, or is not this user's.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_environments(folder / ENVIRONMENTS_NAME)
        remove_segments(f"{folder.name}-")
        shutil.rmtree(folder)
        _LOG.info("%s of a system that was killed is removed", folder)
    finally:
        os.close(fd)


def _remove_environments(noted: Path) -> None:
    """Remove folders that a system has written down, where they are empty and named as Triton's."""
    with contextlib.suppress(OSError, ValueError):
        for line in noted.read_text().splitlines():
            path = Path(line)
            if path.parent == Path("/tmp") and path.name.startswith("python_env_"):  # noqa: S108  # the backend's choice
                with contextlib.suppress(OSError):  # another system's by now, which uses it
                    path.rmdir()


def _is_at(path: Path, fd: int) -> bool:
    """True if a path still leads to an open file."""
    try:
        found = path.lstat()
    except OSError:
        return False
    held = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
