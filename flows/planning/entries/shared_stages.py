"""Groups of entries of one rate, alignment stages shared or not, on the engine (space `pools`).

A column of the engine is a group: a shared stage, the entries that board it, and bundles of others
with an alignment stage each. The cover asks for every entry once; there is one group of a stage at
most, for two on one stage are one, which never costs more. An entry of a longer limit can have the
seat of another one of its start (free columns), so prices fall with limits. Pricing is exact
(`bundles`).

Plans are made of groups, seats passed on, then of ways in a few whole numbers (`seats`), which is a
proof where no way is missing: no plan with a stage of least reduced cost r is below bound + r.

Here: the pricer, plans, proof. Not here: groups in which entries of a start never share
(`partition`).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from flows.planning.engine.columns import Columns, Pool, undominated
from flows.planning.engine.cover import Generation, raised
from flows.planning.engine.master import Cover, Free
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.rounding import Incumbent, Tools, dive, restricted
from flows.planning.entries.bundles import Arrays, members, price
from flows.planning.entries.groups import Group, GroupingProblem
from flows.planning.entries.partition import CLOSE, FRESH, Partition, columns_of, needed_stages
from flows.planning.entries.pooling import ways_of
from flows.planning.entries.seats import SeatRoute, seated
from flows.planning.entries.tables import vgpus_for
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.solver.tolerances import SOLVED
from flows.planning.watch import Watch

FEW = 25  # items, for which the relaxation is solved to the end
_GROUPS, _GROUP_NODES = 150, 50  # of which a plan is made, and nodes
_WAYS = ((45, 200), (100, 50))  # of which a plan is made, and nodes
_WAY_NODES = 200  # to prove
_MOST_WAYS = 1_000  # of all plans up to a cost, to prove that there is none, or to find one
_RECOMBINED = 2  # programs over the ways of all plans
_LOOK = 200  # stages that are priced between two times that all are


class SharedStages:
    """A pricer of groups of items of one rate; those of a stage are a group of columns.

    Items are in the order of `items_of`.
    """

    quick = True

    def __init__(self, items: GroupingProblem) -> None:
        table = items.table
        self.field = items
        count, rate = len(items.items), float(items.rate[0])
        block, first = np.unique(items.block, return_index=True)
        numbers = np.arange(count + 1)
        vgpus = vgpus_for(rate * numbers, items.root_work[:, None])
        cost = np.where(vgpus > table.most, np.inf, items.root_price[:, None] * vgpus)
        most = int(np.diff(first, append=count).max()) + 2  # items of one start, and two
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
            limit=items.limit,
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
            part=items.parts_beside(),
            best=np.zeros((most, most, most)),
            own=np.zeros((len(block), count + 2)),
            total=np.zeros((len(block) + 1, count + 2)),
        )
        own = np.searchsorted(first, numbers[:-1], "right")
        # items of which the next one has the start, too
        self.neighbours = np.flatnonzero(own[1:] == own[:-1])
        in_time = items.root_time <= items.limit.max()
        self.stages = np.flatnonzero(in_time & needed_stages(items, rate * numbers[1:]))
        self.fewest, self.most = np.zeros(len(self.stages)), np.ones(len(self.stages))
        self.cheapest = cost[self.stages, 1]

    def least(self, stages: Ints, pi: Floats, below: float = math.inf) -> tuple[Floats, Ints]:
        """The least reduced cost on each of some stages, and the size of that group.

        From `below` on a bound.
        """
        least, size = np.zeros(len(stages)), np.zeros(len(stages), dtype=np.int64)
        price(stages, pi, below, self.arrays, least, size)
        return least, size

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """Groups of low reduced cost.

        Unless thorough, of the stages that look best; others are bounded.
        """
        del cap
        pi = duals.demand
        if thorough:
            least, size = self.least(self.stages, pi, 0.0)
        else:
            least, size = self.least(self.stages, pi, -math.inf)
            look = np.argsort(least, kind="stable")[:_LOOK]
            least[look], size[look] = self.least(self.stages[look], pi, 0.0)
        score = np.where(size > 0, least, math.inf)
        order = np.argsort(score, kind="stable")[:FRESH]
        found = [
            self.column(int(self.stages[n]), int(size[n]), pi)
            for n in order.tolist()
            if score[n] < -SOLVED
        ]
        return Priced(columns=columns_of(found, self.stages), least=least)

    def cover(self) -> Cover:
        """Every item once; one of a longer limit may have the seat of the next one of its start.

        Without the latter prices move about between alike items, and hundreds of rounds go by.
        """
        count, longer = len(self.field.items), self.neighbours
        exchange = np.zeros((len(longer), count))
        exchange[np.arange(len(longer)), longer] = 1.0
        exchange[np.arange(len(longer)), longer + 1] = -1.0
        return Cover(
            need=np.ones(count),
            capacity=np.zeros(0),
            free=Free.dense(np.zeros(len(longer)), exchange, np.zeros((len(longer), 0)), count),
            cap=np.ones(count),
            missed=np.full(count, np.inf),
        )

    def ways_of_stage(self, stage: int) -> set[SeatRoute]:
        """Ways to a stage, but for alignment stages that others replace.

        An option replaces another one if as many items are in time with it, and up to so many cost
        no more.
        """
        found: set[SeatRoute] = set()
        arrays, rate = self.arrays, float(self.field.rate[0])
        junction, kind = int(arrays.junction[stage]), int(arrays.kind[stage])
        link = self.field.table.kinds()[kind][1][junction]
        for start, block in enumerate(arrays.block.tolist()):
            if block == junction:
                found.add(SeatRoute(stage, block, -1))
            if block >= junction or rate > link:
                continue
            options = self.field.table.options(block, junction, kind)
            left = arrays.limit[arrays.first[start] : arrays.first[start + 1]] - arrays.time[stage]
            able = (options.time_us[:, None] <= left).sum(axis=1)
            numbers = np.arange(1, len(left) + 1)
            cost = options.price[:, None] * vgpus_for(rate * numbers, options.work[:, None])
            cost = np.where(numbers > able[:, None], 2 * cost.max(initial=0.0), cost)
            rows = np.flatnonzero((able > 0) & undominated(-cost))
            found |= {SeatRoute(stage, block, row) for row in rows.tolist()}
        return found

    def column(self, stage: int, size: int, pi: Floats) -> Group:
        """The best group of a size on a stage."""
        chosen = np.zeros(len(pi), dtype=np.bool_)
        members(stage, size, pi, self.arrays, chosen)
        return self.made(stage, np.flatnonzero(chosen))

    def made(self, stage: int, items: Sequence[int] | Ints) -> Group:
        """The group of given items on a stage; its cost is infinite where it cannot be."""
        only, chosen = np.full(len(self.field.items), -np.inf), np.zeros(len(self.field.items))
        only[items] = 0.0
        beside = members(stage, len(items), only, self.arrays, chosen > 0)
        cost = float(self.arrays.cost[stage, len(items)] - beside)
        return Group(items=tuple(int(i) for i in items), root=stage, cost=cost)

    def moved(self, columns: Sequence[Group]) -> list[Group]:
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
            self.made(column.root, sorted(items))
            for column, items in zip(columns, own, strict=True)
            if items
        ]

    def plan(self, groups: Sequence[Group]) -> list[Group]:
        """One group of each stage, every item served once; none where an item has no seat."""
        by_stage: dict[int, list[int]] = {}
        for group in self.moved(groups):
            by_stage.setdefault(group.root, []).extend(group.items)
        return [self.made(stage, sorted(items)) for stage, items in by_stage.items()]


@dataclass(slots=True, kw_only=True)
class _Search:
    """Plans of groups and of ways, and what is open to a bound.

    Attributes:
        step: costs are multiples of it; 0: any.
        gap: at which a proof is one.
        wanted: any plan up to it is good enough, none above it is wanted; None: the cheapest is.
        best: the best plan known.
        ways: of all plans so far.
    """

    pricer: SharedStages
    watch: Watch
    step: float
    gap: float
    wanted: float | None
    pool: Pool
    best: Incumbent = field(default_factory=Incumbent)
    ways: set[SeatRoute] = field(default_factory=set[SeatRoute])

    def __post_init__(self) -> None:
        """Let plans be judged by what is left of their groups."""
        self.best.judge = self._judged

    def _judged(self, columns: Columns, counts: Ints, free: Floats) -> float:
        del counts, free
        plan = self.pricer.plan(columns.source)
        self.ways |= ways_of(self.pricer.field, plan)
        return math.fsum(group.cost for group in plan) if plan else math.inf

    def closed(self, bound: float) -> bool:
        """True if nothing better than the incumbent, or nothing wanted, is left above a bound."""
        bound, wanted = raised(bound, self.step), self.wanted
        if wanted is not None and (self.best.cost <= wanted or bound > wanted):
            return True
        return self.best.settled(bound, self.gap)

    def enough(self) -> float:
        """A bound with which it is closed."""
        proven = self.best.cost * (1 - self.gap)
        if self.wanted is None or self.best.cost <= self.wanted:
            return proven
        return min(proven, self.wanted * (1 + SOLVED) + self.step)

    def by_reduced(self, pi: Floats) -> Columns:
        """Groups known, the least reduced costs first."""
        columns = self.pool.columns
        reduced = columns.cost - columns.priced(pi)
        return columns.take(np.argsort(reduced, kind="stable"))

    def groups(self, bound: float, pi: Floats) -> None:
        """A plan of the groups of the least reduced costs, seats passed on."""
        cover, columns = self.pricer.cover(), self.by_reduced(pi)
        columns = columns.take(np.arange(min(len(columns), _GROUPS)))
        tools = Tools(most=lambda some: np.ones(len(some)))
        restricted(cover, columns, self.best, self._limits(bound, _GROUP_NODES), tools)

    def seats(self, bound: float, pi: Floats) -> None:
        """Plans of the ways that groups of the least reduced costs have: few of them, then more."""
        order = iter(self.by_reduced(pi).source)
        ways: set[SeatRoute] = set()
        for most, nodes in _WAYS if self.wanted is None else _WAYS[:1]:
            while len(ways) < most and (group := next(order, None)) is not None:
                ways |= ways_of(self.pricer.field, [group])
            if not self.closed(bound):
                self._seat(ways, self._limits(bound, nodes))

    def dive(self, bound: float) -> None:
        """Plans of groups taken a few at a time, then of the ways that all plans so far have."""
        self.best.offer(*dive(self.pricer.cover(), self.pricer, self.pool, self.watch))
        for _ in range(_RECOMBINED):
            if not self.closed(bound):
                self._seat(self.ways, self._limits(bound, _WAY_NODES))

    def prove(self, bound: float, pi: Floats) -> float:
        """The best plan of all ways that better plans may have; returns a bound of all plans.

        Where costs have steps, each one above the bound is tried by itself,
        which few ways can have.
        """
        pricer = self.pricer
        least, _ = pricer.least(pricer.stages, pi, self.best.cost - bound)
        lowest = bound
        for cost in self._costs(bound):
            ways: set[SeatRoute] = set()
            for stage in pricer.stages[least <= cost - bound + SOLVED].tolist():
                ways |= pricer.ways_of_stage(stage)
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
        """Limits of a program whose plans count if better than the incumbent, or wanted."""
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
        found, bound = seated(self.pricer.field, ways, limits)
        by_root: dict[int, list[int]] = {}
        for item, way in enumerate(found):
            by_root.setdefault(way.root, []).append(item)
        self.offer([self.pricer.made(root, items) for root, items in by_root.items()])
        return bound

    def offer(self, groups: Sequence[Group]) -> None:
        """Take a plan if it is better."""
        self.best.offer(
            columns_of(groups, self.pricer.stages), np.ones(len(groups), dtype=np.int64)
        )


def by_shared_stages(
    items: GroupingProblem,
    watch: Watch,
    *,
    gap: float,
    step: float,
    prove: bool,
    known: float = math.inf,
    wanted: float | None = None,
) -> Partition:
    """The cheapest groups found of items of one rate, and what any cost at least.

    Args:
        items: at most `SEATS_ONLY_FROM_ITEMS`; each can be served by itself.
        watch: the clock of the run.
        gap: relative; at which the search may end.
        step: costs of plans are multiples of it; 0: any.
        prove: the bound may be raised beyond the relaxation, and plans be sought for long.
        known: the cost of a plan; what does not beat it need not be found.
        wanted: ends with any plan up to it, or where none can be; None: with the cheapest.
    """
    pricer, pool = SharedStages(items), Pool()
    search = _Search(pricer=pricer, watch=watch, step=step, gap=gap, wanted=wanted, pool=pool)
    best = search.best
    alone = [items.best([item]) for item in range(len(items.items))]
    search.offer(alone)
    pool.add(columns_of(alone, pricer.stages))
    best.cost = min(best.cost, known)
    few = len(items.items) <= FEW
    generation = Generation(
        pricer.cover(),
        pricer,
        pool,
        watch,
        close=0.0 if few else CLOSE,
        whole_costs=step,
        enough=search.enough(),
    )
    parts = items.parts().min(axis=0)  # no group costs less than its items' parts
    relaxed = generation.run(Duals(demand=parts, resource=np.zeros(0)))
    lowest, pi = relaxed.bound, relaxed.duals.demand
    if (few or not prove) and not search.closed(lowest):
        search.groups(lowest, pi)
    if few and prove and not search.closed(lowest):
        lowest = search.prove(lowest, pi)
    if (prove or (few and wanted is not None)) and not search.closed(lowest):
        search.seats(lowest, pi)
    if not few and prove and not search.closed(lowest):
        search.dive(lowest)
    groups = pricer.plan(best.columns.source)
    return Partition(
        groups=groups,
        value=math.fsum(group.cost for group in groups),
        bound=min(raised(lowest, step), best.cost),
        columns=len(pool),
    )
