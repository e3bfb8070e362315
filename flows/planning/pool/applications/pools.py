"""Applications on pools of vGPUs.

Any number of stages, classes and GPUs, every model split as pays. Gathering a batch takes the time
that its size alone says (`fixed`), so the budgets of lines decide which configurations there are;
the planner `pool` does the rest. For a box of budgets (`division`) the linear relaxation over the
configurations that keep them is the bound; where what it uses fits the paths, and for late boxes,
whole GPUs are handed out by `search`, with its own proof, if that may be better than what is known.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from flows.planning.applications.division import BudgetSplit, Separate, Staircase, divide
from flows.planning.applications.lines import Lines
from flows.planning.inputs import Problem
from flows.planning.pool.applications.levels import solve_levels
from flows.planning.pool.applications.line_bounds import HandedOut, LineLowerBounds, hand_out
from flows.planning.pool.applications.staircases import HeldStair, LineAtPrices, choose
from flows.planning.pool.at_prices.blocks import step_of
from flows.planning.pool.bound import Bound, Goal, least_loss, solve_bound, undominated
from flows.planning.pool.columns import Columns, enumerate_columns, latencies_us
from flows.planning.pool.integer import score_of
from flows.planning.pool.search import Found, search
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import SEARCH_NODES, Limits
from flows.planning.solver.tolerances import ROUND_OFF_US, ROUNDING
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError

_RELAXED = 100  # boxes that relaxations alone bound, before whole GPUs do too
SHARE = 0.5  # of the time that is left: what a search for whole GPUs, or prices, may take
STEP_SHARE = 0.3  # of the time that is left: what a step before others may take
MOST_TOGETHER = 1_500  # configurations of one program for time and GPUs
_NEARBY = (  # times known, of which budgets for items are made, round by round
    (1.0, 0.9, 1.1, 0.8, 1.25, 0.7, 1.5, 0.6),
    (1.0, 0.95, 1.05, 0.85, 1.15),
    (1.0, 0.97, 1.03, 0.93, 1.07),
)
_LITTLE = 1 / 64  # of the greatest price: what GPUs that are free cost items
_DEARER = (0.0, 0.5, 1.0, 1.5, 2.5)  # times what scarce GPUs are worth


@dataclass(slots=True)
class Pools:
    """Cost of budgets on a cluster (`division.Oracle`).

    Scores are maximised, so cost is minus score.

    Attributes:
        problem: lines as models; limits are the greatest budgets, less gathering.
        gathering_us: [lines][batches] time that a batch takes to gather, and to come from the
            modules before it.
        found: what a search said of budgets: a plan, or a bound if nothing better than a plan known
            before is within them, or None if no plan is.
        relaxed: boxes whose relaxation did not fit the paths.
        offered: plans that came otherwise.
        priced: what lines cost alone, at prices that were tried.
        items: by line, allocations of items.
        line bounds: what lines need without regard to whole vGPUs, where GPUs were handed out.
        configurations: how many there are.
    """

    lines: Lines
    problem: Problem
    gathering_us: Sequence[Floats]
    goal: Goal
    options: PlanOptions
    watch: Watch
    proof: bool = True
    found: dict[tuple[int, ...], Found | None] = field(
        default_factory=dict[tuple[int, ...], Found | None]
    )
    relaxed: int = 0
    offered: list[Found] = field(default_factory=list[Found])
    priced: list[tuple[Floats, list[Staircase[HeldStair]]]] = field(
        default_factory=list[tuple[Floats, list[Staircase[HeldStair]]]]
    )
    items: dict[int, list[HeldStair]] = field(default_factory=dict[int, list[HeldStair]])
    line_bounds: list[LineLowerBounds] = field(default_factory=list[LineLowerBounds])
    configurations: dict[str, int] = field(default_factory=dict[str, int])
    _columns: Columns | None = None
    _times: Floats | None = None
    _relaxed: Bound | None = None

    def enumerate(self) -> tuple[Columns, Floats]:
        """The configurations and what each takes (µs), found when they are asked for first.

        Raises:
            InfeasibleError: a line has none.
        """
        if self._columns is None or self._times is None:
            feasible = enumerate_columns(self.problem, self.options.max_partitions)
            times = self._latencies(feasible)
            rows = undominated(self.problem, feasible, np.arange(len(feasible)), times)
            self._columns, self._times = feasible.take(rows), times[rows]
            self.configurations = {
                "enumerated": feasible.enumerated,
                "feasible": len(feasible),
                "kept": len(rows),
            }
        return self._columns, self._times

    def least(self, most: Sequence[int]) -> tuple[float, Sequence[int]]:
        """See `division.Oracle`."""
        columns, times = self.enumerate()
        rows = np.flatnonzero(times <= np.asarray(most)[columns.model] + ROUND_OFF_US)
        if len(np.unique(columns.model[rows])) < len(self.lines):
            return inf, most
        try:
            relaxed = solve_bound(self.problem, columns.take(rows), self.goal)
        except InfeasibleError:
            return inf, most
        in_use = relaxed.rate_rps > ROUNDING * relaxed.rate_rps.max()
        used = self._used(columns.model[rows][in_use], times[rows][in_use])
        if self._ends() or not (self.lines.fit(used) or self._stays_open(relaxed.score)):
            return -relaxed.score, used
        found = self._search(tuple(most))
        if found is None:
            return inf, used
        return -min(relaxed.score, found.bound), self.used(found) if found.vgpus.any() else used

    def _stays_open(self, score: float) -> bool:
        """True for a late box that its relaxation leaves open: whole GPUs may close it."""
        self.relaxed += 1
        if self.relaxed <= _RELAXED:
            return False
        best = self.cheapest()
        return best is None or score > best.score + self.options.gap * abs(best.score)

    def planned(self, times: Sequence[int]) -> float:
        """See `division.Oracle`."""
        known = self.known(times)
        found = self._search(tuple(times)) if known is None and not self._ends() else known
        return inf if found is None or not found.vgpus.any() else -found.score

    def cheapest(self) -> Found | None:
        """The best plan known that fits the paths."""
        return self._best(self.lines.fit)

    def _best(self, fits: Callable[[Sequence[int]], bool]) -> Found | None:
        """The best plan known whose times by line fit."""
        fitting = [found for found in self._plans if fits(self.used(found))]
        return max(fitting, key=lambda found: found.score, default=None)

    @property
    def _plans(self) -> list[Found]:
        """All that are known."""
        known = (*self.found.values(), *self.offered)
        return [found for found in known if found is not None and found.vgpus.any()]

    def scarcity(self, times: Sequence[int]) -> Floats:
        """[C] what the relaxation within budgets pays for GPUs beside what they cost.

        Raises:
            InfeasibleError: the rates asked for are out of reach, however long lines take.
        """
        columns, every = self.enumerate()
        relaxed = self._relaxation()
        rows = np.flatnonzero(every <= np.asarray(times)[columns.model] + ROUND_OFF_US)
        with suppress(InfeasibleError):
            relaxed = solve_bound(self.problem, columns.take(rows), self.goal)
        return np.maximum(relaxed.gpu_price - self.goal.price, 0.0)

    def apart(self, extra: Floats, watch: Watch) -> tuple[BudgetSplit, Floats, Ints] | None:
        """Lines planned each by itself (`staircases`): a division whose bound holds for all plans.

        Plans of what was met, within the GPUs that there are, are offered. None where no budgets
        fit.

        Args:
            extra: [C] prices of GPUs beside what they cost; rounded so that costs stay multiples of
                one.
            watch: ends it earlier.

        Returns:
            times by line, with cost and bound of the relaxed problem; prices as they were rounded;
            [C] GPUs used less those that there are.
        """
        step = step_of(self.goal.price)
        extra = np.round(extra / step) * step if step else extra
        price = self.goal.price + extra
        lines = [self._alone(m, price, watch).staircase() for m in range(len(self.lines))]
        oracle = Separate(lines, float(extra @ self.problem.gpus))
        self.priced.append((price, lines))
        division = divide(self.lines, oracle, self.options.gap, watch)
        if division is None:
            return None
        stairs = oracle.at(division.times)
        beyond = np.sum([stair.vector for stair in stairs], axis=0) - self.problem.gpus
        if np.any(beyond > 0):
            self._search(tuple(self.lines.filled(division.times)))
            stairs = self._met()
        if stairs is not None and all(stair.cost < inf for stair in stairs):
            self._offer(stairs, -division.bound)
        return division, extra, beyond

    def _offer(self, stairs: Sequence[HeldStair], bound: float) -> Found:
        """A plan of one allocation for every line."""
        columns, _ = self.enumerate()
        first = np.searchsorted(columns.model, np.arange(len(stairs)))
        rows = [at + stair.allocation[0] for at, stair in zip(first, stairs, strict=True)]
        vgpus = np.concatenate([stair.allocation[1] for stair in stairs])
        found = self._found(columns.take(np.concatenate(rows)), vgpus, (columns, bound))
        self.offered.append(found)
        return found

    def hand_out(self, watch: Watch, cutoff: float) -> HandedOut:
        """GPUs and time handed out to lines as their relaxations need (`line_bounds`).

        A bound for all plans. Plans near its times are looked for: of items, then by a search
        within the times of the best of these.

        Args:
            watch: ends the handing out earlier.
            cutoff: a cost, plans of which are of no interest.
        """
        columns, times = self.enumerate()
        for number, rate in enumerate(self.goal.weight):
            rows = np.flatnonzero(columns.model == number)
            rows = rows[np.argsort(times[rows], kind="stable")]
            self.line_bounds.append(LineLowerBounds(times[rows], columns.usage[rows] * rate))
        found = hand_out(
            self.lines, self.problem.gpus, self.goal.price, self.line_bounds, watch, cutoff
        )
        if found.times is not None:
            times = self._of_items(found.times, found.extra, -found.bound)
            self._search(tuple(self.lines.filled(times)))
        return replace(found, bound=max(found.bound, -self._relaxation().score))

    def _of_items(self, times: Sequence[int], extra: Floats, bound: float) -> list[int]:
        """Plans of one allocation of items per line, at budgets near times that are known.

        The times of the best. Items at the prices of scarce GPUs are nearly always what a line
        alone costs least, and are found in milliseconds. Which of them go together is one small
        program.
        """
        price, best = self.goal.price, list(times)
        alone = [self._alone(m, price, self.watch) for m in range(len(self.lines))]
        beside = [price + factor * extra for factor in _DEARER]
        if not extra.any():
            beside = [price, *(price + np.diag(price) / 2)]
        found = [
            [own / own.max() + _LITTLE for own, _ in line_bound.prices]
            for line_bound in self.line_bounds
        ]
        prices = [[*beside, *own] for own in found]
        asked = set[tuple[int, int]]()
        watch, cost = self.watch.part(STEP_SHARE), inf
        for nearby in _NEARBY:
            filled = self.lines.filled(best)
            budgets = [best, *([int(time * factor) for time in filled] for factor in nearby)]
            for m, budget in ((m, own[m]) for own in budgets for m in range(len(own))):
                key = m, int(np.count_nonzero(alone[m].times <= budget))
                if key not in asked and not watch.over():
                    asked.add(key)
                    self.items.setdefault(m, []).extend(alone[m].proposed(budget, prices[m]))
            stairs = self._met()
            plan = None if stairs is None else self._offer(stairs, bound)
            if plan is None or -plan.score >= cost * (1 - ROUNDING):
                return best
            best, cost = self.used(plan), -plan.score
        return best

    def _met(self) -> list[HeldStair] | None:
        """Of all allocations of lines that were met, those that cost least together."""
        met: list[list[HeldStair]] = []
        for m in range(len(self.lines)):
            known = [stair for _, lines in self.priced for stair in lines[m].known.values()]
            known = [stair for stair in (*known, *self.items.get(m, [])) if stair.cost < inf]
            once = {(*stair.vector.tolist(), stair.used_us): stair for stair in reversed(known)}
            met.append(list(once.values()))
        if not all(met):
            return None
        seconds = self.watch.part(SHARE).left_s()
        limits = Limits(relative_gap=self.options.gap, nodes=SEARCH_NODES, seconds=seconds)
        return choose(self.lines, self.problem.gpus, self.goal.price, met, limits)

    def _alone(self, number: int, price: Floats, watch: Watch) -> LineAtPrices:
        columns, times = self.enumerate()
        rows = np.flatnonzero(columns.model == number)
        own = columns.take(rows)
        return LineAtPrices(
            problem=replace(self.problem, models=(self.problem.models[number],)),
            columns=replace(own, model=np.zeros_like(own.model)),
            times=times[rows],
            rate_rps=float(self.goal.weight[number]),
            price=price,
            watch=watch,
        )

    def together(self, cutoff: float, ceiling: float) -> tuple[Found | None, float]:
        """A plan above the cutoff by one program for time and GPUs (`levels`), and a bound for all.

        Configurations that no plan above the cutoff uses are left out, and of many the dearest:
        a plan with one of these is bounded by the relaxation less the least loss among them.
        """
        columns, times = self.enumerate()
        relaxed = self._relaxation()
        loss = least_loss(self.problem, columns, relaxed)
        rows = np.argsort(loss, kind="stable")
        rows = rows[loss[rows] < relaxed.score - cutoff]
        outside = -inf
        if len(rows) > MOST_TOGETHER:
            outside = relaxed.score - float(loss[rows[MOST_TOGETHER]])
        rows = np.sort(rows[:MOST_TOGETHER])
        limits = (cutoff, ceiling, self.options.gap, self.watch.part(SHARE).left_s())
        columns, times = columns.take(rows), times[rows]
        if len(np.unique(columns.model)) < len(self.lines):
            return None, min(ceiling, max(cutoff, outside))
        floors = [
            (number, price, own.proven)
            for price, staircases in self.priced
            for number, own in enumerate(staircases)
        ]
        for number, own in enumerate(self.line_bounds):
            floors += own.floor(number)
        vgpus, bound = solve_levels(
            self.lines, self.problem, columns, times, self.goal, floors, limits
        )
        bound = min(ceiling, max(bound, outside))
        if vgpus is None:
            return None, bound
        rows = np.flatnonzero(vgpus.any(axis=1))
        found = self._found(columns.take(rows), vgpus[rows], (columns, bound))
        if not self.lines.fit(self.used(found)):
            return None, bound
        self.offered.append(found)
        return found, bound

    def _found(self, used: Columns, vgpus: Ints, proof: tuple[Columns, float]) -> Found:
        """A plan of configurations, found among others with a bound."""
        columns, bound = proof
        return Found(
            columns=used,
            vgpus=vgpus,
            score=score_of(self.problem, used, vgpus, self.goal),
            bound=bound,
            trace=Trace(),
            problem=self.problem,
            feasible=columns,
            relaxed=self._relaxation(),
        )

    def _relaxation(self) -> Bound:
        """The relaxation over all configurations."""
        if self._relaxed is None:
            self._relaxed = solve_bound(self.problem, self.enumerate()[0], self.goal)
        return self._relaxed

    def _ends(self) -> bool:
        """True if the time is over and a plan is known: whole GPUs would take more of it."""
        return self.watch.over() and bool(self._plans)

    def known(self, times: Sequence[int]) -> Found | None:
        """A plan within these budgets that was the answer for larger ones, or for these."""

        def within(used: Sequence[int]) -> bool:
            return all(time <= most for time, most in zip(used, times, strict=True))

        return self._best(within)

    def _search(self, most: tuple[int, ...]) -> Found | None:
        if most not in self.found:
            models = tuple(
                replace(model, limit_us=budget - gathering)
                for model, budget, gathering in zip(
                    self.problem.models, most, self.gathering_us, strict=True
                )
            )
            part = self.watch.part(SHARE)
            problem = replace(self.problem, models=models)
            best = self.cheapest()
            above = -inf if best is None else best.score
            self.found[most] = None
            with suppress(InfeasibleError):
                self.found[most] = search(
                    problem, self.goal, self.options, part, proof=self.proof, above=above
                )
        return self.found[most]

    def used(self, found: Found) -> list[int]:
        """By line, the time that the slowest configuration of a plan takes."""
        return self.times_of(found.columns, found.vgpus)

    def times_of(self, columns: Columns, vgpus: Ints) -> list[int]:
        """By line, the time that the slowest of some configurations takes, of those in use."""
        columns = columns.take(np.flatnonzero(vgpus.any(axis=1)))
        return self._used(columns.model, self._latencies(columns))

    def _used(self, model: Ints, times: Floats) -> list[int]:
        longest = np.zeros(len(self.lines))
        np.maximum.at(longest, model, times)
        return [int(value) for value in np.ceil(longest - ROUND_OFF_US)]

    def _latencies(self, columns: Columns) -> Floats:
        """[n] stages, transfers and gathering of every configuration (µs)."""
        gathering = np.zeros(len(columns))
        for number, own in enumerate(self.gathering_us):
            rows = np.flatnonzero(columns.model == number)
            gathering[rows] = own[columns.batch[rows] - 1]
        return gathering + latencies_us(self.problem, columns)
