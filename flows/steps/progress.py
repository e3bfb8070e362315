"""Telling people how far a run is, and remembering how long each step took."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.clock import Stopwatch
from flows.profiling.measure import CellKey
from flows.reporting.data import Step

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """A line for people; standard output is for results."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def quiet(text: str) -> None:
    """Say nothing."""
    del text


@dataclass(slots=True)
class Note:
    """What a step gave, filled in while it runs."""

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


def cell_progress(say: Say, *, every: int = 40) -> Callable[[int, int, CellKey], None]:
    """Progress of profiling: a bar on a terminal, else a line now and then."""

    def on_terminal(done: int, total: int, key: CellKey) -> None:
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        end = "\r" if done + 1 < total else "\r\033[K"
        text = f"  [{bar}] {done}/{total} {key.gpu_class} 1/{key.vgpu_divisor} block {key.block}"
        sys.stderr.write(f"{text:<79}{end}")
        sys.stderr.flush()

    def in_lines(done: int, total: int, key: CellKey) -> None:
        if done % every == 0:
            say(f"  cell {done} of {total} ({key.gpu_class}, block {key.block})")

    return on_terminal if sys.stderr.isatty() else in_lines
