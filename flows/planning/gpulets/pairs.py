"""Patterns of two parts at prices: every pair of options that is worth more than asked, exactly.

A model with seats on both parts counts once, up to its cap. Options of a share stand in groups of
the same models. A pair is looked at only where bounds leave it a chance: what its options are worth
alone under the least pressure that the other's bucket (`patterns`) can mean; and, where the groups
share a model, what all their models can be worth at most.

Here: the search, compiled. Not here: what options there are (`parts`), what
is asked for (`patterns`).
"""

from typing import NamedTuple

import numpy as np

from flows.planning.engine.master import FULL
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.scheduler.compiled import entry, kernel


class Side(NamedTuple):
    """Options of a share, those of the same models beside each other.

    N options of K seats in g groups.

    Attributes:
        model: [n, K] -1 where there is no seat.
        batch, turn_us, susceptibility, limit_us: [n, K].
        pressure, memory_gib: [n].
        bucket: [n] of its pressure.
        start: [g + 1] where groups begin, and their end.
        lowest: [g] bucket of a group.
        speed: [n, level] rounds per second where neighbours press a level at least, 0 where a seat
            is late.
    """

    model: Ints
    batch: Floats
    turn_us: Floats
    susceptibility: Floats
    limit_us: Floats
    pressure: Floats
    memory_gib: Floats
    bucket: Ints
    start: Ints
    lowest: Ints
    speed: Floats


class Tops(NamedTuple):
    """The worth of a side's options if neighbours press at least a level.

    Attributes:
        value: [n, level]; -inf where a seat would be late.
        group: [g, level] the best of a group.
        every: [level] the best of all.
    """

    value: Floats
    group: Floats
    every: Floats


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
    """Where pairs are put.

    Attributes:
        row: [most, 2] options of both sides.
        value: [most].
        carried: [K + K'] requests/s of every seat of both parts; used while a pair is evaluated.
    """

    row: Ints
    value: Floats
    carried: Floats


@entry
def price_options(side: Side, worths: Worths, tops: Tops) -> None:
    """Fill in what every option is worth at every level, and the best of groups and of all.

    A model has one seat at most on a part, so seats add up.
    """
    tops.every[:] = -np.inf
    for g in range(len(side.lowest)):
        tops.group[g] = -np.inf
        for row in range(side.start[g], side.start[g + 1]):
            for level in range(side.speed.shape[1]):
                speed = side.speed[row, level]
                value = 0.0 if speed > 0 else -np.inf
                for k in range(side.model.shape[1]):
                    m = side.model[row, k]
                    if m >= 0 and speed > 0:
                        value += _worth_of(side.batch[row, k] * speed, m, worths)
                tops.value[row, level] = value
                tops.group[g, level] = max(tops.group[g, level], value)
        for level in range(side.speed.shape[1]):
            tops.every[level] = max(tops.every[level], tops.group[g, level])


@entry
def price_rows(side: Side, rows: Ints, speed: Floats, worths: Worths, value: Floats) -> None:
    """Fill in what options [row] are worth at rounds per second [row]; 0 where that is 0."""
    for i in range(len(rows)):
        value[i] = 0.0
        for k in range(side.model.shape[1]):
            m = side.model[rows[i], k]
            if m >= 0 and speed[i] > 0:
                value[i] += _worth_of(side.batch[rows[i], k] * speed[i], m, worths)


@kernel
def _worth_of(rate: float, m: int, worths: Worths) -> float:
    value = worths.rate[m] * min(rate, worths.cap[m]) + 0.5 * worths.at_all[m]
    if rate >= worths.cap[m] * FULL:
        value += 0.5 * worths.at_all[m]
    return value


@entry
def search_pairs(
    sides: tuple[Side, Side],
    tops: tuple[Tops, Tops],
    order: Ints,
    worths: Worths,
    room: Room,
    limits: tuple[float, float, float],
    rules: tuple[bool, bool],
) -> int:
    """Pairs worth more than `least`.

    How many, one more than there is room for where that is not all.

    Args:
        sides: options of both parts.
        tops: of both.
        order: [n] options of the first, the most valuable at the lowest level first.
        worths: prices.
        room: filled in.
        limits: least worth, inflation of factors, memory of the GPU (GiB).
        rules: whether to keep the best pair alone, which `least` follows; whether both parts are of
            one share, so that every pair is looked at in one order.
    """
    least, inflation, memory = limits
    best_only, same = rules
    first, second = sides
    one, other = tops
    count = 0
    for a in order:
        at = first.bucket[a]
        if not one.value[a, 0] + other.every[at] > least:
            continue
        for g in range(len(second.lowest)):
            if not _may(sides, tops, (a, g), worths, least):
                continue
            start = max(a, second.start[g]) if same else second.start[g]
            for b in range(start, second.start[g + 1]):
                if not one.value[a, second.bucket[b]] + other.value[b, at] > least:
                    continue
                value = _value(sides, (a, b), (inflation, memory), room.carried, worths)
                if not value > least:
                    continue
                if best_only:
                    least = value
                    count = 0
                elif count == len(room.value):
                    return count + 1
                room.row[count, 0], room.row[count, 1], room.value[count] = a, b, value
                count += 1
    return count


@kernel
def _may(
    sides: tuple[Side, Side],
    tops: tuple[Tops, Tops],
    pair: tuple[int, int],
    worths: Worths,
    least: float,
) -> bool:
    """True if an option and one of a group may be worth more than `least`."""
    a, g = pair
    first, second = sides
    top = tops[0].value[a, second.lowest[g]] + tops[1].group[g, first.bucket[a]]
    return top > least and _most(first.model[a], second.model[second.start[g]], worths.most) > least


@kernel
def _most(first: Ints, second: Ints, most: Floats) -> float:
    """A bound on the worth of two groups together; infinite if they share no model."""
    total: float = 0.0
    shared = False
    for m in first:
        if m >= 0:
            total += float(most[m])
    for m in second:
        if m < 0:
            continue
        twice = False
        for n in first:
            twice = twice or n == m
        if twice:
            shared = True
        else:
            total += float(most[m])
    if not shared:
        return np.inf
    return total


@kernel
def _carry(side: Side, row: int, felt: float, inflation: float, carried: Floats) -> bool:
    """Requests/s of every seat of a part beside pressure `felt`; False where one would be late."""
    round_us = 0.0
    for k in range(len(carried)):
        carried[k] = 0.0
        if side.model[row, k] >= 0:
            factor = max(1.0, side.susceptibility[row, k] + felt) * inflation
            carried[k] = np.ceil(side.turn_us[row, k] * factor - ROUND_OFF_US)
            round_us += carried[k]
    for k in range(len(carried)):
        if side.model[row, k] < 0:
            continue
        if round_us + carried[k] > side.limit_us[row, k]:
            return False
        carried[k] = side.batch[row, k] * (1e6 / round_us)
    return True


@kernel
def _value(
    sides: tuple[Side, Side],
    rows: tuple[int, int],
    limits: tuple[float, float],
    carried: Floats,
    worths: Worths,
) -> float:
    """The worth of a pair, a model on both sides counted once.

    -inf where a seat would be late or memory does not do.
    """
    a, b = rows
    inflation, memory = limits
    first, second = sides
    seats = first.model.shape[1]
    if first.memory_gib[a] + second.memory_gib[b] > memory:
        return -np.inf
    if not _carry(first, a, second.pressure[b], inflation, carried[:seats]):
        return -np.inf
    if not _carry(second, b, first.pressure[a], inflation, carried[seats:]):
        return -np.inf
    total: float = 0.0
    for k in range(seats):
        m = first.model[a, k]
        if m < 0:
            continue
        for j in range(seats, len(carried)):
            if second.model[b, j - seats] == m:
                carried[k] += carried[j]
                carried[j] = 0.0
        total += _worth_of(carried[k], m, worths)
    for j in range(seats, len(carried)):
        if carried[j] > 0:
            total += _worth_of(carried[j], second.model[b, j - seats], worths)
    return total
