"""Many models on shared GPUs: the best plan and a proven bound, from one model at a time.

Level (throughput): maximise z so that every model m gets a vector a_m of GPUs that serves w_m · z,
with Σ_m a_m ≤ N. Price (cost, power): z is 1, and Σ_m price · a_m is minimised.

With prices μ ≥ 0 of GPUs, c_m(μ, r) is the least cost at which model m serves a rate r. Whatever
the prices (`engine.cover`, Lagrange),

    level:  no plan reaches z where   Σ_m c_m(μ, w_m z) > μ · N
    price:  no plan is cheaper than   Σ_m c_m(price + μ, w_m) - μ · N

The more models, the closer this is to the best plan, because only a model's own whole numbers are
hidden in c_m, and those it keeps; the relaxation of all models together loses them.

1. **Level** (or price): a level takes a share of the GPUs; the highest that takes no more than all
   is bracketed. At each level tried, models answer prices with cheap columns, the master program
   answers them with prices; columns are kept across levels.
2. **Plan**: columns at prices near the last ones join, and the whole master program chooses one per
   model, ever closer to the level that the relaxed one reaches. A first plan is made as soon as the
   level is known roughly.
3. **Proof**: at a level a little above the plan's, what every model costs at least is raised step
   by step until the sum exceeds what there is (`engine.proof.Parts`). A column found cheaper than
   the one known goes back to 1.

Plans of one stage come first, then those of one more, and so on: the pipelines of each are where
the next begins, so that more stages are never worse. A plan in force is where the first begins.

Effort is counted in iterations of the solver, never in seconds, so that the same inputs give the
same plan; the watch may end it earlier.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from os import sched_getaffinity

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Generation, Relaxed
from flows.planning.engine.level import halved
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals
from flows.planning.engine.proof import Parts
from flows.planning.engine.rounding import Incumbent, Tools, restricted
from flows.planning.pool.at_prices.blocks import ModelBlocks
from flows.planning.pool.at_prices.pricer import ModelPricer, columns_of, cover_at, served_rps
from flows.planning.pool.bound import Bound
from flows.planning.pool.columns import Allocation, allocations_in_force
from flows.planning.pool.incumbent import Incumbent as Best
from flows.planning.pool.integer import gpus_in_use
from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import FEW_NODES, Limits
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

_ROUNDS = 12  # of prices per level
_SETTLED = 1e-5  # a relaxed master this close to the sum of its models has no better prices
_COARSE = 0.03  # how closely the level is bracketed for the first plan; then to `_SETTLED`
_BELOW_LEVEL = (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # how far whole columns are looked for
_KEPT = 0.01  # relative gap at which GPUs that stay are counted
_TARGETS = (1e-2, 2e-3, 5e-4, 1e-4, 1e-5)  # gaps proven where the one asked for is not
_RETURNS = 12  # how often columns that a proof found go back to the master program
_EFFORT = 400_000  # iterations of the solver in proofs
_ONE_EACH = Tools(most=lambda columns: np.ones(len(columns)))


@dataclass(slots=True, kw_only=True)
class Search:
    """The search for the best plan, over more and more configurations.

    Attributes:
        best: the best plan known; better ones are put there.
        bound: no plan's score (z, or minus the price) is above this.
        gap: proof, relative to the score, at which the search ends.
        price: [C] of GPUs beside what they cost; where the level is maximised, price · GPUs is 1.
        known: columns, whatever configurations they were found over.
    """

    best: Best
    bound: float
    gap: float
    watch: Watch
    price: Floats
    known: Pool = field(default_factory=Pool)
    _levels: tuple[float, float] = (0.0, np.inf)  # reached, and not, as far as was looked
    _effort: int = 0
    _pricer: ModelPricer = field(init=False)
    _parts: Parts | None = None

    def over(self, numbers: Ints, *, proof: bool) -> None:
        """Find the best plan over some configurations, and prove it where that is wanted."""
        problem, goal = self.best.problem, self.best.goal
        self._pricer = ModelPricer(
            blocks=ModelBlocks(problem, self.best.columns.take(numbers), self.watch),
            numbers=numbers,
            gpu_cost=goal.price,
            need=goal.weight,
            known=self.known,
        )
        even = 1.0 / np.maximum(problem.gpus, 1)
        self.price = self._normal(self.price if self.price.any() else even)
        self._levels = max(self.best.score, self._levels[0]), self.bound
        self._bracket(_COARSE)
        if not goal.fixed:
            self._plan(self._levels[0] * (1 - _BELOW_LEVEL[0]))
        self._bracket(_SETTLED)
        self._improve()
        if proof:
            with ThreadPoolExecutor(len(sched_getaffinity(0))) as executor:
                self._prove_all(executor)

    def settled(self) -> bool:
        """True if the best plan is proven within the gap."""
        return self.bound - self.best.score <= self.gap * abs(self.best.score)

    # ---- prices

    def _normal(self, price: Floats) -> Floats:
        """Prices as they are used.

        Where the level counts, those of all GPUs are 1 together.
        """
        fixed = self.best.goal.fixed
        return price if fixed else price / float(price @ self.best.problem.gpus)

    def _duals(self, price: Floats) -> Duals:
        return Duals(demand=np.zeros(len(self.best.problem.models)), resource=price)

    def _cover(self, level: float) -> Cover:
        return cover_at(self.best.goal, self.best.problem.gpus, level)

    def _asked(self, cover: Cover) -> ModelPricer:
        return replace(self._pricer, need=cover.need)

    def _choice(self, cover: Cover) -> Columns:
        """Columns known that serve a cover, without dominated ones."""
        known = self.known.columns
        return cover.undominated(known.take(self._asked(cover).serving(known)))

    def _relaxed(self, level: float, enough: float = np.inf) -> Relaxed:
        """Relax a level, and keep the prices at which models cost most there."""
        cover, fixed, pool = self._cover(level), self.best.goal.fixed, Pool()
        pool.add(self._choice(cover))
        generation = Generation(
            cover,
            self._asked(cover),
            pool,
            self.watch,
            close=max(_SETTLED, self.gap / 10) if fixed else _SETTLED,
            rounds=_ROUNDS,
            enough=enough,
        )
        relaxed = generation.run(self._duals(self.price))
        if np.isfinite(relaxed.bound):
            self.price = relaxed.duals.resource
        return relaxed

    def _bracket(self, close: float) -> None:
        """Bracket the level that known columns reach, relaxed; or find prices of a fixed one."""
        if self.watch.over():
            return
        fixed = self.best.goal.fixed
        most = 1.0 if fixed else min(self.bound, self._levels[1])
        self._pricer.blocks.focus(self.price + self.best.goal.price, self._cover(most).need)
        if fixed:
            self._relaxed(1.0)
            return
        self._levels = halved(self._reached, *self._levels, close=close)

    def _reached(self, level: float) -> bool:
        """True if a level takes no more than all GPUs, relaxed; False once the time is over."""
        if self.watch.over():
            return False
        relaxed = self._relaxed(level, enough=1 + ROUNDING)
        return max(relaxed.bound, relaxed.value) <= 1 + ROUNDING

    # ---- plans

    def _improve(self) -> None:
        """Whole columns for all models, ever closer to what the relaxed master program reaches."""
        if self.best.goal.fixed:
            self._plan(1.0)
            return
        for below in _BELOW_LEVEL:
            level = self._levels[0] * (1 - below)
            if level <= self.best.score:
                continue
            self._plan(level)
            if self.best.score < level or self.watch.over():
                return

    def _plan(self, level: float) -> None:
        """Choose whole columns that reach a level, or the cheapest ones."""
        cover, before, fixed = self._cover(level), self.best.score, self.best.goal.fixed
        choice = self._choice(cover)
        if not self._complete(choice) or self.watch.over():
            return
        limits = Limits(
            relative_gap=min(self.gap, _SETTLED * 10) if fixed else 0.0,
            nodes=FEW_NODES,
            seconds=self.watch.left_s(),
            cutoff=before if fixed else -1 - ROUNDING,
            enough=np.inf if fixed else -1.0,
        )
        restricted(cover, choice, Incumbent(judge=self._judged), limits, _ONE_EACH)
        if self.best.score > before:
            self.watch.report(self.best.score, self.bound)

    def _complete(self, choice: Columns) -> bool:
        return len(np.unique(choice.group)) == len(self.best.problem.models)

    def _judged(self, columns: Columns, counts: Ints, free: Floats) -> float:
        """Offer a plan; minus the score of the best one."""
        del counts, free
        chosen = self._allocations(columns)
        if chosen is not None:
            self.best.offer(self.vgpus(chosen))
        return -self.best.score

    def _allocations(self, columns: Columns) -> list[Allocation] | None:
        """The first column of every model; None where they take too many GPUs."""
        one = columns.take(np.unique(columns.group, return_index=True)[1])
        demands = len(self.best.problem.models)
        used = one.matrix(demands + len(self.price))[:, demands:].sum(axis=0)
        return None if (used > self.best.problem.gpus).any() else list(one.source)

    def vgpus(self, allocations: Sequence[Allocation]) -> Ints:
        """[n, S] vGPUs of allocations over all configurations."""
        numbers, vgpus = zip(*allocations, strict=True)
        return self.best.columns.counts(np.concatenate(numbers), np.concatenate(vgpus))

    def prefer_in_use(self, in_use: Columns) -> None:
        """Of plans as good as the best, take one that keeps most GPUs of columns in use.

        Where a price is minimised, columns are kept that cost what the model's cheapest one costs.
        """
        goal = self.best.goal
        cover = self._cover(1.0 if goal.fixed else self.best.score)
        choice, least = self._choice(cover), np.full(len(cover.need), np.inf)
        np.minimum.at(least, choice.group, choice.cost)
        good = in_use.take(
            np.flatnonzero(
                (served_rps(in_use) >= cover.need[in_use.group] * (1 - ROUNDING))
                & (in_use.cost <= least[in_use.group] * (1 + ROUNDING))
            )
        )
        if not len(good) or not self._complete(choice) or self.watch.over():
            return
        kept = good.matrix(cover.rows)[:, len(cover.need) :].sum(axis=1)
        free = replace(
            cover.free,
            columns=replace(cover.free.columns, cost=np.zeros(len(cover.free.columns))),
            upper=np.minimum(cover.free.upper, 1.0),
        )
        both = Columns.joined(
            [replace(good, cost=-kept), replace(choice, cost=np.zeros(len(choice)))]
        )
        limits = Limits(relative_gap=_KEPT, nodes=FEW_NODES, seconds=self.watch.left_s())
        found = Incumbent()
        restricted(replace(cover, free=free), both, found, limits, _ONE_EACH)
        chosen = self._allocations(found.columns) if np.isfinite(found.cost) else None
        if chosen is not None:
            self.best.prefer(self.vgpus(chosen))

    # ---- proof

    def _prove_all(self, executor: Executor) -> None:
        """Prove the gap asked for, or else smaller and smaller ones until one cannot be."""
        if not np.isfinite(self.best.score) or self._prove(self.gap, executor):
            return
        for gap in _TARGETS:
            if self.best.goal.fixed or gap <= self.gap or not self._prove(gap, executor):
                return

    def _prove(self, gap: float, executor: Executor) -> bool:
        """True if the best plan is proven within a gap; columns found meanwhile better it first."""
        for _ in range(_RETURNS):
            target = self.best.score + gap * abs(self.best.score)
            if self.settled() or target >= self.bound:
                return True
            if self._ended():
                return False
            known = len(self.known)
            if self._proven(target, executor):
                self._limit(target)
                return True
            if len(self.known) == known:
                return False
            low, high = self._levels
            self._levels = low, min(self.bound, high * (1 + _COARSE / 2))
            self._bracket(_SETTLED)
            self._improve()
        return False

    def _ended(self) -> bool:
        return self.watch.over() or self._effort > _EFFORT

    def _limit(self, bound: float) -> None:
        """No plan's score is above this."""
        if bound < self.bound:
            self.bound = max(bound, self.best.score)
            self.watch.report(self.best.score, self.bound)

    def _proven(self, target: float, executor: Executor) -> bool:
        """True if every plan's score is shown to be at most a target."""
        fixed = self.best.goal.fixed
        if not fixed:
            self._relaxed(target)
        parts = self._parts_at(1.0 if fixed else target)
        most = -target if fixed else 1.0
        before = parts.effort
        started = self._effort

        def over() -> bool:
            self._effort = started + parts.effort - before
            return self._ended()

        proven = parts.raise_to(most + 2 * ROUNDING * abs(most), self.known, executor, over)
        over()
        if fixed:
            self._limit(-parts.value(parts.lower))
        return proven

    def _parts_at(self, level: float) -> Parts:
        """The least cost of models; proofs at the same prices and rates still hold."""
        cover, duals, parts = self._cover(level), self._duals(self.price), self._parts
        pricer = self._asked(cover)
        cost = pricer.price(duals, cover.cap).least
        if (
            parts is None
            or not np.array_equal(parts.duals.resource, self.price)
            or not np.array_equal(parts.cover.need, cover.need)
        ):
            parts = Parts(
                cover=cover,
                pricer=pricer,
                duals=duals,
                lower=pricer.floor(duals),
                upper=cost,
                step=np.zeros(len(cost)),
            )
        parts.upper = np.minimum(parts.upper, cost)
        parts.lower = np.minimum(parts.lower, parts.upper)
        self._parts = parts
        return parts


# From few stages to many


def plan_at_prices(
    best: Best, bound: Bound, options: PlanOptions, watch: Watch, *, proof: bool
) -> tuple[float, Floats]:
    """Improve the best plan model by model, at prices of GPUs.

    Args:
        best: the best plan known; better ones are put there.
        bound: the relaxation's prices and bound, or a better bound.
        options: the gap at which the search ends; a plan in force, where it begins.
        watch: the clock.
        proof: whether a proof is wanted.

    Returns:
        What no plan exceeds, and [C] prices of GPUs in the end.
    """
    problem, goal, columns = best.problem, best.goal, best.columns
    search = Search(
        best=best,
        bound=bound.score,
        gap=options.gap,
        watch=watch,
        price=np.maximum(bound.gpu_price - goal.price, 0.0),
    )
    _begin(search, options)
    in_use = search.known.columns
    watch.report(best.score, search.bound)
    deepest = int(columns.stages.max())
    for stages in range(1, deepest + 1):
        rows = np.flatnonzero(columns.stages <= stages)
        if watch.over() and best.vgpus is not None:
            break
        if len(np.unique(columns.model[rows])) == len(problem.models):
            search.over(rows, proof=proof and stages == deepest)
            if stages == deepest and len(in_use):
                search.prefer_in_use(in_use)
    return search.bound, search.price


def _begin(search: Search, options: PlanOptions) -> None:
    """Take pipelines and prices of the plan in force."""
    plan, best = options.previous, search.best
    problem, columns = best.problem, best.columns
    if plan is None:
        return
    found = allocations_in_force(plan, problem, columns)
    if not found:
        return
    models, allocations = zip(*found, strict=True)
    blocks = ModelBlocks(problem, columns, search.watch)
    gpus, rates = zip(*map(blocks.served, allocations), strict=True)
    numbers = np.array(models), np.array(gpus), np.array(rates)
    search.known.add(columns_of(len(problem.models), best.goal.price, *numbers, allocations))
    if len(found) == len(problem.models):
        counts = search.vgpus(allocations)
        if np.all(gpus_in_use(problem, columns, counts) <= problem.gpus):
            best.offer(counts)
    known: dict[str, float] = plan.certificate.get("prices", {})
    if set(problem.classes) <= set(known) and plan.objective.name == options.objective:
        search.price = np.array([known[name] for name in problem.classes])
