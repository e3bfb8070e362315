"""The baselines a pool plan is compared with, on the same numbers: margin, rates, links.

`no-partitioning`: whole models on whole GPUs. Of the plans with the best objective, GPUs that the
objective does not need go to the models with the lowest rate / weight, as long as the model stays
within its batch-building rate (beyond it batches would not fill as assumed); the rest stay unused.

`dart-r`: per model, the GPUs of its no-partitioning plan plus an equal share of the unused ones;
as many pairs of one GPU of each class as these allow, each pair running the best plan for it, and
the GPUs of the class left over running whole models. Defined for two classes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.pool.bound import goal_of
from flows.planning.pool.columns import Columns, enumerate_columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.pool.plan import pipelines_of
from flows.planning.pool.search import Found, search
from flows.planning.problem import Problem, build_problem
from flows.planning.registry import Inputs, Outcome, PlanOptions
from triton_backend.contract.errors import InputError

_PAIR = 2
_SHARE_TOLERANCE = 1e-9


def no_partitioning(inputs: Inputs, options: PlanOptions) -> Outcome:
    """The best plan with one stage per pipeline and whole GPUs."""
    problem = _problem(inputs, options)
    found, columns, vgpus = _whole_models(inputs, options, problem)
    return Outcome(
        pipelines=pipelines_of(problem, columns, vgpus),
        objective=objective_of("throughput", found.score, found.bound),
        trace=found.trace,
    )


def _problem(inputs: Inputs, options: PlanOptions) -> Problem:
    return build_problem(inputs.profiles, inputs.cluster, inputs.workload, options, whole_gpus=True)


def _whole_models(
    inputs: Inputs, options: PlanOptions, problem: Problem
) -> tuple[Found, Columns, NDArray[np.int64]]:
    """The solved program, the best configuration per model and class, and GPUs of each."""
    single = replace(options, max_partitions=1, gap=0.0, previous=None)
    goal = goal_of(problem, "throughput", options.minimum_rps, np.zeros(len(problem.classes)))
    found = search(problem, goal, single, inputs.watch, proof=inputs.prove)
    every = enumerate_columns(problem, 1)
    best = _fastest(every)
    columns = every.take(best)
    per_type = np.zeros((len(problem.models), len(problem.types)), dtype=np.int64)
    np.add.at(per_type, (found.columns.model, found.columns.types[:, 0]), found.vgpus[:, 0])
    counts = per_type[columns.model, columns.types[:, 0]]
    demands = inputs.workload.models
    floor = np.maximum(goal.weight * found.score, goal.minimum_rps)
    counts = _without_surplus(columns, counts, floor)
    ceiling = np.array([m.batch_building_rate_rps or np.inf for m in demands])
    counts = _with_spare(_Filling(columns, ceiling, goal.weight), counts, problem.gpus)
    return found, columns, counts[:, None]


def _fastest(columns: Columns) -> NDArray[np.int64]:
    """Rows of the fastest whole-model configuration per model and type."""
    order = np.lexsort((columns.batch, -columns.rate_rps[:, 0], columns.types[:, 0], columns.model))
    key = columns.model[order] * (columns.types.max() + 1) + columns.types[order, 0]
    _, first = np.unique(key, return_index=True)
    return order[first]


def _without_surplus(
    columns: Columns, counts: NDArray[np.int64], floor_rps: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Take GPUs away, slowest first, as long as every model keeps its floor."""
    counts = counts.copy()
    for model, floor in enumerate(floor_rps):
        rows = np.flatnonzero(columns.model == model)
        rows = rows[np.argsort(columns.rate_rps[rows, 0], kind="stable")]
        spare = float(counts[rows] @ columns.rate_rps[rows, 0]) - floor * (1 - _SHARE_TOLERANCE)
        for row in rows:
            less = min(int(counts[row]), int(spare // columns.rate_rps[row, 0]))
            counts[row] -= less
            spare -= less * columns.rate_rps[row, 0]
    return counts


@dataclass(frozen=True, slots=True)
class _Filling:
    columns: Columns
    ceiling_rps: NDArray[np.float64]
    weight: NDArray[np.float64]


def _with_spare(
    filling: _Filling, counts: NDArray[np.int64], gpus: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give unused GPUs one by one to the model with the lowest rate / weight that may take one."""
    columns = filling.columns
    rate = columns.rate_rps[:, 0]
    class_of = np.array([np.flatnonzero(row)[0] for row in columns.usage], dtype=np.int64)
    counts = counts.copy()
    spare = gpus - np.bincount(class_of, weights=counts, minlength=len(gpus)).astype(np.int64)
    served = np.bincount(columns.model, weights=counts * rate, minlength=len(filling.weight))
    top = filling.ceiling_rps[columns.model] * (1 + _SHARE_TOLERANCE)
    while True:
        open_rows = (spare[class_of] > 0) & (served[columns.model] + rate <= top)
        if not open_rows.any():
            return counts
        share = np.where(open_rows, (served / filling.weight)[columns.model], np.inf)
        row = int(np.lexsort((-rate, share))[0])
        step = max(1, int(spare[class_of[row]]) // (8 * len(filling.weight)))
        room = (top[row] - served[columns.model[row]]) / rate[row]
        step = int(min(step, room))
        counts[row] += step
        spare[class_of[row]] -= step
        served[columns.model[row]] += step * rate[row]


def dart_r(inputs: Inputs, options: PlanOptions) -> Outcome:
    """Replicated pairs of one GPU of each class.

    Raises:
        InputError: the cluster has not exactly two classes with GPUs.
    """
    problem = _problem(inputs, options)
    present = np.flatnonzero(problem.gpus)
    if len(present) != _PAIR:
        raise InputError(
            "option planner", f"dart-r is defined for two GPU classes, not {len(present)}"
        )
    watch = Stopwatch()
    found, whole, counts = _whole_models(inputs, options, problem)
    owned = _owned_gpus(problem, whole, counts)
    pairs = owned[:, present].min(axis=1)
    columns = enumerate_columns(problem, min(2, options.max_partitions))
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    for model in range(len(problem.models)):
        _replicate(problem, columns, vgpus, (model, int(pairs[model]), owned[model]))
    used = np.flatnonzero(vgpus.any(axis=1))
    if np.any(gpus_in_use(problem, columns, vgpus) > problem.gpus):
        raise AssertionError
    rates = np.bincount(
        columns.model, weights=delivered_rps(columns, vgpus), minlength=len(problem.models)
    )
    value = float((rates / np.array([m.weight for m in problem.models])).min())
    trace = found.trace
    trace.status = "by rule"
    trace.notes.append("dart-r follows a rule; its upper bound is its own value")
    trace.seconds["solve"] += watch.seconds() - sum(trace.seconds.values())
    return Outcome(
        pipelines=pipelines_of(problem, columns.take(used), vgpus[used]),
        objective=objective_of("throughput", value, value),
        trace=trace,
    )


def _owned_gpus(problem: Problem, whole: Columns, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """[models, C] GPUs of the no-partitioning plan plus an equal share of the unused."""
    owned = np.zeros((len(problem.models), len(problem.gpus)), dtype=np.int64)
    kind = problem.type_class[whole.types[:, 0]]
    np.add.at(owned, (whole.model, kind), counts[:, 0])
    return owned + (problem.gpus - owned.sum(axis=0)) // len(problem.models)


def _replicate(
    problem: Problem,
    columns: Columns,
    vgpus: NDArray[np.int64],
    share: tuple[int, int, NDArray[np.int64]],
) -> None:
    """Fill in the GPUs of one model: pairs first, then whole models on what is left."""
    model, pairs, owned = share
    single = {
        int(problem.type_class[columns.types[row, 0]]): int(row)
        for row in _fastest_of(columns, model)
    }
    two = np.flatnonzero((columns.model == model) & (columns.stages == _PAIR))
    across = problem.type_class[columns.types[two, 0]] != problem.type_class[columns.types[two, 1]]
    two = two[across]
    paired = columns.rate_rps[two].min(axis=1) if len(two) else np.empty(0)
    apart = sum(float(columns.rate_rps[row, 0]) for row in single.values())
    left = owned.copy()
    if len(two) and paired.max() > apart:
        vgpus[two[int(paired.argmax())], :_PAIR] = pairs
        left -= np.where(problem.gpus > 0, pairs, 0)
    for number, row in single.items():
        vgpus[row, 0] = left[number]


def _fastest_of(columns: Columns, model: int) -> NDArray[np.int64]:
    rows = np.flatnonzero((columns.model == model) & (columns.stages == 1))
    return rows[_fastest(columns.take(rows))] if len(rows) else rows
