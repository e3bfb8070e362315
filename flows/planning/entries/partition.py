"""Which items meet in a group, at the least cost, with a proof (space `groups`).

Up to `MOST_SUBSETS` subsets: the best plan of every one of them, alignment stages shared (space
`pools`), then the cheapest partition by dynamic programming (3^n steps).

Beyond: column generation. Sets: classes i of alike items (m_i of them), groups g (an option of a
shared stage, so many items of each class). Two groups of one option may be one, which never costs
more.

    minimise    sum_g cost_g z_g                z_g >= 0, whole
    cover_i:    sum_g count_ig z_g >= m_i       (dual pi_i)

Pricing, for every option s of every junction: items by falling (pi_i - alignment_is) / rate_i fill
n vGPUs of s; the reduced cost is price_s n - sum (pi_i - alignment_is). Where rates are multiples
of one rate g, what is left of n vGPUs is filled with a fraction of the next item in whole g: that
bounds every group of the option from below, and the engine the whole.

With many items a class holds items of nearly equal limits: plans are made with its least limit, the
bound with its largest.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Generation, Relaxed, raised
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.rounding import Incumbent, Tools, restricted
from flows.planning.entries.groups import EntryClass, Group, GroupingProblem
from flows.planning.entries.tables import ANY_NUMBER, ModelTable, vgpus_for
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel

MOST_SUBSETS = 1 << 12
MOST_CLASSES = 120
FRESH = 40  # columns of a round
CLOSE = 2e-3  # of the bound, where generating columns and the integer program end
_NODES = 500
_COLUMNS = 600  # of the integer program
_MOST_UNITS = 10_000  # of rates together, for exact pricing


@dataclass(slots=True)
class Partition:
    """Groups, what they cost, and what every plan by groups costs at least.

    Attributes:
        near: groups that a plan may have as well, the likeliest first.
    """

    groups: list[Group]
    value: float
    bound: float
    columns: int = 0
    near: list[Group] = field(default_factory=list[Group])


def by_subsets(field: GroupingProblem) -> tuple[Partition, Partition]:
    """The cheapest partitions of few items: alignment stages of each alone, and shared in a start.

    cost[G, s] of every subset G on every shared stage s: its own vGPUs, and for every start the
    cheapest way to share alignment stages, over all ways.
    """
    starts = {int(b): np.flatnonzero(field.block == b) for b in np.unique(field.block)}
    subsets = np.arange(1 << len(field.items))
    taken = (subsets[:, None] >> np.arange(len(field.items)) & 1).astype(np.float64)
    rate = (taken * field.rate).sum(axis=1)
    best, root = np.full((2, len(subsets)), FAR), np.full((2, len(subsets)), -1)
    for junction in range(field.table.blocks):
        roots = np.arange(field.root_start[junction], field.root_start[junction + 1])
        if not len(roots):
            continue
        vgpus = np.ceil(rate[:, None] * field.root_work[roots] * (1 - ROUNDING))
        shared = field.root_price[roots] * np.maximum(1.0, vgpus)
        shared[vgpus > field.table.most] = np.inf
        alone = shared + taken @ np.minimum(field.beside[roots], FAR).T
        for start, items in starts.items():
            mask = sum((subsets >> int(item) & 1) << at for at, item in enumerate(items))
            shared += _aligned(field, start, items, roots)[mask]
        for number, cost in enumerate((alone, shared)):
            chosen = cost.argmin(axis=1)
            lowest = cost[subsets, chosen]
            better = lowest < best[number]
            best[number][better], root[number][better] = lowest[better], roots[chosen[better]]
    return _cut(best[0], root[0]), _cut(best[1], root[1])


def _cut(cost: Floats, root: Ints) -> Partition:
    """The cheapest partition, given cost and root of every subset."""
    groups = [
        Group(items=members_of(subset), root=int(root[subset]), cost=float(cost[subset]))
        for subset in cheapest_cut(cost)
    ]
    value = math.fsum(group.cost for group in groups)
    return Partition(groups, value, value, columns=len(cost) - 1)


def _aligned(field: GroupingProblem, start: int, items: Ints, roots: Ints) -> Floats:
    """[subsets of the items, roots] the least cost of alignment stages of entries of one start."""
    cost = np.zeros((1 << len(items), len(roots)))
    if start > field.root_junction[roots[0]]:
        cost[1:] = np.inf
        return cost
    boards = start == field.root_junction[roots[0]]
    for subset in range(1, len(cost)):
        members = [int(items[i]) for i in range(len(items)) if subset >> i & 1]
        first, rest = subset & -subset, subset & subset - 1
        left = field.limit[members].min() - field.root_time[roots, None]
        rates = field.rate[members]
        cost_of = partial(field.cost, float(rates.sum()))
        together = field.aligned(start, roots, left, float(rates.max()), cost_of)[:, 0]
        part = (rest - 1) & rest
        while rest and not boards:  # the first item with every smaller subset of the rest
            group = part | first
            np.minimum(together, cost[group] + cost[subset ^ group], out=together)
            if part == 0:
                break
            part = (part - 1) & rest
        cost[subset] = together
    return cost


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


# Column generation


class _Options:
    """A pricer of groups on options of shared stages; those of an option are a group of columns."""

    quick = True

    def __init__(
        self, table: ModelTable, items: Sequence[EntryClass], counts: Ints, *, joint: bool = False
    ) -> None:
        self.field = GroupingProblem(table, items)
        field = self.field
        self.counts = counts.astype(np.float64)
        self.beside = field.parts_beside(counts) if joint else field.beside
        self.unit = _common_rate(field.rate)
        units = np.rint(field.rate / self.unit).astype(np.int64)
        self.units = np.repeat(units, counts)
        useful = np.isfinite(self.beside).any(axis=1)
        if self.units.sum() <= _MOST_UNITS:
            useful &= needed_stages(field, self.unit * np.arange(1, self.units.sum() + 1))
        self.roots = np.flatnonzero(useful)
        self.beside = self.beside[useful]
        self.cheapest, self.work = field.root_price[useful], field.root_work[useful]
        self.vgpus = float(table.most)
        # else greedy filling is exact, or too many steps
        self.exactly = len(set(units.tolist())) > 1 and int(self.units.sum()) <= _MOST_UNITS
        groups = 1.0 if table.most == ANY_NUMBER else math.inf
        self.fewest = np.zeros(len(self.roots))
        self.most = np.full(len(self.roots), groups)

    def cover(self) -> Cover:
        """All items of every class."""
        return Cover(
            need=self.counts,
            capacity=np.zeros(0),
            cap=self.counts,
            missed=np.full(len(self.counts), np.inf),
        )

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """Groups of low reduced cost; if thorough and greedy filling has none, the best ones."""
        del cap
        pi = duals.demand
        bound, lowest = np.zeros((2, len(self.roots)))
        number = np.zeros((len(self.roots), len(pi)), dtype=np.int64)
        options = self.beside, self.cheapest, self.work
        room = np.zeros(len(pi)), np.zeros(len(pi), dtype=np.int64)
        measures = self.vgpus, self.unit
        classes = pi, self.field.rate, self.counts
        fill_greedily(classes, options, measures, room, bound, lowest, number)
        found = [self.column(row, number[row]) for row in self._spread(lowest)]
        found = [g for g in found if _reduced(g, pi) < -SOLVED * max(1.0, g.cost)]
        if thorough and not found and self.exactly:
            bound, found = self._exact(pi, bound)
        return Priced(columns=columns_of(found, self.roots), least=bound)

    def _exact(self, pi: Floats, bound: Floats) -> tuple[Floats, list[Group]]:
        """Bounds that are reached where they were below 0, and the groups that reach them."""
        bound, found = bound.copy(), list[Group]()
        units, total = self.units, int(self.units.sum())
        one = np.repeat(np.arange(len(pi)), self.counts.astype(np.int64))
        room = np.zeros(total + 1), np.zeros((len(units), total + 1), dtype=np.int8)
        chosen = np.zeros(len(units), dtype=np.int64)
        for row in np.flatnonzero(bound < -ROUNDING).tolist():
            gain = (pi - self.beside[row])[one]
            work = float(self.work[row]) * self.unit
            price = float(self.cheapest[row])
            bound[row] = fill(gain, units, price, work, self.vgpus, *room, chosen)
            if bound[row] < -ROUNDING:
                found.append(self.column(row, np.bincount(one[chosen > 0], minlength=len(pi))))
        found.sort(key=lambda group: _reduced(group, pi))
        return bound, found[: 4 * FRESH]

    def _spread(self, lowest: Floats) -> list[int]:
        """Options of the lowest reduced costs, few of any one junction."""
        junction = self.field.root_junction[self.roots]
        taken: dict[int, int] = {}
        found: list[int] = []
        for row in np.argsort(lowest)[: 20 * FRESH].tolist():
            j = int(junction[row])
            if lowest[row] >= 0 or len(found) == FRESH:
                break
            if taken.get(j, 0) < FRESH // 4:
                taken[j] = taken.get(j, 0) + 1
                found.append(row)
        return found

    def column(self, at: int, number: Ints) -> Group:
        """A group on an option, with so many items of each class: these are its items."""
        load = float(number @ self.field.rate)
        vgpus = max(1.0, math.ceil(load * self.work[at] * (1 - ROUNDING)))
        some = np.flatnonzero(number)
        cost = self.cheapest[at] * vgpus + float(number[some] @ self.beside[at, some])
        items = np.repeat(some, number[some]).tolist()
        return Group(items=tuple(items), root=int(self.roots[at]), cost=float(cost))


def columns_of(groups: Sequence[Group], roots: Ints) -> Columns:
    """Groups for the engine, those of a root a group of columns; `roots` rise."""
    counted = [np.unique(g.items, return_counts=True) for g in groups]
    none = np.zeros(0)
    return Columns(
        cost=np.array([g.cost for g in groups]),
        starts=np.cumsum([0, *(len(classes) for classes, _ in counted)]),
        rows=np.concatenate([none, *(classes for classes, _ in counted)]).astype(np.int64),
        values=np.concatenate([none, *(counts for _, counts in counted)]).astype(np.float64),
        group=np.searchsorted(roots, [g.root for g in groups]),
        source=groups,
    )


def needed_stages(field: GroupingProblem, loads: Floats) -> NDArray[np.bool_]:
    """[roots] whether some load costs less than on every faster root of the junction and kind."""
    needed = np.zeros(len(field.root_time), dtype=np.bool_)
    for junction in range(field.table.blocks):
        span = np.arange(field.root_start[junction], field.root_start[junction + 1])
        for kind in np.unique(field.root_kind[span]):
            roots = span[field.root_kind[span] == kind]
            vgpus = vgpus_for(loads, field.root_work[roots, None])
            cost = np.where(vgpus > field.table.most, np.inf, field.root_price[roots, None] * vgpus)
            lowest = np.minimum.accumulate(cost, axis=0)
            before = np.vstack([np.full((1, len(loads)), np.inf), lowest[:-1]])
            needed[roots] = (cost < before - 1e-9).any(axis=1)
    return needed


def _generated(
    field: GroupingProblem, watch: Watch, step: float, *, joint: bool
) -> tuple[_Options, list[list[int]], Columns, float]:
    """Groups of a relaxation by the limits that plans are made with, likely ones first.

    With their pricer, items by class, and what no plan costs less than.
    """
    classes = classes_of(field)
    counts = np.array([len(items) for items in classes], dtype=np.int64)
    least = [field.items[items[0]] for items in classes]
    lower = _Options(field.table, least, counts, joint=joint)
    pool, relaxed = _generation(lower, watch, step)
    bound = relaxed.bound
    largest = [field.items[items[-1]] for items in classes]
    if any(a.limit_us < b.limit_us for a, b in zip(least, largest, strict=True)):
        upper = _Options(field.table, largest, counts, joint=joint)
        bound = _generation(upper, watch, step, relaxed.duals)[1].bound
    columns = _nearest(pool, relaxed.duals.demand)
    return lower, classes, columns, raised(max(bound, 0.0), step)


def by_columns(field: GroupingProblem, watch: Watch, *, gap: float, step: float) -> Partition:
    """The cheapest partition found over generated groups, with a bound over all groups."""
    pricer, classes, columns, bound = _generated(field, watch, step, joint=False)
    limits = Limits(
        relative_gap=gap, nodes=_NODES, seconds=watch.left_s(), enough=-bound * (1 + CLOSE)
    )
    plan = Incumbent()
    restricted(pricer.cover(), columns, plan, limits, Tools())
    groups = _rounded(field, classes, plan)
    value = math.fsum(group.cost for group in groups)
    near = _members(classes, columns)
    return Partition(groups, value, min(bound, value), columns=len(columns), near=near)


def in_pools(field: GroupingProblem, watch: Watch, step: float) -> tuple[float, list[Group]]:
    """A bound on plans in which entries of one start may share alignment stages; likely groups.

    An entry then pays its part of the cheapest vGPUs that are in time: all of them where all
    entries of its start fill them, else of one vGPU.
    """
    _, classes, columns, bound = _generated(field, watch, step, joint=True)
    return bound, _members(classes, columns)


def classes_of(field: GroupingProblem) -> list[list[int]]:
    """Items by start and rate, and by limit: equal ones, or where they are many, close ones.

    Those of a class by rising limit.
    """
    alike: dict[tuple[int, float], dict[float, list[int]]] = {}
    for number, item in enumerate(field.items):
        key = (item.block, item.rate_rps)
        alike.setdefault(key, {}).setdefault(item.limit_us, []).append(number)
    distinct = sum(map(len, alike.values()))
    found: list[list[int]] = []
    for limits in alike.values():
        levels = sorted(limits)
        most = len(levels)
        if distinct > MOST_CLASSES:
            most = max(1, round(MOST_CLASSES * len(levels) / distinct))
        found += [
            [i for level in part.tolist() for i in limits[level]]
            for part in np.array_split(np.array(levels), min(most, len(levels)))
        ]
    return found


def _common_rate(rates: Floats) -> float:
    """The largest rate that all are multiples of, in millionths of a request/s."""
    whole = np.rint(rates * 1e6)
    if np.abs(whole - rates * 1e6).max(initial=0.0) > 1e-3 or whole.min(initial=1.0) < 1:  # noqa: PLR2004 - of a millionth
        return 1e-9
    return math.gcd(*map(int, whole)) / 1e6


def _generation(
    pricer: _Options, watch: Watch, step: float, start: Duals | None = None
) -> tuple[Pool, Relaxed]:
    """Groups of the linear relaxation's optimum, nearly, and the bound that its prices prove."""
    pool = Pool()
    pool.add(columns_of(_single(pricer), pricer.roots))
    generation = Generation(pricer.cover(), pricer, pool, watch, close=CLOSE, whole_costs=step)
    return pool, generation.run(start)


def _reduced(group: Group, pi: Floats) -> float:
    return group.cost - float(pi[list(group.items)].sum())


@kernel
def _in_order(pi: Floats, beside: Floats, rates: Floats, density: Floats, order: Ints) -> int:
    """Fill in gains per rate, and the classes with any, the highest first; how many they are."""
    used = 0
    for c in range(len(pi)):
        density[c] = (pi[c] - beside[c]) / rates[c]
        if not density[c] > 0:
            continue
        at = used
        while at > 0 and density[order[at - 1]] < density[c]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = c
        used += 1
    return used


@kernel_entry
def fill_greedily(
    classes: tuple[Floats, Floats, Floats],
    options: tuple[Floats, Floats, Floats],
    measures: tuple[float, float],
    room: tuple[Floats, Ints],
    bound: Floats,
    lowest: Floats,
    number: Ints,
) -> None:
    """Fill in the lowest reduced cost found of a group on every option, and a bound of it.

    Classes by falling gain per rate fill one vGPU, two, … What is left of them is filled with a
    fraction of the next item in whole units: no group of the option costs less.

    Args:
        classes: duals, rates of an item, items.
        options: alignment [options, classes], price of a vGPU, vGPUs per rate.
        measures: most vGPUs, unit of rates.
        room: [classes] twice.
        bound: [options] filled in.
        lowest: [options] filled in.
        number: [options, classes] filled in: items of the group found; zeros before.
    """
    pi, rates, counts = classes
    beside, price, work = options
    most, unit = measures
    density, order = room
    for row in range(len(price)):
        used = _in_order(pi, beside[row], rates, density, order)
        bound[row] = lowest[row] = price[row]
        at, vgpus, taken, load, gain = 0, 0.0, 0.0, 0.0, 0.0
        end, part = 0, 0.0
        while at < used and vgpus < most:
            vgpus += 1
            held = vgpus / work[row]
            while at < used:
                c = order[at]
                fits = np.floor((held - load) / rates[c] * (1 + ROUNDING) + ROUNDING)
                fits = min(max(fits, 0.0), counts[c] - taken)
                load += fits * rates[c]
                gain += fits * rates[c] * density[c]
                taken += fits
                if taken < counts[c]:
                    break
                at, taken = at + 1, 0.0
            reduced = price[row] * vgpus - gain
            if reduced < lowest[row]:
                lowest[row], end, part = reduced, at, taken
            if at < used:
                left = np.floor((held - load) / unit * (1 + ROUNDING) + ROUNDING) * unit
                reduced -= density[order[at]] * max(left, 0.0)
            bound[row] = min(bound[row], reduced)
        for at in range(end):
            number[row, order[at]] = counts[order[at]]
        if part > 0:
            number[row, order[end]] = part


@kernel_entry
def fill(
    gain: Floats,
    units: Ints,
    price: float,
    work: float,
    most: float,
    best: Floats,
    taken: NDArray[np.int8],
    chosen: Ints,
) -> float:
    """The least reduced cost of a group on an option (a 0/1 knapsack), and which items it has.

    Args:
        gain: [items] dual less alignment; items without one are left out.
        units: [items] of rate.
        price: of a vGPU.
        work: vGPUs per unit.
        most: vGPUs.
        best: [units + 1] room: the largest gain of so much rate.
        taken: [items, units + 1] room: whether an item is part of it.
        chosen: [items] filled in.
    """
    total = 0
    best[0] = 0.0
    for item in range(len(gain)):
        chosen[item] = 0
        if not gain[item] > 0:
            continue
        for load in range(total + 1, total + units[item] + 1):
            best[load] = -np.inf
        total += units[item]
        for load in range(total, -1, -1):
            taken[item, load] = 0
            if load >= units[item] and best[load - units[item]] + gain[item] > best[load]:
                best[load] = best[load - units[item]] + gain[item]
                taken[item, load] = 1
    least, end = np.inf, -1
    for load in range(1, total + 1):
        vgpus = max(1.0, np.ceil(load * work * (1 - ROUNDING)))
        if vgpus <= most and price * vgpus - best[load] < least:
            least, end = price * vgpus - best[load], load
    for item in range(len(gain) - 1, -1, -1):
        if end > 0 and gain[item] > 0 and taken[item, end]:
            chosen[item] = 1
            end -= units[item]
    return least


def _single(pricing: _Options) -> list[Group]:
    """Every class alone: one item of it, and all."""
    found: list[Group] = []
    for number, count in enumerate(pricing.counts.astype(int).tolist()):
        for k in {1, count}:
            load = k * float(pricing.field.rate[number])
            vgpus = np.maximum(1.0, np.ceil(load * pricing.work * (1 - ROUNDING)))
            cost = pricing.cheapest * vgpus + k * pricing.beside[:, number]
            cost = np.where(vgpus <= pricing.vgpus, cost, np.inf)
            row = int(cost.argmin())
            if np.isfinite(cost[row]):
                own = np.zeros(len(pricing.counts), dtype=np.int64)
                own[number] = k
                found.append(pricing.column(row, own))
    return found


# From groups in parts to groups as a whole


def _nearest(pool: Pool, pi: Floats) -> Columns:
    """Groups of the lowest reduced costs, and every class alone."""
    columns = pool.columns
    order = np.argsort(columns.cost - columns.priced(pi), kind="stable")
    single = np.diff(columns.starts)[order] == 1
    return columns.take(order[(np.arange(len(order)) < _COLUMNS) | single])


def _members(classes: Sequence[Sequence[int]], columns: Columns) -> list[Group]:
    """Groups of classes as groups of the first items of each."""
    groups: Sequence[Group] = columns.source
    counted = (Counter(group.items).items() for group in groups)
    items = ([i for number, n in own for i in classes[number][:n]] for own in counted)
    return [replace(g, items=tuple(own)) for g, own in zip(groups, items, strict=True)]


def _rounded(
    field: GroupingProblem, classes: Sequence[Sequence[int]], plan: Incumbent
) -> list[Group]:
    """Groups of a plan by classes, items in their places."""
    left, by_root = [list(items) for items in classes], dict[int, list[int]]()
    for group, times in zip(plan.columns.source, plan.counts.tolist(), strict=True):
        for number in times * group.items:
            if left[number]:
                by_root.setdefault(group.root, []).append(left[number].pop())
    members = [m for m in by_root.values() if m] + [[i] for items in left for i in items]
    return [field.best(m) for m in members]
