"""The best plan of many models, model by model at prices of GPUs.

Plans of at most two stages come first, then those of one more, and so on: the pipelines of each are
where the next begins, so that more stages are never worse. A plan in force is where the first begins.
"""

import numpy as np
from numpy.typing import NDArray

from flows.planning.decomposition.blocks import Demands
from flows.planning.decomposition.decompose import Decomposition, Start
from flows.planning.pool.attempts import Best, round_down
from flows.planning.pool.blocks import ModelBlocks
from flows.planning.pool.bound import Bound, Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.in_force import Way, ways_in_force
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.pool.placeable import placeable
from flows.planning.problem import Problem
from flows.planning.watch import Watch
from triton_backend.contract.plan import Plan

_SHORT = 2  # stages that plans of more begin with


def plan_at_prices(
    best: Best, bound: Bound, gap: float | None, watch: Watch, in_force: Plan | None = None
) -> tuple[float, NDArray[np.float64]]:
    """Improve the best plan model by model, at prices of GPUs.

    Plans of few stages come first: their ways are the start of those of more, which are never worse.

    Args:
        best: the best plan known; better ones are put there.
        bound: the relaxation's prices and bound, or a better bound.
        gap: proof at which the search ends; None where none is wanted.
        watch: the clock.
        in_force: a plan whose prices and pipelines are where the search begins.

    Returns:
        What no plan exceeds, and [C] prices of GPUs in the end.
    """
    problem, goal, columns = best.problem, best.goal, best.columns
    best.offer(round_down(problem, columns, bound.rate_rps, goal))
    if not goal.fixed and best.score <= 0:
        first, out = placeable(problem, columns)
        if out:
            return bound.score, bound.gpu_price
        best.offer(first)
    price, ways = np.maximum(bound.gpu_price - goal.price, 0.0), list[tuple[int, Way]]()
    if in_force is not None:
        ways = ways_in_force(in_force, problem, columns)
        known: dict[str, float] = in_force.certificate.get("prices", {})
        if set(problem.classes) <= set(known):
            price = np.array([known[name] for name in problem.classes])
    proven, level, in_use = bound.score, 0.0, tuple(ways)
    deepest = int(columns.stages.max())
    for stages in range(min(_SHORT, deepest), deepest + 1):
        rows = np.flatnonzero(columns.stages <= stages)
        if watch.over() and best.vgpus is not None:
            break
        if len(np.unique(columns.model[rows])) < len(problem.models):
            continue
        own = columns.take(rows)
        blocks = ModelBlocks(problem, own, watch)

        def offer(chosen: list[Way], rows: NDArray[np.int64] = rows) -> float:
            best.offer(_counts(columns, [(rows[of], vgpus) for of, vgpus in chosen]))
            return best.score

        run = Decomposition(
            blocks=blocks,
            demands=_demands(problem, goal),
            offer=offer,
            bound=proven,
            gap=1.0 if gap is None else gap,
            watch=watch,
            score=best.score,
        )
        last = stages == deepest
        start = [
            (model, *_measured(problem, columns, way), (np.searchsorted(rows, way[0]), way[1]))
            for model, way in ways
            if np.all(np.isin(way[0], rows))
        ]
        limit = run.solve(
            Start(price=price, ways=start, level=level), proof=last and gap is not None
        )
        price, level = run.price, run.level
        ways = [
            (model, (rows[way[0]], way[1]))
            for model, way in zip(run.ways.block, run.ways.way, strict=True)
        ]
        if last:
            proven = limit
            kept = run.kept([(m, *_measured(problem, columns, way), way) for m, way in in_use])
            if kept is not None:
                best.prefer(_counts(columns, kept))
    return proven, price


def _demands(problem: Problem, goal: Goal) -> Demands:
    return Demands(
        capacity=problem.gpus,
        weight=goal.weight,
        minimum=goal.minimum_rps,
        price=goal.price,
        fixed=goal.fixed,
    )


def _measured(problem: Problem, columns: Columns, way: Way) -> tuple[NDArray[np.int64], float]:
    """GPUs per class, and the rate, of a way."""
    used = columns.take(way[0])
    return gpus_in_use(problem, used, way[1]), float(delivered_rps(used, way[1]).sum())


def _counts(columns: Columns, ways: list[Way]) -> NDArray[np.int64]:
    """[n, S] vGPUs of a way per model over all configurations."""
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    for rows, counts in ways:
        np.add.at(vgpus, rows, counts)
    return vgpus
