"""The best plan of a group of entries that meet at one junction (Graft, section 4.3, repaired).

A group has a junction J, a shared stage [J, M) and its option (class, share, batch). Entries that
start at J board it directly; every other one has an alignment stage [p, J) of its own, the cheapest
that leaves the shared stage its time. Each entry keeps its own budget (or all the least one,
`--budget-rule group`):

    cost(G) = min over J >= max p, options s of [J, M):
        price_s n_s(sum of rates) + sum over e with p_e < J of C(p_e, J, q_e)(limit_e - T_s)
        where T_s <= limit_e for e with p_e = J

C(i, j, q)(t) is the least cost of blocks [i, j) at rate q within t.

No grid of budgets is needed: what an entry costs beside every option is one matrix (`beside`), so a
group costs a sum over its columns. An entry alone has no alignment stage unless two stages are
cheaper than one.

Here: options of shared stages, costs beside them. Not here: which entries form groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from flows.planning.entries.tables import ModelTable, Options, vgpus_for
from flows.planning.solver.arrays import FAR, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryClass:
    """Entries of one start and one budget that are planned as one.

    Attributes:
        rate_rps: that pools carry for it (`ModelTable.rates_rps`).
        members: their numbers in the model.
    """

    block: int
    limit_us: float
    rate_rps: float
    members: tuple[int, ...]


def items_of(table: ModelTable) -> list[EntryClass]:
    """Every entry by itself, by start, then by falling limit."""
    found = [
        EntryClass(
            block=e.block,
            limit_us=float(limit),
            rate_rps=table.rates_rps[number],
            members=(number,),
        )
        for number, (e, limit) in enumerate(zip(table.entries, table.limits_us, strict=True))
    ]
    return sorted(found, key=lambda item: (item.block, -item.limit_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Items that meet.

    Attributes:
        items: their numbers.
        root: option of the shared stage, by its number among all (`GroupingProblem`); -1: none.
        cost: with the alignment stages; `FAR` where there is no such group.
    """

    items: tuple[int, ...]
    root: int
    cost: float


class GroupingProblem:
    """Items of one model and options of shared stages ("roots"), as arrays.

    Roots, by junction and rising time; R of them:
        root_junction, root_time, root_price, root_work, root_kind    [R]
        root_start    [blocks + 1] the first root of each junction
    """

    def __init__(
        self, table: ModelTable, items: Sequence[EntryClass], *, group_budget: bool = False
    ) -> None:
        """Read the options of every range that these items can use."""
        self.table = table
        self.items = list(items)
        self.group_budget = group_budget
        self.block = np.array([item.block for item in items], dtype=np.int64)
        self.limit = np.array([item.limit_us for item in items])
        self.rate = np.array([item.rate_rps for item in items])
        self._read_roots()

    def _read_roots(self) -> None:
        table = self.table
        kinds = {kind: number for number, kind in enumerate(table.kinds())}
        kind_of = np.array([kinds[s.nic_gbps, s.link_rps] for s in table.sizes], dtype=np.int64)
        first = int(self.block.min()) if len(self.block) else 0
        self.root_options: list[Options] = []
        starts = [0]
        for junction in range(table.blocks):
            wanted = junction >= first and (table.chains or junction in self.block)
            options = table.options(junction, table.blocks) if wanted else _NONE
            self.root_options.append(options)
            starts.append(starts[-1] + len(options))
        self.root_start = np.array(starts, dtype=np.int64)
        self.root_junction = np.repeat(np.arange(table.blocks), np.diff(self.root_start))
        self.root_time = np.concatenate([o.time_us for o in self.root_options])
        self.root_price = np.concatenate([o.price for o in self.root_options])
        self.root_work = np.concatenate([o.work for o in self.root_options])
        self.root_kind = kind_of[np.concatenate([o.size for o in self.root_options])]

    def best(self, members: Sequence[int]) -> Group:
        """The best plan of a group."""
        return self._cheapest(members, slice(0, len(self.root_time)))

    def at(self, members: Sequence[int], junction: int) -> Group:
        """The best plan that meets at a given block."""
        return self._cheapest(
            members, slice(int(self.root_start[junction]), int(self.root_start[junction + 1]))
        )

    def _cheapest(self, members: Sequence[int], roots: slice) -> Group:
        """The best plan on one of some roots."""
        some = list(members)
        beside = self.beside[roots][:, some]
        if self.group_budget:
            least = np.full(len(self.items), self.limit[some].min())
            beside = self._costs_beside(least, some)[roots][:, some]
        vgpus = vgpus_for(float(self.rate[some].sum()), self.root_work[roots])
        cost = np.where(vgpus > self.table.most, np.inf, self.root_price[roots] * vgpus)
        cost += beside.sum(axis=1)
        row = int(cost.argmin()) if len(cost) else -1
        if row < 0 or np.isinf(cost[row]):
            return Group(items=tuple(members), root=-1, cost=FAR)
        return Group(items=tuple(members), root=roots.start + row, cost=float(cost[row]))

    @cached_property
    def beside(self) -> Floats:
        """[R, items] what an item costs beside its part of the root; infinite where it cannot join.

        0 where it boards directly. With `group_budget` budgets are each item's own here.
        """
        return self._costs_beside(self.limit, range(len(self.items)))

    def _costs_beside(self, limit: Floats, items: Sequence[int]) -> Floats:
        return self._beside(
            limit, items, lambda item, options: self.cost(float(self.rate[item]), options)
        )

    def parts_beside(self, counts: Ints | None = None) -> Floats:
        """[R, items] the least an item pays for an alignment stage shared by its start.

        That is its part of the cheapest vGPUs in time: all of them where all items of its start
        fill them, else one.

        Args:
            counts: of each item; None: 1.
        """
        rates = self.rate if counts is None else counts * self.rate
        together = [float(rates[self.block == block].sum()) for block in self.block]
        return self._beside(
            self.limit,
            range(len(self.items)),
            lambda item, o: o.price * np.maximum(o.work, 1 / together[item]) * self.rate[item],
        )

    def cost(self, rate_rps: float, options: Options) -> Floats:
        """[options] what a stage of a rate costs."""
        return options.cost(rate_rps, self.table.most)

    def _beside(
        self, limit: Floats, items: Sequence[int], cost_of: Callable[[int, Options], Floats]
    ) -> Floats:
        """[R, items] the least cost of the alignment stage of some items, by item and options."""
        out = np.full((len(self.root_time), len(self.items)), np.inf)
        alike: dict[tuple[int, float], list[int]] = {}
        for item in items:
            alike.setdefault((int(self.block[item]), float(self.rate[item])), []).append(item)
        for (block, rate), some in alike.items():
            for junction in range(block, self.table.blocks):
                roots = np.arange(self.root_start[junction], self.root_start[junction + 1])
                if len(roots):
                    left = limit[some] - self.root_time[roots, None]
                    cost = partial(cost_of, some[0])
                    out[np.ix_(roots, some)] = self.aligned(block, roots, left, rate, cost)
        return out

    def aligned(
        self,
        start: int,
        roots: Ints,
        left: Floats,
        rate_rps: float,
        cost_of: Callable[[Options], Floats],
    ) -> Floats:
        """[roots, n] the least cost of an alignment stage in the time that each root leaves.

        0 where items of this start board.

        Args:
            start: block of the items, no later than the roots' junction.
            roots: of one junction.
            left: [roots, n] for the stage (µs).
            rate_rps: of an item, which the link of one vGPU must carry.
            cost_of: of the options.
        """
        junction, found = int(self.root_junction[roots[0]]), np.full(left.shape, np.inf)
        if start == junction:
            return np.where(left >= 0, 0.0, np.inf)
        for kind, (_, link) in enumerate(self.table.kinds() if self.table.chains else ()):
            options = self.table.options(start, junction, kind)
            if len(options) and rate_rps <= link[junction]:
                lowest = np.minimum.accumulate(cost_of(options))
                row = np.searchsorted(options.time_us, left, "right") - 1
                mine = (self.root_kind[roots, None] == kind) & (row >= 0)
                found[mine] = lowest[row[mine]]
        return found

    def parts(self, counts: Ints | None = None) -> Floats:
        """[R, items] the least an item pays for the root and to come there (`parts_beside`)."""
        whole = float(self.rate.sum() if counts is None else counts @ self.rate)
        unit = self.root_price * np.maximum(self.root_work, 1 / whole)
        return self.parts_beside(counts) + unit[:, None] * self.rate

    def least_time(self, item: int) -> float:
        """The least time in which an entry can be served (µs), whatever it costs."""
        block, table = int(self.block[item]), self.table
        least = float(self.root_options[block].time_us.min(initial=np.inf))
        for root in range(int(self.root_start[block + 1]), len(self.root_time)):
            junction, kind = int(self.root_junction[root]), int(self.root_kind[root])
            if table.chains:
                first = table.options(block, junction, kind).time_us.min(initial=np.inf)
                least = min(least, float(first + self.root_time[root]))
        return least


_NONE = Options(
    time_us=np.zeros(0),
    price=np.zeros(0),
    work=np.zeros(0),
    size=np.zeros(0, dtype=np.int64),
    batch=np.zeros(0, dtype=np.int64),
)
