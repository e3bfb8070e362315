"""A bundle's folder, which appears whole or starts no container.

A rendering is written beside what lies there and put in its place once it is complete. Where the
folder has files of the user's own, such as `.git`, these stay: then entries are renamed one by one,
without the start script, which no container starts without, until all are there.

A rendering locks its own folder as long as its process lives: one that is free was left by a
process that was killed, and the next rendering clears it away.
"""

import fcntl
import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from triton_backend.contract.errors import InputError

START = "start-node.sh"
UNFINISHED = ".poolpipe-unfinished"
SCRATCH, RENDERING = ".poolpipe-rendering-", "bundle"


@contextmanager
def replaced(folder: Path, ours: Iterable[str]) -> Generator[Path]:
    """A folder to write a rendering into; where that ends well, it takes the place of `folder`.

    Args:
        folder: where the rendering goes.
        ours: names of its entries that go although the new rendering has none.

    Raises:
        InputError: the folder is a file, or has files that no rendering wrote.
        OSError: no rendering can lie there.
    """
    _check(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # An existing folder may be the only one here that is writable, or on its own file system.
    place = folder if folder.is_dir() else folder.parent
    _clear(place)
    try:
        rendering = TemporaryDirectory(dir=place, prefix=SCRATCH, ignore_cleanup_errors=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    with rendering as scratch, _locked(Path(scratch)):
        made = Path(scratch) / RENDERING
        made.mkdir()
        yield made
        if folder.is_dir():
            _put(made, folder, ours)
        else:
            made.rename(folder)


def _clear(place: Path) -> None:
    """Remove renderings whose process is gone; those that have just begun are empty, and stay."""
    for left in place.glob(f"{SCRATCH}*"):
        with _locked(left) as free:
            if free and [each.name for each in left.iterdir()] == [RENDERING]:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Generator[bool]:
    """True where no other process has the lock; it is held while the context lasts."""
    with ExitStack() as held:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            held.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # not ours, or the file system knows no locks: nothing is cleared there
            yield False
            return
        yield True


def _check(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(str(folder), "is a file, not a folder")
    names = {each.name for each in folder.iterdir() if not each.name.startswith(SCRATCH)}
    if names and not names & {START, UNFINISHED}:
        raise InputError(str(folder), "has files that are not of a rendered bundle; name another")


def _put(made: Path, folder: Path, ours: Iterable[str]) -> None:
    (folder / UNFINISHED).touch()
    (folder / START).unlink(missing_ok=True)
    names = {each.name for each in made.iterdir()} - {START}
    for name in sorted(names.union(ours)):
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        if name in names:
            (made / name).rename(place)
    (made / START).rename(folder / START)
    (folder / UNFINISHED).unlink()
