"""The best plan of many models, model by model at prices of GPUs.

Plans of one stage come first, then those of one more, and so on: the pipelines of each are where
the next begins, so that more stages are never worse. A plan in force is where the first begins.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flows.planning.decomposition.blocks import Demands
from flows.planning.decomposition.decompose import Decomposition, Start
from flows.planning.inputs import Problem
from flows.planning.pool.attempts import Incumbent, round_down
from flows.planning.pool.blocks import ModelBlocks, placeable
from flows.planning.pool.bound import Bound, Goal
from flows.planning.pool.columns import Allocation, Columns, allocations_in_force
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.registry import PlanOptions
from flows.planning.watch import Watch


def plan_at_prices(
    best: Incumbent, bound: Bound, options: PlanOptions, watch: Watch, *, proof: bool
) -> tuple[float, NDArray[np.float64]]:
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
    run = _Run(
        best=best,
        options=options,
        watch=watch,
        proven=bound.score,
        price=np.maximum(bound.gpu_price - goal.price, 0.0),
    )
    in_use = run.begin()
    watch.report(best.score, run.proven)
    deepest = int(columns.stages.max())
    for stages in range(1, deepest + 1):
        rows = np.flatnonzero(columns.stages <= stages)
        if watch.over() and best.vgpus is not None:
            break
        if len(np.unique(columns.model[rows])) == len(problem.models):
            last = stages == deepest
            run.over(rows, in_use if last else [], proof=last and proof)
    return run.proven, run.price


@dataclass(slots=True, kw_only=True)
class _Run:
    """Knowledge carried from plans of few stages to those of more.

    Attributes:
        proven: no plan's score is above this.
        price: [C] of GPUs.
        level: relaxed, known allocations reach it.
        allocations: models with allocations.
    """

    best: Incumbent
    options: PlanOptions
    watch: Watch
    proven: float
    price: NDArray[np.float64]
    level: float = 0.0
    allocations: list[tuple[int, Allocation]] = field(default_factory=list[tuple[int, Allocation]])

    def begin(self) -> list[tuple[int, Allocation]]:
        """Take pipelines and prices of the plan in force; returns what it runs."""
        plan, best, classes = self.options.previous, self.best, self.best.problem.classes
        if plan is None:
            return []
        self.allocations = allocations_in_force(plan, best.problem, best.columns)
        if len(self.allocations) == len(best.problem.models):
            counts = _counts(best.columns, [allocation for _, allocation in self.allocations])
            if np.all(gpus_in_use(best.problem, best.columns, counts) <= best.problem.gpus):
                best.offer(counts)
        known: dict[str, float] = plan.certificate.get("prices", {})
        if set(classes) <= set(known) and plan.objective.name == self.options.objective:
            self.price = np.array([known[name] for name in classes])
        return list(self.allocations)

    def over(
        self, rows: NDArray[np.int64], in_use: list[tuple[int, Allocation]], *, proof: bool
    ) -> None:
        """Plan over some configurations; of plans as good, keep what is in use."""
        best, problem, columns = self.best, self.best.problem, self.best.columns

        def offer(chosen: list[Allocation]) -> float:
            best.offer(_counts(columns, [(rows[of], vgpus) for of, vgpus in chosen]))
            return best.score

        run = Decomposition(
            blocks=ModelBlocks(problem, columns.take(rows), self.watch),
            demands=_demands(problem, best.goal),
            offer=offer,
            bound=self.proven,
            gap=self.options.gap,
            watch=self.watch,
            direct=self.options.previous is not None,
            score=best.score,
        )
        start = [
            (
                model,
                *_measured(problem, columns, allocation),
                (np.searchsorted(rows, allocation[0]), allocation[1]),
            )
            for model, allocation in self.allocations
            if np.all(np.isin(allocation[0], rows))
        ]
        proven = run.solve(Start(price=self.price, columns=start, level=self.level), proof=proof)
        if proof:
            self.proven = proven
        self.price, self.level = run.price, run.level
        self.allocations = [
            (model, (rows[allocation[0]], allocation[1]))
            for model, allocation in zip(run.columns.block, run.columns.column, strict=True)
        ]
        if in_use:
            kept = run.kept(
                [
                    (m, *_measured(problem, columns, allocation), allocation)
                    for m, allocation in in_use
                ]
            )
            if kept is not None:
                best.prefer(_counts(columns, kept))


def _demands(problem: Problem, goal: Goal) -> Demands:
    return Demands(
        capacity=problem.gpus,
        weight=goal.weight,
        minimum=goal.minimum_rps,
        price=goal.price,
        fixed=goal.fixed,
    )


def _measured(
    problem: Problem, columns: Columns, allocation: Allocation
) -> tuple[NDArray[np.int64], float]:
    """GPUs per class, and the rate, of a allocation."""
    used = columns.take(allocation[0])
    return gpus_in_use(problem, used, allocation[1]), float(
        delivered_rps(used, allocation[1]).sum()
    )


def _counts(columns: Columns, allocations: list[Allocation]) -> NDArray[np.int64]:
    """[n, S] vGPUs of a allocation per model over all configurations."""
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    for rows, counts in allocations:
        np.add.at(vgpus, rows, counts)
    return vgpus
