"""Enumerate, bound, screen, solve: from a problem to vGPU counts with a proof.

Here: the sequence of steps and the bookkeeping of the proof. Not here: the steps themselves.

The proof: no plan is better than the relaxation's bound; a plan that uses a configuration dropped
by the screen is at most as good as the best plan known then, or, where only the cheapest
configurations were kept, at most bound - least loss of the cheapest one left out; any other plan
is covered by the bound of the integer program. Where several models share the GPUs, the bound of
their division (`divide`) covers every plan by itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.clock import Stopwatch
from flows.planning.inputs import Problem
from flows.planning.pool.at_prices.blocks import placeable
from flows.planning.pool.at_prices.search import plan_at_prices
from flows.planning.pool.attempts import (
    PRICES_FIRST_FROM_MODELS,
    PRICES_FIRST_FROM_MODELS_MANY_CLASSES,
    Attempts,
)
from flows.planning.pool.bound import Bound, Goal, solve_bound, undominated
from flows.planning.pool.columns import Columns, enumerate_columns
from flows.planning.pool.incumbent import Incumbent, round_down
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Ints
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError

_PAIR = 2  # classes among which GPUs are divided quickly
_SURE = 1e-4  # a gap above which a plan of fewer stages may be as good


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A solved problem.

    Attributes:
        columns: configurations in use.
        vgpus: [n, S] vGPUs of every stage of them.
        score: z, or minus the cost.
        bound: no plan's score is above this.
        problem: that it solves.
        feasible: every configuration.
        relaxed: the relaxation over these, and its prices.
    """

    columns: Columns
    vgpus: Ints
    score: float
    bound: float
    trace: Trace
    problem: Problem
    feasible: Columns
    relaxed: Bound


def search(
    problem: Problem,
    goal: Goal,
    options: PlanOptions,
    watch: Watch | None = None,
    *,
    proof: bool = True,
    above: float = -np.inf,
) -> Found:
    """Find the best plan.

    Args:
        problem: models and GPUs.
        goal: what is asked of the rates.
        options: how to plan.
        watch: the clock; one of its own without it.
        proof: whether a proof is wanted; without, a good plan of many models is enough.
        above: a score; plans that reach no more may be left out, and where none does, nothing is in
            use in the answer, whose bound holds.

    Raises:
        InfeasibleError: a model has no feasible configuration, the GPUs are too few for all models,
            or the rates asked for cannot be reached.
    """
    trace = Trace()
    watch, laps = watch or Watch(limit_s=options.time_limit_s), Stopwatch()
    feasible = enumerate_columns(problem, options.max_partitions)
    columns = feasible.take(undominated(problem, feasible, np.arange(len(feasible))))
    trace.configurations = {"enumerated": feasible.enumerated, "feasible": len(feasible)}
    trace.seconds["enumerate"] = laps.restart()
    bound = solve_bound(problem, columns, goal)
    trace.seconds["bound"] = laps.restart()
    if len(problem.models) >= PRICES_FIRST_FROM_MODELS_MANY_CLASSES:
        above = -np.inf  # prices are those of a plan
    best = Incumbent(problem, columns, goal, score=above)
    _first_plan(best, bound)
    proven = bound.score
    if not _prices_first(problem, proof=proof):
        proven = Attempts(best, bound, options, trace, watch).solve()
        if best.gap_to(proven) > min(options.gap, _SURE) and not watch.over():
            _with_fewer_stages(best, options, watch)
    if (
        len(problem.models)
        >= (PRICES_FIRST_FROM_MODELS_MANY_CLASSES if proof else PRICES_FIRST_FROM_MODELS)
        and best.gap_to(proven) > options.gap
    ):
        trace.configurations["kept"] = len(columns)
        relaxed = replace(bound, score=proven)
        proven, price = plan_at_prices(best, relaxed, options, watch, proof=proof)
        trace.details["prices"] = dict(zip(problem.classes, price.tolist(), strict=True))
    settled = best.gap_to(proven) <= max(options.gap, SOLVED) * (1 + ROUNDING)
    trace.status = status_of(watch, settled=settled)
    if watch.over() and not settled:
        end = trace.status.replace("reached", "hit")
        trace.notes.append(f"{end}: this is the best plan found, with its gap")
    trace.seconds["solve"] = laps.restart()
    watch.report(best.score, proven)
    vgpus = best.vgpus
    if vgpus is None and np.isfinite(above):
        vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    if vgpus is None or not (goal.fixed or best.score > 0):
        if watch.over():
            raise watch.no_plan()
        reason = "no plan in whole GPUs was found for the rates asked for"
        raise InfeasibleError("workload", reason)
    used = np.flatnonzero(vgpus.any(axis=1))
    return Found(
        columns=columns.take(used),
        vgpus=vgpus[used],
        score=best.score,
        bound=max(proven, best.score),
        trace=trace,
        problem=problem,
        feasible=feasible,
        relaxed=bound,
    )


def status_of(watch: Watch, *, settled: bool) -> str:
    """The end of a search, as its certificate states it."""
    if settled:
        return "optimal"
    return watch.ended_by() if watch.over() else "effort limit reached"


def _prices_first(problem: Problem, *, proof: bool) -> bool:
    """True if models are planned at prices before, and instead of, anything else.

    With more than two classes, divided GPUs take tens of seconds for as few as 18 models.
    """
    several = proof and np.count_nonzero(problem.gpus) > _PAIR
    return len(problem.models) >= (
        PRICES_FIRST_FROM_MODELS_MANY_CLASSES if several else PRICES_FIRST_FROM_MODELS
    )


def _first_plan(best: Incumbent, bound: Bound) -> None:
    """Begin with the relaxation's rates rounded down, else with one configuration of each model.

    Raises:
        InfeasibleError: models find no GPU beside the others; it names those that are left out.
    """
    problem, columns = best.problem, best.columns
    best.offer(round_down(problem, columns, bound.rate_rps, best.goal))
    if np.isfinite(best.score) and (best.goal.fixed or best.score > 0):
        return
    first, out, proven = placeable(problem, columns)
    if out and proven:
        names = [problem.models[number].name for number in out]
        raise InfeasibleError(
            f"workload model {names[0]!r}",
            f"the GPUs are too few for {len(problem.models)} models: at most "
            f"{len(problem.models) - len(names)} can be placed, all but {', '.join(names)}",
        )
    best.offer(first)


def _with_fewer_stages(best: Incumbent, options: PlanOptions, watch: Watch) -> None:
    """Offer the best plan of fewer stages too, so that more freedom never is worse."""
    fewer = np.flatnonzero(best.columns.stages < options.max_partitions)
    models = np.unique(best.columns.model[fewer])
    if len(models) < len(best.problem.models):
        return
    less = replace(options, max_partitions=options.max_partitions - 1)
    if len(fewer) == len(best.columns):  # nothing has so many stages
        _with_fewer_stages(best, less, watch)
        return
    columns = best.columns.take(fewer)
    bound = solve_bound(best.problem, columns, best.goal)
    alone = Incumbent(best.problem, columns, best.goal, score=best.score)
    proven = Attempts(alone, bound, less, Trace(), watch.part(1.0)).solve()
    if alone.gap_to(proven) > min(options.gap, _SURE) and not watch.over():
        _with_fewer_stages(alone, less, watch)
    if alone.vgpus is not None:
        best.offer(best.columns.counts(fewer, alone.vgpus))
