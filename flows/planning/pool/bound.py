"""The linear relaxation over all configurations: upper bound and prices.

    maximise    z - Σ_k price_k · u_k
    share_m:    Σ_{c of m} x_c - weight_m · z ≥ 0     for every model m       (dual share_m)
    floor_m:    Σ_{c of m} x_c ≥ minimum_m            where one is asked for  (dual floor_m)
    capacity_k: Σ_c usage_ck · x_c - u_k ≤ 0          for every GPU class k   (dual gpu_k)
    x ≥ 0,  0 ≤ u_k ≤ gpus_k;  z ≥ 0, or z = 1 where cost or power are minimised

x_c is the rate of configuration c, u_k the GPUs of class k in use. Where rates are prescribed, GPUs
that do not exist may be borrowed at a price beyond any other, so that a master program over few
configurations never fails for want of the right one; in the end none may be left. It is solved by
column generation: a master program over few configurations, all others priced with one matrix
product. The bound returned is recomputed from the prices by weak duality, so that it holds for
every configuration whatever the solver's tolerances were.

**Exact screening: configurations that no better plan can use are dropped.**

With the prices of the relaxation, a plan that runs configuration c with g_s vGPUs per stage loses
at least Σ_s gpu_price · g_s / v_s - rate_price · min_s(g_s · rate_s) against the bound. A plan
better than the best one known must lose less than bound - best known. Where even the cheapest whole
numbers of vGPUs lose more, the configuration is dropped. Among configurations of one model with
the same vGPU types, one that is at least as fast in every stage replaces the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flows.planning.inputs import Problem
from flows.planning.pool.columns import Columns
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import solve_linear
from triton_backend.contract.errors import InfeasibleError, InvariantError

_MAX_ROUNDS = 200
_PRICE_TOLERANCE = 1e-9
_FRESH_PER_MODEL = 4
_BORROWING = 1e6  # score that a borrowed GPU costs
_BORROWED = 1e-7  # GPUs
_MULTIPLES = 24  # whole numbers of vGPUs of a stage that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Demands on the rates, and prices of GPUs.

    Attributes:
        weight: [models] rate of each model per unit of z.
        minimum_rps: [models] rate to keep at least; 0 where none is asked for.
        price: [C] cost or watts of one GPU; 0 where throughput is maximised.
        fixed: whether z is fixed at 1 (cost and power).
    """

    weight: NDArray[np.float64]
    minimum_rps: NDArray[np.float64]
    price: NDArray[np.float64]
    fixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The relaxation's answer.

    Attributes:
        score: no plan's score (z, or minus its cost) is above this.
        gpu_price: [C] score per GPU of each class.
        rate_price: [models] score per sample/s of each model; at most what the cheapest
            configuration of the model pays in GPUs.
        reduced_cost: [n] score lost per sample/s on each configuration; not negative.
        rate_rps: [n] rates of the relaxed optimum.
    """

    score: float
    gpu_price: NDArray[np.float64]
    rate_price: NDArray[np.float64]
    reduced_cost: NDArray[np.float64]
    rate_rps: NDArray[np.float64]


def solve_bound(problem: Problem, columns: Columns, goal: Goal) -> Bound:
    """Solve the relaxation.

    Raises:
        InfeasibleError: the rates asked for are out of reach of the cluster.
    """
    members = [np.flatnonzero(columns.model == m) for m in range(len(problem.models))]
    chosen = _first_choice(problem, columns, members)
    for _ in range(_MAX_ROUNDS):
        values, duals = _solve_master(problem, columns.take(chosen), goal)
        gpu, share, floor = duals
        rate_price = share + floor
        paid = columns.usage @ gpu
        fresh = _fresh(paid, rate_price, members, chosen)
        if not len(fresh):
            break
        chosen = np.concatenate([chosen, fresh])
    else:  # pragma: no cover - each round adds configurations, and there are finitely many
        raise InvariantError(f"column generation did not end in {_MAX_ROUNDS} rounds")
    if _prescribed(goal) and values[len(chosen) :][: len(problem.gpus)].max() > _BORROWED:
        _raise_out_of_reach(problem, columns, goal)
    rates = np.zeros(len(columns))
    rates[chosen] = values[: len(chosen)]
    return _certified(problem, goal, members, paid, duals, rates)


def _first_choice(
    problem: Problem, columns: Columns, members: list[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Per model the cheapest configurations when one class, or all, count."""
    scarcity = 1.0 / np.maximum(problem.gpus, 1)
    weights = [scarcity, *(scarcity + 9 * np.eye(len(scarcity))[k] for k in range(len(scarcity)))]
    rows = [m[np.argmin(columns.usage[m] @ w)] for m in members for w in weights]
    return np.unique(np.array(rows, dtype=np.int64))


def _fresh(
    paid: NDArray[np.float64],
    rate_price: NDArray[np.float64],
    members: list[NDArray[np.int64]],
    chosen: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Configurations that would pay off, the best few of each model."""
    rows: list[NDArray[np.int64]] = []
    for number, member in enumerate(members):
        gain = rate_price[number] - paid[member]
        least = _PRICE_TOLERANCE * max(1e-12, rate_price[number])
        best = member[np.argsort(-gain, kind="stable")[:_FRESH_PER_MODEL]]
        rows.append(best[rate_price[number] - paid[best] > least])
    fresh = np.concatenate(rows)
    return fresh[~np.isin(fresh, chosen)]


def _solve_master(
    problem: Problem, columns: Columns, goal: Goal
) -> tuple[
    NDArray[np.float64],
    tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
]:
    program = master_program(problem, columns, goal)
    answer = solve_linear(program)
    if answer is None:
        raise InvariantError("the master program of the relaxation has no solution")
    values, row_duals = answer
    count = len(problem.models)
    duals = np.maximum(row_duals, 0.0)
    share, rest = duals[:count], duals[count:]
    floor = np.zeros(count)
    asked = np.flatnonzero(goal.minimum_rps > 0)
    floor[asked] = rest[: len(asked)]
    return values, (rest[len(asked) :], share, floor)


def master_program(problem: Problem, columns: Columns, goal: Goal) -> Program:
    """The relaxation over given configurations; rows share, floor, capacity in that order.

    Every row is written so that its dual is not negative.
    """
    count = len(columns)
    build = ProgramBuilder()
    x = build.variables("x", count)
    lent = build.variables(
        "borrowed",
        len(problem.gpus),
        upper=np.inf if _prescribed(goal) else 0.0,
        cost=-_BORROWING * max(1.0, float(goal.price.max()), 1.0 / float(goal.weight.min())),
    )
    used = build.variables("u", len(problem.gpus), upper=problem.gpus, cost=-goal.price)
    z = build.variables(
        "z", 1, lower=1.0 if goal.fixed else 0.0, upper=1.0 if goal.fixed else np.inf,
        cost=0.0 if goal.fixed else 1.0,
    )  # fmt: skip
    models = len(problem.models)
    share = build.rows("share", models, upper=np.zeros(models))
    build.entries(share[columns.model], x, -1.0)
    build.entries(share, np.repeat(z, models), goal.weight)
    asked = np.flatnonzero(goal.minimum_rps > 0)
    if len(asked):
        floor = build.rows("floor", len(asked), upper=-goal.minimum_rps[asked])
        place = np.searchsorted(asked, columns.model)
        inside = np.isin(columns.model, asked)
        build.entries(floor[place[inside]], x[inside], -1.0)
    capacity = build.rows("capacity", len(problem.gpus), upper=np.zeros(len(problem.gpus)))
    row, k = np.nonzero(columns.usage)
    build.entries(capacity[k], x[row], columns.usage[row, k])
    build.entries(capacity, used, -1.0)
    build.entries(capacity, lent, -1.0)
    return build.build()


def _prescribed(goal: Goal) -> bool:
    """True if some rate has to be reached, so that there may be no solution."""
    return goal.fixed or bool(np.any(goal.minimum_rps > 0))


def _raise_out_of_reach(problem: Problem, columns: Columns, goal: Goal) -> None:
    asked = np.maximum(goal.weight * goal.fixed, goal.minimum_rps)
    free = Goal(
        weight=np.maximum(asked, 1e-9 * asked.max()),
        minimum_rps=np.zeros_like(asked),
        price=np.zeros_like(goal.price),
        fixed=False,
    )
    share = solve_bound(problem, columns, free).score
    rates = ", ".join(
        f"{model.name} {rate:g}" for model, rate in zip(problem.models, asked, strict=True) if rate
    )
    raise InfeasibleError(
        "workload",
        f"the cluster reaches at most {share:.1%} of the rates asked for (requests/s: {rates})",
    )


def _certified(
    problem: Problem,
    goal: Goal,
    members: list[NDArray[np.int64]],
    paid: NDArray[np.float64],
    duals: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    rates: NDArray[np.float64],
) -> Bound:
    """Make the duals feasible for every configuration, then take their objective."""
    gpu, share, floor = duals
    reduced = np.empty(len(paid))
    for number, member in enumerate(members):
        cheapest = float(paid[member].min())
        asked = share[number] + floor[number]
        if asked > cheapest:
            share[number] *= cheapest / asked
            floor[number] *= cheapest / asked
        reduced[member] = paid[member] - min(asked, cheapest)
    scale = 1.0
    if not goal.fixed:
        scale = 1.0 / float(goal.weight @ share)
    gpu, share, floor, reduced = gpu * scale, share * scale, floor * scale, reduced * scale
    score = float(np.maximum(gpu - goal.price, 0.0) @ problem.gpus - floor @ goal.minimum_rps)
    if goal.fixed:
        score -= float(goal.weight @ share)
    return Bound(
        score=score,
        gpu_price=gpu,
        rate_price=share + floor,
        reduced_cost=np.maximum(reduced, 0.0),
        rate_rps=rates,
    )


def goal_of(problem: Problem, objective: str, minimum_rps: Mapping[str, float],
            price: NDArray[np.float64]) -> Goal:  # fmt: skip
    """The goal of a planning run; prices [C] count where the objective is minimised."""
    fixed = objective != "throughput"
    return Goal(
        weight=np.array([m.weight for m in problem.models]),
        minimum_rps=np.array([minimum_rps.get(m.name, 0.0) for m in problem.models]),
        price=price if fixed else np.zeros_like(price),
        fixed=fixed,
    )


def least_loss(problem: Problem, columns: Columns, bound: Bound) -> NDArray[np.float64]:
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
    reach = np.where(np.isfinite(rate), rate * (_MULTIPLES + 1), np.inf).min(axis=1)
    best = bound.reduced_cost * reach
    for s in range(rate.shape[1]):
        real = np.isfinite(rate[:, s])
        for multiple in range(1, _MULTIPLES + 1):
            x = np.where(real, rate[:, s] * multiple, 0.0)
            vgpus = np.ceil(x[:, None] / rate * (1 - 1e-12))
            loss = (vgpus * price).sum(axis=1) - worth * x
            usable = real & (x >= lowest * (1 - 1e-12))
            np.minimum(best, np.where(usable, loss, np.inf), out=best)
    return np.maximum(best, 0.0)


def undominated(problem: Problem, columns: Columns, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of `rows` that no other of the same model and vGPU types replaces; the first of equals.

    The order of stages does not matter: a stage is worth its type and rate. Round by round the
    configuration of the highest product of rates in every group stays, and those that it beats go.
    """
    real = np.isfinite(columns.rate_rps[rows])
    key = np.where(real, columns.types[rows], len(problem.types))
    rate = columns.rate_rps[rows]
    order = np.lexsort((-rate, key), axis=1)
    key = np.take_along_axis(key, order, axis=1)
    rate = np.take_along_axis(rate, order, axis=1)
    group = columns.model[rows].copy()
    for s in range(key.shape[1]):
        group = group * (len(problem.types) + 1) + key[:, s]
    rate = np.where(np.isfinite(rate), rate, 1.0)
    order = np.lexsort((-np.log(rate).sum(axis=1), group))
    group, rate = group[order], rate[order]
    left, kept = np.arange(len(order)), [np.empty(0, dtype=np.int64)]
    while len(left):
        first = np.ones(len(left), dtype=np.bool_)
        first[1:] = group[left[1:]] != group[left[:-1]]
        best = left[first]
        kept.append(best)
        left = left[np.any(rate[left] > rate[best][np.cumsum(first) - 1], axis=1)]
    return rows[np.sort(order[np.concatenate(kept)])]
