"""The latency of applications divided among lines, at least cost, with a proof.

Of every line a function is known: the least cost at which it keeps a budget, never rising with it.
Budgets are whole µs. Boxes of budgets are searched, the most promising first:

    bound of a box   Σ over lines of the cost at the box's greatest budgets, each cut to what the
                     least budgets of the other lines leave on its paths
    a plan           the budgets that those solutions really use, where all paths keep their limits;
                     of the first box, those budgets shortened alike until they do
    split            a line of a path that is too long, halfway between its least budget and what
                     it uses

A box whose bound is within the gap of the best plan, or whose solution fits, is closed. The least
bound of all boxes, open and closed, is a bound for all divisions. Whether the DAGs are trees or not
makes no difference.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, Protocol, TypeVar

import numpy as np

from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import MachineSet
from flows.planning.solver.arrays import Floats
from flows.planning.watch import Watch

MOST_BOXES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stair:
    """A line within a budget.

    Attributes:
        least: what it costs at least; infinite where there is no solution.
        cost: what the best solution known costs; infinite where none is known.
        used_us: time of that solution; the budget where none is known.
    """

    least: float
    cost: float
    used_us: int


S = TypeVar("S", bound=Stair)


@dataclass(slots=True)
class Staircase(Generic[S]):
    """The cost of one line as a function of its budget, asked for where it matters.

    Attributes:
        ask: the stair of a budget (µs), given a cost that none there falls below, and the stair of
            the next smaller budget that is known: what is not cheaper need not be looked for.
        known: stairs by budget.
    """

    ask: Callable[[int, float, S | None], S]
    quantum_us: int = 1
    known: dict[int, S] = field(default_factory=dict[int, S])
    _ends: list[int] = field(default_factory=list[int])

    def at(self, budget_us: int) -> S:
        """The stair of a budget; what is known of a larger one holds where its solution fits."""
        budget_us = budget_us // self.quantum_us * self.quantum_us
        place = bisect_left(self._ends, budget_us)
        above = self.known[self._ends[place]] if place < len(self._ends) else None
        if above is not None and (above.used_us <= budget_us or above.least == inf):
            return above
        below = self.known[self._ends[place - 1]] if place else None
        stair = self.ask(budget_us, 0.0 if above is None else above.least, below)
        if self.quantum_us > 1:
            used_us = -(-stair.used_us // self.quantum_us) * self.quantum_us
            stair = replace(stair, used_us=min(budget_us, used_us))
        self._ends.insert(place, budget_us)
        self.known[budget_us] = stair
        return stair

    def proven(self, budgets_us: Floats) -> Floats:
        """[n] what budgets cost at least, as far as is known without asking."""
        ends = np.array(self._ends, dtype=np.float64)
        least = np.array([*(self.known[end].least for end in self._ends), 0.0])
        return least[np.searchsorted(ends, budgets_us)]


def of_sets(
    serve: Callable[[int, tuple[float, float]], MachineSet | None], quantum_us: int = 1
) -> Staircase[Stair]:
    """The staircase of a line that machines serve.

    Args:
        serve: the cheapest set within a budget (µs), given a cost that none there falls below and
            one at which a set is of no interest; None where none is.
        quantum_us: of budgets.
    """

    def ask(budget_us: int, floor: float, below: Stair | None) -> Stair:
        below = below or Stair(least=inf, cost=inf, used_us=budget_us)
        served = serve(budget_us, (floor, below.cost))
        if served is None:
            return below
        used_us = min(budget_us, served.time_us)
        return Stair(least=served.cost, cost=served.cost, used_us=used_us)

    return Staircase(ask, quantum_us)


class Oracle(Protocol):
    """Known costs of budgets."""

    def least(self, most: Sequence[int]) -> tuple[float, Sequence[int]]:
        """A lower bound on plans within budgets `most`, and the times its solution uses."""
        ...

    def planned(self, times: Sequence[int]) -> float:
        """Cost of a plan within these budgets; infinite where none was found."""
        ...


@dataclass(frozen=True, slots=True)
class Separate(Generic[S]):
    """Lines that do not share anything: costs add up.

    `credit` is taken off the sum: what GPUs that there are are worth where GPUs have prices.
    """

    lines: Sequence[Staircase[S]]
    credit: float = 0.0

    def at(self, times: Sequence[int]) -> list[S]:
        """The stairs of budgets by line."""
        return [own.at(int(time)) for own, time in zip(self.lines, times, strict=True)]

    def least(self, most: Sequence[int]) -> tuple[float, Sequence[int]]:
        """See `Oracle`."""
        stairs = self.at(most)
        return sum(s.least for s in stairs) - self.credit, [s.used_us for s in stairs]

    def planned(self, times: Sequence[int]) -> float:
        """See `Oracle`."""
        return sum(stair.cost for stair in self.at(times)) - self.credit


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSplit:
    """Budgets by line (µs), their cost, and what no division costs less than."""

    times: tuple[int, ...]
    cost: float
    bound: float
    boxes: int


Budgets = tuple[int, ...]
"""By line (µs)."""


def divide(
    lines: Lines,
    oracle: Oracle,
    gap: float = 1e-4,
    watch: Watch | None = None,
    start: Sequence[int] | None = None,
    most_boxes: int = MOST_BOXES,
) -> BudgetSplit | None:
    """The cheapest division within a gap; None where there is none.

    Args:
        lines: paths and limits.
        oracle: cost of budgets.
        gap: how far above the bound the plan may be, relatively.
        watch: ends it earlier, with the gap reached.
        start: budgets that fit, to begin with.
        most_boxes: how many may be looked at.
    """
    return _Search(lines, oracle, gap, watch or Watch()).run(start, most_boxes)


class _Search:
    def __init__(self, lines: Lines, oracle: Oracle, gap: float, watch: Watch) -> None:
        self.lines, self.oracle, self.gap, self.watch = lines, oracle, gap, watch
        self.best: tuple[float, Budgets] = (inf, ())
        self.floor = inf  # least bound of the boxes that are closed
        # Bound, number, least and most budgets of boxes, and what lines use at the most.
        self.open: list[tuple[float, int, Budgets, Budgets, Budgets]] = []
        self.seen = 0

    def run(self, start: Sequence[int] | None, most_boxes: int) -> BudgetSplit | None:
        if start is not None:
            self._offer(start)
        least = (1,) * len(self.lines)
        self._push(least, tuple(self.lines.room([0] * len(least))))
        while self.open:
            if self._settled(self.open[0][0]) or self.seen >= most_boxes or self.watch.over():
                break
            for box in self._split(*heapq.heappop(self.open)[2:]):
                self._push(*box)
        cost, times = self.best
        if cost == inf:
            return None
        bound = min(cost, self.floor, self.open[0][0] if self.open else inf)
        return BudgetSplit(times=times, cost=cost, bound=bound, boxes=self.seen)

    def _settled(self, bound: float) -> bool:
        return self.best[0] < inf and bound >= self.best[0] - self.gap * abs(self.best[0])

    def _push(self, least: Budgets, most: Budgets) -> None:
        """Cut a box to what its paths leave, look for a plan in it, keep it if it may be better."""
        most = tuple(map(min, most, self.lines.room(least)))
        if any(top < bottom for top, bottom in zip(most, least, strict=True)):
            return
        self.seen += 1
        bound, taken = self.oracle.least(most)
        if bound == inf:
            return
        used = tuple(map(max, taken, least))
        if self._settled(bound):
            self.floor = min(self.floor, bound)
            return
        if self.lines.fit(used):
            self._offer(used)
            self.floor = min(self.floor, bound)
            return
        if self.seen == 1:  # a plan at once, whatever time is left
            self._offer(self.lines.filled(used))
        heapq.heappush(self.open, (bound, self.seen, least, most, used))

    def _offer(self, times: Sequence[int]) -> None:
        if self.lines.fit(times):
            cost = self.oracle.planned(times)
            if cost < self.best[0]:
                self.best = (cost, tuple(times))

    def _split(self, least: Budgets, most: Budgets, used: Budgets) -> list[tuple[Budgets, Budgets]]:
        graph = next(graph for graph in self.lines.graphs if graph.longest(used) > graph.limit_us)
        line = max(graph.critical(used), key=lambda at: used[at] - least[at])
        middle = min((least[line] + used[line]) // 2, used[line] - 1)
        below = (*most[:line], middle, *most[line + 1 :])
        above = (*least[:line], middle + 1, *least[line + 1 :])
        return [(least, below), (above, most)]
