"""What a plan promises of what it could deliver, and GPUs left over as slack of its pools.

Here: planned rates of configurations (what the objective is worth to every model, or the rates
asked for), and widening of pools by GPUs that the optimum does not need.
Not here: the optimum itself; which of equally good plans has most slack (`ties`); free GPUs that
no pool can use (`overflow`).

GPUs are whole, so every model but the scarcest could serve a little more than its share, and often
GPUs of one class stay unused because another class is exhausted. Both are worth more as slack than
as promise: a pool that is 10 % wider than needed seldom makes a batch wait.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.problem import Problem

# Share by which a pool may exceed what it is planned for. Simulated load factors at 99 % attainment
# (72 published problems) rise up to here and no further.
HEADROOM = 0.25
# The same before GPUs go to overflow (`overflow`), so that no pool is tighter than the scarcest.
BEFORE_OVERFLOW = 0.1
_ROUNDING = 1e-9


def promised_rps(
    columns: Columns, vgpus: NDArray[np.int64], goal: Goal, score: float
) -> NDArray[np.float64]:
    """[models] requests/s: weight x score, or the least rate asked for; at most what is delivered."""
    delivered = np.bincount(
        columns.model, weights=delivered_rps(columns, vgpus), minlength=len(goal.weight)
    )
    promised = np.maximum(goal.weight * score, goal.minimum_rps)
    # Rates asked for are met within rounding; a rate a hair below would read as one that is not.
    return np.where(promised > delivered * (1 + _ROUNDING), delivered, promised)


def planned_rps(
    columns: Columns, vgpus: NDArray[np.int64], promised: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[n] planned rate of every configuration: its model's promise, shared as they deliver."""
    delivered = delivered_rps(columns, vgpus)
    total = np.bincount(columns.model, weights=delivered, minlength=len(promised))
    share = np.divide(promised, total, out=np.ones(len(promised)), where=total > 0)
    return delivered * share[columns.model]


def widen(
    problem: Problem,
    columns: Columns,
    vgpus: NDArray[np.int64],
    planned: NDArray[np.float64],
    headroom: float = HEADROOM,
) -> NDArray[np.int64]:
    """[n, S] vGPU counts with free GPUs added to the pools in use, the tightest pool first.

    No pool gets more once it exceeds its planned rate by the headroom. Ties go to the first configuration, then the first stage. Every GPU still holds vGPUs of one
    model and one divisor.
    """
    wide = vgpus.copy()
    free = problem.gpus - gpus_in_use(problem, columns, vgpus)
    slots: dict[tuple[int, int], int] = {}  # free slots on GPUs of a model and vGPU type
    heap: list[tuple[float, int, int]] = []
    for row, stage in np.argwhere(vgpus).tolist():
        group = (int(columns.model[row]), int(columns.types[row, stage]))
        slots[group] = slots.get(group, 0) - int(vgpus[row, stage])
        heap.append((_level(columns, wide, planned, (row, stage)), row, stage))
    slots = {group: count % problem.types[group[1]][1] for group, count in slots.items()}
    heapq.heapify(heap)
    while heap:
        level, row, stage = heapq.heappop(heap)
        if level >= 1 + headroom:
            break
        group = (int(columns.model[row]), int(columns.types[row, stage]))
        number, divisor = problem.types[group[1]]
        if not slots[group]:
            if not free[number]:
                continue
            free[number] -= 1
            slots[group] = divisor
        slots[group] -= 1
        wide[row, stage] += 1
        heapq.heappush(heap, (_level(columns, wide, planned, (row, stage)), row, stage))
    return wide


def _level(
    columns: Columns,
    vgpus: NDArray[np.int64],
    planned: NDArray[np.float64],
    pool: tuple[int, int],
) -> float:
    """What a pool can serve over what it is planned for."""
    return float(vgpus[pool] * columns.rate_rps[pool] / planned[pool[0]])
