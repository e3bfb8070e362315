"""What a plan in force runs, as configurations of a problem."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.columns import Columns
from flows.planning.problem import Problem
from triton_backend.contract.plan import Pipeline, Plan, Pool

Way = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Configurations [n] and their vGPUs [n, S]."""


def row_of(
    problem: Problem, columns: Columns, wanted_by: tuple[int, Pipeline], pools: Sequence[Pool]
) -> int | None:
    """The configuration of a model's pipeline whose stages have these pools; None where there is none.

    `columns` are sorted by model.
    """
    model, pipeline = wanted_by
    stages = pipeline.stages
    if len(stages) > columns.types.shape[1]:
        return None
    first, end = np.searchsorted(columns.model, (model, model + 1))
    types = {(problem.classes[c], v): number for number, (c, v) in enumerate(problem.types)}
    wanted = [types.get((p.gpu_class, p.divisor or 0), -1) for p in pools]
    cuts = [0, *(s.blocks[1] for s in stages)]
    same = (
        (columns.batch[first:end] == pipeline.batch)
        & (columns.stages[first:end] == len(stages))
        & np.all(columns.types[first:end, : len(stages)] == wanted, axis=1)
        & np.all(columns.cuts[first:end, : len(cuts)] == cuts, axis=1)
    )
    rows = np.flatnonzero(same)
    return int(first + rows[0]) if len(rows) else None


def ways_in_force(plan: Plan, problem: Problem, columns: Columns) -> list[tuple[int, Way]]:
    """Models with what they run, those of whose pipelines all still are configurations."""
    found: list[tuple[int, Way]] = []
    numbers = {model.name: number for number, model in enumerate(problem.models)}
    for model in (m for m in plan.models if m.name in numbers):
        number = numbers[model.name]
        rows: list[int | None] = []
        vgpus: list[list[int]] = []
        for pipeline in (p for p in model.pipelines if p.throughput_rps):
            pools = [plan.pool_of(stage) for stage in pipeline.stages]
            rows.append(row_of(problem, columns, (number, pipeline), pools))
            vgpus.append([pool.vgpus for pool in pools])
        known = [row for row in rows if row is not None]
        if known and len(known) == len(rows):
            counts = np.zeros((len(rows), columns.types.shape[1]), dtype=np.int64)
            for at, row in enumerate(vgpus):
                counts[at, : len(row)] = row
            found.append((number, (np.array(known), counts)))
    return found
