"""How much load a plan sustains, as a value that integer programs can maximise or hold.

    e_m ∈ [0, 1]              share of model m's planned rate that is in time (99 %) if Poisson
    h_m ∈ [0, 1 + HEADROOM]   what model m can serve over its planned rate: bursts need more

    sustain_m:  e_m · planned_m ≤ Σ_{c of m} rate of c / needed_c
    serve_m:    h_m · planned_m ≤ Σ_{c of m} rate of c
    value:      Σ_m e_m + BURSTS · h_m

`needed_c` says how much wider a model must be than its planned rate, the more, the less time its
requests can wait: the value prefers short pipelines, and slack where waiting time is short.

**How much wider: an M/D/1 queue.** A request can wait as long as its SLO leaves after its run. Seen
as one server, a model's pools are an M/D/1 queue with impatience: what finds more work before it
than it can wait for is lost. With load u and K requests served in the time that one can wait, and θ
> 0 from u (e^θ - 1) = θ,

    A = (1 - u) / (u + θ - 1) · e^(-θ K),    lost = (1 - u) A / (1 - u A)

(the tail of the M/D/1 queue's work, cut off at K). `needed` is 1 / u where the loss is allowed.
Policies of this scheduler reach that server within a step of the grid of load factors.
"""

from dataclasses import dataclass

import numpy as np

from flows.planning.inputs import Problem
from flows.planning.pool.columns import Columns, latencies_us
from flows.planning.pool.integer import Layout, delivered_rps, take_rates
from flows.planning.pool.spare_gpus import HEADROOM
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from triton_backend.contract.units import US_PER_S

LOST = 0.007  # a little less than 1 %: draws of half a minute differ
_LEAST_WAITING = 2.0  # requests; below it the formula leaves its range
_BISECTIONS = 60
_RANGE = (1e-6, 20.0)  # of θ


def needed(waiting: Floats, lost: float = LOST) -> Floats:
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


def _lost(theta: Floats, room: Floats) -> Floats:
    load = theta / np.expm1(theta)
    tail = (1 - load) / (load + theta - 1) * np.exp(-theta * room)
    return (1 - load) * tail / (1 - load * tail)


def waiting_us(problem: Problem, columns: Columns, margin_us: Floats) -> Floats:
    """[n] how long a request of a configuration can wait.

    Args:
        problem: latencies and limits.
        columns: configurations.
        margin_us: [models] what their margins leave of the SLOs.
    """
    limit_us = np.empty(len(columns))
    for number, model in enumerate(problem.models):
        rows = np.flatnonzero(columns.model == number)
        limit_us[rows] = model.limit_us[columns.batch[rows] - 1] + margin_us[number]
    return limit_us - latencies_us(problem, columns)


def needed_by(
    problem: Problem, columns: Columns, margin_us: Floats, promised_rps: Floats
) -> Floats:
    """[n] capacity over planned rate that a model needs if it is served by a configuration."""
    waiting = waiting_us(problem, columns, margin_us) * promised_rps[columns.model] / US_PER_S
    return needed(waiting)


BURSTS = 0.1  # worth of spare capacity beside the load sustained


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Parts of the value: configurations, [n] needed capacity, [models] planned rates."""

    columns: Columns
    needed: Floats
    promised_rps: Floats

    def most(self) -> float:
        """A bound on every plan."""
        return len(self.promised_rps) * (1 + BURSTS * (1 + HEADROOM))

    def value(self, vgpus: Ints) -> float:
        """The value of vGPUs [n, S]."""
        sustained, served = self.shares(vgpus)
        return float(sustained.sum() + BURSTS * served.sum())

    def shares(self, vgpus: Ints) -> tuple[Floats, Floats]:
        """[models] e and h of vGPUs [n, S]."""
        rate = delivered_rps(self.columns, vgpus)
        models = len(self.promised_rps)
        sustained = np.bincount(self.columns.model, weights=rate / self.needed, minlength=models)
        served = np.bincount(self.columns.model, weights=rate, minlength=models)
        return (
            np.minimum(sustained / self.promised_rps, 1.0),
            np.minimum(served / self.promised_rps, 1 + HEADROOM),
        )

    def variables(self, build: ProgramBuilder, layout: Layout) -> tuple[Ints, Ints]:
        """Add e and h with their rows to a program; returns their numbers."""
        models = len(self.promised_rps)
        e = build.variables("e", models, upper=1.0)
        h = build.variables("h", models, upper=1 + HEADROOM)
        for name, share, needed in (
            ("sustain", e, self.needed),
            ("serve", h, np.ones_like(self.needed)),
        ):
            row = build.rows(name, models, upper=0.0)
            build.entries(row, share, self.promised_rps)
            take_rates(build, self.columns, layout, row[self.columns.model], needed)
        return e, h

    def hold(self, build: ProgramBuilder, shares: tuple[Ints, Ints], least: float) -> None:
        """Add the row that keeps the value from falling below `least`."""
        e, h = shares
        row = build.rows("value", 1, upper=-least)
        build.entries(row, e, -1.0)
        build.entries(row, h, -BURSTS)
