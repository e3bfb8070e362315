"""Narrow how many GPUs each model can own in a plan better than the best one known.

With the row `better` in the program, the relaxation says between which numbers of GPUs of each
class a model must own; rounding these to whole numbers cuts deep, because few GPUs of a class are
shared by few models. Repeated while it helps. No plan that is better is lost.
"""

from dataclasses import replace

import numpy as np

from flows.planning.integer import Layout
from flows.planning.program import Program
from flows.planning.solve import Relaxation

_ROUNDS = 4
_WHOLE = 1e-6  # a relaxed extreme this close to a whole number is that number


def tighten(program: Program, layout: Layout) -> Program | None:
    """The program with narrower bounds on the GPUs of models; None where no better plan exists."""
    lower, upper = program.lower.copy(), program.upper.copy()
    relaxation = Relaxation(program)
    for _ in range(_ROUNDS):
        narrowed = False
        for variable in layout.owned.reshape(-1):
            least = relaxation.extreme(int(variable), -1.0)
            most = relaxation.extreme(int(variable), 1.0)
            if least is None or most is None:
                return None
            low = max(lower[variable], np.ceil(least - _WHOLE))
            high = min(upper[variable], np.floor(most + _WHOLE))
            if low > high:
                return None
            if low > lower[variable] or high < upper[variable]:
                lower[variable], upper[variable] = low, high
                relaxation.bound(int(variable), low, high)
                narrowed = True
        if not narrowed:
            break
    return replace(program, lower=lower, upper=upper)
