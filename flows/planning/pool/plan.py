"""The planner `pool`: search, tie-breaking, free GPUs, then pipelines.

Here: the order of steps, and reading their answer. Not here: the steps.
"""

from dataclasses import replace
from math import comb

import numpy as np

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.inputs import (
    ALIKE,
    EVERY,
    Problem,
    build_problem,
    gpu_prices,
    require_rates,
    stage_memory,
)
from flows.planning.placement import place_cuts, running, uses_of
from flows.planning.pool import unequal
from flows.planning.pool.attempts import PRICES_FIRST_FROM_MODELS
from flows.planning.pool.bound import Goal, goal_of
from flows.planning.pool.columns import Columns, Counted, stacked
from flows.planning.pool.integer import delivered_rps, gpus_in_use, lowest_share
from flows.planning.pool.pinned import pinned
from flows.planning.pool.search import Found, search, status_of
from flows.planning.pool.spare_gpus import (
    BEFORE_BEST_EFFORT,
    best_effort,
    describe,
    limits_of,
    margins_us,
    planned_rps,
    promised_rps,
    widen,
)
from flows.planning.pool.tie_break import Use, break_ties
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedCut,
    PlannedPipeline,
    PlannedStage,
    Trace,
)
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.verify.bound import MOST_CELLS, MOST_STAGES
from triton_backend.contract.errors import InputError


def plan(inputs: Inputs) -> Outcome:
    """Plan a workload on pools of vGPUs.

    Raises:
        InputError: the inputs do not fit together, a price or rate is missing, or best-effort
            pipelines are asked for under another objective than throughput.
        InfeasibleError: a model cannot meet its SLO, or the rates asked for cannot be reached.
    """
    options = inputs.options
    if options.own["overflow"] and options.objective != "throughput":
        raise InputError("option overflow", "is defined for throughput alone")
    price = gpu_prices(inputs.cluster, options.objective)
    require_rates(inputs.workload, options.objective)
    in_percents = any(c.vgpu_percents for c in inputs.cluster.gpu_classes)
    if in_percents and (options.own["overflow"] or options.pinned_models):
        what = "overflow" if options.own["overflow"] else "pinned_models"
        raise InputError(f"option {what}", "is not defined where GPUs are cut into percents")
    whole = build_problem(inputs, percents=ALIKE)
    goal = goal_of(whole, options.objective, options.minimum_rps, price)
    kept = pinned(whole, goal, options)
    problem, rest = (whole, goal) if kept is None else kept.rest()
    shown = inputs.watch.valuing(lambda score: abs(score if kept is None else kept.score(score)))
    found = search(problem, rest, options, shown, proof=inputs.prove)
    if len(problem.models) < PRICES_FIRST_FROM_MODELS:
        running_now = _running(inputs, problem)
        left_us = margins_us(problem, inputs.workload, options)
        found = break_ties(found, rest, options, running_now, left_us, shown)
    else:
        found.trace.details["ties"] = {
            "stages": int(np.count_nonzero(found.vgpus)),
            "proven": False,
            "reason": f"not looked at from {PRICES_FIRST_FROM_MODELS} models on",
        }
    columns, vgpus, score, bound = found.columns, found.vgpus, found.score, found.bound
    watch, beside = Stopwatch(), None
    if not goal.fixed:
        promised = promised_rps(columns, vgpus, rest, score)
        vgpus, beside = _with_free(inputs, problem, (columns, vgpus), promised)
        if beside is not None:
            found.trace.notes.append(describe(problem, beside))
        score = max(score, lowest_share(columns, vgpus, rest))
    found.trace.seconds["widen"] = watch.seconds()
    if in_percents:
        equal = unequal.alike(problem, (columns, vgpus), score, bound)
        return _with_parts(inputs, goal, problem, equal, found.trace)
    if kept is not None:
        columns, vgpus = kept.joined(columns, vgpus)
        score, bound = kept.score(score), kept.score(bound)
        beside = kept.with_best_effort(beside)
    promised = promised_rps(columns, vgpus, goal, score)
    return Outcome(
        pipelines=pipelines_of(whole, columns, vgpus, promised, beside),
        promised_rps=tuple(promised.tolist()),
        objective=objective_of(options.objective, score, bound),
        trace=found.trace,
        prices=None if kept is not None else _prices(inputs, found),
    )


def _prices(inputs: Inputs, found: Found) -> tuple[float, dict[str, dict[str, float]]] | None:
    """The bound of the relaxation and its prices, where trying every pipeline can check them."""
    problem, bound, options = found.problem, found.relaxed, inputs.options
    several = options.max_partitions > MOST_STAGES or bool(options.minimum_rps)
    if several or options.objective not in ("throughput", "cost", "power", "gpus"):
        return None
    most = max(
        len(m.types) ** options.max_partitions * m.batches * comb(m.blocks, 2)
        for m in problem.models
    )
    if most > MOST_CELLS or not np.isfinite(bound.score):
        return None
    named = [demand.name for demand in inputs.workload.models]
    gpus = zip(problem.classes, bound.gpu_price.tolist(), strict=True)
    rates = zip(named, bound.rate_price.tolist(), strict=True)
    return abs(bound.score), {"gpus": dict(gpus), "rates": dict(rates)}


def _with_parts(
    inputs: Inputs, goal: Goal, problem: Problem, best: unequal.Answer, trace: Trace
) -> Outcome:
    """The plan of equal parts, or a better one with parts of several sizes and models."""
    watch, options = Stopwatch(), inputs.options
    cluster, notes = unequal.offered(inputs.cluster, options.max_partitions)
    wide = build_problem(replace(inputs, cluster=cluster), percents=EVERY)
    cuts = unequal.cuts_of_problem(wide, cluster, inputs.watch)
    space = None
    if cuts is None:
        notes = [unequal.no_cuts(inputs.watch)]
    else:
        space = unequal.SPACE
        every = unequal.unreplaced(wide, options.max_partitions)
        asked = unequal.Candidates(problem=wide, columns=every, cuts=cuts, goal=goal)
        found = unequal.search(asked, best.score, options, trace, inputs.watch)
        if found.columns is None:
            best = replace(best, bound=found.bound)
        else:
            problem, best = wide, found
    trace.notes += notes
    trace.seconds["parts"] = watch.seconds()
    return on_parts(inputs, goal, problem, best, trace, space)


def on_parts(
    inputs: Inputs,
    goal: Goal,
    problem: Problem,
    best: unequal.Answer,
    trace: Trace,
    space: str | None,
) -> Outcome:
    """A plan over cuts as a decision; interference, though known, is not reckoned with."""
    settled = abs(best.bound - best.score) <= inputs.options.gap * abs(best.score) * (1 + ROUNDING)
    trace.status = status_of(inputs.watch, settled=settled)
    classes = inputs.cluster.gpu_classes
    if any(c.vgpu_percents and c.name in inputs.interference for c in classes):
        trace.notes.append("neighbours on a GPU are taken not to disturb each other")
    promised = promised_rps(*best.counted, goal, best.score)
    return Outcome(
        pipelines=_cut_pipelines(inputs, problem, best, promised),
        promised_rps=tuple(promised.tolist()),
        objective=objective_of(inputs.options.objective, best.score, best.bound),
        trace=trace,
        space=space,
    )


def _cut_pipelines(
    inputs: Inputs, problem: Problem, best: unequal.Answer, promised: Floats
) -> tuple[PlannedPipeline, ...]:
    """Configurations in use as pipelines, those on parts in percents with their placed pools."""
    columns, vgpus = best.counted
    used = np.flatnonzero(vgpus.any(axis=1))
    pools: dict[tuple[int, int], PlannedCut] = {}
    for number, filled in (best.gpus or {}).items():
        gpu_class = inputs.cluster.gpu_classes[number]
        if not gpu_class.vgpu_percents:
            continue
        keys = list(dict.fromkeys(part for parts in filled for part in parts))
        numbers = {key: at for at, key in enumerate(keys)}
        held = [[numbers[part] for part in parts] for parts in filled]
        for at, runs in place_cuts(inputs.cluster, gpu_class.name, held).items():
            row, stage = keys[at]
            share = problem.shares[columns.types[row, stage]]
            pools[row, stage] = PlannedCut(share=share, placement=runs)
    planned = pipelines_of(problem, columns.take(used), vgpus[used], promised)

    def placed(row: int, pipeline: PlannedPipeline) -> PlannedPipeline:
        profile = inputs.profiles[problem.models[pipeline.model].name]
        stages = tuple(
            replace(stage, cut=pools[row, s], memory=stage_memory(profile, stage.blocks))
            if (row, s) in pools
            else stage
            for s, stage in enumerate(pipeline.stages)
        )
        return replace(pipeline, stages=stages)

    return tuple(placed(*both) for both in zip(used.tolist(), planned, strict=True))


def pipelines_of(
    problem: Problem,
    columns: Columns,
    vgpus: Ints,
    promised: Floats | None = None,
    beside: Counted | None = None,
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
        columns, vgpus = stacked([(columns, vgpus), beside])
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
    inputs: Inputs, problem: Problem, used: Counted, promised: Floats
) -> tuple[Ints, Counted | None]:
    """Pools widened by free GPUs, and optional best-effort pipelines on the other free ones."""
    columns, vgpus = used
    planned = planned_rps(columns, vgpus, promised)
    if not inputs.options.own["overflow"]:
        return widen(problem, columns, vgpus, planned), None
    vgpus = widen(problem, columns, vgpus, planned, BEFORE_BEST_EFFORT)
    limits_us = limits_of(problem, inputs.workload, inputs.options)
    beside = best_effort(problem, limits_us, (columns, vgpus), promised)
    if beside is not None:
        taken = gpus_in_use(problem, *beside)
        problem = replace(problem, gpus=problem.gpus - taken)
    return widen(problem, columns, vgpus, planned), beside


def _running(inputs: Inputs, problem: Problem) -> dict[Use, int]:
    """GPUs that run one stage alone under the plan in force, in the problem's numbers."""
    previous = inputs.options.previous
    if previous is None:
        return {}
    models = {model.name: number for number, model in enumerate(problem.models)}
    types = problem.type_numbers
    counts = running(uses_of(previous, inputs.cluster), inputs.cluster)
    return {
        (models[model], types[gpu_class, divisor], *blocks): count
        for (model, gpu_class, divisor, blocks), count in counts.items()
        if model in models and (gpu_class, divisor) in types
    }
