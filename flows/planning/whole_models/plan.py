"""The planner `no-partitioning`: whole models on whole GPUs, one stage per pipeline.

Of the plans with the best objective, GPUs that the objective does not need go to the models with
the lowest rate / weight, as long as the model stays within its batch-building rate (beyond it
batches would not fill as assumed); the rest stay unused. Batch-building rates that a workload lacks
are the rates of this plan (PPipe, section 7).
"""

from dataclasses import replace

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.inputs import Problem, build_problem
from flows.planning.pool.bound import goal_of
from flows.planning.pool.columns import Columns, best_of_each, enumerate_columns
from flows.planning.pool.plan import pipelines_of
from flows.planning.pool.search import Found, search
from flows.planning.registry import Inputs, Outcome
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING


def plan(inputs: Inputs) -> Outcome:
    """The best plan with one stage per pipeline and whole GPUs.

    Raises:
        InputError: the inputs do not fit together.
        InfeasibleError: a model misses its SLO everywhere.
    """
    problem = build_problem(inputs, whole_gpus=True)
    found, columns, vgpus = best_whole_models(inputs, problem)
    return Outcome(
        pipelines=pipelines_of(problem, columns, vgpus),
        objective=objective_of("throughput", found.score, found.bound),
        trace=found.trace,
    )


def best_whole_models(inputs: Inputs, problem: Problem) -> tuple[Found, Columns, Ints]:
    """The solved program, the best configuration per model and class, and GPUs of each."""
    single = replace(inputs.options, max_partitions=1, gap=0.0, previous=None)
    goal = goal_of(
        problem, "throughput", inputs.options.minimum_rps, np.zeros(len(problem.classes))
    )
    found = search(problem, goal, single, inputs.watch, proof=inputs.prove)
    every = enumerate_columns(problem, 1)
    best = fastest(every)
    columns = every.take(best)
    per_type = np.zeros((len(problem.models), len(problem.types)), dtype=np.int64)
    np.add.at(per_type, (found.columns.model, found.columns.types[:, 0]), found.vgpus[:, 0])
    counts = per_type[columns.model, columns.types[:, 0]]
    demands = inputs.workload.models
    floor = goal.needed_rps(found.score)
    counts = _without_surplus(columns, counts, floor)
    ceiling = np.array([m.batch_building_rate_rps or np.inf for m in demands])
    counts = _with_spare(columns, counts, problem.gpus, goal.weight, ceiling)
    return found, columns, counts[:, None]


def fastest(columns: Columns) -> Ints:
    """Rows of the fastest whole-model configuration per model and type."""
    return best_of_each(
        [columns.model, columns.types[:, 0]], -columns.rate_rps[:, 0], columns.batch
    )


def _without_surplus(columns: Columns, counts: Ints, floor_rps: Floats) -> Ints:
    """Take GPUs away, slowest first, as long as every model keeps its floor."""
    counts = counts.copy()
    for model, floor in enumerate(floor_rps):
        rows = np.flatnonzero(columns.model == model)
        rows = rows[np.argsort(columns.rate_rps[rows, 0], kind="stable")]
        spare = float(counts[rows] @ columns.rate_rps[rows, 0]) - floor * (1 - ROUNDING)
        for row in rows:
            less = min(int(counts[row]), int(spare // columns.rate_rps[row, 0]))
            counts[row] -= less
            spare -= less * columns.rate_rps[row, 0]
    return counts


def _with_spare(
    columns: Columns, counts: Ints, gpus: Ints, weight: Floats, ceiling_rps: Floats
) -> Ints:
    """Give unused GPUs one by one to the model with the lowest rate / weight that may take one."""
    rate = columns.rate_rps[:, 0]
    class_of = np.array([np.flatnonzero(row)[0] for row in columns.usage], dtype=np.int64)
    counts = counts.copy()
    spare = gpus - np.bincount(class_of, weights=counts, minlength=len(gpus)).astype(np.int64)
    served = np.bincount(columns.model, weights=counts * rate, minlength=len(weight))
    top = ceiling_rps[columns.model] * (1 + ROUNDING)
    while True:
        open_rows = (spare[class_of] > 0) & (served[columns.model] + rate <= top)
        if not open_rows.any():
            return counts
        share = np.where(open_rows, (served / weight)[columns.model], np.inf)
        row = int(np.lexsort((-rate, share))[0])
        step = max(1, int(spare[class_of[row]]) // (8 * len(weight)))
        room = (top[row] - served[columns.model[row]]) / rate[row]
        step = int(min(step, room))
        counts[row] += step
        spare[class_of[row]] -= step
        served[columns.model[row]] += step * rate[row]
