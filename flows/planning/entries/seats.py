"""Which way every entry takes, of those that are given; by seats where rates are equal.

Seats are given out afterwards, so that a plan is a few whole numbers. A way is a shared
stage s and how entries of a start come to it: directly, or by an alignment stage a. It has seats,
and takes as long as both stages, tau. An entry may take a seat where tau is in its limit; limits
and times are sorted, so the seats go round if for every limit there are as many seats in time as
entries that need one (Hall):

    minimise    sum_s price_s n_s + sum_w price_w m_w       n_s, m_w vGPUs, x_w seats, all whole
    stage_s:    sum over ways w of s of x_w <= c_s n_s      c: seats of a vGPU
    way_w:      x_w <= c_w m_w                              where it has an alignment stage
    cover_pi:   r_p(i-1) + sum over w of p in time from i on of x_w - r_pi >= entries

The entries are those from limit i up to the next; r_pi are seats left for larger limits.

Entries of several rates take ways one by one (`assigned`).

Here: the best plan of ways that are given; ways for thousands of entries. Not here: those of a
proof (`shared_stages`).
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.tables import ANY_NUMBER
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

_WEIGHTS = (0.05, 0.125, 0.25, 0.5)  # of a vGPU that is spare, in the choice of ways
_NEARLY = 0.05  # above the least, where items still count for a way
_NODES = 100
_CLOSE, _ENOUGH = 2e-3, 1.5e-2  # gap of the program; above the bound, where a plan is good enough


class SeatRoute(NamedTuple):
    """A root (`GroupingProblem`), the start block of entries, and the row of their alignment stage.

    -1: they board directly.
    """

    root: int
    start: int
    row: int


def one_rate(field: GroupingProblem) -> bool:
    """True if seats count for these items.

    Equal rates, and any number of vGPUs, so that equal stages are one.
    """
    return field.table.most == ANY_NUMBER and len(set(field.rate.tolist())) == 1


def seated(
    field: GroupingProblem, ways: Collection[SeatRoute], limits: Limits
) -> tuple[list[SeatRoute], float]:
    """The cheapest plan found that has these ways: the way of every item; none where none was.

    And what any plan of these ways costs at least that is below the cutoff.

    Args:
        field: whose items have one rate.
        ways: different ones.
        limits: of the solver; scores are costs below 0.
    """
    order = sorted(ways)
    rate = float(field.rate[0])
    root = np.array([w.root for w in order], dtype=np.int64)
    start = np.array([w.start for w in order], dtype=np.int64)
    price, work, time = np.array([_beside(field, w) for w in order]).T
    time += field.root_time[root]
    roots, at = np.unique(root, return_inverse=True)
    count = len(field.items)
    build = ProgramBuilder()
    shared = build.variables(
        "vgpus", len(roots), cost=-field.root_price[roots], upper=count, whole=True
    )
    seats = build.variables("seats", len(order), upper=count, whole=True)
    stage = build.rows("stage", len(roots), upper=0.0)
    build.entries(stage[at], seats, 1.0)
    held = (1 + ROUNDING) / (rate * field.root_work[roots])
    build.entries(stage, shared, -held)
    aligned = np.flatnonzero(work > 0)
    own = build.variables("aligned", len(aligned), cost=-price[aligned], upper=count, whole=True)
    way = build.rows("way", len(aligned), upper=0.0)
    build.entries(way, seats[aligned], 1.0)
    build.entries(way, own, -(1 + ROUNDING) / (rate * work[aligned]))
    for block in np.unique(field.block).tolist():
        mine = np.flatnonzero(start == block)
        if not _cover(build, np.sort(field.limit[field.block == block]), time[mine], seats[mine]):
            return [], math.inf
    answer = solve_integer(build.build(), limits)
    if answer.values is None:
        return [], -answer.bound
    number = np.rint(answer.values[seats]).astype(np.int64)
    taken = [order[w] for w in _taken(field, (start, time), number).tolist()]
    return taken, -answer.bound


def assigned(
    field: GroupingProblem, ways: Collection[SeatRoute], limits: Limits
) -> list[SeatRoute]:
    """The cheapest plan found of items of any rates that has these ways; empty where none was.

    minimise    sum_p price_p n_p                          n_p vGPUs of every pool, whole
    item_e:     sum over ways w in time of x_ew >= 1       x_ew whole
    pool_p:     sum over ways w through p of rate_e x_ew <= c_p n_p

    Args:
        field: the items.
        ways: different ones.
        limits: of the solver; scores are costs below 0.
    """
    order = sorted(ways)
    pools: dict[tuple[int, ...], tuple[float, float]] = {}
    through: list[list[tuple[int, ...]]] = []
    time = np.zeros(len(order))
    for n, way in enumerate(order):
        price, work, own = _beside(field, way)
        root = (way.root,)
        pools[root] = float(field.root_price[way.root]), float(field.root_work[way.root])
        through.append([root])
        if way.row >= 0:
            junction, kind = field.root_junction[way.root], field.root_kind[way.root]
            aligned = (way.start, int(junction), int(kind), way.row)
            pools[aligned] = price, work
            through[-1].append(aligned)
        time[n] = own + field.root_time[way.root]
    start = np.array([way.start for way in order])
    able = (field.block[:, None] == start) & (time <= field.limit[:, None])
    if not able.any(axis=1).all():
        return []
    item, of = np.nonzero(able)
    build = ProgramBuilder()
    x = build.variables("served", len(item), upper=1.0, whole=True)
    cost, work = np.array(list(pools.values())).T
    most = float(min(field.table.most, 1e6))
    vgpus = build.variables("vgpus", len(pools), cost=-cost, upper=most, whole=True)
    once = build.rows("item", len(field.items), upper=-1.0)
    build.entries(once[item], x, -1.0)
    room = build.rows("pool", len(pools), upper=0.0)
    build.entries(room, vgpus, -(1 + ROUNDING) / work)
    number = {key: n for n, key in enumerate(pools)}
    for depth in range(2):
        passing = np.array([number[t[depth]] if depth < len(t) else -1 for t in through])[of]
        some = passing >= 0
        build.entries(room[passing[some]], x[some], field.rate[item[some]])
    answer = solve_integer(build.build(), limits)
    if answer.values is None:
        return []
    chosen = np.full(len(field.items), -1)
    taken = answer.values[x] > 1 / 2
    chosen[item[taken]] = of[taken]
    return [order[n] for n in chosen.tolist()]


def _beside(field: GroupingProblem, way: SeatRoute) -> tuple[float, float, float]:
    """Price and work of an alignment stage, and its time; 0 where there is none."""
    if way.row < 0:
        return 0.0, 0.0, 0.0
    junction, kind = int(field.root_junction[way.root]), int(field.root_kind[way.root])
    options = field.table.options(way.start, junction, kind)
    row = way.row
    return float(options.price[row]), float(options.work[row]), float(options.time_us[row])


def _cover(build: ProgramBuilder, limit: Floats, time: Floats, seats: Ints) -> bool:
    """Rows that give every entry of a start a seat; False where one has none."""
    first = np.searchsorted(limit, time)  # the first entry for which a way is in time
    levels, at = np.unique(first, return_inverse=True)
    levels = levels[levels < len(limit)]
    if not len(levels) or levels[0] > 0:
        return False
    needed = np.diff(levels, append=len(limit))
    rows = build.rows("cover", len(levels), upper=-needed.astype(np.float64))
    able = first < len(limit)
    build.entries(rows[at[able]], seats[able], -1.0)
    left = build.variables("left", len(levels) - 1, upper=float(len(limit)))
    build.entries(rows[:-1], left, 1.0)
    build.entries(rows[1:], left, -1.0)
    return True


def _taken(field: GroupingProblem, ways: tuple[Ints, Floats], seats: Ints) -> Ints:
    """[items] numbers of ways: entries of the least limits on the seats of the least times."""
    start, time = ways
    found = np.zeros(len(field.items), dtype=np.int64)
    for block in np.unique(field.block).tolist():
        items = np.flatnonzero(field.block == block)
        items = items[np.argsort(field.limit[items], kind="stable")]
        mine = np.flatnonzero(start == block)
        mine = mine[np.argsort(time[mine], kind="stable")]
        found[items] = np.repeat(mine, seats[mine])[: len(items)]
    return found


# Thousands of entries


def many_seated(field: GroupingProblem, watch: Watch) -> tuple[list[SeatRoute], float]:
    """A plan of many items of one rate, and what any plan costs at least.

    Every item costs its part of the cheapest stages that are in time at least: that is the bound.
    Ways are few shared stages at which items' parts and a part of a vGPU of every stage cost least,
    opened one by one, and few alignment stages before each of them, chosen alike.
    """
    parts = field.parts()
    bound = float(parts.min(axis=0).sum())
    ways: set[SeatRoute] = set()
    for weight in _WEIGHTS:
        roots, lowest = _opened(parts, weight * field.root_price)
        for root in roots:
            able = parts[root] <= lowest * (1 + _NEARLY)
            for block in np.unique(field.block[able]).tolist():
                ways |= _ways(field, root, np.flatnonzero(able & (field.block == block)), weight)
    limits = Limits(
        relative_gap=_CLOSE, nodes=_NODES, seconds=watch.left_s(), enough=-bound * (1 + _ENOUGH)
    )
    return seated(field, ways, limits)[0], bound


def _opened(cost: Floats, fixed: Floats) -> tuple[list[int], Floats]:
    """Rows that are opened one by one while that pays, and what every column then costs least.

    Args:
        cost: [rows, columns]; infinite where the row does not serve the column.
        fixed: [rows] of an open one.
    """
    far = 1e3 * float(cost[np.isfinite(cost)].max(initial=1.0))
    cost = np.minimum(cost, far)
    lowest = np.full(cost.shape[1], far)
    chosen: list[int] = []
    while True:
        gain = np.maximum(lowest - cost, 0.0).sum(axis=1) - fixed
        best = int(gain.argmax())
        if gain[best] <= 0:
            return chosen, lowest
        chosen.append(best)
        np.minimum(lowest, cost[best], out=lowest)


def _ways(field: GroupingProblem, root: int, items: Ints, weight: float) -> set[SeatRoute]:
    """Ways of a root for items of one start."""
    block, junction = int(field.block[items[0]]), int(field.root_junction[root])
    if block == junction:
        return {SeatRoute(root, block, -1)}
    options = field.table.options(block, junction, int(field.root_kind[root]))
    together = float(field.rate[items].sum())
    part = options.price * np.maximum(options.work, 1 / together) * field.rate[0]
    left = field.limit[items] - field.root_time[root]
    cost = np.where(options.time_us[:, None] <= left, part[:, None], np.inf)
    rows, _ = _opened(cost, weight * options.price)
    return {SeatRoute(root, block, row) for row in rows}
