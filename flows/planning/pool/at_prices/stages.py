"""The best plan of many models, model by model at prices of GPUs.

Plans of one stage come first, then those of one more, and so on: the pipelines of each are where
the next begins, so that more stages are never worse. A plan in force is where the first begins.
"""

import numpy as np

from flows.planning.pool.at_prices.blocks import placeable
from flows.planning.pool.at_prices.pricer import columns_of
from flows.planning.pool.at_prices.search import Search
from flows.planning.pool.bound import Bound
from flows.planning.pool.columns import allocations_in_force
from flows.planning.pool.incumbent import Incumbent, round_down
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import Floats
from flows.planning.watch import Watch


def plan_at_prices(
    best: Incumbent, bound: Bound, options: PlanOptions, watch: Watch, *, proof: bool
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
    best.offer(round_down(problem, columns, bound.rate_rps, goal))
    if not goal.fixed and best.score <= 0:
        first, out = placeable(problem, columns)
        if out:
            return bound.score, bound.gpu_price
        best.offer(first)
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
    own = [columns.take(rows) for _, (rows, _) in found]
    vgpus = [counts for _, (_, counts) in found]
    search.known.add(
        columns_of(
            len(problem.models),
            best.goal.price,
            np.array([model for model, _ in found]),
            np.array([gpus_in_use(problem, c, v) for c, v in zip(own, vgpus, strict=True)]),
            np.array([delivered_rps(c, v).sum() for c, v in zip(own, vgpus, strict=True)]),
            [allocation for _, allocation in found],
        )
    )
    if len(found) == len(problem.models):
        counts = search.vgpus([allocation for _, allocation in found])
        if np.all(gpus_in_use(problem, columns, counts) <= problem.gpus):
            best.offer(counts)
    known: dict[str, float] = plan.certificate.get("prices", {})
    if set(problem.classes) <= set(known) and plan.objective.name == options.objective:
        search.price = np.array([known[name] for name in problem.classes])
