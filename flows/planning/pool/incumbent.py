"""The best plan known, and a first one by rounding the relaxation.

What it is offered is made lean, scored and compared.
"""

from dataclasses import dataclass

import numpy as np

from flows.planning.engine.level import halved
from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import gpus_in_use, reaches_rates, score_of, trimmed
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT, ROUNDING


@dataclass(slots=True)
class Incumbent:
    """The best plan known.

    Attributes:
        vgpus: [n, S] counts over all configurations, None before the first plan.
        score: its score; before the first plan, one that it has to reach to be of use.
    """

    problem: Problem
    columns: Columns
    goal: Goal
    vgpus: Ints | None = None
    score: float = -np.inf

    def gap_to(self, bound: float) -> float:
        """The possible gain of a plan, relative to the score; infinite without a plan."""
        if np.isinf(self.score):
            return np.inf
        return max(0.0, bound - self.score) / abs(self.score) if self.score else np.inf

    def offer(self, vgpus: Ints | None) -> bool:
        """Take a plan [n, S] if it is better; tells whether it was."""
        if vgpus is None:
            return False
        vgpus = trimmed(self.columns, vgpus)
        if not reaches_rates(self.columns, vgpus, self.goal):
            return False
        score = score_of(self.problem, self.columns, vgpus, self.goal)
        better = score > self.score * (1 + np.copysign(EXACT, self.score))
        if better or (self.vgpus is None and score >= self.score):
            self.vgpus, self.score = vgpus, score
        return better

    def as_good(self, vgpus: Ints) -> bool:
        """True if a plan [n, S] reaches the rates asked for, and the score."""
        score = score_of(self.problem, self.columns, vgpus, self.goal)
        reached = score >= self.score * (1 - np.copysign(EXACT, self.score))
        return reached and reaches_rates(self.columns, vgpus, self.goal)

    def prefer(self, vgpus: Ints) -> None:
        """Take a plan [n, S] if it is as good."""
        vgpus = trimmed(self.columns, vgpus)
        if self.as_good(vgpus):
            self.vgpus = vgpus


def round_down(problem: Problem, columns: Columns, rates_rps: Floats, goal: Goal) -> Ints | None:
    """[n, S] vGPU counts for the largest multiple of the rates that fits; None where none does.

    Where rates are fixed (cost, power), the multiple is 1: all or nothing.
    """
    if goal.fixed:
        whole = _rounded(columns, rates_rps)
        return whole if _fits(problem, columns, whole) else None

    def fits(multiple: float) -> bool:
        return _fits(problem, columns, _rounded(columns, multiple * rates_rps))

    multiple = 1.0 if fits(1.0) else halved(fits, 0.0, 1.0)[0]
    return _rounded(columns, multiple * rates_rps) if multiple > 0 else None


def _rounded(columns: Columns, rates_rps: Floats) -> Ints:
    return np.ceil(rates_rps[:, None] / columns.rate_rps - ROUNDING).astype(np.int64)


def _fits(problem: Problem, columns: Columns, vgpus: Ints) -> bool:
    return bool(np.all(gpus_in_use(problem, columns, vgpus) <= problem.gpus))
