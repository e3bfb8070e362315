"""The process of a server: its signals, its stubs, and the remains of a dead one."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from triton_backend.serve_folder.state import command_line
from triton_backend.serving.liveness.ends import ExitWatch
from triton_backend.serving.liveness.threads import is_alive
from triton_backend.serving.transport.sched_tuning import restore_priority

WATCH_SECONDS = 0.2
PROGRAM = "tritonserver"


class TritonServer:
    """The process of a server: a child of ours, or of a keeper that is gone.

    Args:
        pid: of the process.
        group: the process group that its stubs and workers are in.
        child: None where it is not ours to wait for.
    """

    def __init__(self, pid: int, group: int, child: Popen[bytes] | None) -> None:
        self.pid = pid
        self.group = group
        self._child = child

    def ended(self) -> str | None:
        """Its exit code, or words for an unknown one; None while it runs."""
        if self._child is not None:
            code = self._child.poll()
            return None if code is None else str(code)
        words = command_line(self.pid)  # another program may have its number by now
        runs = bool(words) and Path(words[0]).name == PROGRAM
        return None if runs else "an unknown code"

    def stop(self, signal_number: int, exits: ExitWatch, timeout_s: float) -> None:
        """Send a signal and wait until it has ended, or the time is over."""
        self._signal(signal_number, exits)
        for _ in range(int(timeout_s / WATCH_SECONDS)):
            if self.ended() is not None:
                return
            exits.wait(WATCH_SECONDS)

    def _signal(self, number: int, exits: ExitWatch) -> None:
        exits.watch(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def drain(self, repositories: Sequence[Path], exits: ExitWatch, timeout_s: float) -> None:
        """Answer what is in flight, unload the models, and end when their processes are gone.

        It looks once a second itself whether its models are. It is killed where that takes longer
        than the time given.
        """
        stubs = [pid for repository in repositories for pid in self.stubs(repository)]
        for pid in stubs:
            exits.watch(pid)
        self._signal(signal.SIGTERM, exits)
        looks = int(timeout_s / WATCH_SECONDS) + len(stubs)  # the end of each stub is one, too
        for _ in range(looks):
            if self.ended() is not None:
                return
            if stubs and not any(map(is_alive, stubs)):
                break
            exits.wait(WATCH_SECONDS)
        self.stop(signal.SIGKILL, exits, timeout_s)

    def kill_group(self) -> None:
        """Kill what a dead server left in its process group (stubs and workers)."""
        mine = os.getpid()
        if self._child is not None and self.group != mine:
            return  # started in another's group, which is not ours to clear
        for pid in _processes():
            with contextlib.suppress(OSError):
                if pid != mine and os.getpgid(pid) == self.group and _is_of_triton(pid):
                    os.kill(pid, signal.SIGKILL)

    def kill_stubs(self, repository: Path) -> None:
        """Kill the stubs that a dead server left."""
        for pid in self.stubs(repository):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def restore_priority(self, repository: Path) -> None:
        """Serve at the usual priority, after it was loaded at a lower one."""
        for pid in (self.pid, *self.stubs(repository)):
            restore_priority(pid)

    def stubs(self, repository: Path) -> list[int]:
        """Stubs of a repository or a model of one, which are known by their models' files."""
        found: list[int] = []
        for pid in _processes():
            with contextlib.suppress(OSError):
                ours = any(word.startswith(f"{repository}/") for word in command_line(pid)[1:])
                if ours and os.getpgid(pid) == self.group:
                    found.append(pid)
        return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _is_of_triton(pid: int) -> bool:
    """True if a process is a stub or a worker, and no other program has its number."""
    return any(word in " ".join(command_line(pid)) for word in ("triton", "poolpipe"))
