"""Which solvers answered in a planning run: every program that is solved is noted here.

    with recorded() as record:
        ...                      # anything that solves programs
    record.named()               # "highs", "gurobi", "gurobi+highs", or "none"

A run of its own thread has a record of its own. Programs solved outside of `recorded` are noted
nowhere.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

NONE = "none"


@dataclass(slots=True)
class SolverRecord:
    """Solvers that answered, by kind of program, and what there is to say of them, each once."""

    integer: set[str] = field(default_factory=set[str])
    linear: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])

    def named(self) -> str:
        """The solvers of the integer programs, or of the linear ones where there was no other."""
        return "+".join(sorted(self.integer or self.linear)) or NONE


_current: ContextVar[SolverRecord | None] = ContextVar("solver_record", default=None)


@contextmanager
def recorded() -> Generator[SolverRecord]:
    """Note what is solved in this block."""
    record = SolverRecord()
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


def note_solver(solver: str, *, integer: bool, note: str | None = None) -> None:
    """A program was solved by a solver; `note` is said of it once."""
    record = _current.get()
    if record is None:
        return
    (record.integer if integer else record.linear).add(solver)
    if note is not None and note not in record.notes:
        record.notes.append(note)
