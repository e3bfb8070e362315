"""Many blocks on shared resources: the best plan and a proven bound, from one block at a time.

Level (throughput): maximise z so that every block b gets a vector a_b of resources that delivers
w_b · z, with Σ_b a_b ≤ N. Price (cost, power): z is 1, and Σ_b price · a_b is minimised.

With prices π ≥ 0 on resources, c_b(π, r) is the least cost at which block b delivers a rate r.
Whatever the prices,

    level:  no plan reaches z where   Σ_b c_b(π, w_b z) > π · N
    price:  no plan is cheaper than   Σ_b c_b(price + π, w_b) - π · N

(Lagrange; Dantzig & Wolfe 1960)

The more blocks, the closer this is to the best plan, because only a block's own whole numbers are
hidden in c_b, and those it keeps; the relaxation of all blocks together loses them.

1. **Level** (or price): bisection on z. At each z, blocks propose cheap columns at the prices, the
   relaxed master program (`master`) chooses among all columns known and answers with prices;
   columns are kept with their rates across z.
2. **Plan**: columns at prices near the last ones join, and the whole master program chooses one per
   block, ever closer to the level that the relaxed one reaches. A first plan is made as soon as the
   level is known roughly.
3. **Proof**: at a level a little above the plan's, what every block costs at least is raised step
   by step, by the weak bound of `floor`, then by the programs of `least`, where most is open first,
   until the sum exceeds π · N. A column found cheaper than the one proposed goes back to 1.

Effort is counted in iterations of the solver, never in seconds, so that the same inputs give the
same plan; the watch may end it earlier.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import sched_getaffinity
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.decomposition.blocks import Blocks, Demands, Least, Offer
from flows.planning.decomposition.master import BlockColumns, Choice, choose, relax
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch

_EVEN = 0.02  # share of the prices that every resource has from the start
_ROUNDS = 6  # of prices per level
_ROUNDS_PRICE = 40  # where a price is minimised, once and for all
_SETTLED = 1e-5  # a relaxed master this close to the sum of its blocks has no better prices
_COARSE, _FINE = 0.03, 1e-5  # how closely the level is bracketed for the first plan, and then
_BISECTIONS = 40
_STEP_DOWN = 0.8  # of the level, as long as none is known to be reachable
_PLAN_BELOW_LEVEL = (
    1e-2,
    1e-3,
    3e-4,
    1e-4,
    3e-5,
    1e-5,
)  # how far below the level whole columns are looked for
_SPREAD, _DRAWS = 0.25, 12  # standard deviation of the logarithms of prices drawn, and how many
_MASTER_NODES = 400
_KEPT = 0.01  # relative gap at which resources that stay are counted
_TARGETS = (1e-2, 2e-3, 5e-4, 1e-4, 1e-5)  # gaps proven one after the other
_RETURNS = 3  # how often columns that a proof found go back to the master program
_RETURNS_PRICE = 12  # where a price is minimised: what was proven holds on
_CHUNK = 4  # programs of blocks that are solved before the sum is looked at again
_CLEAR = 1e-9  # a sum that exceeds what is needed by less, relatively, may be equal to it
_LEAST_OPEN = 1e-7  # of what is needed: a block with less open is not looked at
_EFFORT = 400_000  # iterations of the solver in proofs
_SEED = 0


@dataclass(slots=True, kw_only=True)
class Start:
    """Knowledge from earlier runs.

    Prices [K], columns (block, vector, rate, column), and a level they reach, relaxed.
    """

    price: NDArray[np.float64]
    level: float = 0.0
    columns: Sequence[tuple[int, NDArray[np.int64], float, Any]] = ()


@dataclass(slots=True, kw_only=True)
class _Lower:
    """The proven least cost of blocks [B] for their demands, and the steps that took."""

    asked: tuple[NDArray[np.float64], NDArray[np.float64]]
    lower: NDArray[np.float64]
    step: NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Decomposition:
    """One run.

    Attributes:
        blocks: what is priced.
        demands: what is asked for.
        offer: takes plans, tells the score (z, or minus the price) of the best one known.
        bound: no plan's score is above this.
        gap: proof, relative to the score, at which the run ends.
        direct: whether it is tried at once, before any wider one.
        score: the best plan's, minus infinity before the first.
        effort: iterations of the solver so far.
        price: [K] prices of resources; where the level is maximised, price · capacity is 1.
    """

    blocks: Blocks
    demands: Demands
    offer: Offer
    bound: float
    gap: float
    watch: Watch
    direct: bool = False
    score: float = -np.inf
    effort: int = 0
    price: NDArray[np.float64] = field(init=False)
    columns: BlockColumns = field(init=False)
    _low: float = 0.0  # a level that known columns reach, relaxed
    _high: float = np.inf  # one that they do not
    _lower: _Lower | None = None
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(len(sched_getaffinity(0)))
    )
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    @property
    def level(self) -> float:
        """The highest level that known columns are seen to reach, relaxed."""
        return self._low

    def solve(self, start: Start, *, proof: bool = True) -> float:
        """Find the best plan and prove how good it is, where that is wanted; returns the bound."""
        self.columns = BlockColumns(len(self.demands.capacity))
        for block, vector, rate, column in start.columns:
            self.columns.add(block, vector, rate, column)
        self._low, self._high = max(self.score, start.level), self.bound
        even = 1.0 / np.maximum(self.demands.capacity, 1)
        price = self._normal(start.price) if start.price.any() else even
        self.price = (
            price if self.demands.fixed else self._normal(price + _EVEN * self._normal(even))
        )
        self._search(_COARSE)
        if not self.demands.fixed:
            self._plan(self._low * (1 - _PLAN_BELOW_LEVEL[0]))
        self._search(_FINE)
        self._improve()
        if proof:
            with self._pool:
                self._prove_all()
        return self.bound

    def settled(self) -> bool:
        """True if the best plan is proven within the gap."""
        return self.bound - self.score <= self.gap * abs(self.score)

    # ---- prices

    def _worth(self) -> float:
        """How much more the prices of a fixed level must bring to be changed, relatively."""
        return max(_SETTLED, self.gap / 10)

    def _normal(self, price: NDArray[np.float64]) -> NDArray[np.float64]:
        """Prices as they are used.

        Where the level counts, those of all resources are 1 together.
        """
        return price if self.demands.fixed else price / float(price @ self.demands.capacity)

    def _paid(self, price: NDArray[np.float64]) -> NDArray[np.float64]:
        """[K] what a block pays for resources."""
        return price + self.demands.price

    def _propose(
        self, price: NDArray[np.float64], demand: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], int]:
        """[B] costs of the cheapest columns known, cheap ones for these prices among them.

        How many are new.
        """
        proposal = self.blocks.propose(self._paid(price), demand)
        fresh = 0
        for block in np.flatnonzero(np.isfinite(proposal.cost)).tolist():
            vector, rate = proposal.vector[block], float(proposal.rate[block])
            if self.columns.better(block, vector, rate):
                self.columns.add(block, vector, rate, proposal.column(block))
                fresh += 1
        return np.minimum(proposal.cost, self.columns.cheapest(self._paid(price), demand)), fresh

    def _settle(self, level: float, *, thorough: bool = False) -> float:
        """Find prices at which blocks cost most at a level; what known columns take, relaxed.

        That is τ, or the price less what prices of resources give back. A level is out of reach as
        soon as it costs more than there is; `thorough` looks for the highest cost all the same.
        """
        demand, price = self.demands.at(level), self.price
        capacity, fixed = self.demands.capacity, self.demands.fixed
        highest, value, smooth = -np.inf, np.inf, True
        for _ in range(_ROUNDS_PRICE if fixed else _ROUNDS):
            cost, fresh = self._propose(price, demand)
            total = float(cost.sum()) - (float(price @ capacity) if fixed else 0.0)
            if total > highest:
                highest, self.price = total, price
            if not np.isfinite(total) or (total > 1 + _CLEAR and not fixed and not thorough):
                return total
            relaxed = relax(self.columns.delivering(demand), self.demands)
            value = relaxed.value
            close = value - highest <= (self._worth() if fixed else _SETTLED) * abs(value)
            if close or not (fresh or smooth) or self.watch.over():
                break
            # Half way to the master's prices, which swing; all the way where that brings nothing
            # new.
            price, smooth = self._normal(relaxed.price), bool(fresh)
            if smooth:
                price = (self.price + price) / 2
        return value

    def _search(self, close: float) -> None:
        """Bracket the level that known columns reach, relaxed; or find prices of a fixed one."""
        if self.watch.over():
            return
        self.blocks.focus(self._paid(self.price), self.demands.at(self._most_level()))
        if self.demands.fixed:
            self._settle(1.0)
            return
        for _ in range(_BISECTIONS):
            if self.watch.over() or self._high - self._low <= close * self._low:
                return
            level = (self._low + self._high) / 2 if self._low else self._high * _STEP_DOWN
            if self._settle(level) <= 1 + _CLEAR:
                self._low = level
            else:
                self._high = level

    def _most_level(self) -> float:
        return 1.0 if self.demands.fixed else min(self.bound, self._high)

    # ---- plans

    def _improve(self) -> None:
        """Whole columns for all blocks, ever closer to what the relaxed master program reaches."""
        if self.demands.fixed:
            self._draw(1.0)
            self._plan(1.0)
            return
        drawn = False
        for below in _PLAN_BELOW_LEVEL:
            level = self._low * (1 - below)
            if level <= self.score:
                continue
            if not self._plan(level) and not drawn:
                self._draw(level)
                drawn = True
                self._plan(level)
            if self.score < level or self.watch.over():
                return

    def _draw(self, level: float) -> None:
        """Columns at prices around the ones known."""
        demand = self.demands.at(level)
        for factor in self._rng.lognormal(0.0, _SPREAD, (_DRAWS, len(self.price))):
            if self.watch.over():
                return
            paid = self._paid(self.price) * factor
            self._propose(
                self._normal(paid) if not self.demands.fixed else paid - self.demands.price, demand
            )

    def _plan(self, level: float) -> bool:
        """Choose whole columns that reach a level, or the cheapest ones.

        Tells whether that is a better plan.
        """
        choice = self.columns.delivering(self.demands.at(level))
        if not choice.complete() or self.watch.over():
            return False
        limits = Limits(
            relative_gap=min(self.gap, _SETTLED * 10) if self.demands.fixed else 0.0,
            nodes=_MASTER_NODES,
            seconds=self.watch.left_s(),
            cutoff=self.score if self.demands.fixed else -1 - _CLEAR,
            enough=np.inf if self.demands.fixed else -1.0,
        )
        chosen = choose(choice, self.demands, limits)
        if chosen is None:
            return False
        score = self.offer([self.columns.column[number] for number in chosen])
        better = score > self.score
        self.score = max(score, self.score)
        if better:
            self.watch.report(self.score, self.bound)
        return better

    def kept(
        self, columns: Sequence[tuple[int, NDArray[np.int64], float, Any]]
    ) -> list[Any] | None:
        """A column per block, as good as the best plan, that keeps most resources of given columns.

        Where a price is minimised, columns are kept that cost what the block's cheapest one costs.
        """
        level = 1.0 if self.demands.fixed else self.score
        demand = self.demands.at(level)
        choice = self.columns.delivering(demand)
        paid, least = choice.vector @ self.demands.price, np.full(choice.blocks, np.inf)
        np.minimum.at(least, choice.block, paid)
        good = [
            (block, vector, column)
            for block, vector, rate, column in columns
            if rate >= demand[block] * (1 - _CLEAR)
            and float(vector @ self.demands.price) <= least[block] * (1 + _CLEAR)
        ]
        if not good or not choice.complete() or self.watch.over():
            return None
        both = Choice(
            rows=np.arange(len(choice.rows) + len(good)),
            block=np.append(choice.block, [block for block, _, _ in good]),
            vector=np.vstack([choice.vector, *(vector for _, vector, _ in good)]),
            blocks=choice.blocks,
        )
        bonus = np.zeros(len(both.rows))
        bonus[len(choice.rows) :] = [float(vector.sum()) for _, vector, _ in good]
        limits = Limits(relative_gap=_KEPT, nodes=_MASTER_NODES, seconds=self.watch.left_s())
        chosen = choose(both, self.demands, limits, bonus)
        if chosen is None:
            return None
        every = [
            *(self.columns.column[row] for row in choice.rows),
            *(column for _, _, column in good),
        ]
        return [every[number] for number in chosen]

    # ---- proof

    def _prove_all(self) -> None:
        """Prove smaller and smaller gaps, until the one asked for or the first that cannot be."""
        if not np.isfinite(self.score):
            return
        if self.demands.fixed or self.direct:
            self._prove(self.gap)
        if self.demands.fixed or self.settled():
            return
        for gap in (*(g for g in _TARGETS if g > self.gap), self.gap):
            if not self._prove(gap):
                return

    def _prove(self, gap: float) -> bool:
        """True if the best plan is proven within a gap; columns found meanwhile better it first."""
        for _ in range(_RETURNS_PRICE if self.demands.fixed else _RETURNS):
            target = self.score + gap * abs(self.score)
            if self.settled() or target >= self.bound:
                return True
            if self.watch.over() or self.effort > _EFFORT:
                return False
            known = len(self.columns.block)
            if self._proven(target):
                self._limit(target)
                return True
            if len(self.columns.block) == known:
                return False
            self._again()
        return False

    def _limit(self, bound: float) -> None:
        """No plan's score is above this."""
        if bound < self.bound:
            self.bound = max(bound, self.score)
            self.watch.report(self.score, self.bound)

    def _again(self) -> None:
        """Search on with columns that a proof has found."""
        self._high = min(self.bound, self._high * (1 + _COARSE / 2))
        self._search(_FINE)
        self._improve()

    def _proven(self, target: float) -> bool:
        """True if every plan's score is shown to be at most a target."""
        fixed = self.demands.fixed
        level = 1.0 if fixed else target
        if not fixed:
            self._settle(level, thorough=True)
        demand, paid = self.demands.at(level), self._paid(self.price)
        free = float(self.price @ self.demands.capacity)
        need = free - (target if fixed else 0.0)
        need += _CLEAR * abs(need)
        cost, _ = self._propose(self.price, demand)
        state = self._state(cost, (paid, demand))
        for step in range(self.blocks.steps):
            left = np.where(state.step <= step, cost - state.lower, 0.0)
            order = np.argsort(
                -(left / np.where(cost > 0, cost, 1.0) if step else left), kind="stable"
            )
            order = order[left[order] > _LEAST_OPEN * need]
            for at in range(0, len(order), _CHUNK):
                if state.lower.sum() > need:
                    return True
                if cost.sum() <= need or self.watch.over() or self.effort > _EFFORT:
                    return False
                self._raise(order[at : at + _CHUNK].tolist(), (paid, demand, step), cost, state)
                if fixed:
                    self._limit(free - float(state.lower.sum()))
        return bool(state.lower.sum() > need)

    def _state(
        self, cost: NDArray[np.float64], asked: tuple[NDArray[np.float64], NDArray[np.float64]]
    ) -> "_Lower":
        """The least cost of blocks; proofs at the same prices and rates still hold."""
        known = self._lower
        if known is None or not all(map(np.array_equal, known.asked, asked)):
            known = _Lower(
                asked=asked,
                lower=np.minimum(self.blocks.floor(*asked), cost),
                step=np.zeros(len(cost), dtype=np.int64),
            )
        np.minimum(known.lower, cost, out=known.lower)
        self._lower = known
        return known

    def _raise(
        self,
        numbers: list[int],
        asked: tuple[NDArray[np.float64], NDArray[np.float64], int],
        cost: NDArray[np.float64],
        state: "_Lower",
    ) -> None:
        """Raise what some blocks cost at least; columns found cheaper lower what they cost."""
        paid, demand, step = asked

        def solve(block: int) -> Least:
            return self.blocks.least(block, paid, float(demand[block]), float(cost[block]), step)

        answers = list(self._pool.map(solve, numbers))
        for block, least in zip(numbers, answers, strict=True):
            self.effort += least.effort
            if least.vector is not None:
                cost[block] = min(cost[block], float(paid @ least.vector))
                if self.columns.better(block, least.vector, least.rate):
                    self.columns.add(block, least.vector, least.rate, least.column)
            state.lower[block] = max(state.lower[block], min(least.cost, cost[block]))
            state.step[block] = step + 1
