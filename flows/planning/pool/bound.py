"""The linear relaxation over all configurations: upper bound and prices.

    maximise    z - Σ_c price_c · x_c                 price_c: of the GPUs per sample/s of it
    share_m:    Σ_{c of m} x_c ≥ weight_m · z         for every model m       (dual share_m)
    floor_m:    Σ_{c of m} x_c ≥ minimum_m            where one is asked for  (dual floor_m)
    capacity_k: Σ_c usage_ck · x_c ≤ gpus_k           for every GPU class k   (dual gpu_k)
    x ≥ 0;  z ≥ 0, or z = 1 where cost or power are minimised (then share and floor are one row)

x_c is the rate of configuration c. It is solved by the engine's column generation: a configuration
is a column, and all are priced with one matrix product. Where rates are prescribed, those that are
missed cost beyond any plan; in the end none may be left. The bound returned holds for every
configuration, whatever the solver's tolerances were: it is that of prices at which none pays off
(weak duality).

**Exact screening: configurations that no better plan can use are dropped.**

With the prices of the relaxation, a plan that runs configuration c with g_s vGPUs per stage loses
at least Σ_s gpu_price · g_s / v_s - rate_price · min_s(g_s · rate_s) against the bound. A plan
better than the best one known must lose less than bound - best known. Where even the cheapest whole
numbers of vGPUs lose more, the configuration is dropped. Among configurations of one model with
the same vGPU types, one that is at least as fast in every stage replaces the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.engine import columns as engine
from flows.planning.engine.columns import Pool
from flows.planning.engine.cover import relax
from flows.planning.engine.master import Cover, Free, level_column
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.inputs import Problem
from flows.planning.pool.columns import Columns, best_of_each
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT, ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError, InvariantError

_TINY = float(np.finfo(np.float64).tiny) / EXACT  # of prices
_BEYOND = 1e6  # cost of a missed rate, in GPUs of the dearest price
MULTIPLES = 24  # whole numbers of vGPUs of a stage that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Demands on the rates, and prices of GPUs.

    Attributes:
        weight: [models] rate of each model per unit of z.
        minimum_rps: [models] rate to keep at least; 0 where none is asked for.
        price: [C] cost or watts of one GPU; 0 where throughput is maximised.
        fixed: whether z is fixed at 1 (cost and power).
    """

    weight: Floats
    minimum_rps: Floats
    price: Floats
    fixed: bool

    @classmethod
    def level(cls, weight: Floats, classes: int) -> "Goal":
        """The highest level of weights, whatever GPUs of so many classes cost."""
        none = np.zeros_like(weight)
        return cls(weight=weight, minimum_rps=none, price=np.zeros(classes), fixed=False)

    @property
    def asked_rps(self) -> Floats:
        """[models] rate that a plan must reach; 0 where none is asked for."""
        return np.maximum(self.weight * self.fixed, self.minimum_rps)

    def rates(self, score: float) -> Floats:
        """[models] rates of their weights at a score, whatever is asked for at least."""
        return self.weight * (1.0 if self.fixed else score)

    def needed_rps(self, score: float) -> Floats:
        """[models] the same, or what is asked for at least."""
        return np.maximum(self.rates(score), self.minimum_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The relaxation's answer.

    Attributes:
        score: no plan's score (z, or minus its cost) is above this.
        gpu_price: [C] score per GPU of each class.
        rate_price: [models] score per sample/s of each model; at most what the cheapest
            configuration of the model pays in GPUs.
        rate_rps: [n] rates of the relaxed optimum; empty where these are not known.
    """

    score: float
    gpu_price: Floats
    rate_price: Floats
    rate_rps: Floats = field(default_factory=lambda: np.zeros(0))


def solve_bound(problem: Problem, columns: Columns, goal: Goal) -> Bound:
    """Solve the relaxation.

    Raises:
        InfeasibleError: the rates asked for are out of reach of the cluster.
    """
    pricer = Configurations(columns=columns, goal=goal)
    cover, pool = _cover(problem, pricer), Pool()
    scarcity = 1.0 / np.maximum(problem.gpus, 1)
    start = Duals(demand=np.zeros(len(cover.need)), resource=scarcity)
    relaxed = relax(cover, pricer, pool, Watch(), start=start)
    if relaxed.mixed is None:  # pragma: no cover - what is not served has a price
        raise InvariantError("the master program of the relaxation has no solution")
    if (relaxed.mixed.missed > SOLVED * cover.need).any():
        _raise_out_of_reach(problem, columns, goal)
    rates, counts = np.zeros(len(columns)), relaxed.mixed.counts
    rates[np.array(pool.columns.source, dtype=np.int64)[: len(counts)]] = counts
    gpu_price = goal.price + relaxed.duals.resource
    return Bound(
        score=-relaxed.bound,
        gpu_price=gpu_price,
        rate_price=pricer.cheapest_of(columns.usage @ gpu_price),
        rate_rps=rates,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configurations:
    """The pricer: models are groups, and all configurations are priced by one matrix product.

    Demands are the models' rates; where z is free, the floors asked for behind them. At prices of
    GPUs a rate is worth what its model's cheapest configuration pays, less what a floor is worth.
    """

    columns: Columns
    goal: Goal
    quick: bool = False

    @property
    def fewest(self) -> Floats:
        """[models] none of them is needed."""
        return np.zeros(len(self.goal.weight))

    @property
    def most(self) -> Floats:
        """[models] any rate."""
        return np.full(len(self.goal.weight), np.inf)

    @property
    def cheapest(self) -> Floats:
        """[models] what a sample/s costs at least."""
        return self.cheapest_of(self.columns.usage @ self.goal.price)

    @property
    def floors(self) -> Ints:
        """Models whose floors are demands of their own."""
        return np.flatnonzero((self.goal.minimum_rps > 0) & (not self.goal.fixed))

    def cheapest_of(self, each: Floats) -> Floats:
        """[models] the least of values [n] of configurations."""
        least = np.full(len(self.goal.weight), np.inf)
        np.minimum.at(least, self.columns.model, each)
        return least

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """The best configuration of each model, and prices that none beats."""
        del cap
        models, floors, columns = len(self.goal.weight), self.floors, self.columns
        worth = duals.demand[:models].copy()
        worth[floors] += duals.demand[models:]
        paid = columns.usage @ (self.goal.price + duals.resource)
        best = best_of_each([columns.model], paid)
        least = paid[best]
        floor = np.minimum(duals.demand[models:], least[floors])
        share = least.copy()
        share[floors] -= floor
        level = 1.0 if self.goal.fixed else float(self.goal.weight @ share)
        made = replace(duals, demand=np.concatenate([share, floor]))
        # Below the second, floats have too few digits to be scaled.
        something = level > max(EXACT * duals.resource.max(initial=0.0), _TINY)
        return Priced(
            columns=self.as_columns(best),
            least=least - worth,
            feasible=made.scaled(1.0 / level) if something else None,
        )

    def as_columns(self, rows: Ints) -> engine.Columns:
        """Configurations as columns of the engine, each its row's number."""
        columns = self.columns.take(rows)
        supply = np.eye(len(self.goal.weight))[columns.model]
        return engine.Columns.dense(
            columns.usage @ self.goal.price,
            np.hstack([supply, supply[:, self.floors]]),
            columns.usage,
            columns.model,
            rows.tolist(),
        )


def _cover(problem: Problem, pricer: Configurations) -> Cover:
    """The rates asked for, or the level of them, within the GPUs."""
    goal, columns, floors = pricer.goal, pricer.columns, pricer.floors
    asked, free = np.maximum(goal.weight, goal.minimum_rps), Free()
    if not goal.fixed:
        asked = np.concatenate([np.zeros(len(goal.weight)), goal.minimum_rps[floors]])
        free = level_column(np.append(goal.weight, np.zeros(len(floors))), len(problem.gpus))
    # A sample/s that is missed costs what the leanest configuration takes in GPUs beyond any price.
    beyond = _BEYOND * max(1.0, float(goal.price.max()), 1.0 / float(goal.weight.min()))
    lean = beyond * pricer.cheapest_of(columns.usage.sum(axis=1))
    missed = np.where(asked > 0, np.append(lean, lean[floors]), np.inf)
    return Cover(
        need=asked,
        capacity=problem.gpus.astype(np.float64),
        free=free,
        cap=np.full(len(asked), np.inf),
        missed=missed,
    )


def _raise_out_of_reach(problem: Problem, columns: Columns, goal: Goal) -> None:
    asked = goal.asked_rps
    free = Goal.level(np.maximum(asked, ROUNDING * asked.max()), len(goal.price))
    share = solve_bound(problem, columns, free).score
    rates = ", ".join(
        f"{model.name} {rate:g}" for model, rate in zip(problem.models, asked, strict=True) if rate
    )
    raise InfeasibleError(
        "workload",
        f"the cluster reaches at most {share:.1%} of the rates asked for (requests/s: {rates})",
    )


def goal_of(problem: Problem, objective: str, minimum_rps: Mapping[str, float],
            price: Floats) -> Goal:  # fmt: skip
    """The goal of a planning run; prices [C] count where the objective is minimised."""
    fixed = objective != "throughput"
    return Goal(
        weight=np.array([m.weight for m in problem.models]),
        minimum_rps=np.array([minimum_rps.get(m.name, 0.0) for m in problem.models]),
        price=price if fixed else np.zeros_like(price),
        fixed=fixed,
    )


def least_loss(problem: Problem, columns: Columns, bound: Bound) -> Floats:
    """[n] score that using a configuration costs at least.

    For a rate x the cheapest plan takes ceil(x / rate_s) vGPUs of stage s. The loss only falls
    where x meets a multiple of a stage's rate, so looking there is enough; beyond the largest
    multiple looked at, the linear loss bounds it.
    """
    price = bound.gpu_price[problem.type_class[columns.types]]
    price = price / problem.type_divisor[columns.types]
    price[~np.isfinite(columns.rate_rps)] = 0.0
    worth = bound.rate_price[columns.model]
    rate = columns.rate_rps
    lowest = rate.min(axis=1)
    reach = np.where(np.isfinite(rate), rate * (MULTIPLES + 1), np.inf).min(axis=1)
    best = np.maximum((price / rate).sum(axis=1) - worth, 0.0) * reach
    for s in range(rate.shape[1]):
        real = np.isfinite(rate[:, s])
        for multiple in range(1, MULTIPLES + 1):
            x = np.where(real, rate[:, s] * multiple, 0.0)
            vgpus = np.ceil(x[:, None] / rate * (1 - EXACT))
            loss = (vgpus * price).sum(axis=1) - worth * x
            usable = real & (x >= lowest * (1 - EXACT))
            np.minimum(best, np.where(usable, loss, np.inf), out=best)
    return np.maximum(best, 0.0)


def undominated(
    problem: Problem, columns: Columns, rows: Ints, times: Floats | None = None
) -> Ints:
    """Those of `rows` that no other of the same model and vGPU types replaces; the first of equals.

    The order of stages does not matter: a stage is worth its type and rate. With `times` [n] none
    replaces a shorter one.
    """
    real = np.isfinite(columns.rate_rps[rows])
    key = np.where(real, columns.types[rows], len(problem.types))
    rate = columns.rate_rps[rows]
    order = np.lexsort((-rate, key), axis=1)
    key = np.take_along_axis(key, order, axis=1)
    rate = np.take_along_axis(rate, order, axis=1)
    group = columns.model[rows]
    for s in range(key.shape[1]):
        group = group * (len(problem.types) + 1) + key[:, s]
    worth = np.where(np.isfinite(rate), rate, 1.0)
    if times is not None:
        worth = np.column_stack([worth, -times[rows]])
    return rows[engine.undominated(worth, group)]
