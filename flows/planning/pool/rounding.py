"""A first integer plan from the relaxation: scale its rates until the rounded vGPUs fit."""

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import gpus_in_use
from flows.planning.problem import Problem

_HALVINGS = 40


def round_down(
    problem: Problem, columns: Columns, rates_rps: NDArray[np.float64], goal: Goal
) -> NDArray[np.int64] | None:
    """[n, S] vGPU counts for the largest multiple of the rates that fits; None where none does.

    Where rates are fixed (cost, power), the multiple is 1: all or nothing.
    """
    if goal.fixed:
        whole = _rounded(columns, rates_rps)
        return whole if _fits(problem, columns, whole) else None
    low, high = 0.0, 1.0
    whole = _rounded(columns, rates_rps)
    if _fits(problem, columns, whole):
        return whole
    best = None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        whole = _rounded(columns, middle * rates_rps)
        if _fits(problem, columns, whole):
            low, best = middle, whole
        else:
            high = middle
    return best


def _rounded(columns: Columns, rates_rps: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ceil(rates_rps[:, None] / columns.rate_rps - 1e-9).astype(np.int64)


def _fits(problem: Problem, columns: Columns, vgpus: NDArray[np.int64]) -> bool:
    return bool(np.all(gpus_in_use(problem, columns, vgpus) <= problem.gpus))
