"""Narrow how many GPUs each model can own in a plan better than the best one known.

With the row `better` in the program, the relaxation says between which numbers of GPUs of each
class a model must own; rounding these to whole numbers cuts deep, because few GPUs of a class are
shared by few models. Repeated while it helps. No plan that is better is lost.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.bound import Goal
from flows.planning.columns import Columns
from flows.planning.integer import integer_program
from flows.planning.problem import Problem
from flows.planning.program import Program
from flows.planning.solve import Relaxation

_ROUNDS = 4
_WHOLE = 1e-6  # a relaxed extreme this close to a whole number is that number


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """The program with narrower bounds on the GPUs of models, and what its relaxation reaches."""

    program: Program
    ceiling: float


def tighten(problem: Problem, columns: Columns, goal: Goal, cutoff: float) -> Narrowed | None:
    """Narrow the bounds on the GPUs of models; None where no plan reaches `cutoff`.

    The row `better` stays out of the program returned: solvers find plans faster without it.
    """
    probe, layout = integer_program(problem, columns, goal, cutoff)
    lower, upper = probe.lower.copy(), probe.upper.copy()
    relaxation = Relaxation(probe)
    for _ in range(_ROUNDS):
        narrowed = False
        for variable in (int(v) for v in layout.owned.reshape(-1)):
            least = relaxation.extreme(variable, -1.0)
            most = relaxation.extreme(variable, 1.0)
            if least is None or most is None:
                return None
            low = max(float(lower[variable]), float(np.ceil(least - _WHOLE)))
            high = min(float(upper[variable]), float(np.floor(most + _WHOLE)))
            if low > high:
                return None
            if low > lower[variable] or high < upper[variable]:
                lower[variable], upper[variable] = low, high
                relaxation.bound(variable, low, high)
                narrowed = True
        if not narrowed:
            break
    ceiling = relaxation.best(probe.cost)
    if ceiling is None:
        return None
    program, _ = integer_program(problem, columns, goal, -np.inf)
    return Narrowed(program=replace(program, lower=lower, upper=upper), ceiling=ceiling)
