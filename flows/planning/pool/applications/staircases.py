"""The proven cost of each line alone within a budget: staircases at prices of GPUs.

Lines share no GPU. So a plan costs what its lines cost, each within its budget, and lines meet in
the time of paths and in the GPUs of a class alone. With prices e >= 0 beside what GPUs cost, and
f_m(L, p) what line m costs at least within the budget L at prices p, no plan costs less than

    min over budgets L that fit the paths of  sum_m f_m(L_m, price + e)  -  e . N       (Lagrange)

which `division.divide` finds, asking for f_m only where it matters. A line alone is a small integer
program (`pool/at_prices/blocks.py`), which keeps the whole numbers that a relaxation of all lines
loses. Where GPUs suffice for what is cheapest, e = 0 and this is the least cost. Where they do not,
one allocation per line is chosen of all that were met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from flows.planning.applications.division import Stair, Staircase
from flows.planning.applications.lines import Lines
from flows.planning.inputs import Problem
from flows.planning.pool.applications.levels import add_one, add_paths
from flows.planning.pool.at_prices.blocks import ModelBlocks
from flows.planning.pool.bound import undominated
from flows.planning.pool.columns import Allocation, Columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.solver.tolerances import ROUND_OFF_US, ROUNDING
from flows.planning.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStair(Stair):
    """A line within a budget, at prices, with the GPUs that its best solution holds.

    Attributes:
        vector: [C] GPUs.
        allocation: its configurations, by number among the line's, and their vGPUs.
    """

    vector: Ints
    allocation: Allocation


@dataclass(slots=True, kw_only=True)
class LineAtPrices:
    """One line at prices.

    Attributes:
        problem: the line as the only model.
        columns: its configurations.
        times: [n] what each takes (µs).
        rate_rps: what the line serves.
        price: [C] of a GPU.
    """

    problem: Problem
    columns: Columns
    times: Floats
    rate_rps: float
    price: Floats
    watch: Watch

    def staircase(self) -> Staircase[HeldStair]:
        """Its cost by budget."""
        return Staircase(self._asked)

    def proposed(self, budget_us: int, prices: Sequence[Floats]) -> list[HeldStair]:
        """Allocations of items within a budget, the cheapest at each of some prices [C].

        Nothing is proven of them.
        """
        rows = np.flatnonzero(self.times <= budget_us + ROUND_OFF_US)
        if not len(rows):
            return []
        rows = undominated(self.problem, self.columns, rows)
        blocks = ModelBlocks(self.problem, self.columns.take(rows), self.watch)
        rate, found = np.array([self.rate_rps]), list[HeldStair]()
        for price in prices:
            blocks.focus(price, rate)
            (items,) = blocks.propose(price, rate)
            if len(items):
                own, vgpus = blocks.allocation(items)
                found.append(self._stair((rows[own], vgpus)))
        return [stair for stair in found if stair.cost < inf]

    def _asked(self, budget_us: int, floor: float, below: HeldStair | None) -> HeldStair:
        """Items propose a allocation, programs prove it or find a better one.

        `floor` is proven before.
        """
        best = self._nothing(budget_us, floor) if below is None else replace(below, least=floor)
        rows = np.flatnonzero(self.times <= budget_us + ROUND_OFF_US)
        if not len(rows):
            return replace(best, least=inf)
        if best.cost <= floor * (1 + ROUNDING):
            return best
        rows = undominated(self.problem, self.columns, rows)
        blocks = ModelBlocks(self.problem, self.columns.take(rows), self.watch)
        rate = np.array([self.rate_rps])
        blocks.focus(self.price, rate)
        (items,) = blocks.propose(self.price, rate)
        allocations = [blocks.allocation(items)] if len(items) else []
        every = float(self.price @ self.problem.gpus + self.price.max())  # more than all GPUs cost
        least = max(floor, float(blocks.floor(self.price, rate)[0]))
        for step in range(-1, blocks.steps):
            if step >= 0:
                most = min(best.cost, every)
                cost, _, found = blocks.least(0, self.price, self.rate_rps, most, step)
                if best.cost == inf and cost >= every:
                    return replace(best, least=inf)
                least = max(least, cost)
                allocations = [] if found is None else [found]
            for row, vgpus in allocations:
                best = min(best, self._stair((rows[row], vgpus)), key=lambda stair: stair.cost)
            if best.cost <= least * (1 + ROUNDING) or self.watch.over():
                break
        return replace(best, least=min(least, best.cost))

    def _nothing(self, budget_us: int, floor: float) -> HeldStair:
        return HeldStair(
            least=floor,
            cost=inf,
            used_us=budget_us,
            vector=np.zeros(len(self.price), dtype=np.int64),
            allocation=(np.zeros(0, dtype=np.int64), np.zeros((0, self._width), dtype=np.int64)),
        )

    @property
    def _width(self) -> int:
        return self.columns.types.shape[1]

    def _stair(self, allocation: Allocation) -> HeldStair:
        """A allocation as a stair.

        One without cost where it does not serve the line or takes too many GPUs.
        """
        rows, at = np.unique(allocation[0], return_inverse=True)
        vgpus = np.zeros((len(rows), self._width), dtype=np.int64)
        np.add.at(vgpus, at, allocation[1])
        columns = self.columns.take(rows)
        vector = gpus_in_use(self.problem, columns, vgpus)
        served = float(delivered_rps(columns, vgpus).sum()) >= self.rate_rps * (1 - ROUNDING)
        if not served or np.any(vector > self.problem.gpus):
            return self._nothing(0, 0.0)
        return HeldStair(
            least=0.0,
            cost=float(self.price @ vector),
            used_us=int(np.ceil(self.times[rows].max() - ROUND_OFF_US)),
            vector=vector,
            allocation=(rows, vgpus),
        )


def choose(
    lines: Lines, gpus: Ints, price: Floats, stairs: Sequence[Sequence[HeldStair]], limits: Limits
) -> list[HeldStair] | None:
    """One of the given stairs for every line, of least cost within paths and GPUs.

    None where there is none.

        minimise   sum_i cost_i y_i
        one        one y_i of every line is 1
        capacity   sum_i vector_i y_i <= gpus

    and times as in `levels`.
    """
    build = ProgramBuilder()
    capacity = build.rows("capacity", len(gpus), upper=gpus)
    levels: list[Floats] = []
    taken: list[Ints] = []
    for own in stairs:
        vectors = np.array([stair.vector for stair in own])
        y = build.variables("y", len(own), upper=1.0, cost=-(vectors @ price), whole=True)
        add_one(build, y)
        build.entries(capacity, y[:, None], vectors)
        levels.append(np.array([float(stair.used_us) for stair in own]))
        taken.append(y)
    for graph in lines.graphs:
        add_paths(build, graph, levels, taken)
    answer = solve_integer(build.build(), limits)
    if answer.values is None:
        return None
    return [own[int(answer.values[y].argmax())] for own, y in zip(stairs, taken, strict=True)]
