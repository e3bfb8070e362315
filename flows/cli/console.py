"""Output of commands: results on stdout, notes and progress on stderr.

With `--json` stdout carries exactly one object. Progress is shown on a terminal alone.
"""

import json
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

Report = Callable[[str], None]
WIDE = 200  # characters of a line where no terminal is
LARGE = 10_000.0  # from here on without a fraction


def print_json(document: object) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(document, default=_plain) + "\n")


def _plain(value: Any) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return value.item()  # numpy's numbers


def show(renderable: "RenderableType") -> None:
    """Anything Rich can print, on stdout."""
    from rich.console import Console

    # A file or a pipe has no width; lines there may be as long as they are.
    width = None if sys.stdout.isatty() else WIDE
    # Shapes in brackets are no markup.
    Console(width=width, highlight=False, markup=False).print(renderable)


def note(text: str) -> None:
    """A line on stderr that the user should see and a program may leave."""
    sys.stderr.write(f"note: {text}\n")


def notes(texts: Iterable[str]) -> None:
    """Several of them."""
    for text in texts:
        note(text)


def say(*, quiet: bool) -> Report:
    """Prints what flows report of their steps: on stderr, or with `--json` to a terminal alone."""

    def on_stderr(text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    return (lambda _: None) if quiet and not sys.stderr.isatty() else on_stderr


class _AsNotes(logging.Handler):
    """Each kernel on a terminal, else one line for all."""

    said = False

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr.isatty():
            note(record.getMessage())
        elif not self.said:
            self.said = True
            note("compiling kernels, once per machine")


def note_compiling() -> None:
    """Say that kernels are compiled, which takes up to a minute, once; no other handler does."""
    log = logging.getLogger("triton_backend.scheduler.compiled")  # not imported: numba takes long
    if not log.handlers:
        log.setLevel(logging.INFO)
        log.propagate = False
        log.addHandler(_AsNotes())


@contextmanager
def progress(text: str) -> Generator[Report]:
    """A line on stderr that can be changed while work goes on; nothing where no terminal is."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(text) as status:
        yield status.update


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    texts: int = 1,
) -> "RenderableType":
    """A plain table; the first so many columns are text, which wraps, the others are numbers."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        is_text = number < texts
        made.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: object) -> str:
    """A value as tables show it: `-` where there is none, four digits of a fraction."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < LARGE else f"{value:,.0f}"
    return str(value)
