"""Telling people how far a run is, and remembering how long each step took."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.clock import Stopwatch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step that was taken; `note` says what it gave or that it was reused."""

    name: str
    seconds: float
    note: str = ""


def say_on_stderr(text: str) -> None:
    """A line for people; standard output is for results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def quiet(text: str) -> None:
    """Say nothing."""
    del text


@dataclass(slots=True)
class Note:
    """The result of a step, filled in while it runs."""

    text: str = ""


@dataclass(slots=True)
class StepLog:
    """Steps in the order they ended."""

    say: Say = quiet
    steps: list[Step] = field(default_factory=list[Step])

    @contextmanager
    def step(self, name: str) -> Generator[Note]:
        """Time what happens inside, and say when it begins and ends."""
        note, watch = Note(), Stopwatch()
        self.say(f"> {name} ...")
        yield note
        seconds = watch.seconds()
        self.steps.append(Step(name=name, seconds=seconds, note=note.text))
        self.say(f"  {seconds:6.1f} s  {note.text}")
