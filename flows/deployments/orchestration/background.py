"""Processes of a folder that outlive the command which started them, found again by their files.

Here: starting, finding and ending them, and saying so. Not here: which (`operations`).
"""

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from flows.sigpipe import discard_stdout

STOP_SECONDS, LEFT_SECONDS = 30.0, 5.0


def say(text: str) -> None:
    """A line for people, at once; what is being started or ended is so also when they have left."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def running(folder: Path, name: str) -> psutil.Process | None:
    """A process started here and still alive.

    The number alone could be another program's by now.
    """
    try:
        number, started = (folder / f"{name}.pid").read_text().split()
        process = psutil.Process(int(number))
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process if alive and f"{process.create_time():.2f}" == started else None
    except (OSError, ValueError, psutil.Error):
        return None


def log_of(folder: Path, name: str) -> Path:
    """Where a process writes."""
    return folder / f"{name}.log"


def start(folder: Path, name: str, command: Sequence[str], *, within: Path) -> None:
    """Start a process in the folder `within`, unless it runs."""
    found = running(folder, name)
    if found is not None:
        say(f"{name}: runs already (process {found.pid})")
        return
    with log_of(folder, name).open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=within,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process.returncode = 0  # it outlives us: no process waits for it here
    born = psutil.Process(process.pid).create_time()
    (folder / f"{name}.pid").write_text(f"{process.pid} {born:.2f}\n")
    say(f"{name}: started, log in {log_of(folder, name)}")


def stop(folder: Path, name: str) -> None:
    """End a process started here, and what it started."""
    found = running(folder, name)
    if found is None:
        say(f"{name}: does not run")
        return
    family = found.children(recursive=True)
    found.terminate()
    psutil.wait_procs([found], timeout=STOP_SECONDS)
    # No process is left to end what it did not end itself.
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in (found, *family):
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        psutil.wait_procs([found, *family], timeout=LEFT_SECONDS)
    (folder / f"{name}.pid").unlink(missing_ok=True)
    say(f"{name}: ended")
