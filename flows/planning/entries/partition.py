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
bounds every group of the option from below. Duals scaled by the largest factor that leaves no group
a negative reduced cost bound the whole (Farley). Where only whole percents are paid, the bound
rises to the next.

With many items a class holds items of nearly equal limits: plans are made with its least limit, the
bound with its largest.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.cover import raised
from flows.planning.entries.groups import (
    FAR,
    Field,
    Group,
    Item,
    best_of_subsets,
    cheapest_partition,
)
from flows.planning.entries.tables import SLACK, ModelTable, vgpus_for
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Covering, Limits, solve_integer
from flows.planning.watch import Watch
from triton_backend.contract.errors import InvariantError
from triton_backend.scheduler.compiled import entry as kernel_entry

MOST_SUBSETS = 1 << 12
MOST_CLASSES = 120
MANY = 400  # items, of which none is moved by itself
_ROUNDS = 200
_INNER = 8  # rounds over near options between two over all
_NEAR = 600  # options
_FRESH = 40  # columns of a round
_CLOSE = 2e-3  # of the bound, where generating columns ends
_ENOUGH = 6e-3  # of the bound, where the integer program ends
_CLOSE_OF_CLASSES = 5e-3  # the same where classes round the limits of their items
_NODES = 500
_FEW = 25  # items, for which the relaxation is solved to the end
_COLUMNS = 600  # of the integer program
_TINY = 1e-9
_PARTS = 6  # numbers of vGPUs that a class may end at
_MOST_LOADS = 4_000  # of which each is looked at to leave options out
_MOST_UNITS = 20_000  # of rates together, for exact pricing


@dataclass(slots=True)
class Partition:
    """Groups, what they cost, and what every plan by groups costs at least."""

    groups: list[Group]
    value: float
    bound: float
    status: str = "optimal"
    columns: int = 0


def exact(field: Field, watch: Watch, *, gap: float, step: float) -> Partition:
    """The cheapest partition; `whole` says that costs are whole numbers.

    Every item can be served by itself.
    """
    if not field.items:
        return Partition([], 0.0, 0.0)
    if 1 << len(field.items) <= MOST_SUBSETS:
        return by_subsets(field)
    return by_columns(field, watch, gap=gap, step=step)


def by_subsets(field: Field) -> Partition:
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

    @property
    def key(self) -> tuple[float, frozenset[tuple[int, int]]]:
        """Equal columns have equal keys."""
        pairs = zip(self.classes.tolist(), self.counts.tolist(), strict=True)
        return (self.cost, frozenset(pairs))


class _Pricing:
    """Reduced costs of every option of a shared stage."""

    def __init__(
        self, table: ModelTable, items: Sequence[Item], counts: Ints, *, joint: bool = False
    ) -> None:
        self.field = Field(table, items)
        field = self.field
        self.counts = counts.astype(np.float64)
        self.beside = field.parts_beside(counts) if joint else field.costs_beside()
        self.unit = _common_rate(field.rate)
        units = np.rint(field.rate / self.unit).astype(np.int64)
        self.units = np.repeat(units, counts)
        useful = np.isfinite(self.beside).any(axis=1)
        if self.units.sum() <= _MOST_LOADS:
            useful &= _needed(field, self.unit * np.arange(1, self.units.sum() + 1))
        self.roots = np.flatnonzero(useful)
        self.beside = self.beside[useful]
        self.price, self.work = field.root_price[useful], field.root_work[useful]
        self.most = float(table.most)
        # else greedy filling is exact, or too many steps
        self.exactly = len(set(units.tolist())) > 1 and int(self.units.sum()) <= _MOST_UNITS
        self.one = np.repeat(np.arange(len(counts)), counts)

    def column(self, at: int, classes: Ints, counts: Ints) -> _Column:
        """A group on an option."""
        load = float(counts @ self.field.rate[classes])
        vgpus = max(1.0, math.ceil(load * self.work[at] * (1 - SLACK)))
        cost = self.price[at] * vgpus + float(counts @ self.beside[at, classes])
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
        work, price = self.work[which][:, None], self.price[which][:, None]
        vgpus = np.maximum(1.0, np.ceil(load * work * (1 - SLACK)))
        full = np.where(used & (vgpus <= self.most), price * vgpus - profit, np.inf)
        # the last class in part, so that fewer vGPUs are full
        before = load - number * rate[order]
        some, part = np.full(load.shape, np.inf), np.zeros(load.shape)
        for less in range(_PARTS if self.counts.max() > 1 else 1):
            fewer = np.minimum(np.floor(load * work) - less, self.most)
            fits = np.floor((fewer / work - before) / rate[order] * (1 + SLACK) + SLACK)
            fits = np.clip(fits, 0.0, number)
            reduced = price * fewer - (profit - (number - fits) * gain)
            better = used & (fewer >= 1) & (fits > 0) & (reduced < some)
            some, part = np.where(better, reduced, some), np.where(better, fits, part)
        return _Look(
            self, pi, which, order, number, part, full, some, (load, profit, vgpus, density)
        )


def _needed(field: Field, loads: Floats) -> NDArray[np.bool_]:
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

    pricing: _Pricing
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
        price, work = pricing.price[self.which][:, None], pricing.work[self.which][:, None]
        zero = np.zeros((len(load), 1))
        load, profit = np.hstack([zero, load]), np.hstack([zero, profit])
        vgpus = np.hstack([zero + 1, vgpus])
        density = np.hstack([density, zero])
        after = np.hstack([vgpus[:, 1:], vgpus[:, -1:]])
        next_load = np.diff(load, axis=1, append=load[:, -1:])
        lowest = np.full(len(load), np.inf)

        def reduced(held: Floats, unit: float) -> Floats:
            held = np.minimum(held, pricing.most)
            left = np.maximum(0.0, held / work - load)
            left = np.floor(left / unit * (1 + SLACK) + SLACK) * unit
            return price * held - profit - density * np.minimum(left, next_load)

        # whole vGPUs next to either end of what a class spans; in between they count in fractions
        span = after - vgpus
        parts = int(min(_PARTS, max(1.0, span.max())))
        for held in (vgpus, *(np.maximum(after - 1 - k, vgpus) for k in range(parts))):
            lowest = np.minimum(lowest, reduced(held, pricing.unit).min(axis=1))
        wide = span > parts + 1
        if wide.any():
            for held in (vgpus, after - 1 - parts):
                between = np.where(wide, reduced(held, _TINY), np.inf)
                lowest = np.minimum(lowest, between.min(axis=1))
        return lowest

    def exact(self, bound: Floats, pi: Floats) -> tuple[Floats, list[_Column]]:
        """Bounds set to 0 where they were below, and groups that `pi` does not pay for."""
        pricing = self.pricing
        bound, found = bound.copy(), list[_Column]()
        units, total = pricing.units, int(pricing.units.sum())
        room = np.zeros(total + 1), np.zeros((len(units), total + 1), dtype=np.int8)
        gain = np.zeros(len(units))
        chosen = np.zeros(len(units), dtype=np.int64)
        for row in np.flatnonzero(bound < -_TINY).tolist():
            at = int(self.which[row])
            gain[:] = (self.pi - pricing.beside[at])[pricing.one]
            work = pricing.work[at] * pricing.unit
            bound[row] = fill(gain, units, pricing.price[at], work, pricing.most, *room, chosen)
            if bound[row] < -_TINY:
                classes, counts = np.unique(pricing.one[chosen > 0], return_counts=True)
                column = pricing.column(at, classes, counts)
                if _reduced(column, pi) < -1e-7 * max(1.0, column.cost):
                    found.append(column)
        found.sort(key=lambda c: _reduced(c, pi))
        return bound, found[: 4 * _FRESH]

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


def by_columns(field: Field, watch: Watch, *, gap: float, step: float) -> Partition:
    """The cheapest partition found over generated groups, with a bound over all groups."""
    classes = classes_of(field)
    counts = np.array([len(c.items) for c in classes], dtype=np.int64)
    lower = _Pricing(field.table, _items(field, classes, "least"), counts)
    columns, pi, bound = _generate(lower, counts, watch)
    able = bound  # by the limits that plans are made with
    if any(c.least < c.largest for c in classes):
        upper = _Pricing(field.table, _items(field, classes, "largest"), counts)
        _, _, bound = _generate(upper, counts, watch, pi)
    bound = raised(bound, step)
    groups = _rounded(field, classes, lower, columns, pi, (max(able, bound), gap, watch))
    value = math.fsum(group.cost for group in groups)
    proven = value - bound <= gap * value
    return Partition(
        groups,
        value,
        min(bound, value),
        status="optimal" if proven else "feasible",
        columns=len(columns),
    )


def bound_of_pools(field: Field, watch: Watch) -> float:
    """A bound on plans in which entries of one start may share alignment stages, too.

    An entry then pays its part of the cheapest vGPUs that are in time: all of them where all
    entries of its start fill them, else of one vGPU.
    """
    classes = classes_of(field)
    counts = np.array([len(c.items) for c in classes], dtype=np.int64)
    pricing = _Pricing(field.table, _items(field, classes, "largest"), counts, joint=True)
    return _generate(pricing, counts, watch)[2]


def classes_of(field: Field) -> list[_Class]:
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


def _items(field: Field, classes: Sequence[_Class], limit: str) -> list[Item]:
    return [
        replace(field.items[c.items[0]], limit_us=getattr(c, limit), members=()) for c in classes
    ]


def _common_rate(rates: Floats) -> float:
    """The largest rate that all are multiples of, in millionths of a request/s."""
    whole = np.rint(rates * 1e6)
    if np.abs(whole - rates * 1e6).max(initial=0.0) > 1e-3 or whole.min(initial=1.0) < 1:  # noqa: PLR2004 - of a millionth
        return 1e-9
    return math.gcd(*map(int, whole)) / 1e6


def _generate(
    pricing: _Pricing, counts: Ints, watch: Watch, start: Floats | None = None
) -> tuple[list[_Column], Floats, float]:
    """Groups of the linear relaxation's optimum, nearly, duals, and the bound that they prove."""
    master = _Master(counts)
    close = 1e-6 if counts.sum() <= _FEW else _CLOSE if counts.max() == 1 else _CLOSE_OF_CLASSES
    master.add(_single(pricing, counts))
    best, highest = np.zeros(len(counts)), -np.inf
    if start is not None:
        look = pricing.look(start)
        best, highest = start, float(start @ counts) * _factor(look, look.bound())
        master.add(look.column(int(r)) for r in np.argsort(look.least())[: 4 * _FRESH])
    pi = master.solve()
    for _ in range(_ROUNDS):
        fresh: list[_Column] = []
        near = np.zeros(0, dtype=np.int64)
        for duals in ((best + pi) / 2, pi) if highest > 0 else (pi,):
            look = pricing.look(duals)
            near = np.argsort(look.least())[:_NEAR]
            bound = look.bound()
            fresh = _fresh(look, pi)
            if not fresh and pricing.exactly:
                bound, fresh = look.exact(bound, pi)
            score = float(duals @ counts) * _factor(look, bound)
            if score > highest:
                highest, best = score, duals
            if fresh:
                break
        if not fresh or master.value - highest <= close * master.value or watch.over():
            break
        for _ in range(_INNER):  # the options that look best, before all are looked at again
            master.add(fresh)
            pi = master.solve()
            fresh = _fresh(pricing.look(pi, near), pi)
            if not fresh:
                break
    return master.columns, best, max(highest, 0.0)


class _Master:
    """The linear relaxation over the groups known."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts
        self.columns: list[_Column] = []
        self.value = np.inf
        self._program = Covering(counts.astype(np.float64))

    def add(self, fresh: Iterable[_Column]) -> None:
        """Add groups."""
        added = list(fresh)
        sizes = [len(c.classes) for c in added]
        self._program.add(
            np.array([c.cost for c in added]),
            np.cumsum([0, *sizes[:-1]]),
            np.concatenate([c.classes for c in added]),
            np.concatenate([c.counts for c in added]).astype(np.float64),
        )
        self.columns += added

    def solve(self) -> Floats:
        """Duals of the classes."""
        answer = self._program.solve()
        if answer is None:  # every class has a group of its own
            raise InvariantError("the relaxation of a partition has no solution")
        self.value = float(answer[1] @ self.counts)
        return answer[1]


def _fresh(look: _Look, pi: Floats) -> list[_Column]:
    """Groups found that the duals of the master program do not pay for yet."""
    found = [look.column(row) for row in _spread(look, look.least())]
    return [c for c in found if _reduced(c, pi) < -1e-7 * max(1.0, c.cost)]


def _reduced(column: _Column, pi: Floats) -> float:
    return column.cost - float(column.counts @ pi[column.classes])


def _factor(look: _Look, bound: Floats) -> float:
    """A factor that leaves no group a negative reduced cost: a group costs its price at least."""
    lowest = np.minimum(bound, 0.0)
    price = look.pricing.price[look.which]
    return float((price / (price - lowest)).min())


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
        vgpus = max(1.0, np.ceil(load * work * (1 - SLACK)))
        if vgpus <= most and price * vgpus - best[load] < least:
            least, end = price * vgpus - best[load], load
    for item in range(len(gain) - 1, -1, -1):
        if end > 0 and gain[item] > 0 and taken[item, end]:
            chosen[item] = 1
            end -= units[item]
    return least


def _spread(look: _Look, least: Floats) -> list[int]:
    """Options of the lowest reduced costs, few of any one junction."""
    order = np.argsort(least)[: 20 * _FRESH]
    junction = look.pricing.field.root_junction[look.pricing.roots[look.which]]
    taken: dict[int, int] = {}
    found: list[int] = []
    for row in order.tolist():
        j = int(junction[row])
        if least[row] >= 0 or len(found) == _FRESH:
            break
        if taken.get(j, 0) < _FRESH // 4:
            taken[j] = taken.get(j, 0) + 1
            found.append(row)
    return found


def _single(pricing: _Pricing, counts: Ints) -> list[_Column]:
    """Every class alone: one item of it, and all."""
    found: list[_Column] = []
    for number, count in enumerate(counts.tolist()):
        for k in {1, count}:
            load = k * float(pricing.field.rate[number])
            vgpus = np.maximum(1.0, np.ceil(load * pricing.work * (1 - SLACK)))
            cost = pricing.price * vgpus + k * pricing.beside[:, number]
            cost = np.where(vgpus <= pricing.most, cost, np.inf)
            row = int(cost.argmin())
            if np.isfinite(cost[row]):
                one = np.array([number])
                found.append(
                    _Column(
                        cost=float(cost[row]),
                        root=int(pricing.roots[row]),
                        classes=one,
                        counts=np.array([k]),
                    )
                )
    return found


def _program(columns: Sequence[_Column], counts: Ints) -> Program:
    build = ProgramBuilder()
    cost = np.array([c.cost for c in columns])
    z = build.variables("groups", len(columns), cost=-cost, upper=float(counts.max()), whole=True)
    cover = build.rows("cover", len(counts), upper=-counts.astype(np.float64))
    rows = np.concatenate([c.classes for c in columns])
    held = np.concatenate([c.counts for c in columns]).astype(np.float64)
    build.entries(cover[rows], np.repeat(z, [len(c.classes) for c in columns]), -held)
    return build.build()


# From groups in parts to groups as a whole


def _rounded(
    field: Field,
    classes: Sequence[_Class],
    pricing: _Pricing,
    columns: Sequence[_Column],
    pi: Floats,
    proof: tuple[float, float, Watch],
) -> list[Group]:
    """Groups of the integer program over the best columns, then moved about."""
    bound, gap, watch = proof
    counts = np.array([len(c.items) for c in classes], dtype=np.int64)
    columns = [*columns, *pricing.look(pi).prefixes(_COLUMNS)]
    slack = np.array([_reduced(c, pi) for c in columns])
    order = np.argsort(slack, kind="stable")[:_COLUMNS]
    single = [n for n, c in enumerate(columns) if len(c.classes) == 1]
    kept = list(
        {c.key: c for c in (columns[n] for n in sorted({*order.tolist(), *single}))}.values()
    )
    limits = Limits(
        relative_gap=gap,
        nodes=_NODES,
        seconds=watch.left_s(),
        enough=-bound * (1 + (gap if len(field.items) <= _FEW else _ENOUGH)),
    )
    answer = solve_integer(_program(kept, counts), limits)
    left = [list(c.items) for c in classes]
    by_root: dict[int, list[int]] = {}
    values = np.zeros(len(kept)) if answer.values is None else np.rint(answer.values)
    for column, value in zip(kept, values.astype(int).tolist(), strict=True):
        for _ in range(value):
            for number, count in zip(column.classes.tolist(), column.counts.tolist(), strict=True):
                taken = [left[number].pop() for _ in range(min(count, len(left[number])))]
                by_root.setdefault(column.root, []).extend(taken)
    members = [m for m in by_root.values() if m] + [[i] for items in left for i in items]
    groups = [field.best(m) for m in members]
    return improved(field, groups, bound, gap)


def improved(field: Field, groups: list[Group], bound: float, gap: float) -> list[Group]:
    """Move single items between groups, join groups, while that pays."""
    if len(field.items) > MANY:
        return groups
    while math.fsum(g.cost for g in groups) * (1 - gap) > bound:
        before = math.fsum(g.cost for g in groups)
        groups = _joined(field, _moved(field, groups))
        if math.fsum(g.cost for g in groups) >= before - 1e-9:
            break
    return groups


def _moved(field: Field, groups: list[Group]) -> list[Group]:
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


def _joined(field: Field, groups: list[Group]) -> list[Group]:
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
