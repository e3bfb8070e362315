"""Which way every entry takes, of those that are given, by seats.

Seats are given out afterwards, so that a plan is a few whole numbers. A way is a shared
stage s and how entries of a start come to it: directly, or by an alignment stage a. It has seats,
and takes as long as both stages, tau. An entry may take a seat where tau is in its limit; limits
and times are sorted, so the seats go round if for every limit there are as many seats in time as
entries that need one (Hall):

    minimise    sum_s price_s n_s + sum_w price_w m_w       n_s, m_w vGPUs, x_w seats, all whole
    stage_s:    sum over ways w of s of x_w <= c_s n_s      c: seats of a vGPU
    way_w:      x_w <= c_w m_w                              where it has an alignment stage
    cover_pi:   r_p(i-1) + sum over w of p in time from i on of x_w - r_pi >= entries

The entries are those from limit i up to the next; r_pi are seats left for larger limits. Entries of
several rates have seats of their own for each rate, and take so much more of a vGPU.

Here: the best plan of ways that are given; ways for many entries. Not here: those of a proof
(`pooling`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.options import Options
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

_WEIGHTS = (0.01, 0.03, 0.05, 0.125, 0.25, 0.5)  # of a vGPU that is spare, in the choice of ways
_NEARLY = 0.05  # above the least, where items still count for a way

Key = tuple[int, int, int, int]  # first block, last block, size, batch


class SeatRoute(NamedTuple):
    """A root (`GroupingProblem`), the start block of entries, and the row of their alignment stage.

    -1: they board directly.
    """

    root: int
    start: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stage that an item passes.

    Attributes:
        key: what it is.
        part: number of those that must share a pool at least: a shared stage, a joined alignment
            stage.
        price, work: of a vGPU; vGPUs per sample/s. Stages of other waits, which need others, are
            other pools.
        time_us: of a budget that the stage takes.
    """

    key: Key
    part: int
    price: float
    work: float
    time_us: float

    @property
    def batch(self) -> int:
        """Requests of a full batch."""
        return self.key[3]


def steps_of(
    field: GroupingProblem, way: SeatRoute, root: int = 0, part: int = 0
) -> tuple[Step, ...]:
    """The stages of a way, with the parts of its shared stage and its alignment stage."""
    junction = int(field.root_junction[way.root])
    row = way.root - int(field.root_start[junction])
    blocks = junction, field.table.blocks
    last = _step(field.table.options(*blocks), blocks, row, root)
    if way.row < 0:
        return (last,)
    options = field.aligning(way.start, way.root)
    return _step(options, (way.start, junction), way.row, part), last


def _step(options: Options, blocks: tuple[int, int], row: int, part: int) -> Step:
    """The stage of these blocks by an option."""
    return Step(
        key=(*blocks, int(options.size[row]), int(options.batch[row])),
        part=part,
        price=float(options.price[row]),
        work=float(options.work[row]),
        time_us=float(options.time_us[row]),
    )


def seated(
    field: GroupingProblem,
    ways: Collection[SeatRoute],
    limits: Limits,
) -> tuple[list[SeatRoute], float]:
    """The cheapest plan found that has these ways: the way of every item; none where none was.

    And what any plan of these ways costs at least that is below the cutoff.

    Args:
        field: the items.
        ways: different ones.
        limits: of the solver; scores are costs below 0.
    """
    order = sorted(ways)
    steps = [steps_of(field, way) for way in order]
    time = np.array([math.fsum(step.time_us for step in own) for own in steps])
    classes = alike(field)
    starts = field.block[[items[0] for items in classes]]
    way, of = np.nonzero(np.array([w.start for w in order])[:, None] == starts)
    build = ProgramBuilder()
    seats = build.variables("seats", len(way), upper=float(len(field.items)), whole=True)
    rates = field.rate[[items[0] for items in classes]][of]
    _stages(build, field, [steps[n][-1] for n in way.tolist()], seats, rates)
    able = np.array([len(steps[n]) > 1 for n in way.tolist()], dtype=np.bool_)
    _stages(build, field, [steps[n][0] for n in way[able].tolist()], seats[able], rates[able])
    for number, items in enumerate(classes):
        mine = np.flatnonzero(of == number)
        if not _cover(build, field.limit[items], time[way[mine]], seats[mine]):
            return [], math.inf
    answer = solve_integer(build.build(), limits)
    if answer.values is None:
        return [], -answer.bound
    given, taken = np.rint(answer.values[seats]).astype(np.int64), np.zeros_like(field.block)
    for number, items in enumerate(classes):
        mine = np.flatnonzero(of == number)
        mine = mine[np.argsort(time[way[mine]], kind="stable")]
        taken[items] = np.repeat(way[mine], given[mine])[: len(items)]
    return [order[n] for n in taken.tolist()], -answer.bound


def alike(field: GroupingProblem) -> list[Ints]:
    """Items of one start and one rate, by rising limit: those take the seats of the least times."""
    order = np.lexsort((field.limit, field.rate, field.block))
    key = np.column_stack([field.block, field.rate])[order]
    return np.split(order, np.flatnonzero((key[1:] != key[:-1]).any(axis=1)) + 1)


def _stages(
    build: ProgramBuilder,
    field: GroupingProblem,
    steps: Sequence[Step],
    seats: Ints,
    rates: Floats,
) -> None:
    """VGPUs of stages, no more than all items need, and one for each; equal stages are one."""
    stages = {(step.key, step.work): step for step in steps}
    number = {known: n for n, known in enumerate(stages)}
    price = np.array([step.price for step in stages.values()])
    work = np.array([step.work for step in stages.values()])
    most = np.maximum(len(field.items), np.ceil(field.rate.sum() * work))
    most = np.minimum(most, field.table.most)
    vgpus = build.variables("vgpus", len(price), cost=-price, upper=most, whole=True)
    rows, unit = build.rows("stage", len(price), upper=0.0), float(field.rate.max())
    at = [number[step.key, step.work] for step in steps]
    build.entries(rows[at], seats, rates / unit)
    build.entries(rows, vgpus, -(1 + ROUNDING) / (unit * work))


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


# Many entries


def opened_ways(field: GroupingProblem, watch: Watch) -> set[SeatRoute]:
    """Ways for many items; few or none where the time is over.

    These are few shared stages at which items' parts and a part of a vGPU of every stage cost
    least, opened one by one, and few alignment stages before each of them, chosen alike.
    """
    parts = field.parts()
    ways: set[SeatRoute] = set()
    for weight in _WEIGHTS:
        if watch.over():
            break
        roots, lowest = _opened(parts, weight * field.root_price)
        for root in roots:
            able = parts[root] <= lowest * (1 + _NEARLY)
            for block in np.unique(field.block[able]).tolist():
                ways |= _ways(field, root, np.flatnonzero(able & (field.block == block)), weight)
    return ways


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
    gain = np.maximum(lowest - cost, 0.0).sum(axis=1) - fixed
    known = np.ones(len(gain), dtype=np.bool_)  # gains only fall, so that an older one is a bound
    while True:
        best = int(gain.argmax())
        if gain[best] <= 0:
            return chosen, lowest
        if known[best]:
            chosen.append(best)
            np.minimum(lowest, cost[best], out=lowest)
            known[:] = False
        gain[best] = np.maximum(lowest - cost[best], 0.0).sum() - fixed[best]
        known[best] = True


def _ways(field: GroupingProblem, root: int, items: Ints, weight: float) -> set[SeatRoute]:
    """Ways of a root for items of one start."""
    block, junction = int(field.block[items[0]]), int(field.root_junction[root])
    if block == junction:
        return {SeatRoute(root, block, -1)}
    options = field.aligning(block, root)
    together = float(field.rate[items].sum())
    part = options.price * np.maximum(options.work, 1 / together)
    left = field.limit[items] - field.root_time[root]
    cost = np.where(options.time_us[:, None] <= left, part[:, None] * field.rate[items], np.inf)
    rows, _ = _opened(cost, weight * options.price)
    return {SeatRoute(root, block, row) for row in rows}
