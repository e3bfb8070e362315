"""Proof: the bound raised until it meets the plan, or said how far apart they are.

Two ways, which a family may use one after the other:

* **By slack**: columns that a better plan may have are enumerated (`cover.screened`), and a ladder
  of whole programs over them, the cheapest first, finds plans; the last rung holds all of them and
  settles it.
* **By parts**: where exact pricing is itself a hard program (a model on many kinds of GPUs), what
  each group costs at least is raised step by step, where most is open first, until the sum says
  that nothing better is left. In later, dearer steps small groups come first: they leave as much
  open and take less. A column that a step finds cheaper than what was known goes back to
  the master program.

Effort is counted in steps and nodes, never in seconds, so that the same inputs give the same plan;
the watch may end it earlier.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Relaxed, at_prices, raised, screened
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Pricer, ScreeningPricer
from flows.planning.engine.rounding import Incumbent, Rung, Tools, restricted
from flows.planning.solver.arrays import Floats
from flows.planning.solver.solve import Limits
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from flows.planning.watch import Watch

_CHUNK = 4  # groups whose programs are solved before the sum is looked at again


def by_slack(
    cover: Cover,
    pricer: ScreeningPricer,
    pool: Pool,
    relaxed: Relaxed,
    incumbent: Incumbent,
    rungs: Sequence[Rung],
    tools: Tools,
    watch: Watch,
) -> float:
    """Find better plans over the columns that may be part of one; the bound that is left.

    Args:
        cover: what is asked for.
        pricer: the source of columns.
        pool: columns known; those that are found join.
        relaxed: prices and bound.
        incumbent: the best plan known; better ones are put there.
        rungs: programs, more columns in each; the last may take as many as there are.
        tools: how to solve.
        watch: the clock.
    """
    bound = raised(relaxed.bound, tools.whole_costs)
    for rung in rungs:
        if incumbent.settled(bound, tools.gap) or watch.over():
            break
        screen = screened(cover, pricer, relaxed.duals, incumbent.cost, rung.columns)
        pool.add(screen.columns)
        columns = cover.undominated(pool.columns)
        with_each = screen.at_least(cover, columns)
        order = np.argsort(with_each, kind="stable")
        order = order[with_each[order] <= incumbent.cost]
        near, rest = order[: rung.columns], order[rung.columns :]
        outside = min(screen.outside, float(with_each[rest].min(initial=np.inf)))
        part = watch.part(rung.share) if rung.share < 1 else watch
        limits = Limits(
            relative_gap=tools.gap / 2,
            nodes=rung.nodes,
            seconds=part.left_s(),
            cutoff=-incumbent.cost,
            enough=-bound - abs(bound) * tools.gap / 2 if np.isfinite(bound) else np.inf,
        )
        proven = restricted(cover, columns.take(near), incumbent, limits, tools)
        bound = max(bound, raised(min(proven, outside, incumbent.cost), tools.whole_costs))
    return min(bound, incumbent.cost)


Least = tuple[float, Columns, int]
"""Result of a step for a group: the least reduced cost, the columns found, the effort."""


class SteppedPricer(Pricer, Protocol):
    """A pricer whose groups can be looked at one by one, ever closer.

    Attributes:
        steps: how many programs `least` has, each closer than the one before, the last one exact.
    """

    @property
    def steps(self) -> int: ...  # noqa: D102 - above

    def floor(self, duals: Duals) -> Floats:
        """[G] no column of a group has a lower reduced cost: weak, at once."""
        ...

    def least(self, group: int, duals: Duals, cutoff: float, step: int) -> Least:
        """The same of one group, closer; `cutoff` where no column has a lower one."""
        ...


@dataclass(slots=True, kw_only=True)
class Parts:
    """Lower bounds of groups at some prices, raised step by step.

    Attributes:
        lower: [G] no column of a group has a lower reduced cost.
        upper: [G] the lowest known.
        step: [G] steps taken.
        effort: of all steps so far.
    """

    cover: Cover
    pricer: SteppedPricer
    duals: Duals
    lower: Floats
    upper: Floats
    step: Floats
    effort: int = 0

    def value(self, least: Floats) -> float:
        """The bound if no column is below `least` [G]."""
        return at_prices(self.cover, self.pricer, self.duals, least)

    def raise_to(
        self,
        target: float,
        pool: Pool,
        executor: Executor,
        over: Callable[[], bool],
    ) -> bool:
        """True if no plan costs less than a target; False as soon as prices do not prove that."""
        scale = max(abs(target), 1e-300)
        for step in range(self.pricer.steps):
            left = np.where(self.step <= step, self.upper - self.lower, 0.0)
            size = np.where(self.upper > 0, self.upper, 1.0) if step else 1.0
            order = np.argsort(-left / size, kind="stable")
            order = order[left[order] > SOLVED * scale]
            for at in range(0, len(order), _CHUNK):
                if self.value(self.lower) >= target * (1 - ROUNDING * np.sign(target)):
                    return True
                if self.value(self.upper) < target - ROUNDING * scale or over():
                    return False
                self._raise(order[at : at + _CHUNK].tolist(), step, pool, executor)
        return self.value(self.lower) >= target - ROUNDING * scale

    def _raise(self, groups: list[int], step: int, pool: Pool, executor: Executor) -> None:
        def solve(group: int) -> Least:
            return self.pricer.least(group, self.duals, float(self.upper[group]), step)

        for group, found in zip(groups, executor.map(solve, groups), strict=True):
            reduced, columns, effort = found
            self.effort += effort
            if len(columns):
                pool.add(columns)
                lowest = float(self.duals.reduced(self.cover.counted(columns)).min())
                self.upper[group] = min(self.upper[group], lowest)
            self.lower[group] = max(self.lower[group], min(reduced, self.upper[group]))
            self.step[group] = step + 1
