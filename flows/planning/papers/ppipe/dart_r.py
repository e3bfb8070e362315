"""The planner `dart-r`, on the same numbers as the planners it is compared with.

Margin, rates, links. Per model, the GPUs of its no-partitioning plan plus an equal share of the
unused ones; as many pairs of one GPU of each class as these allow, each pair running the best plan
for it, and the GPUs of the class left over running whole models (PPipe, section 7). Defined for two
classes.
"""

import numpy as np

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.inputs import Problem, build_problem
from flows.planning.pool.columns import Columns, enumerate_columns
from flows.planning.pool.integer import gpus_in_use, models_rps
from flows.planning.pool.plan import pipelines_of
from flows.planning.registry import Inputs, Outcome
from flows.planning.solver.arrays import Ints
from flows.planning.whole_models.plan import best_whole_models, fastest
from triton_backend.contract.errors import InputError

_PAIR = 2


def dart_r(inputs: Inputs) -> Outcome:
    """Replicated pairs of one GPU of each class.

    Raises:
        InputError: the cluster has not exactly two classes with GPUs.
    """
    problem = build_problem(inputs, whole_gpus=True)
    present = np.flatnonzero(problem.gpus)
    if len(present) != _PAIR:
        raise InputError(
            "option planner", f"dart-r is defined for two GPU classes, not {len(present)}"
        )
    watch = Stopwatch()
    found, whole, counts = best_whole_models(inputs, problem)
    owned = _owned_gpus(problem, whole, counts)
    pairs = owned[:, present].min(axis=1)
    columns = enumerate_columns(problem, min(2, inputs.options.max_partitions))
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    for model in range(len(problem.models)):
        _replicate(problem, columns, vgpus, model, int(pairs[model]), owned[model])
    used = np.flatnonzero(vgpus.any(axis=1))
    if np.any(gpus_in_use(problem, columns, vgpus) > problem.gpus):
        raise AssertionError
    rates = models_rps(columns, vgpus, len(problem.models))
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


def _owned_gpus(problem: Problem, whole: Columns, counts: Ints) -> Ints:
    """[models, C] GPUs of the no-partitioning plan plus an equal share of the unused."""
    owned = np.zeros((len(problem.models), len(problem.gpus)), dtype=np.int64)
    kind = problem.type_class[whole.types[:, 0]]
    np.add.at(owned, (whole.model, kind), counts[:, 0])
    return owned + (problem.gpus - owned.sum(axis=0)) // len(problem.models)


def _replicate(
    problem: Problem, columns: Columns, vgpus: Ints, model: int, pairs: int, owned: Ints
) -> None:
    """Fill in the GPUs of one model: pairs first, then whole models on what is left."""
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


def _fastest_of(columns: Columns, model: int) -> Ints:
    rows = np.flatnonzero((columns.model == model) & (columns.stages == 1))
    return rows[fastest(columns.take(rows))] if len(rows) else rows
