"""Which models find a place at all where GPUs are few.

A model that serves anything runs some configuration with a vGPU per stage. How many can do that at once
is an integer program of one variable per model and vector of whole GPUs:

    maximise Σ_j placed_j   subject to   Σ_{j of m} placed_j ≤ 1,   Σ_j a_jk placed_j ≤ N_k
"""

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.blocks import fastest_of_each
from flows.planning.pool.columns import Columns
from flows.planning.problem import Problem
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer

_NODES = 2000


def placeable(problem: Problem, columns: Columns) -> tuple[NDArray[np.int64], list[int]]:
    """A plan of one configuration for as many models as possible, [n, S] vGPUs, and who is left out.

    A model that serves anything runs some configuration with a vGPU per stage. So no plan serves more
    models than these.
    """
    count, classes = len(columns), len(problem.gpus)
    once = np.isfinite(columns.rate_rps).astype(np.int64)
    slots = np.zeros((count, len(problem.types)), dtype=np.int64)
    row, s = np.nonzero(once)
    np.add.at(slots, (row, columns.types[row, s]), 1)
    gpus = np.zeros((count, classes), dtype=np.int64)
    whole = -(-slots // problem.type_divisor)
    for kind, number in enumerate(problem.type_class):
        gpus[:, number] += whole[:, kind]
    rate = np.where(once > 0, columns.rate_rps, np.inf).min(axis=1)
    rows = fastest_of_each(columns.model, gpus, rate)
    build = ProgramBuilder()
    placed = build.variables("placed", len(rows), upper=1.0, cost=1.0, whole=True)
    one = build.rows("one", len(problem.models), upper=1.0)
    build.entries(one[columns.model[rows]], placed, 1.0)
    capacity = build.rows("capacity", classes, upper=problem.gpus)
    row, k = np.nonzero(gpus[rows])
    build.entries(capacity[k], placed[row], gpus[rows][row, k])
    answer = solve_integer(build.build(), Limits(relative_gap=0.0, nodes=_NODES))
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    if answer.values is not None:
        taken = rows[answer.values > 1 / 2]
        vgpus[taken] = once[taken]
    served = set(columns.model[vgpus.any(axis=1)].tolist())
    return vgpus, [number for number in range(len(problem.models)) if number not in served]
