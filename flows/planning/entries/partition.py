"""Which items meet in a group, at the least cost, with a proof (space `groups`).

Up to `MOST_SUBSETS` subsets: the best plan of every one of them, then the cheapest partition by
dynamic programming (3^n steps).

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Generation, Relaxed, raised
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.rounding import Incumbent, Tools, restricted
from flows.planning.entries.groups import (
    EntryClass,
    Group,
    GroupingProblem,
    best_of_subsets,
    cheapest_partition,
)
from flows.planning.entries.tables import ANY_NUMBER, ModelTable, vgpus_for
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.scheduler.compiled import entry as kernel_entry

MOST_SUBSETS = 1 << 12
MOST_CLASSES = 120
SEATS_ONLY_FROM_ITEMS = 400  # items, of which none is moved by itself
_NEAR = 600  # options
FRESH = 40  # columns of a round
CLOSE = 2e-3  # of the bound, where generating columns ends
_ENOUGH = 6e-3  # of the bound, where the integer program ends
_CLOSE_OF_CLASSES = 5e-3  # the same where classes round the limits of their items
_NODES = 500
_NEAR_GROUPS = 200
FEW = 25  # items, for which the relaxation is solved to the end
_COLUMNS = 600  # of the integer program
_PARTS = 6  # numbers of vGPUs that a class may end at
_MOST_LOADS = 4_000  # of which each is looked at to leave options out
_MOST_UNITS = 20_000  # of rates together, for exact pricing


@dataclass(slots=True)
class Partition:
    """Groups, what they cost, and what every plan by groups costs at least.

    Attributes:
        near: groups that a plan may have as well, the likeliest first.
    """

    groups: list[Group]
    value: float
    bound: float
    status: str = "optimal"
    columns: int = 0
    near: list[Group] = field(default_factory=list[Group])


def exact(field: GroupingProblem, watch: Watch, *, gap: float, step: float) -> Partition:
    """The cheapest partition; `whole` says that costs are whole numbers.

    Every item can be served by itself.
    """
    if not field.items:
        return Partition([], 0.0, 0.0)
    if 1 << len(field.items) <= MOST_SUBSETS:
        return by_subsets(field)
    return by_columns(field, watch, gap=gap, step=step)


def by_subsets(field: GroupingProblem) -> Partition:
    """The cheapest partition of few items."""
    count = len(field.items)
    cost, root = np.full(1 << count, FAR), np.full(1 << count, -1, dtype=np.int64)
    room = np.zeros(count, dtype=np.int64)
    best_of_subsets(room, cost, root, field.arrays)
    groups = [
        field.group([i for i in range(count) if subset >> i & 1], cost[subset], int(root[subset]))
        for subset in cheapest_cut(cost)
    ]
    value = math.fsum(group.cost for group in groups)
    return Partition(groups, value, value, columns=len(cost) - 1)


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


# Column generation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """Alike items: equal start and rate, limits between `least` and `largest`."""

    items: tuple[int, ...]
    least: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A group: its cost, its root, and how many items of each class it has."""

    cost: float
    root: int
    classes: Ints
    counts: Ints


class _Options:
    """A pricer of groups on options of shared stages; those of an option are a group of columns."""

    quick = True

    def __init__(
        self, table: ModelTable, items: Sequence[EntryClass], counts: Ints, *, joint: bool = False
    ) -> None:
        self.field = GroupingProblem(table, items)
        field = self.field
        self.counts = counts.astype(np.float64)
        self.beside = field.parts_beside(counts) if joint else field.costs_beside()
        self.unit = _common_rate(field.rate)
        units = np.rint(field.rate / self.unit).astype(np.int64)
        self.units = np.repeat(units, counts)
        useful = np.isfinite(self.beside).any(axis=1)
        if self.units.sum() <= _MOST_LOADS:
            useful &= needed_stages(field, self.unit * np.arange(1, self.units.sum() + 1))
        self.roots = np.flatnonzero(useful)
        self.beside = self.beside[useful]
        self.cheapest, self.work = field.root_price[useful], field.root_work[useful]
        self.vgpus = float(table.most)
        # else greedy filling is exact, or too many steps
        self.exactly = len(set(units.tolist())) > 1 and int(self.units.sum()) <= _MOST_UNITS
        self.one = np.repeat(np.arange(len(counts)), counts)
        groups = 1.0 if table.most == ANY_NUMBER else math.inf
        self.fewest = np.zeros(len(self.roots))
        self.most = np.full(len(self.roots), groups)
        self._near: Ints | None = None

    def cover(self) -> Cover:
        """All items of every class."""
        return Cover(
            need=self.counts,
            capacity=np.zeros(0),
            cap=self.counts,
            missed=np.full(len(self.counts), np.inf),
        )

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """Groups of low reduced cost; unless thorough, of the options that looked best only."""
        del cap
        thorough |= self._near is None
        look = self.look(duals.demand, None if thorough else self._near)
        least = look.least()
        some = [look.column(row) for row in _spread(look, least)]
        found = [c for c in some if _reduced(c, look.pi) < -SOLVED * max(1.0, c.cost)]
        if not thorough:
            return Priced(columns=self.columns(found), least=least, proven=False)
        self._near, bound = np.argsort(least)[:_NEAR], look.bound()
        if not found and self.exactly:
            bound, found = look.exact(bound)
        return Priced(columns=self.columns(found), least=bound)

    def columns(self, groups: Sequence[_Column]) -> Columns:
        """For the engine."""
        none = np.zeros(0)
        return Columns(
            cost=np.array([g.cost for g in groups]),
            starts=np.cumsum([0, *(len(g.classes) for g in groups)]),
            rows=np.concatenate([none, *(g.classes for g in groups)]).astype(np.int64),
            values=np.concatenate([none, *(g.counts for g in groups)]).astype(np.float64),
            group=np.searchsorted(self.roots, [g.root for g in groups]),
            source=groups,
        )

    def column(self, at: int, classes: Ints, counts: Ints) -> _Column:
        """A group on an option."""
        load = float(counts @ self.field.rate[classes])
        vgpus = max(1.0, math.ceil(load * self.work[at] * (1 - ROUNDING)))
        cost = self.cheapest[at] * vgpus + float(counts @ self.beside[at, classes])
        root = int(self.roots[at])
        return _Column(cost=float(cost), root=root, classes=classes, counts=counts)

    def look(self, pi: Floats, rows: Ints | None = None) -> "_Look":
        """Prices of all options, or of some, at duals [classes]."""
        which = np.arange(len(self.roots)) if rows is None else rows
        rate = self.field.rate
        gain = pi - self.beside[which]
        spare = np.where(gain > 0, gain / rate, 0.0)
        order = np.argsort(-spare, axis=1, kind="stable")
        density: Floats = np.take_along_axis(spare, order, axis=1)
        gain = np.maximum(np.take_along_axis(gain, order, axis=1), 0.0)
        used = gain > 0
        number = np.where(used, self.counts[order], 0.0)
        load = np.asarray(np.cumsum(number * rate[order], axis=1), dtype=np.float64)
        profit = np.asarray(np.cumsum(number * gain, axis=1), dtype=np.float64)
        work, price = self.work[which][:, None], self.cheapest[which][:, None]
        vgpus = np.maximum(1.0, np.ceil(load * work * (1 - ROUNDING)))
        full = np.where(used & (vgpus <= self.vgpus), price * vgpus - profit, np.inf)
        # the last class in part, so that fewer vGPUs are full
        before = load - number * rate[order]
        some, part = np.full(load.shape, np.inf), np.zeros(load.shape)
        for less in range(_PARTS if self.counts.max() > 1 else 1):
            fewer = np.minimum(np.floor(load * work) - less, self.vgpus)
            fits = np.floor((fewer / work - before) / rate[order] * (1 + ROUNDING) + ROUNDING)
            fits = np.clip(fits, 0.0, number)
            reduced = price * fewer - (profit - (number - fits) * gain)
            better = used & (fewer >= 1) & (fits > 0) & (reduced < some)
            some, part = np.where(better, reduced, some), np.where(better, fits, part)
        return _Look(
            self, pi, which, order, number, part, full, some, (load, profit, vgpus, density)
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


@dataclass(frozen=True, slots=True)
class _Look:
    """Prefixes of every option, [options, classes] each.

    Reduced cost with the last class whole or in part.
    """

    pricing: _Options
    pi: Floats
    which: Ints
    order: Ints
    number: Floats
    part: Floats
    full: Floats
    some: Floats
    more: tuple[Floats, Floats, Floats, Floats]

    def least(self) -> Floats:
        """[options] the least reduced cost of a group found."""
        return np.minimum(self.full.min(axis=1), self.some.min(axis=1))

    def bound(self) -> Floats:
        """[options] no group of the option has a lower reduced cost."""
        load, profit, vgpus, density = self.more
        pricing = self.pricing
        price, work = pricing.cheapest[self.which][:, None], pricing.work[self.which][:, None]
        zero = np.zeros((len(load), 1))
        load, profit = np.hstack([zero, load]), np.hstack([zero, profit])
        vgpus = np.hstack([zero + 1, vgpus])
        density = np.hstack([density, zero])
        after = np.hstack([vgpus[:, 1:], vgpus[:, -1:]])
        next_load = np.diff(load, axis=1, append=load[:, -1:])
        lowest = np.full(len(load), np.inf)

        def reduced(held: Floats, unit: float) -> Floats:
            held = np.minimum(held, pricing.vgpus)
            left = np.maximum(0.0, held / work - load)
            left = np.floor(left / unit * (1 + ROUNDING) + ROUNDING) * unit
            return price * held - profit - density * np.minimum(left, next_load)

        # whole vGPUs next to either end of what a class spans; in between they count in fractions
        span = after - vgpus
        parts = int(min(_PARTS, max(1.0, span.max())))
        for held in (vgpus, *(np.maximum(after - 1 - k, vgpus) for k in range(parts))):
            lowest = np.minimum(lowest, reduced(held, pricing.unit).min(axis=1))
        wide = span > parts + 1
        if wide.any():
            for held in (vgpus, after - 1 - parts):
                between = np.where(wide, reduced(held, ROUNDING), np.inf)
                lowest = np.minimum(lowest, between.min(axis=1))
        return lowest

    def exact(self, bound: Floats) -> tuple[Floats, list[_Column]]:
        """Bounds that are reached where they were below 0, and the groups that reach them."""
        pricing = self.pricing
        bound, found = bound.copy(), list[_Column]()
        units, total = pricing.units, int(pricing.units.sum())
        room = np.zeros(total + 1), np.zeros((len(units), total + 1), dtype=np.int8)
        gain = np.zeros(len(units))
        chosen = np.zeros(len(units), dtype=np.int64)
        for row in np.flatnonzero(bound < -ROUNDING).tolist():
            at = int(self.which[row])
            gain[:] = (self.pi - pricing.beside[at])[pricing.one]
            work = pricing.work[at] * pricing.unit
            bound[row] = fill(gain, units, pricing.cheapest[at], work, pricing.vgpus, *room, chosen)
            if bound[row] < -ROUNDING:
                classes, counts = np.unique(pricing.one[chosen > 0], return_counts=True)
                column = pricing.column(at, classes, counts)
                found.append(column)
        found.sort(key=lambda c: _reduced(c, self.pi))
        return bound, found[: 4 * FRESH]

    def prefixes(self, most: int) -> list[_Column]:
        """Groups of the lowest reduced costs, several of an option."""
        flat = np.argsort(self.full, axis=None)[: 4 * most]
        found: list[_Column] = []
        for row, end in zip(*np.unravel_index(flat, self.full.shape), strict=True):
            if len(found) < most and np.isfinite(self.full[row, end]):
                classes = self.order[row, : end + 1]
                counts = self.number[row, : end + 1].astype(np.int64)
                found.append(
                    self.pricing.column(
                        int(self.which[row]), classes[counts > 0], counts[counts > 0]
                    )
                )
        return found

    def column(self, row: int) -> _Column:
        """The best group found of an option."""
        whole = self.full[row].min() <= self.some[row].min()
        end = int((self.full if whole else self.some)[row].argmin())
        counts = self.number[row, : end + 1].copy()
        if not whole:
            counts[end] = self.part[row, end]
        classes, kept = self.order[row, : end + 1], counts > 0
        return self.pricing.column(
            int(self.which[row]), classes[kept], counts[kept].astype(np.int64)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generated:
    """Groups of a relaxation by the limits that plans are made with, likely ones first.

    Attributes:
        able: no plan by those limits costs less.
        bound: no plan costs less.
    """

    classes: list[_Class]
    pricer: _Options
    columns: Columns
    able: float
    bound: float

    def near(self, field: GroupingProblem) -> list[Group]:
        """Groups that a plan may have, the likeliest first."""
        return [_group(field, self.classes, c) for c in self.columns.source[:_NEAR_GROUPS]]


def _generated(field: GroupingProblem, watch: Watch, step: float, *, joint: bool) -> _Generated:
    classes = classes_of(field)
    counts = np.array([len(c.items) for c in classes], dtype=np.int64)
    lower = _Options(field.table, _items(field, classes, "least"), counts, joint=joint)
    pool, relaxed = _generation(lower, watch, step)
    bound = relaxed.bound
    if any(c.least < c.largest for c in classes):
        upper = _Options(field.table, _items(field, classes, "largest"), counts, joint=joint)
        bound = _generation(upper, watch, step, relaxed.duals)[1].bound
    return _Generated(
        classes=classes,
        pricer=lower,
        columns=_nearest(lower, pool, relaxed.duals.demand),
        able=max(relaxed.bound, bound),
        bound=raised(max(bound, 0.0), step),
    )


def by_columns(field: GroupingProblem, watch: Watch, *, gap: float, step: float) -> Partition:
    """The cheapest partition found over generated groups, with a bound over all groups."""
    found = _generated(field, watch, step, joint=False)
    able = max(found.able, found.bound)
    enough = gap if len(field.items) <= FEW else _ENOUGH
    limits = Limits(
        relative_gap=gap,
        nodes=_NODES,
        seconds=watch.left_s(),
        enough=-able * (1 + enough),
    )
    plan = Incumbent()
    restricted(found.pricer.cover(), found.columns, plan, limits, Tools())
    groups = improved(field, _rounded(field, found.classes, plan), able, gap)
    value = math.fsum(group.cost for group in groups)
    return Partition(
        groups,
        value,
        min(found.bound, value),
        status="optimal" if value - found.bound <= gap * value else "feasible",
        columns=len(found.columns),
        near=found.near(field),
    )


def in_pools(field: GroupingProblem, watch: Watch, step: float) -> tuple[float, list[Group]]:
    """A bound on plans in which entries of one start may share alignment stages; likely groups.

    An entry then pays its part of the cheapest vGPUs that are in time: all of them where all
    entries of its start fill them, else of one vGPU.
    """
    found = _generated(field, watch, step, joint=True)
    return found.bound, found.near(field)


def classes_of(field: GroupingProblem) -> list[_Class]:
    """Items by start and rate, and by limit: equal ones, or where they are many, close ones."""
    alike: dict[tuple[int, float], dict[float, list[int]]] = {}
    for number, item in enumerate(field.items):
        key = (item.block, item.rate_rps)
        alike.setdefault(key, {}).setdefault(item.limit_us, []).append(number)
    distinct = sum(map(len, alike.values()))
    found: list[_Class] = []
    for limits in alike.values():
        levels = sorted(limits)
        most = len(levels)
        if distinct > MOST_CLASSES:
            most = max(1, round(MOST_CLASSES * len(levels) / distinct))
        for part in np.array_split(np.array(levels), min(most, len(levels))):
            items = tuple(i for level in part.tolist() for i in limits[level])
            found.append(_Class(items=items, least=float(part[0]), largest=float(part[-1])))
    return found


def _items(field: GroupingProblem, classes: Sequence[_Class], limit: str) -> list[EntryClass]:
    return [
        replace(field.items[c.items[0]], limit_us=getattr(c, limit), members=()) for c in classes
    ]


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
    counts, pool = pricer.counts, Pool()
    close = 1e-6 if counts.sum() <= FEW else CLOSE if counts.max() == 1 else _CLOSE_OF_CLASSES
    pool.add(pricer.columns(_single(pricer)))
    generation = Generation(pricer.cover(), pricer, pool, watch, close=close, whole_costs=step)
    return pool, generation.run(start)


def _reduced(column: _Column, pi: Floats) -> float:
    return column.cost - float(column.counts @ pi[column.classes])


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


def _spread(look: _Look, least: Floats) -> list[int]:
    """Options of the lowest reduced costs, few of any one junction."""
    order = np.argsort(least)[: 20 * FRESH]
    junction = look.pricing.field.root_junction[look.pricing.roots[look.which]]
    taken: dict[int, int] = {}
    found: list[int] = []
    for row in order.tolist():
        j = int(junction[row])
        if least[row] >= 0 or len(found) == FRESH:
            break
        if taken.get(j, 0) < FRESH // 4:
            taken[j] = taken.get(j, 0) + 1
            found.append(row)
    return found


def _single(pricing: _Options) -> list[_Column]:
    """Every class alone: one item of it, and all."""
    found: list[_Column] = []
    for number, count in enumerate(pricing.counts.astype(int).tolist()):
        for k in {1, count}:
            load = k * float(pricing.field.rate[number])
            vgpus = np.maximum(1.0, np.ceil(load * pricing.work * (1 - ROUNDING)))
            cost = pricing.cheapest * vgpus + k * pricing.beside[:, number]
            cost = np.where(vgpus <= pricing.vgpus, cost, np.inf)
            row = int(cost.argmin())
            if np.isfinite(cost[row]):
                found.append(pricing.column(row, np.array([number]), np.array([k])))
    return found


# From groups in parts to groups as a whole


def _nearest(pricer: _Options, pool: Pool, pi: Floats) -> Columns:
    """Groups of the lowest reduced costs, and every class alone."""
    pool.add(pricer.columns(pricer.look(pi).prefixes(_COLUMNS)))
    columns = pool.columns
    order = np.argsort(columns.cost - columns.priced(pi), kind="stable")
    single = np.diff(columns.starts)[order] == 1
    return columns.take(order[(np.arange(len(order)) < _COLUMNS) | single])


def _group(items: GroupingProblem, classes: Sequence[_Class], column: _Column) -> Group:
    """A group of the first items of its classes."""
    counted = zip(column.classes.tolist(), column.counts.tolist(), strict=True)
    members = [item for number, count in counted for item in classes[number].items[:count]]
    return items.group(members, column.cost, column.root)


def _rounded(field: GroupingProblem, classes: Sequence[_Class], plan: Incumbent) -> list[Group]:
    """Groups of a plan by classes, items in their places."""
    left, by_root = [list(c.items) for c in classes], dict[int, list[int]]()
    for column, times in zip(plan.columns.source, plan.counts.tolist(), strict=True):
        for number, count in zip(
            times * column.classes.tolist(), times * column.counts.tolist(), strict=True
        ):
            taken = [left[number].pop() for _ in range(min(count, len(left[number])))]
            by_root.setdefault(column.root, []).extend(taken)
    members = [m for m in by_root.values() if m] + [[i] for items in left for i in items]
    return [field.best(m) for m in members]


def improved(field: GroupingProblem, groups: list[Group], bound: float, gap: float) -> list[Group]:
    """Move single items between groups, join groups, while that pays."""
    if len(field.items) > SEATS_ONLY_FROM_ITEMS:
        return groups
    while math.fsum(g.cost for g in groups) * (1 - gap) > bound:
        before = math.fsum(g.cost for g in groups)
        groups = _joined(field, _moved(field, groups))
        if math.fsum(g.cost for g in groups) >= before - 1e-9:
            break
    return groups


def _moved(field: GroupingProblem, groups: list[Group]) -> list[Group]:
    groups = list(groups)
    for item in range(len(field.items)):
        at = next(n for n, g in enumerate(groups) if item in g.items)
        rest = tuple(i for i in groups[at].items if i != item)
        without = field.best(rest).cost if rest else 0.0
        saved = groups[at].cost - without
        best, target, joined = -1e-9, -1, None
        for number, group in enumerate(groups):
            if number == at:
                continue
            grown = field.best((*group.items, item))
            change = grown.cost - group.cost - saved
            if change < best:
                best, target, joined = change, number, grown
        if joined is not None:
            groups[target] = joined
            if rest:
                groups[at] = field.best(rest)
            else:
                del groups[at]
    return groups


def _joined(field: GroupingProblem, groups: list[Group]) -> list[Group]:
    groups = list(groups)
    a = 0
    while a < len(groups):
        for b in range(a + 1, len(groups)):
            both = field.best((*groups[a].items, *groups[b].items))
            if both.cost < groups[a].cost + groups[b].cost - 1e-9:
                groups[a] = both
                del groups[b]
                break
        else:
            a += 1
    return groups
