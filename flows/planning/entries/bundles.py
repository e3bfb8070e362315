"""The best groups of entries of one rate at prices, compiled.

A group has a shared stage s of blocks [J, M). Its entries that start at J board; those of a start
p < J are cut into bundles, each with an alignment stage of its own. Where rates are equal, a shared
stage costs by how many it carries, and of the entries of a start that are chosen neighbours by
limit share a bundle (exchange two members: no bundle's least limit falls). So for every s the
largest sum of prices less bundles of k entries is a dynamic program over entries by falling limit:

    best[k, o] of k entries taken, the last o of them in an open bundle

A bundle is paid for when it closes, at the time that its tightest entry has left beside s. The
starts' sums are added over all ways to divide k.

Here: kernels over arrays. Not here: how the arrays are made, plans (`shared_stages`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.planning.solver.arrays import Floats, Ints
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

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
    others        [starts + 1, items] items of other starts; the last row: every item
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
    return int(np.searchsorted(times[curve[0] : curve[0] + curve[1]], left, side="right"))


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
    stage: int, pi: Floats, below: float, arrays: Arrays, gains: Floats
) -> tuple[float, int, float]:
    """No group on a stage has a lower reduced cost.

    Every entry pays its part of an alignment stage only. Also from how many entries on no group is
    below `below`, and what those larger ones have at least.
    """
    taken = 0
    for item in range(len(pi) - 1, -1, -1):  # those of the least limits gain most
        gain = pi[item] - arrays.part[stage, item]
        if gain > 0:
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
    below: float,
    arrays: Arrays,
    room: Room,
    least: Floats,
    size: Ints,
) -> None:
    """Fill in the least reduced cost of a group on each of some stages, and its size.

    Where that is `below` or more for sure, it is only bounded from below, and the number is 0.
    """
    starts, every = len(arrays.block), arrays.others[len(arrays.block)]
    for at in range(len(stages)):
        stage = stages[at]
        least[at], largest, beyond = _at_least(stage, pi, below, arrays, room.own[0])
        size[at] = 0
        if least[at] >= below:
            continue
        most = _gains(stage, pi, every, largest, arrays, room)
        least[at] = beyond
        for k in range(1, most + 1):
            reduced = arrays.cost[stage, k] - room.total[starts, k]
            if reduced < least[at]:
                least[at], size[at] = reduced, k


@kernel_entry
def members(
    stage: int, size: int, pi: Floats, allowed: Mask, arrays: Arrays, room: Room, chosen: Mask
) -> float:
    """Fill in the entries of the best group of so many entries on a stage; returns its gain."""
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

    How many they are. What counts of an option's time is which entries are in time with it, and of
    its costs those of so many entries.

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
