"""The cheapest plan found of entries, and what any costs at least, on the engine (space `pools`).

A column is a group: a shared stage, the entries that board it, and bundles of others with an
alignment stage each. The cover asks for every entry once; there is one group of a stage at most,
for two on one stage are one, which never costs more. An entry of a longer limit can have the seat
of another one of its start and rate (free columns), so prices fall with limits.

    minimise    sum_g cost_g z_g                                   z_g >= 0, whole
    cover_i:    sum over g with i of z_g + y_i+1 - y_i >= 1        y_i: seats passed on

Plans are made of groups, seats passed on, then of ways in a few whole numbers (`seats`), which is a
proof where no way is missing: no plan with a stage of least reduced cost r is below bound + r.

Here: the cover, plans, proof. Not here: the best groups at prices (`pricer`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Generation, raised
from flows.planning.engine.master import Cover, Free
from flows.planning.engine.pricing import Duals
from flows.planning.engine.rounding import Incumbent, dive
from flows.planning.entries.groups import EntryClass, Group, GroupingProblem, columns_of
from flows.planning.entries.options import ANY_NUMBER
from flows.planning.entries.pooling import Pooled, pooled, pooled_ways, ways_of, ways_to
from flows.planning.entries.pricer import Groups
from flows.planning.entries.seats import SeatRoute, alike, opened_ways, seated
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.solver.tolerances import SOLVED
from flows.planning.watch import BEFORE, Watch

MOST_ITEMS = 400  # in which plans are sought one by one; of more, half as many stand for all
_MOST_UNLIKE = 40  # of several rates; of more, groups are not soon known, and parts come first
CLOSE = 2e-3  # of the bound, where generating columns ends
_WAYS, _WAY_NODES = 60, 200  # of a plan beside those of plans known, and nodes
_MOST_WAYS = 300  # of all plans up to a cost, to prove that there is none, or to find one


def cheapest(
    field: GroupingProblem,
    watch: Watch,
    *,
    gap: float,
    step: float,
    prove: bool = True,
    wanted: float | None = None,
) -> tuple[Pooled, float]:
    """The cheapest plan found of items, and what any costs at least.

    Of more than `MOST_ITEMS` it has the ways of fewer items that stand for all where every start
    has one rate, else ways that pay off for many. Each item costs its part of the cheapest stages
    that are in time at least: that is the bound.

    Args:
        field: items, each of which can be served by itself.
        watch: the clock of the run.
        gap: relative; at which the search may end.
        step: costs of plans are multiples of it; 0: any.
        prove: the bound may be raised beyond the relaxation, and plans be sought for long.
        wanted: ends with any plan up to it, or where none can be; None: with the cheapest.
    """
    if len(field.items) > MOST_ITEMS:
        bound = float(field.parts().min(axis=0).sum())
        if len(alike(field)) == len(np.unique(field.block)):
            ways = _ways_of_fewer(field, watch.part(BEFORE), gap=gap, step=step)
        else:  # the best groups take too long
            ways = opened_ways(field, watch.part(BEFORE))
        limits = Limits(
            relative_gap=CLOSE,
            nodes=_WAY_NODES,
            seconds=watch.left_s(),
            enough=-bound * (1 + CLOSE),
        )
        found, _ = seated(field, ways, limits)
        plan = pooled_ways(field, found) if found else pooled(field, _alone(field))
        return plan, raised(bound, step)
    if watch.over():  # the set-up of a search takes long
        return pooled(field, _alone(field)), raised(float(field.parts().min(axis=0).sum()), step)
    search = _search(field, watch, gap=gap, step=step, wanted=wanted)
    bound = search.run(prove=prove)
    return search.plan, bound


def _search(
    field: GroupingProblem, watch: Watch, *, gap: float, step: float, wanted: float | None = None
) -> "_Search":
    """A search that knows how each item is served by itself."""
    alone = _alone(field)
    search = _Search(
        problem=field,
        pricer=Groups(field),
        watch=watch,
        step=step,
        gap=gap,
        wanted=wanted,
        plan=pooled(field, alone),
    )
    search.pool.add(columns_of(alone))
    return search


def _alone(field: GroupingProblem) -> list[Group]:
    return [field.best([item]) for item in range(len(field.items))]


def _ways_of_fewer(
    field: GroupingProblem, watch: Watch, *, gap: float, step: float
) -> set[SeatRoute]:
    """Ways of a good plan of every so many-th item of a start and rate, which stands for the next.

    Those have a longer limit, so that all of them are in time.
    """
    each = math.ceil(2 * len(field.items) / MOST_ITEMS)
    fewer = _fewer(field, each)
    while each > 1 and any(group.root < 0 for group in _alone(fewer)):  # too much for one stage
        each //= 2
        fewer = _fewer(field, each)
    search = _search(fewer, watch, gap=gap, step=step)
    search.run(prove=False)
    return search.ways | search.used or ways_of(fewer, _alone(fewer))


def _parts(field: GroupingProblem) -> list[list[int]]:
    """Items in parts of alike ones: every so many-th of a start, and one at least."""
    count = math.ceil(len(field.items) / _MOST_UNLIKE)
    starts = [np.flatnonzero(field.block == block) for block in np.unique(field.block)]
    return [
        [
            item
            for items in starts
            for item in (items[number::count] if number < len(items) else items[:1]).tolist()
        ]
        for number in range(count)
    ]


def _fewer(field: GroupingProblem, each: int) -> GroupingProblem:
    found: list[EntryClass] = []
    for items in alike(field):
        rate_rps = min(each, len(items)) * float(field.rate[items[0]])
        found += [replace(field.items[n], rate_rps=rate_rps) for n in items[::each].tolist()]
    found.sort(key=lambda item: (item.block, -item.limit_us))
    return GroupingProblem(field.table, found)


@dataclass(slots=True, kw_only=True)
class _Search:
    """Plans of groups and of ways, and what is open to a bound.

    Attributes:
        step: costs are multiples of it; 0: any.
        gap: at which a proof is one.
        wanted: any plan up to it is good enough, none above it is wanted; None: the cheapest is.
        best: the cost of the best plan known.
        plan: that plan.
        ways: of all plans so far.
        used: ways of the relaxation.
        pi: [items] prices of the bound.
    """

    problem: GroupingProblem
    pricer: Groups
    watch: Watch
    step: float
    gap: float
    wanted: float | None
    plan: Pooled
    pool: Pool = field(default_factory=Pool)
    best: Incumbent = field(default_factory=Incumbent)
    ways: set[SeatRoute] = field(default_factory=set[SeatRoute])
    used: set[SeatRoute] = field(default_factory=set[SeatRoute])
    pi: Floats = field(default_factory=lambda: np.zeros(0))

    def run(self, *, prove: bool) -> float:
        """Look for the cheapest plan; what any costs at least."""
        self.best.judge, self.best.cost = self._judged, self.plan.cost
        cover = self._cover()
        generation = Generation(
            cover,
            self.pricer,
            self.pool,
            self.watch,
            close=min(CLOSE, self.gap),
            whole_costs=self.step,
            enough=self._enough(),
        )
        parts = self.problem.parts().min(axis=0)  # no group costs less than its items' parts
        start = self._of_parts(parts) if self._is_wide() else parts
        relaxed = generation.run(Duals(demand=start, resource=np.zeros(0)))
        lowest, self.pi = relaxed.bound, relaxed.duals.demand
        if lowest < (least := float(parts.sum())):
            lowest, self.pi = least, parts
        if relaxed.mixed is not None and not self.closed(lowest):
            used = np.flatnonzero(relaxed.mixed.counts > SOLVED)
            self.used = ways_of(self.problem, self.pool.columns.take(used).source)
            self._seat(self.used, self._limits(lowest, _WAY_NODES))
        if prove and not self.closed(lowest):
            lowest = self._prove(lowest)
        if prove and not self.closed(lowest):
            self.best.offer(*dive(cover, self.pricer, self.pool, self.watch))
        if not self.closed(lowest):
            self._seats(lowest)
        return raised(lowest, self.step)

    def _is_wide(self) -> bool:
        """True if groups of all items at once are not soon known."""
        starts = len(np.unique(self.problem.block))
        return len(self.problem.items) > _MOST_UNLIKE and len(alike(self.problem)) > starts

    def _of_parts(self, lowest: Floats) -> Floats:
        """Prices of parts of the items; the plan has the ways that plans of these have.

        Args:
            lowest: [items] what each costs at least.
        """
        prices, ways, bound = lowest.copy(), set[SeatRoute](), float(lowest.sum())
        parts = _parts(self.problem)
        for number, own in enumerate(parts):
            if self.watch.over():
                break
            watch = self.watch.part(1 / (len(parts) - number + 1))
            part = GroupingProblem(self.problem.table, [self.problem.items[n] for n in own])
            search = _search(part, watch, gap=self.gap, step=self.step)
            search.run(prove=False)
            prices[own] = np.maximum(prices[own], search.pi)
            ways |= search.ways | search.used
        self._seat(ways, self._limits(bound, _WAY_NODES))
        return prices

    def _cover(self) -> Cover:
        """Every item once; one of a longer limit may have the seat of the next one like it.

        Without the latter prices move about between alike items, and hundreds of rounds go by.
        """
        count = len(self.problem.items)
        pairs = [
            pair for items in alike(self.problem) for pair in zip(items[1:], items, strict=False)
        ]
        exchange = np.zeros((len(pairs), count))
        for row, (longer, shorter) in zip(exchange, pairs, strict=True):
            row[longer], row[shorter] = 1.0, -1.0
        return Cover(
            need=np.ones(count),
            capacity=np.zeros(0),
            free=Free.dense(np.zeros(len(pairs)), exchange, np.zeros((len(pairs), 0)), count),
            cap=np.ones(count),
            missed=np.full(count, np.inf),
        )

    def _judged(self, columns: Columns, counts: Ints, free: Floats) -> float:
        """Judge groups by the plan that is left of them when seats are passed on."""
        del counts, free
        groups = self._passed_on(columns.source)
        if not groups:
            return math.inf
        self.ways |= ways_of(self.problem, groups)
        return self._taken(pooled(self.problem, groups, joined=True))

    def _taken(self, plan: Pooled) -> float:
        if plan.cost < self.plan.cost:
            self.plan = plan
        return plan.cost

    def _passed_on(self, groups: Sequence[Group]) -> list[Group]:
        """Groups in which every item is once, of those of a root one; none if one has no seat."""
        own: list[list[int]] = [[] for _ in groups]
        for items in alike(self.problem):
            place = {item: at for at, item in enumerate(items.tolist())}
            seats = sorted(
                (place[item], number)
                for number, group in enumerate(groups)
                for item in group.items
                if item in place
            )
            for at, item in enumerate(items.tolist()):
                if at == len(seats) or seats[at][0] > at:
                    return []
                own[seats[at][1]].append(item)
        by_root: dict[tuple[int, int], list[int]] = {}
        for number, (group, items) in enumerate(zip(groups, own, strict=True)):
            key = group.root, 0 if self.problem.table.most == ANY_NUMBER else number
            by_root.setdefault(key, []).extend(items)
        return [
            Group(items=tuple(items), root=root, cost=math.nan)
            for (root, _), items in by_root.items()
            if items
        ]

    def closed(self, bound: float) -> bool:
        """True if nothing better than the plan, or nothing wanted, is left above a bound."""
        bound, wanted = raised(bound, self.step), self.wanted
        if wanted is not None and (self.best.cost <= wanted or bound > wanted):
            return True
        return self.best.settled(bound, self.gap)

    def _enough(self) -> float:
        """A bound with which it is closed."""
        proven = self.best.cost * (1 - self.gap)
        if self.wanted is None or self.best.cost <= self.wanted:
            return proven
        return min(proven, self.wanted * (1 + SOLVED) + self.step)

    def _by_reduced(self) -> Columns:
        """Groups known, the least reduced costs first."""
        columns = self.pool.columns
        reduced = columns.cost - columns.priced(self.pi)
        return columns.take(np.argsort(reduced, kind="stable"))

    def _seats(self, bound: float) -> None:
        """A plan of the ways of all plans so far and of groups of the least reduced costs."""
        ways = set(self.ways)
        for group in self._by_reduced().source:
            if len(ways) >= len(self.ways) + _WAYS:
                break
            ways |= ways_of(self.problem, [group])
        self._seat(ways, self._limits(bound, _WAY_NODES))

    def _prove(self, bound: float) -> float:
        """The best plan of all ways that better plans may have; returns a bound of all plans.

        Where costs have steps, each one above the bound is tried by itself,
        which few ways can have.
        """
        least = self.pricer.least(self.pi)
        lowest = bound
        for cost in self._costs(bound):
            ways: set[SeatRoute] = set()
            for root in np.flatnonzero(least <= cost - bound + SOLVED).tolist():
                ways |= ways_to(self.problem, root)
                if len(ways) > _MOST_WAYS:
                    return lowest
            limits = self._limits(lowest, _WAY_NODES, most=cost)
            without = self._seat(ways, limits) if ways else math.inf
            if self.closed(lowest) or without <= cost:
                break
            lowest = cost + self.step if self.step else cost
        return lowest

    def _costs(self, bound: float) -> list[float]:
        """Values that a better plan can have, from the least on."""
        most = self._better()
        if not self.step:
            return [most]
        first, last = round(raised(bound, self.step) / self.step), round(most / self.step)
        return [number * self.step for number in range(first, last + 1)]

    def _better(self) -> float:
        """The most that a plan costs that is better than the best known."""
        wanted = self.best.cost * (1 - self.gap)
        return (math.ceil(wanted / self.step - 1e-6) - 1) * self.step if self.step else wanted

    def _limits(self, bound: float, nodes: int, most: float = math.inf) -> Limits:
        """Limits of a program whose plans count if better than the best, or wanted."""
        bound = raised(bound, self.step)
        most = min(self._better(), most, math.inf if self.wanted is None else self.wanted)
        enough = bound if self.wanted is None else max(bound, self.wanted)
        return Limits(
            relative_gap=self.gap,
            nodes=nodes,
            seconds=self.watch.left_s(),
            cutoff=-most * (1 + SOLVED),
            enough=-enough * (1 + self.gap),
        )

    def _seat(self, ways: Collection[SeatRoute], limits: Limits) -> float:
        """Take the best plan of ways; what one within the limits costs at least."""
        found, bound = seated(self.problem, ways, limits)
        if found:
            self.ways |= set(found)
            self.best.cost = min(self.best.cost, self._taken(pooled_ways(self.problem, found)))
        return bound
