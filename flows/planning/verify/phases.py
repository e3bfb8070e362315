"""Recompute from a plan alone that its entries are in time at any phases, where it says so.

A plan with the option `phases` any promises that no request of an entry whose client leaves a
period p = 1 / rate or more between two requests is late, whenever each client begins. A pool of v
vGPUs runs the most urgent requests first, B at a time, in L; those of client i can wait w_i there.
Looked at is the first request that would start late, x after the last instant s at which none
waited that has to start as early. Sent since, and as urgent, are at most

    f(x) = sum of f_i(x),    f_i(x) = floor((x - w_i) / p_i) + 1 where x >= w_i, else 0

A vGPU that is free at s starts B (floor(x / L) + 1) of them. One that is busy at s, with a client
c of p_c >= w_c + L, does so within x - t_c, or c sends one request less: t_c is how long before x -
w_c its last one comes. Else it starts B floor(x / L). A client keeps ceil((w + L) / p) vGPUs busy
at most.
The pool holds if f(x) is no more than v vGPUs start, the worst clients on them, for each x = w_i +
k p_i up to where a line over f stays below one under what is started.

What holds for less time to wait, or for a client's requests in turns as those of several clients of
a longer period, holds; both are tried. Beside `headroom` an entry may send so much more often.
Where a pipeline has several stages, all but the last are given the least time in which their pools
hold, and the last what is left of the budget.

Here: that alone. Not here: anything imported from planners.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Pool, Stage
from triton_backend.contract.units import US_PER_S

PHASES = ("any", "even")
MOST_CELLS = 20_000_000  # instants times clients: a second
_READINGS = 8  # longer periods that clients are read at
_CLIPPED = 8  # times to wait that are shortened together
_US = 0.01  # times are whole µs, but for what is left of them
RELATIVE = 1e-9
_CELLS = 1 << 20  # at once

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """The vGPUs of a pool, its batch, and the latency of a full one (µs)."""

    vgpus: int
    batch: int
    latency_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    """Clients: [n] time to wait and period (µs), and how many of each."""

    waits_us: Floats
    periods_us: Floats
    counts: Floats

    def waiting(self, waits_us: Floats | float) -> "_Clients":
        """The same with other times to wait."""
        return replace(self, waits_us=np.broadcast_to(waits_us, self.periods_us.shape))


def phase_differences(plan: Plan) -> Iterator[str]:
    """Pools of a plan for any phases whose entries can be late in some."""
    phases = plan.options.get("phases", "even")
    if phases not in PHASES:
        yield f"options: phases is {phases!r}, none of {', '.join(PHASES)}"
    if phases != "any":
        return
    listed = {demand.name for demand in plan.workload.models if demand.entries}
    for model in plan.models:
        if model.name in listed:
            yield from _late(plan, model)


def _late(plan: Plan, model: ModelPlan) -> Iterator[str]:
    """Pools of one model, at the promised rates or with the headroom."""
    budgets = {entry.name: entry.budget_us for entry in model.entries}
    paths: list[tuple[Pipeline, float]] = []
    for pipeline in model.pipelines:
        if pipeline.throughput_rps > 0 and not plan.pool_of(pipeline.stages[0]).starts_anywhere:
            takes = sum(stage.latency_us + stage.transfer_us for stage in pipeline.stages)
            paths.append((pipeline, float(budgets[pipeline.entry or ""] - takes)))
    if any(spare_us < 0 for _, spare_us in paths):
        return  # late without any other request: said of the pipeline
    factor = float(plan.options.get("headroom_factor", 1.0))
    tries = [_late_pools(plan, paths, often) for often in dict.fromkeys((1.0, factor))]
    for name in min(tries, key=len):
        pool = next(pool for pool in plan.pools if pool.name == name)
        entries = sum(any(s.pool == name for s in path.stages) for path, _ in paths)
        yield (
            f"pool {name}: {pool.vgpus} vGPUs are not proven to serve {entries} entries of"
            f" {model.name} in time at any phases"
        )


def _late_pools(plan: Plan, paths: list[tuple[Pipeline, float]], often: float) -> list[str]:
    """Names of pools that do not hold for clients that send so many times as often."""
    periods = {id(path): US_PER_S / (path.throughput_rps * often) for path, _ in paths}
    longer = _readings(np.array(list(periods.values())))
    users: dict[str, list[tuple[Pipeline, float]]] = {}
    for path, spare_us in paths:
        for stage in path.stages:
            users.setdefault(stage.pool, []).append((path, spare_us))
    ahead = {stage.pool for path, _ in paths for stage in path.stages[:-1]}
    late: list[str] = []
    least: dict[str, float] = {}
    for name, mine in sorted(users.items(), key=lambda user: user[0] not in ahead):
        pool, first = _pool(plan, name, mine), name in ahead
        left = [
            spare - (0.0 if first else math.fsum(least[s.pool] for s in path.stages[:-1]))
            for path, spare in mine
        ]
        clients = _clients(left, [periods[id(path)] for path, _ in mine])
        if first:
            found = _least_wait(pool, clients, longer)
            least[name] = clients.waits_us.min() if found is None else found
            holds = found is not None
        else:
            holds = _proven(pool, clients, longer)
        late += [] if holds else [name]
    return late


def _pool(plan: Plan, name: str, users: list[tuple[Pipeline, float]]) -> _Served:
    """A pool as the slowest and smallest of its stages."""
    stages: list[tuple[Stage, int]] = [
        (stage, stage.batch or path.batch)
        for path, _ in users
        for stage in path.stages
        if stage.pool == name
    ]
    pool: Pool = plan.pool_of(stages[0][0])
    return _Served(
        vgpus=pool.vgpus,
        batch=min(batch for _, batch in stages),
        latency_us=float(max(stage.latency_us for stage, _ in stages)),
    )


def _clients(waits_us: list[float], periods_us: list[float]) -> _Clients:
    rows = np.stack([np.maximum(np.array(waits_us), 0.0), np.array(periods_us)])
    kinds, counts = np.unique(rows, axis=1, return_counts=True)
    return _Clients(waits_us=kinds[0], periods_us=kinds[1], counts=counts.astype(np.float64))


def _readings(periods_us: Floats) -> list[float]:
    """Periods at which clients in turns are the fewest requests/s."""

    def sent(period_us: float) -> float:
        return float(np.ceil(period_us / periods_us * (1 - RELATIVE)).sum()) / period_us

    return sorted(np.unique(periods_us).tolist(), key=lambda p: (sent(p), p))[:_READINGS]


def _read_at(clients: _Clients, period_us: float) -> _Clients:
    """The requests of each client in turns as those of clients of that period."""
    several = np.ceil(period_us / clients.periods_us * (1 - RELATIVE))
    periods = np.full(len(several), period_us)
    return replace(clients, periods_us=periods, counts=clients.counts * several)


def _least_wait(pool: _Served, clients: _Clients, longer: list[float]) -> float | None:
    """The least time to wait, the same for all, with which a pool holds; None: there is none."""
    most = float(clients.waits_us.min())
    found: list[float] = []
    for read in (clients, *(_read_at(clients, period) for period in longer)):
        limits = np.unique(read.periods_us - pool.latency_us).tolist()
        below = 0.0
        for end in (*(limit for limit in limits if 0 < limit < most), most):
            if _holds(pool, read.waiting(end)):
                found.append(_least_between(pool, read, below, end))
                break
            below = end
    return min(found, default=None)


def _least_between(pool: _Served, clients: _Clients, low: float, high: float) -> float:
    """The least time to wait with which a pool holds, to a tenth of `_US`; with `high` it does."""
    steps = range(math.ceil((high - low) / _US * 10))

    def holds(step: int) -> bool:
        return _holds(pool, clients.waiting(low + step * _US / 10))

    return min(low + bisect_left(steps, True, key=holds) * _US / 10, high)  # noqa: FBT003


def _proven(pool: _Served, clients: _Clients, longer: list[float]) -> bool:
    """True if a pool holds, for these times to wait or shorter ones."""
    for read in (clients, *(_read_at(clients, period) for period in longer)):
        if any(_holds(pool, read.waiting(waits)) for waits in _waits(pool, read)):
            return True
    return False


def _waits(pool: _Served, clients: _Clients) -> Iterator[Floats]:
    """Times to wait, and shorter ones with which clients keep a vGPU busy once at most."""
    waits, alone = clients.waits_us, clients.periods_us - pool.latency_us
    yield waits
    able = alone >= 0
    over = np.where(able & (waits > alone), waits - alone, 0.0)
    limits = np.unique(over[over > 0])
    chosen = np.unique(np.linspace(0, len(limits), _CLIPPED, endpoint=False).astype(int))
    for limit in limits[chosen[chosen < len(limits)]][::-1]:
        yield np.where((over > 0) & (over <= limit), alone, waits)
    if limits.size:
        yield np.where(over > 0, alone, waits)
    yield np.full(len(waits), waits.min())
    if able.all():
        yield np.full(len(waits), min(waits.min(), alone.min()))


def _holds(pool: _Served, clients: _Clients) -> bool:
    """True if the clients of a pool are in time at any phases."""
    width, counts = pool.vgpus * pool.batch, clients.counts
    rate = float((counts / clients.periods_us).sum())
    spare = width / pool.latency_us - rate
    over = float((counts * (1 - clients.waits_us / clients.periods_us)).sum()) + width
    end = float(clients.waits_us.max())
    if spare < -RELATIVE * rate or (over > 0 and spare <= RELATIVE * rate):
        return False
    if over > 0:
        end = max(end, over / spare)
    steps = np.floor((end - clients.waits_us) / clients.periods_us) + 1
    if steps.sum() * len(counts) > MOST_CELLS:
        return False
    instants = [
        wait + period * np.arange(int(step))
        for wait, period, step in zip(clients.waits_us, clients.periods_us, steps, strict=True)
    ]
    x = np.unique(np.concatenate(instants))
    return all(
        _in_time(pool, clients, part)
        for part in np.array_split(x, len(x) * len(counts) // _CELLS + 1)
    )


def _in_time(pool: _Served, clients: _Clients, x: Floats) -> bool:
    """True if no more is sent than started, at [x] instants."""
    waits, periods = clients.waits_us, clients.periods_us
    batch, latency = pool.batch, pool.latency_us
    since = x[:, None] - waits
    sent = np.where(since >= -_US, np.floor(since / periods + RELATIVE) + 1, 0.0)
    started = batch * np.floor((x + _US) / latency)
    free = started + batch
    before = np.where(sent > 0, np.minimum(since - (sent - 1) * periods, latency), latency)
    later = batch * (np.floor((x[:, None] - before + _US) / latency) + 1)
    left = np.minimum(later, started[:, None] + 1)
    left = np.where(periods >= waits + latency - _US, left, started[:, None])
    left = np.minimum(left, free[:, None])
    order = np.argsort(left, axis=1, kind="stable")
    busy = clients.counts * np.maximum(1, np.ceil((waits + latency - _US) / periods))
    seats = busy[order]
    taken = np.clip(pool.vgpus - (np.cumsum(seats, axis=1) - seats), 0, seats)
    carried = (taken * np.take_along_axis(left, order, axis=1)).sum(axis=1)
    carried += (pool.vgpus - taken.sum(axis=1)) * free
    return bool(((sent * clients.counts).sum(axis=1) <= carried + RELATIVE).all())
