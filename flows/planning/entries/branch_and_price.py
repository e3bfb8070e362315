"""Groups of entries of one rate, alignment stages shared or not, by branch and price.

A group has a shared stage s of blocks [J, M). Its entries that start at J board; those of a start p
< J are cut into bundles, each with an alignment stage of its own:

    minimise    sum_g cost_g z_g                            z_g in {0, 1}, groups g
    cover_e:    sum over g with e of z_g >= 1               (dual pi_e)
    once_s:     sum over g on s of z_g <= 1                 two groups on one stage are one

Pricing is exact. Where rates are equal, a shared stage costs by how many it carries, and of the
entries of a start that are chosen neighbours by limit share a bundle (exchange two members: no
bundle's least limit falls). So for every s the largest sum of duals less bundles of k entries is a
dynamic program over entries by falling limit:

    best[k, o] of k entries taken, the last o of them in an open bundle

A bundle is paid for when it closes, at the time that its tightest entry has left beside s. The
starts' sums are added over all ways to divide k. L(pi) = sum pi + sum_s min(0, least reduced cost
of s) bounds every plan, and L(pi) + (reduced cost of s) every plan that uses s: stages that no
better plan can use are dropped, and so are ways to come to a stage. So does f sum pi, with f so
small that no group has a negative reduced cost (Farley). An entry that has a longer limit can have
the seat of another one of its start, so duals fall with limits. Plans are made of groups, seats
passed on in the same way, then of ways in a few whole numbers (`seats`), which is a proof where no
way is missing. Then, for few items, branches: an entry's shared stage comes before another one or
not, in the order of junctions and times.

Here: pricing, the relaxation, the tree. Not here: groups in which entries of a start never share
(`partition`).
"""

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.planning.entries.groups import Field, Group
from flows.planning.entries.seats import Way, one_rate, seated
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import Covering, Limits, solve_integer
from flows.planning.watch import Watch
from triton_backend.contract.errors import InvariantError
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

MOST_ITEMS = 60
MOST_PROVEN = 25  # items for which there is a tree
_FRESH = 40  # columns of a round
_ROUNDS = 300
_TINY = 1e-7
_GROUPS, _GROUP_NODES = 150, 50  # of which a plan is made, and nodes
_GROUP_GAP = 2e-3  # of that program, as of the relaxation (`_CLOSE`)
_MIP_NODES = 200  # to prove
_STEPS_BY_SEATS = 200  # times the bound: limit of a plan of many items by programs of seats
_CLOSE = 2e-3  # of the relaxation of many items, where it ends
_WAYS = ((45, 200), (100, 50))  # of which a plan is made, and nodes
_MOST_WAYS = 1_000  # of all plans up to a cost, to prove that there is none, or to find one
_LOOK = 200  # stages that are priced between two times that all are
_ROUND_EVERY = 16  # nodes

Mask = NDArray[np.bool_]


class Arrays(NamedTuple):
    """Arrays of a `Pricing`, for kernels. Items are ordered by start, then by falling limit.

    limit         [items]
    first         [starts + 1] the first item of each start
    block         [starts]
    junction, time, kind    [stages]
    cost          [stages, items + 1] of so many entries
    curve         [starts, blocks, kinds, 2] where options begin in `option_time`, and number
    option_time   rising within a curve
    lowest_from   [starts, blocks, kinds] where a curve's costs begin in `lowest`
    lowest        by number of entries, then by how many options are in time: the least cost
    part          [stages, items] the least an entry pays for its alignment stage, shared or not
    others        [starts, items] whether an item is of another start
    """

    limit: Any
    first: Any
    block: Any
    junction: Any
    time: Any
    kind: Any
    cost: Any
    curve: Any
    option_time: Any
    lowest_from: Any
    lowest: Any
    part: Any
    others: Any


class Room(NamedTuple):
    """Where kernels work.

    Best [items + 1 of them, items + 1, items + 1], sums [starts + 1, items + 1] twice.
    """

    best: Any
    own: Any
    total: Any


@kernel
def _in_time(curve: Any, times: Any, left: float) -> int:
    """How many options of a curve take no longer than what is left."""
    low, high = curve[0], curve[0] + curve[1]
    while low < high:
        middle = (low + high) // 2
        if times[middle] <= left:
            low = middle + 1
        else:
            high = middle
    return low - curve[0]


@kernel
def _take(taken: int, pi: float, best: Floats, lowest: Floats, at: int, width: int) -> None:
    """One entry more: not taken, in the open bundle, or the one that closes it.

    Up to `taken` before it.
    """
    for k in range(taken, -1, -1):
        closed = -np.inf
        for o in range(k + 1):
            value = best[k, o] + pi
            best[k + 1, o + 1] = max(best[k + 1, o + 1], value)
            closed = max(closed, value - lowest[at + (o + 1) * width])
        best[k + 1, 0] = max(best[k + 1, 0], closed)


@kernel
def _bundled(
    start: int,
    stage: int,
    pi: Floats,
    allowed: Mask,
    most: int,
    arrays: Arrays,
    room: Room,
    keep: int,
) -> int:
    """Fill in the largest gain of every number of entries, up to `most`, that align.

    Returns the largest number. `room.best[step, k, o]`; without `keep` every step is step 0.
    """
    junction, kind = arrays.junction[stage], arrays.kind[stage]
    first, end = arrays.first[start], arrays.first[start + 1]
    curve = arrays.curve[start, junction, kind]
    base, width = arrays.lowest_from[start, junction, kind], curve[1] + 1
    taken = 0
    best = room.best[0]
    best[0, 0] = 0.0
    for item in range(first, end):
        if keep > 0:
            after = room.best[item - first + 1]
            for k in range(taken + 1):
                for o in range(k + 1):
                    after[k, o] = best[k, o]
            best = after
        left = arrays.limit[item] - arrays.time[stage]
        options = _in_time(curve, arrays.option_time, left)
        if left >= 0 and allowed[item] and options > 0:
            if taken < most:
                taken += 1
                for o in range(taken + 1):
                    best[taken, o] = -np.inf
            _take(taken - 1, pi[item], best, arrays.lowest, base + options, width)
    for k in range(taken + 1):
        room.own[start, k] = best[k, 0]
    return taken


@kernel
def _boarding(start: int, stage: int, pi: Floats, allowed: Mask, arrays: Arrays, room: Room) -> int:
    """Fill in the largest gain of every number of entries that board directly.

    Returns the most of them.
    """
    own, taken = room.own[start], 0
    own[0] = 0.0
    for item in range(arrays.first[start], arrays.first[start + 1]):
        if arrays.limit[item] < arrays.time[stage] or not allowed[item]:
            continue
        at = taken
        while at > 0 and own[at] < pi[item]:
            own[at + 1] = own[at]
            at -= 1
        own[at + 1] = pi[item]
        taken += 1
    for k in range(taken):
        own[k + 1] += own[k]
    return taken


@kernel
def _gains(stage: int, pi: Floats, allowed: Mask, limit: int, arrays: Arrays, room: Room) -> int:
    """Fill in `room.total[starts, k]`, the largest gain of k entries, up to `limit`.

    Returns the most of them.
    """
    starts, most = len(arrays.block), 0
    for k in range(room.total.shape[1]):
        room.total[0, k] = -np.inf
    room.total[0, 0] = 0.0
    for start in range(starts):
        taken = 0
        room.own[start, 0] = 0.0
        if arrays.block[start] == arrays.junction[stage]:
            taken = min(_boarding(start, stage, pi, allowed, arrays, room), limit)
        elif arrays.block[start] < arrays.junction[stage]:
            taken = _bundled(start, stage, pi, allowed, limit, arrays, room, 0)
        for k in range(taken + 1, room.own.shape[1]):
            room.own[start, k] = -np.inf
        for k in range(room.total.shape[1]):
            room.total[start + 1, k] = -np.inf
        for a in range(most + 1):
            for b in range(min(taken, limit - a) + 1):
                gain = room.total[start, a] + room.own[start, b]
                room.total[start + 1, a + b] = max(room.total[start + 1, a + b], gain)
        most = min(most + taken, limit)
    return most


@kernel
def _at_least(
    stage: int, pi: Floats, allowed: Mask, below: float, arrays: Arrays, gains: Floats
) -> tuple[float, int, float]:
    """No group on a stage has a lower reduced cost.

    Every entry pays its part of an alignment stage only. Also from how many entries on no group is
    below `below`, and what those larger ones have at least.
    """
    taken = 0
    for item in range(len(pi) - 1, -1, -1):  # those of the least limits gain most
        gain = pi[item] - arrays.part[stage, item]
        if allowed[item] and gain > 0:
            at = taken
            while at > 0 and gains[at - 1] < gain:
                gains[at] = gains[at - 1]
                at -= 1
            gains[at] = gain
            taken += 1
    least, total = arrays.cost[stage, 1], 0.0
    largest, beyond = 0, np.inf
    for k in range(len(pi)):
        total += gains[k] if k < taken else 0.0
        bound = arrays.cost[stage, k + 1] - total
        least, beyond = min(least, bound), min(beyond, bound)
        if bound < below:
            largest, beyond = k + 1, np.inf
    return least, largest, beyond


@kernel_entry
def price(
    stages: Ints,
    pi: Floats,
    allowed: Mask,
    below: float,
    arrays: Arrays,
    room: Room,
    least: Floats,
    size: Ints,
) -> None:
    """Fill in the least reduced cost of a group on each of some stages, and its size.

    Where that is `below` or more for sure, it is only bounded from below, and the number is 0.
    """
    starts = len(arrays.block)
    for at in range(len(stages)):
        stage = stages[at]
        own = allowed[stage]
        least[at], largest, beyond = _at_least(stage, pi, own, below, arrays, room.own[0])
        size[at] = 0
        if least[at] >= below:
            continue
        if len(pi) <= MOST_PROVEN:  # the tree drops stages by what their groups have beyond `below`
            largest, beyond = len(pi), np.inf
        most = _gains(stage, pi, own, largest, arrays, room)
        least[at] = beyond
        for k in range(1, most + 1):
            reduced = arrays.cost[stage, k] - room.total[starts, k]
            if reduced < least[at]:
                least[at], size[at] = reduced, k


@kernel_entry
def members(
    stage: int, size: int, pi: Floats, allowed: Mask, arrays: Arrays, room: Room, chosen: Mask
) -> float:
    """Fill in who is in the best group of so many entries on a stage; returns its gain."""
    for item in range(len(chosen)):
        chosen[item] = False
    starts = len(arrays.block)
    most = _gains(stage, pi, allowed, size, arrays, room)
    if size > most:
        return -np.inf
    gain, left = room.total[starts, size], size
    for start in range(starts - 1, -1, -1):
        part = 0
        for b in range(left + 1):
            if room.total[start, left - b] + room.own[start, b] == room.total[start + 1, left]:
                part = b
        if part > 0 and arrays.block[start] == arrays.junction[stage]:
            _board(start, part, stage, pi, allowed, arrays, chosen)
        elif part > 0:
            _bundled(start, stage, pi, allowed, size, arrays, room, 1)
            _unfold(start, part, stage, pi, allowed, arrays, room, chosen)
        left -= part
    return gain


@kernel
def _board(
    start: int, part: int, stage: int, pi: Floats, allowed: Mask, arrays: Arrays, chosen: Mask
) -> None:
    for _ in range(part):
        best = -1
        for item in range(arrays.first[start], arrays.first[start + 1]):
            if chosen[item] or not allowed[item] or arrays.limit[item] < arrays.time[stage]:
                continue
            if best < 0 or pi[item] > pi[best]:
                best = item
        chosen[best] = True


@kernel
def _unfold(
    start: int,
    part: int,
    stage: int,
    pi: Floats,
    allowed: Mask,
    arrays: Arrays,
    room: Room,
    chosen: Mask,
) -> None:
    """Mark the entries of the best bundles of a start, from the last step of `_bundled` back."""
    junction, kind = arrays.junction[stage], arrays.kind[stage]
    curve = arrays.curve[start, junction, kind]
    base, width = arrays.lowest_from[start, junction, kind], curve[1] + 1
    first = arrays.first[start]
    k, o = part, 0
    for item in range(arrays.first[start + 1] - 1, first - 1, -1):
        if k == 0:
            break
        after, before = room.best[item - first + 1], room.best[item - first]
        reached = 0  # entries that could be taken before this one
        for other in range(first, item):
            left = arrays.limit[other] - arrays.time[stage]
            if left >= 0 and allowed[other] and _in_time(curve, arrays.option_time, left) > 0:
                reached += 1
        if k <= reached and before[k, o] == after[k, o]:
            continue
        chosen[item] = True
        if o > 0:
            o -= 1
        else:
            options = _in_time(curve, arrays.option_time, arrays.limit[item] - arrays.time[stage])
            for open_ in range(k):
                value = before[k - 1, open_] + pi[item]
                value -= arrays.lowest[base + (open_ + 1) * width + options]
                if value == after[k, 0]:
                    o = open_
                    break
        k -= 1


@kernel_entry
def cut(
    start: int, stage: int, chosen: Ints, arrays: Arrays, best: Floats, before: Ints, row: Ints
) -> None:
    """Fill in how entries of a start share alignment stages at the least cost.

    Args:
        start: all that are chosen have it.
        stage: the shared stage.
        chosen: entries by falling limit.
        arrays: of the pricing.
        best: [entries + 1] room.
        before: [entries + 1] how many come before the bundle that ends with this one.
        row: [entries + 1] how many options are in time for the bundle that ends with this one.
    """
    junction, kind = arrays.junction[stage], arrays.kind[stage]
    curve = arrays.curve[start, junction, kind]
    base, width = arrays.lowest_from[start, junction, kind], curve[1] + 1
    best[0] = 0.0
    for b in range(1, len(chosen) + 1):
        left = arrays.limit[chosen[b - 1]] - arrays.time[stage]
        row[b] = _in_time(curve, arrays.option_time, left)
        best[b] = np.inf
        for a in range(b):
            value = best[a] + arrays.lowest[base + (b - a) * width + row[b]]
            if value < best[b]:
                best[b], before[b] = value, a


@kernel
def _take_with(
    taken: int,
    pi: float,
    best: Floats,
    lowest: Floats,
    at: int,
    width: int,
    own: Floats,
    far: float,
) -> None:
    """`_take` with a second layer of `best`, [2, k, o]: some bundle is paid by `own` [number].

    `far` is infinite where the entry is too late for that.
    """
    for k in range(taken, -1, -1):
        closed, by_own = -np.inf, -np.inf
        for o in range(k + 1):
            without, having = best[0, k, o] + pi, best[1, k, o] + pi
            best[0, k + 1, o + 1] = max(best[0, k + 1, o + 1], without)
            best[1, k + 1, o + 1] = max(best[1, k + 1, o + 1], having)
            cost = lowest[at + (o + 1) * width]
            closed = max(closed, without - cost)
            by_own = max(by_own, having - cost, without - own[o + 1] - far)
        best[0, k + 1, 0] = max(best[0, k + 1, 0], closed)
        best[1, k + 1, 0] = max(best[1, k + 1, 0], by_own)


@kernel
def _no_dearer(one: Floats, other: Floats, most: int) -> bool:
    """True if up to so many entries cost no more by one option than by another."""
    for k in range(1, most + 1):  # noqa: SIM110 - compiled
        if one[k] > other[k]:
            return False
    return True


@kernel_entry
def rows_needed(start: int, stage: int, own: Floats, arrays: Arrays, kept: Ints) -> int:
    """Fill in options of a start's alignment stages that no other one replaces beside a stage.

    How many they are. What counts of an option's time is who is in time with it, and of its costs
    those of so many entries.

    Args:
        start: of the alignment stages.
        stage: the shared stage.
        own: [options, items + 1] what so many entries cost by each option, by rising time.
        arrays: of the pricing.
        kept: [options] filled in.
    """
    first, end = arrays.first[start], arrays.first[start + 1]
    curve = arrays.curve[start, arrays.junction[stage], arrays.kind[stage]]
    count, able = 0, end - first
    alike = 0  # the first one kept that as many are in time with
    for row in range(len(own)):
        last = arrays.time[stage] + arrays.option_time[curve[0] + row]
        while able > 0 and arrays.limit[first + able - 1] < last:
            able, alike = able - 1, count
        if able == 0:
            break
        beaten = False
        for n in range(count):
            if _no_dearer(own[kept[n]], own[row], able):
                beaten = True
                break
        if beaten:
            continue
        left = alike
        for n in range(alike, count):
            if not _no_dearer(own[row], own[kept[n]], able):
                kept[left] = kept[n]
                left += 1
        kept[left] = row
        count = left + 1
    return count


@kernel_entry
def price_options(
    stage: int,
    start: int,
    pi: Floats,
    rows: Ints,
    own: Floats,
    arrays: Arrays,
    room: Room,
    least: Floats,
) -> None:
    """Fill in the least reduced cost of a group on a stage with an alignment stage of a start.

    Args:
        stage: the shared stage.
        start: of the alignment stage.
        pi: duals of the items.
        rows: numbers of the options.
        own: [options, items + 1] what so many entries cost by each option of the curve.
        arrays: of the pricing.
        room: to work.
        least: [rows] filled in.
    """
    most = _gains(stage, pi, arrays.others[start], len(pi), arrays, room)
    others, best = room.total[len(arrays.block)], room.best
    junction, kind = arrays.junction[stage], arrays.kind[stage]
    curve = arrays.curve[start, junction, kind]
    base, width = arrays.lowest_from[start, junction, kind], curve[1] + 1
    for at_row in range(len(rows)):
        option = rows[at_row]
        least[at_row] = np.inf
        best[0, 0, 0], best[1, 0, 0], taken = 0.0, -np.inf, 0
        for item in range(arrays.first[start], arrays.first[start + 1]):
            left = arrays.limit[item] - arrays.time[stage]
            options = _in_time(curve, arrays.option_time, left)
            if left < 0 or options == 0:
                break
            for o in range(taken + 2):
                best[0, taken + 1, o], best[1, taken + 1, o] = -np.inf, -np.inf
            far = np.inf if option >= options else 0.0
            line = base + options
            _take_with(taken, pi[item], best, arrays.lowest, line, width, own[option], far)
            taken += 1
        for k in range(1, taken + 1):
            for other in range(most + 1):
                reduced = arrays.cost[stage, k + other] - best[1, k, 0] - others[other]
                least[at_row] = min(least[at_row], reduced)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A group: its stage, its items in the order of `Arrays`, its cost."""

    stage: int
    items: tuple[int, ...]
    cost: float


@dataclass(slots=True)
class Proven:
    """Groups whose entries of a start share alignment stages, and a bound on such plans."""

    groups: list[Group]
    value: float
    bound: float
    columns: int
    nodes: int


class Pricing:
    """Reduced costs of groups on every shared stage of a field whose items have one rate."""

    def __init__(self, items: Field) -> None:
        table = items.table
        self.field = items
        count, rate = len(items.items), float(items.rate[0])
        self.order = np.lexsort((-items.limit, items.block))
        block, first = np.unique(items.block[self.order], return_index=True)
        numbers = np.arange(count + 1)
        vgpus = np.ceil(np.outer(items.root_work, numbers) * rate * (1 - 1e-9))
        vgpus = np.maximum(1.0, vgpus)
        cost = np.where(vgpus > table.most, np.inf, items.root_price[:, None] * vgpus)
        kinds = len(table.kinds())
        curve = np.zeros((len(block), table.blocks, kinds, 2), dtype=np.int64)
        lowest_from = np.zeros((len(block), table.blocks, kinds), dtype=np.int64)
        times: list[Floats] = []
        lowest: list[Floats] = []
        options_at = lowest_at = 0
        for start, own in enumerate(block.tolist()):
            for junction in range(own + 1, table.blocks) if table.chains else ():
                for kind in range(kinds):
                    options = table.options(own, junction, kind)
                    costs = np.full((count + 1, len(options) + 1), np.inf)
                    link = table.kinds()[kind][1][junction]
                    for k in numbers[1:].tolist() if len(options) and rate <= link else ():
                        costs[k, 1:] = np.minimum.accumulate(options.cost(k * rate, table.most))
                    curve[start, junction, kind] = options_at, len(options)
                    lowest_from[start, junction, kind] = lowest_at
                    times.append(options.time_us)
                    lowest.append(costs.ravel())
                    options_at += len(options)
                    lowest_at += costs.size
        self.arrays = Arrays(
            limit=items.limit[self.order],
            first=np.append(first, count).astype(np.int64),
            block=block.astype(np.int64),
            junction=items.root_junction,
            time=items.root_time,
            kind=items.root_kind,
            cost=cost,
            curve=curve,
            option_time=np.concatenate(times) if times else np.zeros(0),
            lowest_from=lowest_from,
            lowest=np.concatenate(lowest) if lowest else np.zeros(0),
            part=items.parts_beside()[:, self.order],
            others=block[:, None] != items.block[self.order],
        )
        self.room = Room(
            best=np.zeros((count + 1, count + 2, count + 2)),
            own=np.zeros((len(block), count + 2)),
            total=np.zeros((len(block) + 1, count + 2)),
        )
        own = np.searchsorted(first, numbers[:-1], "right")
        self.neighbours = np.flatnonzero(
            own[1:] == own[:-1]
        )  # of which the next one has the start, too
        self._rows: dict[tuple[int, int, int, int, int], int] = {}
        self.stages = self._needed()

    def _needed(self) -> Ints:
        """Stages that some number of entries makes cheaper than every faster one of their kind."""
        arrays, kept = self.arrays, list[int]()
        lowest: dict[tuple[int, int], Floats] = {}
        last = float(arrays.limit.max())
        for stage in range(len(arrays.time)):
            key = (int(arrays.junction[stage]), int(arrays.kind[stage]))
            cost = arrays.cost[stage, 1:]
            known = lowest.setdefault(key, np.full(len(cost), np.inf))
            if arrays.time[stage] <= last and (cost < known - 1e-9).any():
                np.minimum(known, cost, out=known)
                kept.append(stage)
        return np.array(kept, dtype=np.int64)

    def everywhere(self) -> Mask:
        """[stages, items] every item on every stage."""
        return np.ones((len(self.arrays.time), len(self.arrays.limit)), dtype=np.bool_)

    def least(
        self, stages: Ints, pi: Floats, allowed: Mask, below: float = math.inf
    ) -> tuple[Floats, Ints]:
        """The least reduced cost on each of some stages, and the size of that group.

        From `below` on a bound.
        """
        least, size = np.zeros(len(stages)), np.zeros(len(stages), dtype=np.int64)
        price(stages, pi, allowed, below, self.arrays, self.room, least, size)
        return least, size

    def near(self, stages: Ints, pi: Floats, allowed: Mask) -> tuple[Floats, Ints]:
        """The same on the stages that look best only; what the others have at least."""
        least, size = self.least(stages, pi, allowed, -math.inf)
        look = np.argsort(least, kind="stable")[:_LOOK]
        least[look], size[look] = self.least(stages[look], pi, allowed, 0.0)
        return least, size

    def bound(self, stages: Ints, pi: Floats, least: Floats) -> tuple[float, float, Floats]:
        """A bound by a part of duals; that part, and the least reduced costs at it.

        Either the stages' negative reduced costs are added to all duals, or so small a part of
        these is taken that no group, which costs a vGPU at least, has one (Farley): where hundreds
        of stages are nearly alike that is far higher.
        """
        whole, one = float(pi.sum()), self.arrays.cost[stages, 1]
        added = whole + float(np.minimum(least, 0.0).sum())
        part = float((one / (one - np.minimum(least, 0.0))).min(initial=1.0))
        if part * whole <= added:
            return added, 1.0, least
        return part * whole, part, one * (1 - part) + part * least

    def fluid(self) -> Floats:
        """Duals that no group's cost is below: of every item the least of its parts of stages."""
        arrays, whole = self.arrays, len(self.order)
        unit = arrays.cost[:, 1:] / np.arange(1, whole + 1)
        return (unit.min(axis=1)[:, None] + arrays.part).min(axis=0)

    def ways(self, columns: Iterable[_Column]) -> set[Way]:
        """How items of groups come to their stages."""
        found: set[Way] = set()
        for column in columns:
            items = np.array(column.items, dtype=np.int64)
            own = np.searchsorted(self.arrays.first, items, "right") - 1
            for start in np.unique(own).tolist():
                found |= self._ways(column.stage, start, items[own == start])
        return found

    def ways_within(self, stages: Ints, pi: Floats, slack: float) -> dict[Way, float] | None:
        """Ways of groups with a reduced cost of at most `slack`, with the least; None: too many."""
        found: dict[Way, float] = {}
        count, arrays = len(self.order), self.arrays
        own: dict[tuple[int, int, int], Floats] = {}
        for stage in stages.tolist():
            junction, kind = int(arrays.junction[stage]), int(arrays.kind[stage])
            for start, block in enumerate(arrays.block.tolist()):
                if block == junction:
                    found[Way(stage, block, -1)] = -math.inf
                link = self.field.table.kinds()[kind][1][junction]
                if block >= junction or float(self.field.rate[0]) > link:
                    continue
                options = self.field.table.options(block, junction, kind)
                key = (start, junction, kind)
                if key not in own:
                    rates = float(self.field.rate[0]) * np.arange(count + 1)
                    own[key] = np.array([options.cost(rate) for rate in rates]).T.copy()
                rows = np.zeros(len(options), dtype=np.int64)
                rows = rows[: rows_needed(start, stage, own[key], arrays, rows)]
                least = np.zeros(len(rows))
                price_options(stage, start, pi, rows, own[key], arrays, self.room, least)
                useful = np.flatnonzero(least <= slack)
                found |= {Way(stage, block, int(rows[n])): float(least[n]) for n in useful}
            if len(found) > 5 * _MOST_WAYS:
                return None
        return found

    def _ways(self, stage: int, start: int, chosen: Ints) -> set[Way]:
        block, junction = int(self.arrays.block[start]), int(self.arrays.junction[stage])
        if block == junction:
            return {Way(stage, block, -1)}
        best = np.zeros(len(chosen) + 1)
        before, row = np.zeros((2, len(chosen) + 1), dtype=np.int64)
        cut(start, stage, chosen, self.arrays, best, before, row)
        options = self.field.table.options(block, junction, int(self.arrays.kind[stage]))
        found: set[Way] = set()
        end = len(chosen)
        while end:
            first = int(before[end])
            key = (start, junction, int(self.arrays.kind[stage]), end - first, int(row[end]))
            if key not in self._rows:
                cost = options.cost((end - first) * float(self.field.rate[0]))
                self._rows[key] = int(cost[: key[-1]].argmin())
            found.add(Way(stage, block, self._rows[key]))
            end = first
        return found

    def column(self, stage: int, size: int, pi: Floats, allowed: Mask) -> _Column:
        """The best group of a size on a stage."""
        chosen = np.zeros(len(pi), dtype=np.bool_)
        members(stage, size, pi, allowed[stage], self.arrays, self.room, chosen)
        return self.made(stage, np.flatnonzero(chosen))

    def made(self, stage: int, items: Sequence[int] | Ints) -> _Column:
        """The group of given items on a stage; its cost is infinite where it cannot be."""
        chosen, again = np.zeros((2, len(self.order)), dtype=np.bool_)
        chosen[items] = True
        nothing = np.zeros(len(self.order))
        beside = members(stage, len(items), nothing, chosen, self.arrays, self.room, again)
        cost = float(self.arrays.cost[stage, len(items)] - beside)
        return _Column(stage=stage, items=tuple(int(i) for i in items), cost=cost)

    def moved(self, columns: Sequence[_Column]) -> list[_Column]:
        """Groups in which entries take seats of others of their start with shorter limits."""
        seats = [(item, number) for number, column in enumerate(columns) for item in column.items]
        seats.sort(reverse=True)  # the shortest limits of each start first
        own: list[list[int]] = [[] for _ in columns]
        ends = self.arrays.first[:0:-1].tolist()
        at = 0
        for end, first in zip(ends, self.arrays.first[-2::-1].tolist(), strict=True):
            for item in range(end - 1, first - 1, -1):
                if at == len(seats) or seats[at][0] < item:
                    return []
                own[seats[at][1]].append(item)
                at += 1
            while at < len(seats) and seats[at][0] >= first:
                at += 1
        return [
            self.made(column.stage, sorted(items))
            for column, items in zip(columns, own, strict=True)
            if items
        ]

    def group(self, column: _Column) -> Group:
        """As the rest of the planner knows it."""
        items = [int(self.order[i]) for i in column.items]
        return self.field.group(items, column.cost, column.stage)


class _Relaxation:
    """The master program over the groups that a node allows, with `once` rows for some stages."""

    def __init__(
        self, pricing: Pricing, stages: Ints, allowed: Mask, *, once: bool, dear: Floats
    ) -> None:
        self.pricing, self.stages, self.allowed = pricing, stages, allowed
        self.items = len(pricing.order)
        self._row = {int(s): self.items + n for n, s in enumerate(stages)} if once else {}
        self._usable = allowed & np.isin(np.arange(len(allowed)), stages)[:, None]
        demand = np.concatenate([np.ones(self.items), -np.ones(len(self._row))])
        self._demand = demand
        self._program = Covering(demand)
        self.cost = math.inf
        self._columns: list[_Column | None] = []
        self._known: set[tuple[int, tuple[int, ...]]] = set()
        every = np.arange(self.items)
        self._program.add(dear, every, every, np.ones(self.items))
        self._columns += [None] * self.items
        if not once:
            self._exchange()
        self.values = np.zeros(0)

    def _exchange(self) -> None:
        """Order of duals: an entry can sit where the next shorter limit of its start does.

        Without these duals move about between alike entries, and hundreds of rounds go by.
        """
        longer = self.pricing.neighbours
        if len(longer):
            rows = np.stack([longer, longer + 1], axis=1).ravel()
            self._program.add(
                np.zeros(len(longer)),
                2 * np.arange(len(longer)),
                rows,
                np.tile([1.0, -1.0], len(longer)),
            )
            self._columns += [None] * len(longer)

    def add(self, columns: Iterable[_Column]) -> list[_Column]:
        """Add groups that are new and allowed; which they are."""
        fresh: list[_Column] = []
        for column in columns:
            key = (column.stage, column.items)
            if key not in self._known and self._usable[column.stage, list(column.items)].all():
                self._known.add(key)
                fresh.append(column)
        if not fresh:
            return []
        rows = [[*c.items, *([self._row[c.stage]] if self._row else [])] for c in fresh]
        sizes = [len(own) for own in rows]
        self._program.add(
            np.array([c.cost for c in fresh]),
            np.cumsum([0, *sizes[:-1]]),
            np.concatenate(rows).astype(np.int64),
            np.concatenate([[1.0] * len(c.items) + [-1.0] * bool(self._row) for c in fresh]),
        )
        self._columns += fresh
        return fresh

    def solve(self) -> tuple[Floats, Floats]:
        """Duals of the items, and of the stages."""
        answer = self._program.solve()
        if answer is None:  # dear columns cover everything
            raise InvariantError("the relaxation of a branch has no solution")
        self.values, duals = answer
        self.cost = float(duals @ self._demand)
        mu = duals[self.items :] if self._row else np.zeros(len(self.stages))
        return duals[: self.items], mu

    def support(self) -> list[tuple[_Column, float]]:
        """Groups of the last solution with their values."""
        return [
            (column, float(value))
            for column, value in zip(self._columns, self.values, strict=False)
            if column is not None and value > _TINY
        ]

    def covered(self) -> bool:
        """True if groups serve everybody."""
        return float(self.values[: self.items].max(initial=0.0)) <= _TINY


@dataclass(slots=True)
class _Search:
    """Branch and price over the stages that a better plan may use.

    Attributes:
        value: of the best plan known, `best`.
        step: costs are multiples of it; 0: any.
        gap: at which a proof is one.
        most: any plan up to it is good enough, none above it is wanted.
    """

    pricing: Pricing
    watch: Watch
    step: float
    gap: float
    most: float | None = None
    value: float = math.inf
    best: list[_Column] = field(default_factory=list[_Column])
    pool: dict[tuple[int, tuple[int, ...]], _Column] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], _Column]
    )
    nodes: int = 0

    def raised(self, bound: float) -> float:
        """The next cost that a plan can have."""
        whole = self.step > 0 and math.isfinite(bound)
        return math.ceil(bound / self.step - 1e-6) * self.step if whole else bound

    def closed(self, bound: float) -> bool:
        """True if nothing better than the incumbent, or nothing wanted, is left above a bound."""
        if self.most is not None and (self.value <= self.most or self.raised(bound) > self.most):
            return True
        return self.value - self.raised(bound) <= self.gap * self.value

    def useful(self, bound: float, least: Floats) -> Mask:
        """Stages that a better plan may use, from a bound and its reduced costs."""
        with_one = bound + np.maximum(least, 0.0)
        if self.step:
            with_one = np.ceil(with_one / self.step - 1e-6) * self.step
        return self.value - with_one > self.gap * self.value

    def forget(self, bound: float, pi: Floats) -> None:
        """Groups that no better plan has, by a bound and its duals."""
        keys, columns = list(self.pool), list(self.pool.values())
        reduced = np.array([c.cost - pi[list(c.items)].sum() for c in columns])
        kept = self.useful(bound, reduced)
        self.pool = {k: c for k, c, own in zip(keys, columns, kept, strict=True) if own}

    def relax(
        self, relaxation: _Relaxation, start: Floats | None = None
    ) -> tuple[float, Floats, Ints]:
        """The bound of a node, its duals, and the stages that a better plan may use."""
        self.nodes += 1
        pricing, stages, allowed = self.pricing, relaxation.stages, relaxation.allowed
        relaxation.add(self.pool.values())
        highest, best = -math.inf, np.zeros(relaxation.items)
        if start is not None:
            best = start
        for turn in range(_ROUNDS):
            pi, mu = relaxation.solve()
            close = _CLOSE if relaxation.items > MOST_PROVEN else 0.0
            if relaxation.cost <= max(self.raised(highest), highest + close * relaxation.cost):
                break
            fresh: list[_Column] = []
            centre = turn > 0 or start is not None
            for look, duals in product(
                (pricing.near, partial(pricing.least, below=0.0)),
                ((best + pi) / 2, pi) if centre else (pi,),
            ):
                least, size = look(stages, duals, allowed)
                found = self._columns(relaxation, stages, (least, size), duals, mu)
                bound, part, least = pricing.bound(stages, duals, least)
                if bound > highest:
                    highest, best = bound, part * duals
                    stages = stages[self.useful(bound, least)]
                fresh = [c for c in found if self._reduced(relaxation, c, pi, mu) < -_TINY]
                fresh = relaxation.add(fresh)
                if fresh:
                    break
            self.pool |= {(c.stage, c.items): c for c in fresh}
            if not fresh or self.closed(highest) or self.watch.over():
                break
        return highest, best, stages

    def _columns(
        self,
        relaxation: _Relaxation,
        stages: Ints,
        priced: tuple[Floats, Ints],
        duals: Floats,
        mu: Floats,
    ) -> list[_Column]:
        least, size = priced
        score = least + mu[np.searchsorted(relaxation.stages, stages)]
        score[size == 0] = np.inf  # only bounded
        order = np.argsort(score, kind="stable")[:_FRESH]
        return [
            self.pricing.column(int(stages[n]), int(size[n]), duals, relaxation.allowed)
            for n in order.tolist()
            if score[n] < -_TINY
        ]

    def _reduced(self, relaxation: _Relaxation, column: _Column, pi: Floats, mu: Floats) -> float:
        at = int(np.searchsorted(relaxation.stages, column.stage))
        return column.cost - float(pi[list(column.items)].sum()) + float(mu[at])

    def take(self, columns: Sequence[_Column]) -> None:
        """A plan: groups of one stage are one, and everybody is served once."""
        by_stage: dict[int, list[int]] = {}
        taken: set[int] = set()
        for column in columns:
            mine = [i for i in column.items if i not in taken]
            taken |= set(mine)
            by_stage.setdefault(column.stage, []).extend(mine)
        if len(taken) < len(self.pricing.order):
            return
        groups = [self.pricing.made(s, sorted(items)) for s, items in by_stage.items() if items]
        value = math.fsum(g.cost for g in groups)
        if value < self.value - 1e-9:
            self.value, self.best = value, groups

    def round(self, bound: float, pi: Floats) -> None:
        """A plan of the groups of the least reduced costs."""
        columns = self._by_reduced(pi)[:_GROUPS]
        pairs = self.pricing.neighbours
        build = ProgramBuilder()
        cost = np.array([c.cost for c in columns])
        groups = build.variables("groups", len(columns), cost=-cost, upper=1.0, whole=True)
        count = len(self.pricing.order)
        cover = build.rows("cover", count, upper=-1.0)
        members = np.concatenate([np.array(c.items) for c in columns])
        build.entries(cover[members], np.repeat(groups, [len(c.items) for c in columns]), -1.0)
        moved = build.variables("moved", len(pairs), upper=float(count))
        build.entries(cover[pairs], moved, -1.0)
        build.entries(cover[pairs + 1], moved, 1.0)
        limits = self._limits(bound, _GROUP_NODES)
        if count > MOST_PROVEN:
            limits = replace(limits, relative_gap=_GROUP_GAP)
        answer = solve_integer(build.build(), limits)
        if answer.values is None:
            return
        chosen = [c for c, z in zip(columns, answer.values[groups], strict=True) if round(z)]
        self.take(self.pricing.moved(chosen))

    def seats(self, bound: float, pi: Floats) -> None:
        """Plans of the ways that groups of the least reduced costs have: few of them, then more."""
        order = iter(self._by_reduced(pi))
        ways: set[Way] = set()
        for most, nodes in _WAYS if self.most is None else _WAYS[:1]:
            while len(ways) < most and (column := next(order, None)) is not None:
                ways |= self.pricing.ways([column])
            if not self.closed(bound):
                self._seat(ways, bound, nodes)

    def _by_reduced(self, pi: Floats) -> list[_Column]:
        columns = list(self.pool.values())
        reduced = np.array([c.cost - pi[list(c.items)].sum() for c in columns])
        return [columns[n] for n in np.argsort(reduced, kind="stable").tolist()]

    def _limits(self, bound: float, nodes: int, most: float = math.inf) -> Limits:
        """Limits of a program whose plans count if better than the incumbent, or wanted."""
        most = min(self._better(), most, math.inf if self.most is None else self.most)
        enough = self.raised(bound) if self.most is None else max(self.raised(bound), self.most)
        return Limits(
            relative_gap=self.gap,
            nodes=nodes,
            seconds=self.watch.left_s(),
            cutoff=-most * (1 + _TINY),
            enough=-enough * (1 + self.gap),
        )

    def prove(self, bound: float, pi: Floats, stages: Ints) -> float:
        """The best plan of all ways that better plans than the best known may have.

        A bound of all plans. Where costs have steps, each one above the bound is tried by itself,
        which few ways can have.
        """
        pricing = self.pricing
        least, _ = pricing.least(stages, pi, pricing.everywhere(), self.value - bound)
        stages = stages[self.useful(bound, least)]
        known = pricing.ways_within(stages, pi, self._better() - bound + _TINY)
        if known is None:
            return bound
        lowest = bound
        for cost in self._costs(bound):
            ways = [way for way, least in known.items() if least <= cost - bound + _TINY]
            if len(ways) > _MOST_WAYS:
                break
            without = math.inf if not ways else self._seat(ways, lowest, most=cost)
            if self.closed(lowest) or without <= cost:
                break
            lowest = cost + self.step if self.step else cost
        return lowest

    def _costs(self, bound: float) -> list[float]:
        """Values that a better plan can have, from the least on."""
        most = self._better()
        if not self.step:
            return [most]
        first, last = round(self.raised(bound) / self.step), round(most / self.step)
        return [number * self.step for number in range(first, last + 1)]

    def _better(self) -> float:
        """The most that a plan costs that is better than the best known."""
        wanted = self.value * (1 - self.gap)
        return (math.ceil(wanted / self.step - 1e-6) - 1) * self.step if self.step else wanted

    def _seat(
        self,
        ways: Collection[Way],
        bound: float,
        nodes: int = _MIP_NODES,
        most: float = math.inf,
    ) -> float:
        """Take the best plan of ways.

        What one that beats the best known and costs up to `most` costs at least.
        """
        found = seated(self.pricing.field, ways, self._limits(bound, nodes, most))
        place = np.argsort(self.pricing.order)
        self.take([self.pricing.made(s, np.sort(place[i])) for s, i in found.items().items()])
        return found.bound

    def branch(self, relaxation: _Relaxation) -> tuple[int, int] | None:
        """An item and a stage.

        Is the item's stage up to this one or after it? None: every item has one stage.
        """
        held = np.zeros((relaxation.items, len(relaxation.stages)))
        for column, value in relaxation.support():
            at = int(np.searchsorted(relaxation.stages, column.stage))
            held[list(column.items), at] += value
        reached = np.cumsum(held, axis=1)
        distance = np.abs(reached / np.maximum(reached[:, -1:], _TINY) - 0.5)
        item, at = np.unravel_index(int(distance.argmin()), distance.shape)
        if distance[item, at] > 0.5 - 1e-5:
            return None
        return int(item), int(relaxation.stages[at])


def priceable(items: Field) -> bool:
    """True if groups of these items can be priced here: one rate, not too many."""
    return one_rate(items) and len(items.items) <= MOST_ITEMS


def by_branching(
    items: Field,
    watch: Watch,
    *,
    gap: float,
    step: float,
    nodes: int,
    known: float = math.inf,
    most: float | None = None,
) -> Proven:
    """The cheapest groups found of items of one rate, and what any cost at least.

    Args:
        items: at most `MOST_ITEMS`; each can be served by itself.
        watch: the clock of the run.
        gap: relative; at which the search may end.
        step: costs of plans are multiples of it; 0: any.
        nodes: of the tree, at most; 1: nothing is proven beyond the relaxation.
        known: the cost of a plan; what does not beat it need not be found.
        most: ends with any plan up to it, or where none can be; None: with the cheapest.
    """
    pricing = Pricing(items)
    search = _Search(pricing=pricing, watch=watch, step=step, gap=gap, most=most)
    everywhere = pricing.everywhere()
    alone: list[_Column] = []
    for at, item in enumerate(pricing.order.tolist()):
        group = items.best([item])
        alone.append(_Column(stage=group.root, items=(at,), cost=group.cost))
    search.take(alone)
    dear = np.array([c.cost for c in alone])
    search.pool = {(c.stage, c.items): c for c in alone}
    root = _Relaxation(pricing, pricing.stages, everywhere, once=False, dear=dear)
    search.value = min(search.value, known)
    bound, pi, stages = search.relax(root, pricing.fluid())
    lowest = bound
    if most is None or not search.closed(bound):
        search.round(bound, pi)
    by_seats = len(pricing.order) <= MOST_PROVEN or search.value <= _STEPS_BY_SEATS * step
    if nodes > 1 and by_seats and not search.closed(bound):
        lowest = search.prove(float(bound), pi, stages)
    if by_seats and (nodes > 1 or most is not None) and not search.closed(lowest):
        search.seats(lowest, pi)
    if not search.closed(lowest) and nodes > 1 and len(pricing.order) <= MOST_PROVEN:
        lowest = max(lowest, _searched(search, bound, pi, stages, nodes))
    return Proven(
        groups=[pricing.group(c) for c in search.best],
        value=math.fsum(c.cost for c in search.best),
        bound=min(search.raised(lowest), search.value),
        columns=len(search.pool),
        nodes=search.nodes,
    )


def _searched(search: _Search, bound: float, pi: Floats, stages: Ints, nodes: int) -> float:
    """Branch until nothing better is left, or there were nodes enough; returns the bound."""
    pricing = search.pricing
    everywhere = pricing.everywhere()
    least, _ = pricing.least(stages, pi, everywhere)
    floor = float(pi.sum() + np.minimum(least, 0.0).sum())
    stages = stages[search.useful(floor, least)]
    search.forget(floor, pi)
    heap = [(bound, 0, everywhere, pi, stages)]
    open_end, count = math.inf, 0
    while heap and not search.closed(heap[0][0]):
        lowest, _, allowed, start, stages = heap[0]
        if search.nodes >= nodes or search.watch.over():
            break
        heapq.heappop(heap)
        dear = np.full(len(pricing.order), search.value)
        node = _Relaxation(pricing, stages, allowed, once=True, dear=dear)
        own, duals, stages = search.relax(node, start)
        own = max(own, lowest)
        if search.closed(own):
            continue
        if search.nodes % _ROUND_EVERY == 1:
            search.round(own, duals)
            search.seats(own, duals)
        split = search.branch(node)
        if split is None:
            search.take([c for c, _ in node.support()])
            if not search.closed(own):
                open_end = min(open_end, own)
            continue
        item, stage = split
        for late in (False, True):
            child = allowed.copy()
            child[: stage + 1, item] &= not late
            child[stage + 1 :, item] &= late
            count += 1
            heapq.heappush(heap, (own, count, child, duals, stages))
    return min([open_end, search.value, *(own for own, *_ in heap[:1])])
