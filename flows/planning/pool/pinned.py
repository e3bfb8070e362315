"""Models whose pools stay as the plan in force has them, while the others are planned around them.

Their GPUs leave the problem before it is solved; their pipelines join the plan afterwards.
Placement then leaves every GPU of theirs where it is, because it runs what it ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns, Counted, enumerate_columns, row_of, stacked
from flows.planning.pool.integer import gpus_in_use, models_rps
from flows.planning.pool.spare_gpus import on_whole_gpus, whole_models
from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Pipeline, Plan, Pool
from triton_backend.contract.shares import share_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Pinned models: configurations and vGPUs [n, S] over the whole problem, and the models left.

    `best_effort` is what pinned models have of it, where it is still wanted.
    """

    problem: Problem
    goal: Goal
    columns: Columns
    vgpus: Ints
    others: Ints
    best_effort: Counted | None

    def rest(self) -> tuple[Problem, Goal]:
        """The problem of the other models on the GPUs that are left."""
        gpus = self.problem.gpus - self.gpus()
        models = tuple(self.problem.models[number] for number in self.others)
        goal = replace(
            self.goal,
            weight=self.goal.weight[self.others],
            minimum_rps=self.goal.minimum_rps[self.others],
        )
        return replace(self.problem, gpus=gpus, models=models), goal

    def joined(self, columns: Columns, vgpus: Ints) -> Counted:
        """Configurations and vGPUs of the others and the pinned models together."""
        mine = replace(columns, model=self.others[columns.model])
        return stacked([(mine, vgpus), (self.columns, self.vgpus)])

    def with_best_effort(self, beside: Counted | None) -> Counted | None:
        """Best-effort pipelines of the others and of the pinned models together."""
        if beside is None:
            return self.best_effort
        columns, vgpus = beside
        mine = replace(columns, model=self.others[columns.model])
        theirs = [] if self.best_effort is None else [self.best_effort]
        return stacked([(mine, vgpus), *theirs])

    def gpus(self) -> Ints:
        """[C] GPUs that pinned models use."""
        used = gpus_in_use(self.problem, self.columns, self.vgpus)
        if self.best_effort is None:
            return used
        return used + gpus_in_use(self.problem, *self.best_effort)

    def score(self, score: float) -> float:
        """The score (or bound) of the whole plan from that of the others."""
        if self.goal.fixed:
            return score - float(self.goal.price @ self.gpus())
        rates = models_rps(self.columns, self.vgpus, len(self.problem.models))
        shares = np.delete(rates / self.goal.weight, self.others)
        return min(score, float(shares.min()))


def pinned(problem: Problem, goal: Goal, options: PlanOptions) -> Pinned | None:
    """The pinned models of a problem; None where there are none.

    Raises:
        InputError: there is no plan in force, it has no such model, its pipelines no longer fit, or
            no model is left to plan.
    """
    if not options.pinned_models:
        return None
    names = [model.name for model in problem.models]
    plan = options.previous
    if plan is None:
        where = f"pinned model {options.pinned_models[0]!r}"
        raise InputError(where, "needs the plan in force (--previous)")
    before = {name: _pipelines(plan, name, names) for name in options.pinned_models}
    others = np.array(
        [n for n, name in enumerate(names) if name not in options.pinned_models], dtype=np.int64
    )
    if not len(others):
        raise InputError("pinned models", "all are pinned, none is left to plan")
    deepest = max(len(p.stages) for pipelines in before.values() for p in pipelines)
    every, whole = enumerate_columns(problem, deepest), whole_models(problem)
    rows: list[int] = []
    counts: list[list[int]] = []
    beside = np.zeros(len(whole), dtype=np.int64)  # GPUs
    known = [(names.index(name), p) for name, pipelines in before.items() for p in pipelines]
    for number, pipeline in known:
        if not (pipeline.throughput_rps or options.own["overflow"]):
            continue
        pools = _pools(plan, pipeline)
        if pipeline.throughput_rps:
            rows.append(_row(problem, every, number, pipeline, pools))
            own = [pool.vgpus for pool in pools]
            counts.append(own + [0] * (every.types.shape[1] - len(own)))
        else:
            row = _row(problem, whole, number, pipeline, pools)
            beside[row] += -(-pools[0].vgpus // problem.type_divisor[whole.types[row, 0]])
    columns = every.take(np.array(rows, dtype=np.int64))
    vgpus = np.array(counts, dtype=np.int64)
    kept = Pinned(
        problem=problem,
        goal=goal,
        columns=columns,
        vgpus=vgpus,
        others=others,
        best_effort=on_whole_gpus(problem, whole, beside),
    )
    _require_room(problem, kept.gpus())
    _require_rates(problem, goal, models_rps(columns, vgpus, len(problem.models)), options)
    return kept


def _pipelines(plan: Plan, name: str, names: list[str]) -> tuple[Pipeline, ...]:
    found = [model for model in plan.models if model.name == name]
    if not found or name not in names:
        lacks = "the workload" if found else f"plan {plan.plan_id}"
        raise InputError(f"pinned model {name!r}", f"is not in {lacks}")
    return found[0].pipelines


def _pools(plan: Plan, pipeline: Pipeline) -> list[Pool]:
    """The pool of every stage of a pipeline of the plan in force.

    Raises:
        InputError: several stages share one, which this planner does not plan around.
    """
    pools = [plan.pool_of(stage) for stage in pipeline.stages]
    for pool in pools:
        if len(plan.stages_of(plan.pools.index(pool))) > 1:
            raise InputError("pinned models", f"pool {pool.name!r} is shared by several stages")
    return pools


def _row(
    problem: Problem, every: Columns, model: int, pipeline: Pipeline, pools: Sequence[Pool]
) -> int:
    """The configuration of a pipeline of the plan in force."""
    row = row_of(problem, every, model, pipeline, pools)
    if row is None:
        form = ", ".join(
            f"{list(s.blocks)} on {p.gpu_class} {share_text(p.share)}"
            for s, p in zip(pipeline.stages, pools, strict=True)
        )
        what, lacks = "pipeline", "does not meet SLO, margin and classes"
        if not pipeline.throughput_rps:
            what, lacks = "best-effort pipeline", "was not measured or may not be used"
        raise InputError(
            f"pinned model {problem.models[model].name!r}",
            f"its {what} of batch {pipeline.batch} ({form}) {lacks}",
        )
    return row


def _require_room(problem: Problem, used: Ints) -> None:
    for name, count, exist in zip(problem.classes, used, problem.gpus, strict=True):
        if count > exist:
            raise InputError("pinned models", f"run on {count} GPUs of class {name}, {exist} exist")


def _require_rates(problem: Problem, goal: Goal, rates: Floats, options: PlanOptions) -> None:
    for model, rate, least in zip(problem.models, rates, goal.asked_rps, strict=True):
        if model.name in options.pinned_models and rate < least * (1 - ROUNDING):
            raise InputError(
                f"pinned model {model.name!r}",
                f"its pools deliver {rate:.6g} requests/s, {least:.6g} are asked for",
            )
