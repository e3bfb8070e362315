"""One change of plan at a time, from its preparation to the end of its bake; one loop at a time.

A file of the state folder is locked for so long, and says by which process. The kernel unlocks it
when that process ends, however it does: a lock that is free beside a rollout that has not ended
means that the rollout's process died.
"""

import fcntl
import itertools
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from flows.clock import now_utc
from flows.progress import Say, say_on_stderr
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.files import PRIVATE

POLL_SECONDS = 0.1
NAME_POLLS = 10  # a holder gives its name long before
COMMAND_CHARACTERS = 120
CHANGE_UNDER_WAY = "another change of plan is under way"
LOOP_UNDER_WAY = (
    "another loop brings plans into force, and two would undo each other's (--advisory goes beside)"
)


@contextmanager
def one_change(path: Path, *, wait: bool, say: Say = say_on_stderr) -> Generator[None]:
    """Hold the lock while the context lasts.

    Args:
        path: the file that is locked.
        wait: for a holder that lives, as long as it takes; else it is an error.
        say: called with the holder that is waited for.

    Raises:
        InputError: another process or thread holds the lock, and is not to be waited for.
    """
    with _held(path, CHANGE_UNDER_WAY, say if wait else None):
        yield


def holder_of(path: Path) -> str | None:
    """The process that holds the lock of a file; None where none does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(fd) or "a process"
    finally:
        os.close(fd)
    return None


@contextmanager
def one_loop(path: Path) -> Generator[None]:
    """Hold the lock of the loop that follows the load while the context lasts.

    Raises:
        InputError: another process or thread holds it.
    """
    with _held(path, LOOP_UNDER_WAY, None):
        yield


@contextmanager
def _held(path: Path, taken: str, say: Say | None) -> Generator[None]:
    """The lock of a file.

    Args:
        path: the file.
        taken: the complaint where another has it,
        say: unless that one is waited for: called with it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        _take(fd, path, taken, say)
        os.pwrite(fd, _this_process().encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _take(fd: int, path: Path, taken: str, say: Say | None) -> None:
    said_of = ""
    for polls in itertools.count():
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # One without a name has just taken it, or looks whether another holds it.
            holder = _holder(fd)
            if say is None and (holder or polls == NAME_POLLS):
                raise InputError(str(path), f"{taken}: {holder}") from None
        else:
            os.ftruncate(fd, 0)  # a holder that died left its name
            return
        if say is not None and holder and holder != said_of:
            say(f"waiting for another change of plan: {holder}")
            said_of = holder
        time.sleep(POLL_SECONDS)


def _holder(fd: int) -> str:
    return os.pread(fd, 1024, 0).decode(errors="replace")


def _this_process() -> str:
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    command = " ".join([name, *sys.argv[1:]])[:COMMAND_CHARACTERS].strip()
    since = now_utc().isoformat(timespec="seconds")
    return f"process {os.getpid()} ({command}), since {since}"
