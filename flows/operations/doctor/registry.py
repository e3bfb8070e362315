"""The form of a check, and where checks are found.

A check is a small function under `@check("its name")`, in a file of this folder: it is given the
surroundings and yields what it found, with what to do about it. To add one: write it, and a test.
Nothing is mended here, and no check needs a running system.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from flows.state import ProjectState
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.serve_folder.state import server_runs, whole_state_file

MODULES = ("machine", "system", "prefect_server")


class Severity(StrEnum):
    """How good a thing is.

    `ADVICE` could be better and does no harm now; a `PROBLEM` breaks or exposes something.
    """

    GOOD = "good"
    ADVICE = "advice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of one check, with a remedy if it is not good."""

    severity: Severity
    seen: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.severity is Severity.GOOD) == bool(self.remedy):
            raise InvariantError(
                f"{self.seen}: a remedy belongs to what is not good, and only there"
            )


def good(seen: str) -> Finding:
    """Nothing to do."""
    return Finding(severity=Severity.GOOD, seen=seen)


def advice(seen: str, remedy: str) -> Finding:
    """Could be better."""
    return Finding(severity=Severity.ADVICE, seen=seen, remedy=remedy)


def problem(seen: str, remedy: str) -> Finding:
    """Breaks or exposes something."""
    return Finding(severity=Severity.PROBLEM, seen=seen, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where checks look.

    Attributes:
        state: the project's folder.
        warehouse: the DuckDB file; it need not be there.
        now: the instant that ages count from.
        root: of the machine's own files (`/sys`, `/dev/shm`, ...).
    """

    state: ProjectState
    warehouse: Path
    now: datetime
    root: Path = field(default=Path("/"))

    def served(self) -> dict[str, Any] | None:
        """The state file of the system served from here; None where none runs."""
        state = None
        with contextlib.suppress(InputError):  # which `keeper` tells
            state = whole_state_file(self.state.serve)
        return state if state is not None and server_runs(state) else None


Look = Callable[[Surroundings], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is looked at; `about` is its function's docstring."""

    name: str
    about: str
    look: Look


_checks: dict[str, Check] = {}


def check(name: str) -> Callable[[Look], Look]:
    """Declare the decorated function a check."""

    def declare(look: Look) -> Look:
        about = (look.__doc__ or "").split("\n")[0]
        _checks[name] = Check(name=name, about=about, look=look)
        return look

    return declare


def checks() -> list[Check]:
    """Every check, in the order of the files."""
    for module in MODULES:
        import_module(f"{__package__}.{module}")
    return list(_checks.values())


def examine(surroundings: Surroundings) -> Iterator[tuple[Check, Finding]]:
    """Every finding of every check."""
    for each in checks():
        for finding in each.look(surroundings):
            yield each, finding
