"""How much more than its planned rate a model must be able to serve, so that 99 % come in time.

A request can wait as long as its SLO leaves after its run. Seen as one server, a model's pools are
an M/D/1 queue with impatience: what finds more work before it than it can wait for is lost. With
load u and K requests served in the time that one can wait, and θ > 0 from u (e^θ - 1) = θ,

    A = (1 - u) / (u + θ - 1) · e^(-θ K),    lost = (1 - u) A / (1 - u A)

(the tail of the M/D/1 queue's work, cut off at K). `needed` is 1 / u where the loss is allowed.
Policies of this scheduler reach that server within a step of the grid of load factors.
"""

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.columns import Columns
from flows.planning.problem import Problem
from triton_backend.contract.units import US_PER_S

LOST = 0.007  # a little less than 1 %: draws of half a minute differ
_LEAST_WAITING = 2.0  # requests; below it the formula leaves its range
_BISECTIONS = 60
_RANGE = (1e-6, 20.0)  # of θ


def needed(waiting: NDArray[np.float64], lost: float = LOST) -> NDArray[np.float64]:
    """Capacity over rate, at least 1, at which no more than a share is lost.

    Args:
        waiting: K, requests that are served in the time that one can wait.
        lost: share allowed.
    """
    room = np.maximum(waiting, _LEAST_WAITING)
    low, high = np.full(room.shape, _RANGE[0]), np.full(room.shape, _RANGE[1])
    for _ in range(_BISECTIONS):
        theta = (low + high) / 2
        more = _lost(theta, room) > lost
        low, high = np.where(more, theta, low), np.where(more, high, theta)
    return np.expm1(high) / high


def _lost(theta: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.float64]:
    load = theta / np.expm1(theta)
    tail = (1 - load) / (load + theta - 1) * np.exp(-theta * room)
    return (1 - load) * tail / (1 - load * tail)


def waiting_us(
    problem: Problem, columns: Columns, margin_us: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[n] how long a request of a configuration can wait.

    Args:
        problem: latencies and limits.
        columns: configurations.
        margin_us: [models] what their margins leave of the SLOs.
    """
    left = np.empty(len(columns))
    for number, model in enumerate(problem.models):
        rows = np.flatnonzero(columns.model == number)
        left[rows] = model.limit_us[columns.batch[rows] - 1] + margin_us[number]
        row_of = np.zeros(len(problem.types), dtype=np.int64)
        row_of[model.types] = np.arange(len(model.types))
        for s in range(columns.types.shape[1]):
            here = rows[columns.stages[rows] > s]
            kind, at = columns.types[here, s], columns.batch[here] - 1
            first, last = columns.cuts[here, s], columns.cuts[here, s + 1]
            left[here] -= model.latency_us[row_of[kind], first, last, at]
            if s:
                before = problem.type_class[columns.types[here, s - 1]]
                left[here] -= model.transfer_us[before, problem.type_class[kind], first, at]
    return left


def needed_by(
    problem: Problem,
    columns: Columns,
    margin_us: NDArray[np.float64],
    promised_rps: NDArray[np.float64],
) -> NDArray[np.float64]:
    """[n] capacity over planned rate that a model needs if it is served by a configuration."""
    waiting = waiting_us(problem, columns, margin_us) * promised_rps[columns.model] / US_PER_S
    return needed(waiting)
