"""Entries of any rates by subsets: the cheapest groups of few, the best groups at prices.

Up to `MOST_SUBSETS` subsets: the best plan of every one of them, alignment stages shared, then the
cheapest partition by dynamic programming (3^n steps).

Beyond: groups at prices, for a search (`search`). What is aligned costs a sum over starts of what
the items of each take beside a shared stage, and that costs by the rate of all. So for every start
the items that gain most at each rate are found among its subsets, and starts are added up:

    best[starts so far, rate]    the largest sum of prices less alignment stages

A start of many items is bounded: each pays its part of an alignment stage alone.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.pricing import Duals, Priced
from flows.planning.entries.groups import FRESH, Group, GroupingProblem, columns_of
from flows.planning.entries.tables import ANY_NUMBER, vgpus_for
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

MOST_SUBSETS = 1 << 12
MOST_TOGETHER = 10  # items of one start of which every subset is looked at


def by_subsets(field: GroupingProblem) -> list[Group]:
    """The cheapest partition of few items, alignment stages shared in a start.

    cost[G, s] of every subset G on every shared stage s: its own vGPUs, and for every start the
    cheapest way to share alignment stages, over all ways.
    """
    subsets, rate = np.arange(1 << len(field.items)), members_in(len(field.items)) @ field.rate
    vgpus = np.ceil(rate[:, None] * field.root_work * (1 - ROUNDING))
    cost = field.root_price * np.maximum(1.0, vgpus)
    cost[vgpus > field.table.most] = FAR
    for block in np.unique(field.block):
        own = np.flatnonzero(field.block == block)
        mask = sum((subsets >> int(item) & 1) << at for at, item in enumerate(own))
        cost += aligned_subsets(field, own)[:, mask].T
    root = cost.argmin(axis=1)
    lowest = cost[subsets, root]
    return [
        Group(items=members_of(subset), root=int(root[subset]), cost=float(lowest[subset]))
        for subset in cheapest_cut(np.minimum(lowest, FAR))
    ]


def aligned_subsets(field: GroupingProblem, items: Ints) -> Floats:
    """[R, subsets of items of one start] the least cost of their alignment stages; `FAR`: none."""
    taken = members_in(len(items))[1:]
    cost = field.aligned(
        np.full(len(taken), field.block[items[0]]),
        np.where(taken, field.limit[items], np.inf).min(axis=1),
        np.where(taken, field.rate[items], 0.0).sum(axis=1),
        largest=np.where(taken, field.rate[items], 0.0).max(axis=1),
    )
    together = np.column_stack([np.zeros(len(cost)), np.minimum(cost, FAR)])
    shared, last = np.zeros(together.shape), np.zeros(together.shape[1], dtype=np.int64)
    for root in range(len(shared)):
        cheapest_partition(together[root], shared[root], last)
    return shared


def members_in(count: int) -> NDArray[np.bool_]:
    """[subsets, count] whether a subset has an item, by its bits."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(np.bool_)


def members_of(subset: int) -> tuple[int, ...]:
    """Items of a subset, by its bits."""
    return tuple(item for item in range(subset.bit_length()) if subset >> item & 1)


def cheapest_cut(cost: Floats) -> list[int]:
    """Subsets of the cheapest partition, given the cost of every subset by its bits."""
    total, last = np.zeros(len(cost)), np.zeros(len(cost), dtype=np.int64)
    cheapest_partition(cost, total, last)
    found: list[int] = []
    left = len(cost) - 1
    while left:
        found.append(int(last[left]))
        left ^= found[-1]
    return found


@kernel_entry
def cheapest_partition(cost: Floats, total: Floats, last: Ints) -> None:
    """Fill in the least total of every subset cut into groups, and its first item's group."""
    total[0] = 0.0
    for subset in range(1, len(cost)):
        first = subset & -subset
        rest = subset ^ first
        total[subset], last[subset] = FAR, subset
        part = rest
        while True:  # every subset of the rest beside the first item
            group = part | first
            if cost[group] < FAR:
                value = cost[group] + total[subset ^ group]
                if value < total[subset]:
                    total[subset], last[subset] = value, group
            if part == 0:
                break
            part = (part - 1) & rest


# At prices


class Subsets:
    """A pricer of groups of items of any rates; those of a root are a group of columns."""

    quick = True

    def __init__(self, field: GroupingProblem) -> None:
        self.field = field
        cells: list[Ints] = []
        aligned: list[Floats] = []
        parts = np.minimum(field.parts_beside(), FAR)
        for block in np.unique(field.block):
            own = np.flatnonzero(field.block == block)
            if field.table.chains and len(own) <= MOST_TOGETHER:
                cells.append(own)
                aligned.append(aligned_subsets(field, own))
                continue
            cells += [own[at : at + 1] for at in range(len(own))]
            aligned += [np.column_stack([np.zeros(len(parts)), parts[:, item]]) for item in own]
        units = np.floor(field.rate / field.unit * (1 + ROUNDING) + ROUNDING).astype(np.int64)
        self.roots, self.cells = field.needed_roots, cells
        self.taken = [members_in(len(cell)) for cell in cells]
        self.units = np.concatenate([t @ units[c] for t, c in zip(self.taken, cells, strict=True)])
        self.first = np.cumsum([0, *map(len, self.taken)])
        self.aligned = np.concatenate(aligned, axis=1)[self.roots]
        self.cheapest, self.work = field.root_price[self.roots], field.root_work[self.roots]
        self.fewest = np.zeros(len(self.roots))
        one = 1.0 if field.table.most == ANY_NUMBER else math.inf
        self.most = np.full(len(self.roots), one)
        total = int(units.sum()) + 1
        choice = np.zeros((len(cells) + 1, total), dtype=np.int64)
        self.room = np.zeros(choice.shape), choice[1:], choice[0]

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """The best groups of the roots where one pays off most."""
        del cap, thorough
        least, taken = self._best(duals.demand)
        order = np.argsort(least, kind="stable")[:FRESH].tolist()
        found = [self._group(n, taken[n]) for n in order if least[n] < -SOLVED * self.cheapest[n]]
        return Priced(columns=columns_of(found, self.roots), least=least)

    def least(self, pi: Floats, below: float) -> Floats:
        """[roots] no group has a lower reduced cost."""
        del below
        return self._best(pi)[0]

    def _best(self, pi: Floats) -> tuple[Floats, Ints]:
        """[roots] the least reduced cost of a group; [roots, cells] its subsets."""
        gain = np.concatenate([t @ pi[c] for t, c in zip(self.taken, self.cells, strict=True)])
        least = np.zeros(len(self.roots))
        taken = np.zeros((len(self.roots), len(self.cells)), dtype=np.int64)
        cells = gain, self.units, self.first, self.aligned
        measures = self.field.unit, float(self.field.table.most)
        best_groups(cells, (self.cheapest, self.work), measures, self.room, least, taken)
        return least, taken

    def _group(self, at: int, taken: Ints) -> Group:
        """A group on a root of subsets of every cell."""
        both = zip(self.cells, taken.tolist(), strict=True)
        items = [int(cell[n]) for cell, subset in both for n in members_of(subset)]
        load = float(self.field.rate[items].sum())
        vgpus = float(vgpus_for(load, self.work[at : at + 1])[0])
        beside = self.aligned[at, self.first[:-1] + taken].sum()
        cost = float(self.cheapest[at] * vgpus + beside)
        return Group(items=tuple(sorted(items)), root=int(self.roots[at]), cost=cost)


@kernel
def _choices(gain: Floats, units: Ints, beside: Floats, top: Ints) -> int:
    """Fill in the subset of a cell of each rate that gains more than those of lower ones; -1: none.

    Returns the rate of all.
    """
    span = units[len(units) - 1]
    for more in range(span + 1):
        top[more] = -1
    for s in range(1, len(gain)):
        at = top[units[s]]
        if at < 0 or gain[s] - beside[s] > gain[at] - beside[at]:
            top[units[s]] = s
    highest = 0.0
    for more in range(span + 1):
        s = top[more]
        if s >= 0 and gain[s] - beside[s] > highest:
            highest = gain[s] - beside[s]
        else:
            top[more] = -1
    return int(span)


@kernel
def _added(
    gain: Floats, beside: Floats, top: Ints, loads: tuple[int, int], before: Floats, best: Floats,
    choice: Ints,
) -> None:  # fmt: skip
    """Fill in the largest gain at each rate with a cell more, and the subset that it takes."""
    total, span = loads
    for load in range(total + span + 1):
        best[load], choice[load] = before[load] if load <= total else -np.inf, 0
    for more in range(span + 1):
        s = top[more]
        for load in range(total + 1 if s >= 0 else 0):
            value = before[load] + gain[s] - beside[s]
            if value > best[load + more]:
                best[load + more], choice[load + more] = value, s


@kernel_entry
def best_groups(
    cells: tuple[Floats, Ints, Ints, Floats],
    roots: tuple[Floats, Floats],
    measures: tuple[float, float],
    room: tuple[Floats, Ints, Ints],
    least: Floats,
    taken: Ints,
) -> None:
    """Fill in the least reduced cost of a group on every root, and its subset of every cell.

    Args:
        cells: gain and rate of every subset, cell by cell; where each cell begins; cost of its
            alignment stages [roots, subsets].
        roots: price of a vGPU, vGPUs per rate.
        measures: the unit of rates, most vGPUs.
        room: [cells + 1, rates] the largest gain; [cells, rates] the subset it takes; [rates].
        least: [roots] filled in.
        taken: [roots, cells] filled in.
    """
    gain, units, first, aligned = cells
    price, work = roots
    unit, most = measures
    best, choice, top = room
    count = len(first) - 1
    for root in range(len(price)):
        best[0, 0], total = 0.0, 0
        for cell in range(count):
            a, b = first[cell], first[cell + 1]
            beside = aligned[root, a:b]
            span = _choices(gain[a:b], units[a:b], beside, top)
            loads = (total, span)
            _added(gain[a:b], beside, top, loads, best[cell], best[cell + 1], choice[cell])
            total += span
        least[root], end = np.inf, 0
        for load in range(total + 1):
            vgpus = max(1.0, np.ceil(load * unit * work[root] * (1 - ROUNDING)))
            if vgpus <= most and price[root] * vgpus - best[count, load] < least[root]:
                least[root], end = price[root] * vgpus - best[count, load], load
        for cell in range(count - 1, -1, -1):
            taken[root, cell] = choice[cell, end]
            end -= units[first[cell] + choice[cell, end]]
