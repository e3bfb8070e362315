"""The watch of a planning run on the command line: a bar, or lines of JSON.

Ctrl-C ends it with a plan.
"""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import log
from signal import SIGINT, signal
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from flows.cli.console import note

if TYPE_CHECKING:
    from flows.planning.watch import Progress, Watch

    Tell = Callable[[Progress], None]

_LEAST_GAP = 1e-6  # from here on the bar is full


@contextmanager
def watched(limit_s: float | None, gap: float, *, as_json: bool) -> "Generator[Watch]":
    """A watch whose progress is shown on stderr and that the first Ctrl-C ends.

    Args:
        limit_s: seconds that the run may take.
        gap: what the bar ends at.
        as_json: a line of JSON whenever something is better, instead of a bar on a terminal.
    """
    from flows.planning.watch import Watch

    with _shown(gap, as_json=as_json) as tell:
        watch = Watch(limit_s=limit_s, tell=tell)
        with _ended_by_interrupt(watch):
            yield watch


@contextmanager
def _shown(gap: float, *, as_json: bool) -> "Generator[Tell | None]":
    if as_json:
        yield _json_line
        return
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("planning"), BarColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("no plan yet", total=1.0)

        def tell(now: "Progress") -> None:
            bar.update(task, completed=share_of_proof(now.gap, gap), description=in_words(now))

        yield tell


def share_of_proof(gap: float | None, wanted: float) -> float:
    """How far a gap is on the way from 1 to the one wanted, on a logarithmic scale, 0 to 1."""
    if gap is None:
        return 0.0
    least = max(wanted, _LEAST_GAP)
    return min(1.0, max(0.0, log(max(gap, least)) / log(least))) if least < 1 else 1.0


def in_words(now: "Progress") -> str:
    """The best value known, and how far it may be from the best there is."""
    if now.value is None:
        return "no plan yet"
    return f"{now.value:,.6g}" + (
        "" if now.gap is None else f", at most {now.gap:.2%} from the best"
    )


def _json_line(now: "Progress") -> None:
    names = ("value", "bound", "gap")
    line = {"seconds": round(now.seconds, 3), **{name: getattr(now, name) for name in names}}
    sys.stderr.write(json.dumps(line) + "\n")
    sys.stderr.flush()


@contextmanager
def _ended_by_interrupt(watch: "Watch") -> Generator[None]:
    """The first Ctrl-C ends the search with the best plan so far, the second one the command."""

    def handle(*_: object) -> None:
        if watch.stopped():
            raise KeyboardInterrupt
        watch.stop()
        note("the search ends with the best plan so far; once more leaves without one")

    if current_thread() is not main_thread():
        yield
        return
    before = signal(SIGINT, handle)
    try:
        yield
    finally:
        signal(SIGINT, before)
