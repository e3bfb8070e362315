"""Narrow how many GPUs each model can own in a plan better than the best one known.

With the row `better` in the program, the relaxation says between which numbers of GPUs of each
class a model must own; rounding these to whole numbers cuts deep, because few GPUs of a class are
shared by few models. Repeated while it helps. No plan that is better is lost.

Where that is not the whole proof, `prove` splits the range of one such number and narrows both
halves, always where the relaxation still allows most.
"""

import heapq
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import integer_program
from flows.planning.problem import Problem
from flows.planning.solver.program import Program
from flows.planning.solver.solve import Relaxation

_ROUNDS = 4
_WHOLE = 1e-6  # a relaxed extreme this close to a whole number is that number


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """The program with narrower bounds on the GPUs of models, and what its relaxation reaches."""

    program: Program
    ceiling: float


@dataclass(frozen=True, slots=True)
class _Box:
    """Bounds on the GPUs of models, and the most that the relaxation reaches inside."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    ceiling: float


@dataclass(frozen=True, slots=True)
class _Probe:
    """The relaxation with the row `better`, kept warm."""

    relaxation: Relaxation
    owned: list[int]
    cost: NDArray[np.float64]

    def squeeze(self, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> _Box | None:
        """Narrow a box; None where no plan inside is better."""
        lower, upper = lower.copy(), upper.copy()
        for number, variable in enumerate(self.owned):
            self.relaxation.bound(variable, float(lower[number]), float(upper[number]))
        for _ in range(_ROUNDS):
            narrowed = False
            for number, variable in enumerate(self.owned):
                if lower[number] == upper[number]:
                    continue
                least = self.relaxation.extreme(variable, -1.0)
                most = self.relaxation.extreme(variable, 1.0)
                if least is None or most is None:
                    return None
                low = max(float(lower[number]), float(np.ceil(least - _WHOLE)))
                high = min(float(upper[number]), float(np.floor(most + _WHOLE)))
                if low > high:
                    return None
                if low > lower[number] or high < upper[number]:
                    lower[number], upper[number] = low, high
                    self.relaxation.bound(variable, low, high)
                    narrowed = True
            if not narrowed:
                break
        ceiling = self.relaxation.best(self.cost)
        return None if ceiling is None else _Box(lower, upper, ceiling)


def _probe(problem: Problem, columns: Columns, goal: Goal, cutoff: float) -> tuple[_Probe, Program]:
    program, layout = integer_program(problem, columns, goal, cutoff)
    owned = [int(v) for v in layout.owned.reshape(-1)]
    return _Probe(Relaxation(program), owned, program.cost), program


def tighten(problem: Problem, columns: Columns, goal: Goal, cutoff: float) -> Narrowed | None:
    """Narrow the bounds on the GPUs of models; None where no plan reaches `cutoff`.

    The row `better` stays out of the program returned: solvers find plans faster without it.
    """
    probe, program = _probe(problem, columns, goal, cutoff)
    box = probe.squeeze(program.lower[probe.owned], program.upper[probe.owned])
    if box is None:
        return None
    plain, _ = integer_program(problem, columns, goal, -np.inf)
    lower, upper = plain.lower.copy(), plain.upper.copy()
    lower[probe.owned], upper[probe.owned] = box.lower, box.upper
    return Narrowed(program=replace(plain, lower=lower, upper=upper), ceiling=box.ceiling)


def prove(problem: Problem, columns: Columns, goal: Goal, cutoff: float, most_boxes: int) -> float:
    """What no plan over these configurations exceeds, or `cutoff` where that is less.

    Args:
        problem: the problem.
        columns: configurations of which plans may consist.
        goal: what is asked of the rates.
        cutoff: score from which a plan would be better than the best one known.
        most_boxes: how many ranges may be looked at.
    """
    probe, program = _probe(problem, columns, goal, cutoff)
    order = count()
    root = probe.squeeze(program.lower[probe.owned], program.upper[probe.owned])
    heap = [] if root is None else [(-root.ceiling, next(order), root)]
    for _ in range(most_boxes):
        if not heap or -heap[0][0] <= cutoff:
            return cutoff
        box = heap[0][2]
        width = box.upper - box.lower
        widest = int(width.argmax())
        if width[widest] == 0:
            break
        heapq.heappop(heap)
        middle = np.floor((box.lower[widest] + box.upper[widest]) / 2)
        for low, high in ((box.lower[widest], middle), (middle + 1, box.upper[widest])):
            lower, upper = box.lower.copy(), box.upper.copy()
            lower[widest], upper[widest] = low, high
            half = probe.squeeze(lower, upper)
            if half is not None:
                heapq.heappush(heap, (-half.ceiling, next(order), half))
    return max(cutoff, -heap[0][0]) if heap else cutoff
