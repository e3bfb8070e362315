"""Patterns at prices: all options for the parts of a GPU that are worth more than asked, exactly.

A model with seats on several parts counts once, up to its cap. Options of a share stand in groups
of the same models. Parts are chosen one after the other, and a choice is followed only where bounds
leave it a chance: what the options chosen are worth alone, and the best ones of parts that are
still open, under the least pressure that the buckets of the others (`patterns`) can mean; and,
where groups share a model, what all their models can be worth at most.

Here: the search, compiled. Not here: what options there are (`parts`), what
is asked for (`patterns`).
"""

from typing import NamedTuple

import numpy as np

from flows.planning.engine.master import FULL
from flows.planning.gpulets.parts import Options
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.scheduler.compiled import entry, kernel

MOVES = 10_000  # from one option of a part to the next, before the caller may look at its clock
UNFINISHED = -1


class Side(NamedTuple):
    """Options of all shares of a class, share by share, those of the same models beside each other.

    n options of K seats in g groups.

    Attributes:
        own: the options.
        bucket: [n] of its pressure.
        start: [g + 1] where groups begin, and their end.
        first: [share + 1] where the groups of shares begin, and their end.
        lowest: [g] bucket of a group.
        speed: [n, level] rounds per second where neighbours press a level at least, 0 where a seat
            is late.
    """

    own: Options
    bucket: Ints
    start: Ints
    first: Ints
    lowest: Ints
    speed: Floats


class Tops(NamedTuple):
    """The worth of options if neighbours press at least a level.

    Attributes:
        value: [n, level]; -inf where a seat would be late.
        group: [g, level] the best of a group.
        every: [share, level] the best of all.
        order: [n] options, share by share, the most valuable at the lowest level first.
    """

    value: Floats
    group: Floats
    every: Floats
    order: Ints


class Worths(NamedTuple):
    """The worth of a model's rate r.

    Rate · min(r, cap), and half of `at_all` for any r, all of it from the cap on.

    Attributes:
        rate: [model] per request/s.
        at_all: [model] of the cap; 0 where that is infinite.
        cap: [model] requests/s that count at most; infinite where all do.
        most: [model] that it can be worth; infinite where nothing caps it.
    """

    rate: Floats
    at_all: Floats
    cap: Floats
    most: Floats

    @classmethod
    def of(cls, rate: Floats, at_all: Floats, cap: Floats) -> "Worths":
        """With the most that follows."""
        capped = np.where(np.isinf(cap), np.inf, rate * np.minimum(cap, FAR))
        return cls(rate=rate, at_all=at_all, cap=cap, most=np.where(rate > 0, capped, 0.0) + at_all)


class Room(NamedTuple):
    """Where patterns of P parts are put.

    Attributes:
        row: [most, P] options of all parts.
        value: [most].
        carried: [P, K] requests/s of every seat; used while a pattern is evaluated.
        chosen, group: [P] option of every part and its group; used while patterns are sought.
        place: [3] where a search goes on: position in `Tops.order`, part, patterns found. Zeros
            begin one.
    """

    row: Ints
    value: Floats
    carried: Floats
    chosen: Ints
    group: Ints
    place: Ints


@entry
def price_options(side: Side, worths: Worths, tops: Tops) -> None:
    """Fill in what every option is worth at every level, and the best of groups and of all.

    A model has one seat at most on a part, so seats add up.
    """
    tops.every[:] = -np.inf
    for share in range(len(side.first) - 1):
        for g in range(side.first[share], side.first[share + 1]):
            tops.group[g] = -np.inf
            for row in range(side.start[g], side.start[g + 1]):
                for level in range(side.speed.shape[1]):
                    speed = side.speed[row, level]
                    value = 0.0 if speed > 0 else -np.inf
                    for k in range(side.own.model.shape[1]):
                        m = side.own.model[row, k]
                        if m >= 0 and speed > 0:
                            value += _worth_of(side.own.batch[row, k] * speed, m, worths)
                    tops.value[row, level] = value
                    tops.group[g, level] = max(tops.group[g, level], value)
            for level in range(side.speed.shape[1]):
                tops.every[share, level] = max(tops.every[share, level], tops.group[g, level])


@kernel
def _worth_of(rate: float, m: int, worths: Worths) -> float:
    value = worths.rate[m] * min(rate, worths.cap[m]) + 0.5 * worths.at_all[m]
    if rate >= worths.cap[m] * FULL:
        value += 0.5 * worths.at_all[m]
    return value


@entry
def search(
    side: Side,
    tops: Tops,
    cut: Ints,
    worths: Worths,
    room: Room,
    limits: tuple[float, float, float],
) -> int:
    """Patterns worth more than `least`.

    How many, one more than there is room for where that is not all; `UNFINISHED` after so many
    moves that the caller may want to look at its clock: called again, the search goes on.

    Args:
        side: options.
        tops: what they are worth.
        cut: [P] shares of the parts, by number, rising; parts of one share have rising options.
        worths: prices.
        room: filled in; where it is for one pattern, with the best.
        limits: least worth, inflation of factors, memory of the GPU (GiB).
    """
    least, inflation, memory = limits
    parts, moves = len(cut), 0
    position, at, count = room.place
    if len(room.value) == 1:
        least = max(least, room.value[0])  # of the best so far; 0 at first
    begin, end = side.start[side.first[cut[0]]], side.start[side.first[cut[0] + 1]]
    while position < end - begin:
        if moves == MOVES:
            room.place[0], room.place[1], room.place[2] = position, at, count
            return UNFINISHED
        moves += 1
        if at == 0:
            row = tops.order[begin + position]
            room.chosen[0] = row
            pressed = int(side.bucket[row])
            if parts > 1 and not _top(side, tops, cut, room.chosen, 1, 1, pressed) > least:
                position += 1
                continue
        if at + 1 < parts:
            at += 1
            room.chosen[at], room.group[at] = -1, side.first[cut[at]]
        else:
            value = _value(side, room, inflation, memory, worths)
            if value > least:
                if len(room.value) == 1:
                    least, count = value, 0
                elif count == len(room.value):
                    return count + 1
                _put(room, count, value)
                count += 1
        at = _moved(side, tops, cut, room, at, worths, least)
        position += int(at == 0)
    return count


@kernel
def _put(room: Room, number: int, value: float) -> None:
    """Note the options chosen as a pattern."""
    room.value[number] = value
    for i in range(len(room.chosen)):
        room.row[number, i] = room.chosen[i]


@kernel
def _moved(
    side: Side, tops: Tops, cut: Ints, room: Room, at: int, worths: Worths, least: float
) -> int:
    """The last part up to `at` that has a next option, moved to it; 0 where none but it has."""
    while at > 0 and not _next(side, tops, cut, room, at, worths, least):
        at -= 1
    return at


@kernel
def _next(
    side: Side, tops: Tops, cut: Ints, room: Room, at: int, worths: Worths, least: float
) -> bool:
    """Move part `at` to its next option that leaves a chance beside the parts before; if any."""
    chosen, known, now = room.chosen, room.group[at], room.chosen[at]
    lowest = chosen[at - 1] if cut[at] == cut[at - 1] else 0
    pressed = 0
    for i in range(at):
        pressed += side.bucket[chosen[i]]
    level = min(pressed, side.speed.shape[1] - 1)
    for g in range(known, side.first[cut[at] + 1]):
        others = _top(side, tops, cut, chosen, at, at + 1, pressed + side.lowest[g])
        if not tops.group[g, level] + others > least:
            continue
        row = side.start[g]
        if g == known and now >= 0:
            row = now + 1
        elif at + 1 == len(cut) and not _most(side, chosen, g, worths.most) > least:
            continue
        for one in range(max(row, lowest), side.start[g + 1]):
            if not tops.value[one, level] + others > least:
                continue
            chosen[at], sum_ = one, pressed + side.bucket[one]
            if _top(side, tops, cut, chosen, at + 1, at + 1, sum_) > least:
                room.group[at] = g
                return True
    return False


@kernel
def _top(
    side: Side, tops: Tops, cut: Ints, chosen: Ints, count: int, open_from: int, pressed: int
) -> float:
    """A bound on the worth of the first `count` parts and those that are open.

    Chosen ones press so much together, at least.
    """
    highest = side.speed.shape[1] - 1
    total = 0.0
    for i in range(count):
        row = chosen[i]
        total += float(tops.value[row, min(pressed - side.bucket[row], highest)])
    for i in range(open_from, len(cut)):
        total += float(tops.every[cut[i], min(pressed, highest)])
    return total


@kernel
def _most(side: Side, chosen: Ints, g: int, most: Floats) -> float:
    """A bound on the worth of all parts, the last of a group; infinite if they share no model."""
    total: float = 0.0
    shared = False
    for i in range(len(chosen)):
        row = chosen[i] if i + 1 < len(chosen) else side.start[g]
        for k in range(side.own.model.shape[1]):
            m = side.own.model[row, k]
            if m < 0:
                continue
            twice = False
            for j in range(i):
                for n in side.own.model[chosen[j]]:
                    twice = twice or n == m
            if twice:
                shared = True
            else:
                total += float(most[m])
    if not shared:
        return np.inf
    return total


@kernel
def _carry(
    side: Side, row: int, felt: float, inflation: float, neighbours: int, carried: Floats
) -> bool:
    """Requests/s of every seat of a part beside pressure `felt`; False where one would be late."""
    round_us = 0.0
    for k in range(len(carried)):
        carried[k] = 0.0
        if side.own.model[row, k] >= 0:
            factor = 1.0
            if neighbours:
                factor = max(1.0, side.own.susceptibility[row, k] + felt) * inflation
            carried[k] = np.ceil(side.own.turn_us[row, k] * factor - ROUND_OFF_US)
            round_us += carried[k]
    for k in range(len(carried)):
        if side.own.model[row, k] < 0:
            continue
        if round_us + carried[k] > side.own.limit_us[row, k]:
            return False
        carried[k] = side.own.batch[row, k] * (1e6 / round_us)
    return True


@kernel
def _work(side: Side, room: Room, inflation: float, memory: float) -> bool:
    """Requests/s of every seat of a pattern; False where one would be late or memory too small."""
    chosen = room.chosen
    held = 0.0
    for row in chosen:
        held += float(side.own.memory_gib[row])
    if held > memory:
        return False
    for i in range(len(chosen)):
        felt = 0.0
        for j in range(len(chosen)):
            if j != i:
                felt += float(side.own.pressure[chosen[j]])
        if not _carry(side, chosen[i], felt, inflation, len(chosen) - 1, room.carried[i]):
            return False
    return True


@kernel
def _value(side: Side, room: Room, inflation: float, memory: float, worths: Worths) -> float:
    """The worth of a pattern, a model on several parts counted once; -inf if it does not work."""
    if not _work(side, room, inflation, memory):
        return -np.inf
    chosen, carried = room.chosen, room.carried
    total: float = 0.0
    for i in range(len(chosen)):
        for k in range(carried.shape[1]):
            if carried[i, k] == 0:
                continue
            m = side.own.model[chosen[i], k]
            for j in range(i + 1, len(chosen)):
                for n in range(carried.shape[1]):
                    if side.own.model[chosen[j], n] == m:
                        carried[i, k] += carried[j, n]
                        carried[j, n] = 0.0
            total += _worth_of(carried[i, k], m, worths)
    return total
