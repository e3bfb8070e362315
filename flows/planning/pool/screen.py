"""Exact screening: configurations that no better plan can use are dropped.

With the prices of the relaxation, a plan that runs configuration c with g_s vGPUs per stage loses
at least Σ_s gpu_price · g_s / v_s - rate_price · min_s(g_s · rate_s) against the bound. A plan
better than the best one known must lose less than bound - best known. Where even the cheapest whole
numbers of vGPUs lose more, the configuration is dropped. Among configurations of one model with
the same vGPU types, one that is at least as fast in every stage replaces the other.
"""

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.bound import Bound
from flows.planning.pool.columns import Columns
from flows.planning.problem import Problem

_MULTIPLES = 24  # whole numbers of vGPUs of a stage that are looked at one by one


def least_loss(problem: Problem, columns: Columns, bound: Bound) -> NDArray[np.float64]:
    """[n] score that using a configuration costs at least.

    For a rate x the cheapest plan takes ceil(x / rate_s) vGPUs of stage s. The loss only falls
    where x meets a multiple of a stage's rate, so looking there is enough; beyond the largest
    multiple looked at, the linear loss bounds it.
    """
    price = bound.gpu_price[problem.type_class[columns.types]]
    price = price / problem.type_divisor[columns.types]
    price[~np.isfinite(columns.rate_rps)] = 0.0
    worth = bound.rate_price[columns.model]
    rate = columns.rate_rps
    lowest = rate.min(axis=1)
    reach = np.where(np.isfinite(rate), rate * (_MULTIPLES + 1), np.inf).min(axis=1)
    best = bound.reduced_cost * reach
    for s in range(rate.shape[1]):
        real = np.isfinite(rate[:, s])
        for multiple in range(1, _MULTIPLES + 1):
            x = np.where(real, rate[:, s] * multiple, 0.0)
            vgpus = np.ceil(x[:, None] / rate * (1 - 1e-12))
            loss = (vgpus * price).sum(axis=1) - worth * x
            usable = real & (x >= lowest * (1 - 1e-12))
            np.minimum(best, np.where(usable, loss, np.inf), out=best)
    return np.maximum(best, 0.0)


def undominated(problem: Problem, columns: Columns, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of `rows` that no other of the same model and vGPU types replaces.

    The order of stages does not matter: a stage is worth its type and rate.
    """
    types = columns.types[rows]
    real = np.isfinite(columns.rate_rps[rows])
    key = np.where(real, types, len(problem.types))
    rate = columns.rate_rps[rows]
    order = np.lexsort((-rate, key), axis=1)
    key = np.take_along_axis(key, order, axis=1)
    rate = np.take_along_axis(rate, order, axis=1)
    _, group = np.unique(np.column_stack([columns.model[rows], key]), axis=0, return_inverse=True)
    group = group.reshape(-1)
    by_group = np.argsort(group, kind="stable")
    kept = [
        members[_front(rate[members])]
        for members in np.split(by_group, np.flatnonzero(np.diff(group[by_group])) + 1)
    ]
    return rows[np.sort(np.concatenate(kept))] if kept else rows


def _front(rate: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows [n, S] no other row is at least as fast as in every stage; first of equals."""
    order = np.lexsort(tuple(-rate[:, s] for s in reversed(range(rate.shape[1]))))
    keep = np.zeros(len(rate), dtype=np.bool_)
    front = np.empty((0, rate.shape[1]))
    for row in order:
        if not len(front) or not np.any(np.all(front >= rate[row], axis=1)):
            keep[row] = True
            front = np.vstack([front, rate[row]])
    return keep
