"""The planner `pool`: search, tie-breaking, free GPUs, then pipelines.

Here: the order of steps, and reading their answer. Not here: the steps.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.placement import running, uses_of
from flows.planning.pool.bound import goal_of
from flows.planning.pool.columns import Columns, stacked
from flows.planning.pool.integer import delivered_rps, gpus_in_use, lowest_share
from flows.planning.pool.pinned import pinned
from flows.planning.pool.search import MANY, search
from flows.planning.pool.spare_gpus import (
    BEFORE_BEST_EFFORT,
    BestEffort,
    best_effort,
    describe,
    limits_of,
    planned_rps,
    promised_rps,
    widen,
)
from flows.planning.pool.tie_break import Use, break_ties
from flows.planning.problem import Problem, build_problem
from flows.planning.registry import Inputs, Outcome, PlannedPipeline, PlannedStage, PlanOptions
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import Workload

_PRICES = {"cost": "hourly_cost", "power": "power_w"}


def plan(inputs: Inputs, options: PlanOptions) -> Outcome:
    """Plan a workload on pools of vGPUs.

    Raises:
        InputError: the inputs do not fit together, a price or rate is missing, or best-effort pipelines are
            asked for under another objective than throughput.
        InfeasibleError: a model cannot meet its SLO, or the rates asked for cannot be reached.
    """
    if options.own["overflow"] and options.objective != "throughput":
        raise InputError("option overflow", "is defined for throughput alone")
    price = prices(inputs.cluster, options)
    if options.objective != "throughput":
        _require_rates(inputs.workload, options)
    whole = build_problem(inputs.profiles, inputs.cluster, inputs.workload, options)
    goal = goal_of(whole, options.objective, options.minimum_rps, price)
    kept = pinned(whole, goal, options)
    problem, rest = (whole, goal) if kept is None else kept.rest()
    shown = inputs.watch.valuing(lambda score: abs(score if kept is None else kept.score(score)))
    found = search(problem, rest, options, shown, proof=inputs.prove)
    if len(problem.models) < MANY:
        running_now = _running(inputs, options, problem)
        margins_us = _margins_us(inputs, options, problem)
        found = break_ties(found, rest, options, running_now, margins_us, shown)
    else:
        found.trace.details["ties"] = {
            "stages": int(np.count_nonzero(found.vgpus)),
            "proven": False,
            "reason": f"not looked at from {MANY} models on",
        }
    columns, vgpus, score, bound = found.columns, found.vgpus, found.score, found.bound
    watch, beside = Stopwatch(), None
    if not goal.fixed:
        promised = promised_rps(columns, vgpus, rest, score)
        vgpus, beside = _with_free(inputs, options, problem, (columns, vgpus), promised)
        if beside is not None:
            found.trace.notes.append(describe(problem, beside))
        score = max(score, lowest_share(columns, vgpus, rest))
    found.trace.seconds["widen"] = watch.seconds()
    if kept is not None:
        columns, vgpus = kept.joined(columns, vgpus)
        score, bound = kept.score(score), kept.score(bound)
        beside = kept.with_best_effort(beside)
    promised = promised_rps(columns, vgpus, goal, 1.0 if goal.fixed else score)
    return Outcome(
        pipelines=pipelines_of(whole, columns, vgpus, promised, beside),
        promised_rps=tuple(promised.tolist()),
        objective=objective_of(options.objective, score, bound),
        trace=found.trace,
    )


def pipelines_of(
    problem: Problem,
    columns: Columns,
    vgpus: NDArray[np.int64],
    promised: NDArray[np.float64] | None = None,
    beside: BestEffort | None = None,
) -> tuple[PlannedPipeline, ...]:
    """Configurations in use as pipelines, best-effort ones last.

    Args:
        problem: the numbers of models and vGPU types.
        columns: configurations, n of them.
        vgpus: [n, S] vGPUs of every stage.
        promised: [models] samples/s; None where each configuration promises what it delivers.
        beside: what promises nothing.
    """
    rates = delivered_rps(columns, vgpus)
    if promised is not None:
        rates = planned_rps(columns, vgpus, promised)
    used = np.flatnonzero(rates > 0)
    columns, vgpus, rates = columns.take(used), vgpus[used], rates[used]
    if beside is not None:
        columns, vgpus = stacked([(columns, vgpus), (beside.columns, beside.vgpus)])
        rates = np.pad(rates, (0, len(columns) - len(rates)))
    return tuple(
        PlannedPipeline(
            model=int(columns.model[row]),
            batch=int(columns.batch[row]),
            rate_rps=float(rates[row]),
            stages=tuple(
                PlannedStage(
                    blocks=(int(columns.cuts[row, s]), int(columns.cuts[row, s + 1])),
                    gpu_class=problem.classes[problem.types[columns.types[row, s]][0]],
                    divisor=problem.types[columns.types[row, s]][1],
                    vgpus=int(vgpus[row, s]),
                )
                for s in range(int(columns.stages[row]))
            ),
        )
        for row in range(len(columns))
    )


def _with_free(
    inputs: Inputs,
    options: PlanOptions,
    problem: Problem,
    used: tuple[Columns, NDArray[np.int64]],
    promised: NDArray[np.float64],
) -> tuple[NDArray[np.int64], BestEffort | None]:
    """Pools widened by free GPUs, and best-effort pipelines, where wanted, on others that are free."""
    columns, vgpus = used
    planned = planned_rps(columns, vgpus, promised)
    if not options.own["overflow"]:
        return widen(problem, columns, vgpus, planned), None
    vgpus = widen(problem, columns, vgpus, planned, BEFORE_BEST_EFFORT)
    limits_us = limits_of(problem, inputs.workload, options)
    beside = best_effort(problem, limits_us, (columns, vgpus), promised)
    if beside is not None:
        taken = gpus_in_use(problem, beside.columns, beside.vgpus)
        problem = replace(problem, gpus=problem.gpus - taken)
    return widen(problem, columns, vgpus, planned), beside


def _margins_us(inputs: Inputs, options: PlanOptions, problem: Problem) -> NDArray[np.float64]:
    """[models] µs of their SLOs that margins leave free."""
    slo_us = {demand.name: demand.slo_us for demand in inputs.workload.models}
    return np.array([options.margin(m.name) * slo_us[m.name] for m in problem.models])


def _running(inputs: Inputs, options: PlanOptions, problem: Problem) -> dict[Use, int]:
    """GPUs that run one stage alone under the plan in force, in the problem's numbers."""
    previous = options.previous
    if previous is None:
        return {}
    models = {model.name: number for number, model in enumerate(problem.models)}
    types = {(problem.classes[c], v): number for number, (c, v) in enumerate(problem.types)}
    counts = running(uses_of(previous, inputs.cluster), inputs.cluster)
    return {
        (models[model], types[gpu_class, divisor], *blocks): count
        for (model, gpu_class, divisor, blocks), count in counts.items()
        if model in models and (gpu_class, divisor) in types
    }


def prices(cluster: Cluster, options: PlanOptions) -> NDArray[np.float64]:
    """[C] what one GPU of each class costs in the objective; 0 for throughput."""
    field = _PRICES.get(options.objective)
    if field is None:
        return np.zeros(len(cluster.gpu_classes))
    for gpu_class in cluster.gpu_classes:
        if getattr(gpu_class, field) is None:
            raise InputError(
                f"gpu_classes.{gpu_class.name}.{field}",
                f"needed for the objective {options.objective!r}",
            )
    return np.array([getattr(c, field) for c in cluster.gpu_classes], dtype=np.float64)


def _require_rates(workload: Workload, options: PlanOptions) -> None:
    for model in workload.models:
        if model.rate_rps is None:
            raise InputError(
                f"workload model {model.name!r}, rate_rps",
                f"needed for the objective {options.objective!r}",
            )
