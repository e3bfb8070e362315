"""One process more than cores, at a low priority, which fills what the others leave of them.

Tests of servers wait for a third of their time, and a third process with servers makes tests fail
that kill processes. The filling one takes files from the other end of the queue, and only those
that start no process and no thread, or lie in a folder whose processes keep no deadlines:

    slow files ........................ short ones
    -> the others              the filling one <-
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

NICENESS = 10
TIMED = Path("tests/triton_backend/serving")
THREADS = re.compile(r"\bThread\(|\bPopen\(")
SLOW = re.compile(r"\bmark\.slow\b")
UNTIMED = tuple(
    Path("tests") / folder
    for folder in (
        "docs",
        "flows/cli/plan",
        "flows/planning",
        "flows/preparation/building",
        "flows/preparation/graphs",
        "flows/preparation/splitting",
        "repository",
        "scripts/golden",
        "scripts/paper",
        "triton_backend/scheduler",
        "triton_backend/simulator",
    )
)
"""Folders whose slow tests compute for long or start programs that no clock watches."""


def is_filling(worker: str, count: int) -> bool:
    """True for the last of so many processes of pytest-xdist."""
    return worker == f"gw{count - 1}"


def is_filling_here(environment: Mapping[str, str]) -> bool:
    """The same of a process with this environment."""
    worker = environment.get("PYTEST_XDIST_WORKER", "")
    return is_filling(worker, int(environment.get("PYTEST_XDIST_WORKER_COUNT", "0")))


@cache
def fills(file: Path) -> bool:
    """True if a file's tests may take long: relative to the repository, where pytest runs."""
    text = file.read_text()
    if file.is_relative_to(TIMED) or THREADS.search(text):
        return False
    return any(map(file.is_relative_to, UNTIMED)) or not SLOW.search(text)


class FillingScheduling(LoadFileScheduling):
    """A file at a time; the filling process has those that fill, the last of them first."""

    def _next_to_fill(self) -> str | None:
        return next((file for file in reversed(self.workqueue) if fills(Path(file))), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if is_filling(node.gateway.id, self.numnodes):
            file = self._next_to_fill()
            if file is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)
