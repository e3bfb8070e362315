"""The best groups of entries at prices: a source of columns for the engine.

What is aligned costs a sum over starts of what the items of each take beside a shared stage, and
that costs by the rate of all. So for every start the items that gain most at each rate are found,
and starts are added up:

    best[starts so far, rate]    the largest sum of prices less alignment stages

The items of a start are found among

    subsets    of few items, alignment stages shared as costs least (`subsets`)
    runs       of many of one rate: neighbours by limit that share an alignment stage (`runs`)
    parts      of many of several rates: each pays its part of an alignment stage, which only bounds

Prices do not rise with limits, for an item may have the seat of one like it with a shorter limit
(`search`). So no other items in time for a stage are worth more than those next to the tightest.

Here: the pricer and how starts are added up. Not here: plans (`search`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flows.planning.engine.pricing import Duals, Priced
from flows.planning.entries.groups import Group, GroupingProblem, columns_of
from flows.planning.entries.options import ANY_NUMBER, vgpus_for
from flows.planning.entries.runs import Levels, gains_of_runs, levels_of, members_of_runs
from flows.planning.entries.subsets import MOST_TOGETHER, aligned_subsets, members_in, members_of
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

_FRESH = 160  # columns of a round


class _Cell(NamedTuple):
    """Items of a start, and the bundles of them that may have a stage together.

    Attributes:
        items: those of runs by falling limit.
        subsets: [n, items] 1 where a subset has an item; None: bundles are runs.
        loads: [n] rates of bundles in units; of runs, of so many items.
        each: rate of an item of runs in units; 0: bundles are subsets.
        aligned: [R, n] cost of a subset beside every root; 0 of runs.
        levels: of runs beside every root; of subsets there are none.
    """

    items: Ints
    subsets: Ints | None
    loads: Ints
    each: int
    aligned: Floats
    levels: Levels

    def gain(self, pi: Floats) -> Floats:
        """[n] the worth of subsets, or of each item of runs, at prices of items."""
        if self.subsets is None:
            return np.maximum.accumulate(pi[self.items])  # a little less where prices are rounded
        return self.subsets @ pi[self.items]


def _cells(field: GroupingProblem, units: Ints) -> Iterator[_Cell]:
    parts = np.minimum(field.parts_beside(), FAR)
    for block in np.unique(field.block):
        own = np.flatnonzero(field.block == block)
        if field.table.chains and len(own) <= MOST_TOGETHER:
            taken = members_in(len(own)).astype(np.int64)
            yield _of_subsets(own, taken, taken @ units[own], aligned_subsets(field, own))
        elif len(set(field.rate[own].tolist())) == 1:
            own = own[np.argsort(-field.limit[own], kind="stable")]
            each = int(units[own[0]])
            yield _Cell(
                items=own,
                subsets=None,
                loads=each * np.arange(1, len(own) + 1),
                each=each,
                aligned=np.zeros((len(parts), len(own))),
                levels=levels_of(field, own),
            )
        else:
            single = np.array([[0], [1]])
            for item in own:
                beside = np.column_stack([np.zeros(len(parts)), parts[:, item]])
                yield _of_subsets(np.array([item]), single, single[:, 0] * units[item], beside)


def _of_subsets(items: Ints, subsets: Ints, loads: Ints, aligned: Floats) -> _Cell:
    levels = Levels.none(aligned.shape)
    return _Cell(items, subsets, loads, 0, aligned, levels)


class Groups:
    """A pricer of groups of items; those of a root are a group of columns."""

    quick = True

    def __init__(self, field: GroupingProblem) -> None:
        self.field = field
        units = np.floor(field.rate / field.unit * (1 + ROUNDING) + ROUNDING).astype(np.int64)
        self.cells = list(_cells(field, units))
        self.loads = np.concatenate([cell.loads for cell in self.cells])
        self.each = np.array([cell.each for cell in self.cells])
        self.first = np.cumsum([0, *(len(cell.loads) for cell in self.cells)])
        self.aligned = np.concatenate([cell.aligned for cell in self.cells], axis=1)
        self.levels = Levels.joined([cell.levels for cell in self.cells])
        self.beside = field.parts_beside()
        self.cheapest, self.work = field.root_price, field.root_work
        self.fewest = np.zeros(len(self.work))
        one = 1.0 if field.table.most == ANY_NUMBER else np.inf
        self.most = np.full(len(self.work), one)
        count, rates = len(self.cells), int(units.sum()) + 1
        longest = max(len(cell.items) for cell in self.cells) + 1
        self.runs = np.zeros(longest), np.zeros((longest, longest))
        choice = np.zeros((count + 1, rates), dtype=np.int64)
        self.room = np.zeros(choice.shape), choice[1:], np.zeros(rates), choice[0], *self.runs

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """The best groups of roots, those first where items gain most.

        Where enough pay off, the others count by what their groups may gain at most.
        """
        del cap
        some, gained = self._that_may_pay(duals.demand)
        least = np.zeros(len(self.work))
        least[some] = -gained
        order, taken, gain = some[:0], np.zeros((0, len(self.cells)), dtype=np.int64), np.zeros(0)
        for first in range(0, len(some), 2 * _FRESH):
            roots = some[first : first + 2 * _FRESH]
            gain, own, more = self._best(duals.demand, roots, self._most(duals.demand, roots))
            least[roots] = np.minimum(own, 0.0)
            order, taken = np.append(order, roots), np.append(taken, more, axis=0)
            if (least[order] < -SOLVED * self.cheapest[order]).sum() >= _FRESH:
                break
        at = np.argsort(least[order], kind="stable")[:_FRESH]
        at = at[least[order[at]] < -SOLVED * self.cheapest[order[at]]]
        found = [self._group(*one, gain) for one in zip(order[at].tolist(), taken[at], strict=True)]
        return Priced(columns=columns_of(found), least=least)

    def least(self, pi: Floats) -> Floats:
        """[roots] no group has a lower reduced cost."""
        every = np.arange(len(self.work))
        return self._best(pi, every, np.full(len(every), self.room[0].shape[1] - 1))[1]

    def _that_may_pay(self, pi: Floats) -> tuple[Ints, Floats]:
        """Roots of which a group may pay off, and what one gains at most: the largest first.

        Every item pays its part of an alignment stage, and of the root as much as it loads that.
        """
        gain = pi - self.beside
        paid = (self.cheapest * self.work * (1 - ROUNDING))[:, None] * self.field.rate
        gained = np.maximum(gain - paid, 0.0)
        most = np.minimum(gained.sum(axis=1), np.maximum(gain, 0.0).sum(axis=1) - self.cheapest)
        some = np.flatnonzero(most > 0)
        some = some[np.argsort(-most[some], kind="stable")]
        return some, most[some]

    def _most(self, pi: Floats, roots: Ints) -> Ints:
        """[roots] the largest rate of a group that may pay off, in units.

        Every item pays its part of an alignment stage; those that gain most for their rate come
        first.
        """
        rate, gain = self.field.rate, np.maximum(pi - self.beside[roots], 0.0)
        order = np.argsort(-gain / rate, axis=1, kind="stable")
        load, worth = (
            np.cumsum(a, axis=1) for a in (rate[order], np.take_along_axis(gain, order, 1))
        )
        vgpus = vgpus_for(load - rate[order], self.work[roots, None])
        open_ = self.cheapest[roots, None] * vgpus < worth
        most = np.where(open_, load, 0.0).max(axis=1) / self.field.unit
        return np.ceil(most * (1 - ROUNDING)).astype(np.int64)

    def _best(self, pi: Floats, some: Ints, most: Ints) -> tuple[Floats, Floats, Ints]:
        """Gains of bundles; [some] the least reduced cost of a group; [some, cells] what it takes.

        These are a subset by number, or so many of the items of runs.
        """
        gain = np.concatenate([cell.gain(pi) for cell in self.cells])
        least = np.zeros(len(some))
        taken = np.zeros((len(some), len(self.cells)), dtype=np.int64)
        cells = gain, self.loads, self.first, self.aligned, self.each, self.levels
        measures = self.field.unit, float(self.field.table.most)
        roots = some, np.minimum(most, self.room[0].shape[1] - 1), self.cheapest, self.work
        best_groups(cells, roots, measures, self.room, least, taken)
        return gain, least, taken

    def _group(self, at: int, taken: Ints, gain: Floats) -> Group:
        """A group on a root: a subset of every cell, or so many of its items."""
        items: list[int] = []
        beside = 0.0
        for number, (cell, some) in enumerate(zip(self.cells, taken.tolist(), strict=True)):
            span = slice(int(self.first[number]), int(self.first[number + 1]))
            if not cell.each:
                items += [int(cell.items[n]) for n in members_of(some)]
                beside += float(self.aligned[at, span][some])
            elif some:
                chosen = np.zeros(len(cell.items), dtype=np.bool_)
                rows, levels = self.levels.rows[at, span], self.levels[1:]
                beside += members_of_runs(gain[span], rows, levels, some, self.runs, chosen)
                items += cell.items[chosen].tolist()
        load = float(self.field.rate[items].sum())
        vgpus = float(vgpus_for(load, self.work[at : at + 1])[0])
        cost = float(self.cheapest[at] * vgpus + beside)
        return Group(items=tuple(sorted(items)), root=at, cost=cost)


@kernel
def _choices(
    gain: Floats,
    loads: Ints,
    beside: tuple[Floats, Ints, tuple[Ints, Ints, Floats]],
    each: int,
    most: int,
    room: tuple[Floats, Ints, Floats, Floats],
) -> int:
    """Fill in what each rate of a cell gains and the choice that does, where lower ones gain less.

    Returns the rate of all, or `most`.
    """
    aligned, rows, levels = beside
    worth, code, total, gains = room
    span = min(loads[len(loads) - 1], most)
    for more in range(span + 1):
        worth[more] = -np.inf
    if each > 0:
        top = span // each
        gains_of_runs(gain, rows, levels, top, total, gains)
        for k in range(1, top + 1):
            worth[k * each], code[k * each] = gains[len(gain), k], k
    else:
        for s in range(1, len(gain)):
            if loads[s] <= span and gain[s] - aligned[s] > worth[loads[s]]:
                worth[loads[s]], code[loads[s]] = gain[s] - aligned[s], s
    highest = 0.0
    for more in range(span + 1):
        if worth[more] > highest:
            highest = worth[more]
        else:
            worth[more] = -np.inf
    return int(span)


@kernel
def _added(
    worth: Floats,
    code: Ints,
    loads: tuple[int, int, int],
    before: Floats,
    best: Floats,
    choice: Ints,
) -> int:
    """Fill in the largest gain at each rate with a cell more, and what it takes of that.

    Returns the rate of all, or the most.
    """
    total, span, most = loads
    end = min(total + span, most)
    for load in range(end + 1):
        best[load], choice[load] = before[load] if load <= total else -np.inf, 0
    for more in range(span + 1):
        for load in range(min(total, end - more) + 1 if worth[more] > 0 else 0):
            value = before[load] + worth[more]
            if value > best[load + more]:
                best[load + more], choice[load + more] = value, code[more]
    return int(end)


@kernel_entry
def best_groups(
    cells: tuple[Floats, Ints, Ints, Floats, Ints, Levels],
    roots: tuple[Ints, Ints, Floats, Floats],
    measures: tuple[float, float],
    room: tuple[Floats, Ints, Floats, Ints, Floats, Floats],
    least: Floats,
    taken: Ints,
) -> None:
    """Fill in the least reduced cost of a group on some roots, and what it takes of every cell.

    Args:
        cells: gain and rate of every bundle, cell by cell; where each cell begins; cost of
            alignment stages [roots, bundles]; rate of an item of runs, 0 of subsets; levels.
        roots: those looked at, and the most rate of a group on each; price of a vGPU and vGPUs
            per rate of all.
        measures: the unit of rates, most vGPUs.
        room: [cells + 1, rates] the largest gain; [cells, rates] the choice that has it; [rates]
            both of one cell; for runs `total` and `gains`.
        least: [some roots] filled in.
        taken: [some roots, cells] filled in.
    """
    gain, loads, first, aligned, each, runs = cells
    some, most_load, price, work = roots
    unit, most = measures
    best, choice, worth, code, sums, gains = room
    levels = runs.first, runs.capacity, runs.price
    count = len(first) - 1
    for at in range(len(some)):
        root, total, top = some[at], 0, most_load[at]
        best[0, 0] = 0.0
        for cell in range(count):
            a, b = first[cell], first[cell + 1]
            beside = aligned[root, a:b], runs.rows[root, a:b], levels
            own = worth, code, sums, gains
            span = _choices(gain[a:b], loads[a:b], beside, each[cell], top, own)
            loads_of = (total, span, top)
            total = _added(worth, code, loads_of, best[cell], best[cell + 1], choice[cell])
        least[at], end = np.inf, 0
        for load in range(total + 1):
            vgpus = max(1.0, np.ceil(load * unit * work[root] * (1 - ROUNDING)))
            if vgpus <= most and price[root] * vgpus - best[count, load] < least[at]:
                least[at], end = price[root] * vgpus - best[count, load], load
        for cell in range(count - 1, -1, -1):
            some_of = choice[cell, end]
            taken[at, cell] = some_of
            end -= some_of * each[cell] if each[cell] > 0 else loads[first[cell] + some_of]
