"""The clock of a planning run: its time limit, its interruption, its progress.

Every phase of a planner looks at it. Without a limit and without an interruption it changes
nothing, so that the same inputs give the same plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from threading import Event

from flows.clock import Stopwatch
from triton_backend.contract.errors import InfeasibleError
from triton_backend.scheduler.measured.compile_time import COMPILE_TIME

BEFORE = 0.25
"""Of the time that is left: what a step before the plan itself may take."""
_LEAST_S = 0.02  # a solver that is called gets at least so long


class _Clock(Stopwatch):
    """Seconds since it was made or restarted, without those in which kernels were compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._compiled_s = COMPILE_TIME.seconds()

    def seconds(self) -> float:
        return super().seconds() - (COMPILE_TIME.seconds() - self._compiled_s)

    def restart(self) -> float:
        seconds = super().restart()
        self._compiled_s = COMPILE_TIME.seconds()
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: seconds since its start, the best value known, what none exceeds, the gap.

    `value`, `bound` and `gap` are None as long as nothing is known of them.
    """

    seconds: float
    value: float | None
    bound: float | None
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The clock of one run.

    Attributes:
        limit_s: seconds from the start that the run may take; None for no limit. Compiling kernels,
            which happens once per machine, does not count.
        tell: called whenever a better plan or a better bound is known.
        value_of: the objective's value of a score: scores are maximised, whatever the objective.
    """

    limit_s: float | None = None
    tell: Callable[[Progress], None] | None = None
    value_of: Callable[[float], float] = float
    _whole_s: float | None = None
    _clock: Stopwatch = field(default_factory=_Clock)
    _stop: Event = field(default_factory=Event)

    def begin(self) -> None:
        """Restart the clock: what came before, as reading inputs, does not count."""
        self._clock.restart()

    def seconds(self) -> float:
        """Seconds since the run began, without those in which kernels were compiled."""
        return self._clock.seconds()

    def left_s(self) -> float | None:
        """Seconds that are left, a little at least; None where there is no limit."""
        if self.stopped():
            return _LEAST_S
        if self.limit_s is None:
            return None
        return max(_LEAST_S, self.limit_s - self.seconds())

    def over(self) -> bool:
        """True if the run shall end with what it has."""
        return self._stop.is_set() or (self.limit_s is not None and self.seconds() >= self.limit_s)

    def stop(self) -> None:
        """End the run with what it has."""
        self._stop.set()

    def stopped(self) -> bool:
        """True if the run was ended."""
        return self._stop.is_set()

    def ended_by(self) -> str:
        """The end of the run, as its certificate states it."""
        return "stopped" if self.stopped() else "time limit reached"

    def no_plan(self) -> InfeasibleError:
        """The complaint of a run that is over before any plan is known.

        Nothing is shown to be out of reach. A part names the limit of the whole run.
        """
        if self.stopped():
            return InfeasibleError(
                "planning", f"no plan in {self.seconds():.1f} s, then it was ended"
            )
        reason = f"no plan under a time limit of {self._limit_of_run_s():g} s"
        return InfeasibleError("planning", f"{reason}; raise --time-limit")

    def part(self, share: float) -> "Watch":
        """The same clock for a first part of the run, without reports.

        A share of what is left.
        """
        left = self.left_s()
        limit = None if left is None else self.seconds() + share * left
        return replace(self, limit_s=limit, _whole_s=self._limit_of_run_s(), tell=None)

    def _limit_of_run_s(self) -> float | None:
        return self.limit_s if self._whole_s is None else self._whole_s

    def valuing(self, value_of: Callable[[float], float]) -> "Watch":
        """The same clock for a planner whose scores mean other values."""
        return replace(self, value_of=value_of)

    def report(self, score: float, bound: float) -> None:
        """Report the best score and the bound."""
        if self.tell is None:
            return
        value = self.value_of(score) if isfinite(score) else None
        limit = self.value_of(bound) if isfinite(bound) else None
        gap = None if not value or limit is None else abs(limit - value) / value
        self.tell(Progress(seconds=self.seconds(), value=value, bound=limit, gap=gap))
