"""How many GPUs follow which pattern: cutting stock over whole GPUs, on the engine.

A demand is what a model asks for, in units of that; a resource is the GPUs of a class; a column is
a pattern of one GPU, whose price is its class's. A class is a group, and `Patterns` prices it
exactly. A goal is a level (throughput: the lowest rate / weight) or a price.

A GPU that carries more of a model than is asked for helps no more than one that carries just that,
so rates are cut to a level that is out of reach (`level.highest`). At a fixed level a model is
carried by one GPU that carries all of it, or by two that carry some of it at least: halves
(`engine.master`). The highest level that the relaxation with halves leaves open is found by
bisection (`level.halved`).

A dive gives a plan; parts of all patterns met, put together again, and an integer program over
these patterns give better ones. Then patterns whose use costs less than what is still open are
enumerated and settle it, or say what is left (`proof.by_slack`). Few GPUs are settled target by
target in place of that (`_targets`), because near the best plan few patterns cost little enough.

Here: goals, the pricer, the order of a search. Not here: what a pattern is (`patterns`), what a
plan looks like (`plan`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Relaxed, raised, relax, screened
from flows.planning.engine.level import halved, highest, level_cover
from flows.planning.engine.master import Cover, missed_prices
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.proof import by_slack
from flows.planning.engine.rounding import Incumbent, Rung, Tools, dive, restricted
from flows.planning.gpulets.divisions import Divisions
from flows.planning.gpulets.patterns import Pattern, Patterns
from flows.planning.gpulets.search import Worths
from flows.planning.gpulets.tables import Tables
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import FEW_NODES, SEARCH_NODES, Limits
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import BEFORE, Watch

DIVES = 6  # at different levels
MOST_PATTERNS = 4_000  # columns of the last integer program
LIKELY = 1_000  # of them that are likely in a good plan
FEW = 16  # GPUs that are settled target by target
TARGETS = 12  # tried then, each by programs; and before, where the relaxation closes
STEP = 0.004  # relative, from a bound to the next target
NEAR = 0.001  # relative, of where it closes

Chosen = list[tuple[Pattern, int]]
Kind = tuple[int, int, bool]  # of parts: class, share, beside others or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The demand.

    Attributes:
        demand: [model] weights where the objective is throughput, else requests/s.
        prices: [class] where it is a price, else None.
        gap: relative, at which the search ends.
        enough: of throughput: a value beyond which nothing more is asked.
    """

    demand: Floats
    prices: Floats | None = None
    gap: float = 1e-4
    solver: str = "highs"
    enough: float = np.inf

    def fixed(self, target: float, gpus: Floats, prices: Floats) -> Cover:
        """All demands at a level, for the least price of GPUs [class]."""
        need = np.full(len(self.demand), target)
        missed = missed_prices(float(prices @ gpus), need)
        return Cover(need=need, capacity=gpus, cap=need, missed=missed)

    def asked(self, gpus: Floats) -> Cover:
        """All demands for the least price of GPUs; without prices their level, to be maximised."""
        if self.prices is None:
            return level_cover(np.ones(len(self.demand)), gpus, self.enough)
        return self.fixed(1.0, gpus, self.prices)

    def cost(self, served: Floats, price: float) -> float:
        """The cost of a plan to the engine: minus its level, or its price if it meets all.

        Args:
            served: [model] in units of the demand.
            price: of its GPUs.
        """
        level = float(served.min())
        if self.prices is None:
            return -level
        return price if level >= 1 - ROUNDING else np.inf

    def whole_costs(self) -> float:
        """The step that all prices of plans are multiples of; 0: anything."""
        return float(self.prices is not None and (self.prices == 1).all())

    def tools(self, most: Callable[[Columns], Floats], *, begin: bool = False) -> Tools:
        """How whole programs are solved, with how often each column may be taken."""
        return Tools(
            solver=self.solver,
            gap=self.gap,
            most=most,
            begin=begin,
            whole_costs=self.whole_costs(),
        )

    def settled(self, score: float, bound: float) -> bool:
        """True if a score is proven within the gap asked for, or is enough."""
        if score >= self.enough:
            return True
        return bool(np.isfinite(score)) and bound - score <= self.gap * abs(score) + 1e-12

    def answer(
        self, plan: Iterable[tuple[Pattern, int]], score: float, bound: float, trace: Trace
    ) -> "Answer":
        """A plan of patterns as an answer, without those that are idle."""
        trace.status = "optimal" if self.settled(score, bound) else "gap left"
        chosen = [(pattern, count) for pattern, count in plan if count and pattern.rates_rps.any()]
        return Answer(chosen=chosen, score=score, bound=max(bound, score), trace=trace)


@dataclass(slots=True)
class Answer:
    """Counts of patterns, a score (negated price) and the score that no plan exceeds.

    Attributes:
        chosen: patterns with how many GPUs follow each; empty where no plan was found.
    """

    chosen: Chosen
    score: float
    bound: float
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPricer:
    """A pricer of patterns; those of a class are a group.

    Attributes:
        most, cheapest: [class] GPUs, and the price of one.
        unit: [demand] requests/s, or open seats, in a unit of it.
        supply: [pattern, demand] what patterns supply, where that is not their rates alone.
    """

    patterns: Sequence[Patterns]
    most: Floats
    cheapest: Floats
    unit: Floats
    watch: Watch
    supply: Callable[[Sequence[Pattern]], Floats] | None = None
    quick: bool = False

    @property
    def fewest(self) -> Floats:
        """[class] GPUs in use."""
        return np.zeros(len(self.most))

    def worth(self, duals: Duals, cap: Floats) -> Worths:
        """Prices as patterns read them: requests/s."""
        half = duals.half if len(duals.half) else np.zeros(len(cap))
        return Worths.of(duals.demand / self.unit, half, cap * self.unit)

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """The best patterns of every class; GPUs dear enough that none pays off.

        Of a class whose patterns were not all looked at in time nothing is proven.
        """
        worth, values = self.worth(duals, cap), np.zeros(len(self.most))
        found: list[Pattern] = []
        for own in self.patterns:
            best, whole = own.best(worth, self.watch)
            values[own.number] = max([value for value, _ in best], default=0.0) if whole else np.inf
            found += [pattern for _, pattern in best]
        resource = np.maximum(0.0, values - self.cheapest)
        feasible = None
        if np.isfinite(values).all() and not np.array_equal(resource, duals.resource):
            feasible = replace(duals, resource=resource)
        least = self.cheapest + duals.resource - values
        return Priced(columns=self.columns(found), least=least, feasible=feasible)

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Priced:
        """Patterns that cost no more than the slack."""
        worth, left = self.worth(duals, cap), np.full(len(self.most), np.inf)
        found: list[Pattern] = []
        for own in self.patterns:
            paid = float(self.cheapest[own.number] + duals.resource[own.number])
            wanted = paid - float(slack[own.number])
            near, least = own.above(worth, wanted if wanted >= 0 else -0.5, most, self.watch)
            found += near
            if least >= 0:
                left[own.number] = paid - least
        return Priced(columns=self.columns(found), least=left)

    def columns(self, patterns: Sequence[Pattern]) -> Columns:
        """For the engine."""
        if not patterns:
            return Columns.none()
        kinds = np.array([pattern.gpu_class for pattern in patterns])
        if self.supply is None:
            supply = np.array([pattern.rates_rps for pattern in patterns]) / self.unit
        else:
            supply = self.supply(patterns)
        use = np.eye(len(self.most))[kinds]
        return Columns.dense(self.cheapest[kinds], supply, use, kinds, patterns)

    def alone(self, pool: Pool, watch: Watch) -> None:
        """Begin with the best patterns of every demand by itself."""
        count = len(self.unit)
        for demand in np.eye(count):
            duals = Duals(demand=demand * self.unit, resource=np.zeros(len(self.most)))
            pool.add(self.price(duals, np.full(count, np.inf)).columns)
            if watch.over():
                break


class Master:
    """Patterns of all classes, and the best of them for any demand."""

    def __init__(self, tables: Tables, watch: Watch | None = None) -> None:
        """Enumerate what parts of GPUs may do.

        Raises:
            InfeasibleError: the time is over before all is known.
        """
        self.tables = tables
        self.patterns = [
            Patterns(tables, number, watch) for number, c in enumerate(tables.classes) if c.gpus
        ]

    def of_class(self, number: int) -> Patterns:
        """Patterns of a class that has GPUs."""
        return next(own for own in self.patterns if own.number == number)

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of patterns, and the bound."""
        return _Search(self, goal, watch).run()


class _Search:
    """One search for the best counts of patterns.

    Attributes:
        pricer, pool: patterns at prices of GPUs, all 1 where the goal is a level.
        best: the best plan known.
    """

    def __init__(self, master: Master, goal: Goal, watch: Watch) -> None:
        tables = master.tables
        self.master, self.goal, self.watch, self.trace = master, goal, watch, Trace()
        self.gpus = tables.gpus.astype(np.float64)
        prices = np.ones(len(self.gpus)) if goal.prices is None else goal.prices
        self.pricer = PatternPricer(
            patterns=master.patterns,
            most=self.gpus,
            cheapest=prices,
            unit=goal.demand,
            watch=watch,
        )
        self.free_of_charge = replace(self.pricer, cheapest=np.zeros(len(self.gpus)))
        self.pool, self.best = Pool(), Incumbent(judge=self._judged)
        self.few = goal.prices is None and self.gpus.sum() <= FEW
        self.tools = goal.tools(lambda columns: self.gpus[columns.group])

    def _judged(self, columns: Columns, counts: Ints, free: Floats) -> float:
        del free
        served = counts @ columns.matrix(len(self.goal.demand) + len(self.gpus))
        price = float(self.pricer.cheapest[columns.group] @ counts)
        return self.goal.cost(served[: len(self.goal.demand)], price)

    @property
    def score(self) -> float:
        """Of the best plan known."""
        return -self.best.cost

    def _settled(self, bound: float) -> bool:
        return self.goal.settled(self.score, bound)

    def run(self) -> Answer:
        """All steps."""
        goal = self.goal
        cover, relaxed = self._relaxed()
        bound = -raised(relaxed.bound, goal.whole_costs())
        out_of_reach = goal.prices is None and bound < goal.enough < np.inf
        if not out_of_reach and bound > -np.inf:
            if self.few:
                self._recombine()  # a plan at once, whatever time is left
                bound = self._targets(bound) if bound < np.inf else bound
            elif goal.prices is not None or bound > 0:
                bound = self._many(bound, cover, relaxed)
        self.trace.configurations["generated"] = len(self.pool)
        plan = zip(self.best.columns.source, self.best.counts.tolist(), strict=True)
        return goal.answer(plan, self.score, bound, self.trace)

    def _relaxed(self) -> tuple[Cover, Relaxed]:
        """The linear optimum at a price, or of the level."""
        if self.goal.prices is not None:
            self.pricer.alone(self.pool, self.watch)
            cover = self._fixed(1.0)
            return cover, relax(cover, self.pricer, self.pool, self.watch)
        pool, ones = Pool(), np.ones(len(self.goal.demand))
        self.free_of_charge.alone(pool, self.watch)
        cover = self.goal.asked(self.gpus)
        if self.few:
            relaxed = relax(cover, self.free_of_charge, pool, self.watch)
            cover = replace(cover, cap=np.minimum(cover.cap, -relaxed.bound))
        else:
            cover, relaxed = highest(cover, ones, self.free_of_charge, pool, self.watch)
        self.pool.add(_at(self.pricer.cheapest, pool.columns))
        return cover, relaxed

    def _fixed(self, target: float) -> Cover:
        """All demands at a level for the least price, halves asked for."""
        cover = self.goal.fixed(target, self.gpus, self.pricer.cheapest)
        return replace(cover, halves=True)

    # Plans

    def _many(self, bound: float, cover: Cover, relaxed: Relaxed) -> float:
        """Plans, one after the other until one is proven; the bound left."""
        self._dive(bound)
        if not self._settled(bound):
            self._recombine()
        if not self._settled(bound):
            self._whole(cover, cover.undominated(self.pool.columns))
        if self._settled(bound) or not np.isfinite(self.score) or self.watch.over():
            return bound
        return -self._by_slack(cover, relaxed)

    def _by_slack(self, cover: Cover, relaxed: Relaxed) -> float:
        """The program over all patterns that a better plan may have; the least cost left."""
        pricer, pool = self.pricer, self.pool
        if self.goal.prices is None:
            pricer, pool = self.free_of_charge, Pool()
            pool.add(_at(pricer.cheapest, self.pool.columns))
        rungs = [Rung(columns=MOST_PATTERNS, nodes=SEARCH_NODES)]
        found = by_slack(cover, pricer, pool, relaxed, self.best, rungs, self.tools, self.watch)
        self.trace.configurations["screened"] = len(pool)
        return found

    def _dive(self, bound: float) -> None:
        """Dives at levels between the best known and the bound; one where the demand is given."""
        if self.goal.prices is not None:
            self.best.offer(*dive(self._fixed(1.0), self.pricer, self.pool, self.watch))
            return
        low, high, enough = 0.0, bound, self.goal.enough
        for number in range(DIVES):
            target = min(enough, (low + high) / 2 if number else bound)
            self.best.offer(*dive(self._fixed(target), self.pricer, self.pool, self.watch))
            low = max(low, self.score)
            if self.score < target:
                high = min(high, target)
            if high - low <= self.goal.gap * low or low >= enough or self.watch.over():
                break

    def _recombine(self) -> None:
        """A plan from the parts of all known patterns, put together again.

        Parts are taken to feel the most that any of them presses; what a combination really carries
        is seen afterwards, so this proves nothing.
        """
        goal, patterns = self.goal, self.master.patterns
        found = list(
            {
                ((c.gpu_class, share, len(c.parts) > 1), row): None
                for c in self.pool.columns.source
                for share, row in c.parts
            }
        )
        number = {kind: n for n, kind in enumerate(dict.fromkeys(kind for kind, _ in found))}
        cuts = [(own.number, cut) for own in patterns for cut in own.table.partitions]
        kinds_of = [[(k, share, len(cut) > 1) for share in cut] for k, cut in cuts]
        divisions = Divisions(
            gpu_class=np.array([k for k, _ in cuts]),
            parts=tuple(tuple(number[k] for k in kinds if k in number) for kinds in kinds_of),
            kinds=len(number),
        )
        free = np.zeros(len(self.gpus))
        cover = divisions.cover(goal.asked(self.gpus), free if goal.prices is None else goal.prices)
        group = np.array([number[kind] for kind, _ in found])
        use = np.eye(len(number), len(cover.capacity))[group]
        supply = self._parts(found) / goal.demand
        columns = Columns.dense(np.zeros(len(found)), supply, use, group, found)
        plan, most = Incumbent(), np.full(len(found), self.gpus.sum() * max(map(len, kinds_of)))
        limits = Limits(relative_gap=goal.gap, nodes=FEW_NODES, seconds=self.watch.left_s())
        tools = Tools(solver=goal.solver, most=lambda _: most)
        restricted(cover, columns, plan, limits, tools)
        stock: dict[int, list[tuple[int, int]]] = {}
        for (kind, row), count in zip(plan.columns.source, plan.counts.tolist(), strict=True):
            stock.setdefault(number[kind], []).extend([(kind[1], row)] * count)
        made = [
            self.master.of_class(k).pattern(
                tuple(share for share, _ in parts), np.array([row for _, row in parts])
            )
            for k, parts in divisions.on_gpus(plan.free, stock)
        ]
        if made:
            columns = self.pricer.columns(made)
            self.pool.add(columns)
            self.best.offer(columns, np.ones(len(columns), dtype=np.int64))

    def _parts(self, found: Sequence[tuple[Kind, int]]) -> Floats:
        """[part, model] requests/s of parts beside the most that any of their class presses."""
        of_class, most = self.master.of_class, np.zeros(len(self.gpus))
        for (k, share, beside), row in found:
            if beside:
                most[k] = max(most[k], of_class(k).options[share].pressure[row])
        return np.concatenate(
            [
                of_class(k).carried(share, np.array([row]), float(most[k]), beside=beside)
                for (k, share, beside), row in found
            ]
        )

    # Few GPUs

    def _targets(self, bound: float) -> float:
        """Few GPUs: plans and proofs at levels between the best plan and the bound.

        The bound left.
        """
        enough = self.goal.enough
        if self.watch.limit_s is not None:
            self._soon(bound)
        bound = self._narrowed(bound)
        if bound <= 0 or bound < enough < np.inf or (self.watch.over() and self.score > 0):
            return bound
        target = min(enough, bound * (1 - STEP))
        level = level_cover(np.ones(len(self.goal.demand)), self.gpus, target)
        self._whole(level, self._near(self._fixed(target), LIKELY)[0])
        undecided = 0.0
        for _ in range(TARGETS):
            known = max(0.0, self.score, undecided)
            if bound - known <= NEAR * bound and undecided > max(0.0, self.score):
                break
            if self._settled(bound) or self.watch.over():
                break
            target = min(enough, (known + bound) / 2)
            cover = self._fixed(target)
            columns, every = self._near(cover, MOST_PATTERNS)
            self.trace.configurations["screened"] = len(columns)
            if every and self._whole(cover, columns) == np.inf:
                bound = target
            elif self.score < target:
                undecided = target
            if undecided == enough:
                break
        return bound

    def _soon(self, bound: float) -> None:
        """A plan of few patterns in parts of the time left: what follows may leave none for one."""
        target, part = (max(0.0, self.score) + bound) / 2, self.watch.part(BEFORE)
        cover = self._fixed(min(self.goal.enough, target))
        relax(cover, replace(self.pricer, watch=part), self.pool, part)
        level = level_cover(np.ones(len(self.goal.demand)), self.gpus, min(self.goal.enough, bound))
        self._whole(level, cover.undominated(self.pool.columns), self.watch.part(BEFORE))

    def _narrowed(self, bound: float) -> float:
        """The bound on the level that the relaxation with halves leaves, nearly.

        A model that is served at all is served once within its limit: where that is too much, no
        plan serves every model.
        """
        tables, total = self.master.tables, float(self.gpus.sum())
        many = np.where(self.gpus > 0, 8 * total, 0.0)

        def fits(target: float) -> bool:
            """True if a level fits, were there enough GPUs of every class, or the time is over."""
            cover = replace(self._fixed(target), capacity=many)
            pricer = replace(self.pricer, most=many)
            if self.watch.over():
                return True
            least = relax(cover, pricer, self.pool, self.watch).bound
            return least <= total * (1 + ROUNDING)

        high = min(bound, self.goal.enough)
        if fits(high):
            return bound
        low = float((1e6 / tables.limit_us / self.goal.demand).min())
        if self.score > low:  # a plan reaches it
            low = min(self.score, high)
        elif low < high and not fits(low):
            return 0.0
        return halved(fits, low if low < high else 0.0, high, TARGETS, NEAR)[1]

    def _near(self, cover: Cover, most: int) -> tuple[Columns, bool]:
        """Patterns that a plan for a demand may use.

        None where there is no plan; whether these are all.
        """
        total = float(self.gpus.sum()) * (1 + ROUNDING)
        relaxed = relax(cover, self.pricer, self.pool, self.watch)
        if relaxed.bound > total:
            return Columns.none(), True
        screen = screened(cover, self.pricer, relaxed.duals, total, most)
        self.pool.add(screen.columns)
        return cover.undominated(self.pool.columns), screen.outside >= total * (1 - ROUNDING)

    def _whole(self, cover: Cover, columns: Columns, watch: Watch | None = None) -> float:
        """The integer program over some patterns; what plans of them cost at least."""
        if not len(columns):
            return np.inf
        beats = len(cover.free.columns) > 0 or self.goal.prices is not None
        limits = Limits(
            relative_gap=self.goal.gap / 2,
            nodes=SEARCH_NODES if self.few else FEW_NODES,
            seconds=(watch or self.watch).left_s(),
            cutoff=self.score if beats else -np.inf,
            enough=self.goal.enough if beats else np.inf,
        )
        if self.goal.prices is None:
            columns = _at(self.free_of_charge.cheapest, columns)
        return restricted(cover, columns, self.best, limits, self.tools)


def _at(prices: Floats, columns: Columns) -> Columns:
    """Patterns at other prices of GPUs [class]."""
    return replace(columns, cost=prices[columns.group])
