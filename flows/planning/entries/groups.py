"""The best plan of a group of entries that meet at one junction (Graft, section 4.3, repaired).

A group has a junction J, a shared stage [J, M) and its option (class, share, batch). Entries that
start at J board it directly; every other one has an alignment stage [p, J) of its own, the cheapest
that leaves the shared stage its time. Each entry keeps its own budget (or all the least one,
`--budget-rule group`):

    cost(G) = min over J >= max p, options s of [J, M):
        price_s n_s(sum of rates) + sum over e with p_e < J of C(p_e, J, q_e)(limit_e - T_s)
        where T_s <= limit_e for e with p_e = J

C(i, j, q)(t) is the least cost of blocks [i, j) at rate q within t.

No grid of budgets is needed: only options where a curve falls matter. An entry alone has no
alignment stage unless two stages are cheaper than one.

Here: curves as flat arrays and the kernels over them. Not here: which entries form groups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flows.planning.entries.tables import ModelTable, Options
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.scheduler.compiled import entry as kernel_entry
from triton_backend.scheduler.compiled import kernel


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


class Arrays(NamedTuple):
    """Arrays of a `GroupingProblem`, for kernels.

    Most vGPUs of a stage; whether a group has its least limit.
    """

    block: Any
    limit: Any
    rate: Any
    curve: Any
    root_start: Any
    root_time: Any
    root_price: Any
    root_work: Any
    root_kind: Any
    curve_start: Any
    curve_time: Any
    curve_cost: Any
    most: int
    common: bool


class GroupingProblem:
    """Items of one model, options of shared stages and curves of alignment stages, as arrays.

    Shared stages ("roots"), by junction and rising time; R of them:
        root_junction, root_time, root_price, root_work, root_kind    [R]
        root_start    [blocks + 1] the first root of each junction
    Curves, of every start and rate (item_curve [items]) x junction x kind of receiver:
        curve_start   [curves, blocks, kinds + 1] where each begins; the next is its end
        curve_time, curve_cost    rising time, falling cost
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
        self._read_curves()

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

    def _read_curves(self) -> None:
        table, blocks, kinds = self.table, self.table.blocks, len(self.table.kinds())
        keys: dict[tuple[int, float], int] = {}
        self.curve = np.array(
            [keys.setdefault((i.block, i.rate_rps), len(keys)) for i in self.items], dtype=np.int64
        )
        times: list[Floats] = []
        costs: list[Floats] = []
        starts = np.zeros((len(keys), blocks, kinds + 1), dtype=np.int64)
        at = 0
        for (first, rate), number in keys.items():
            for junction in range(blocks):
                starts[number, junction, 0] = at
                for kind in range(kinds):
                    if junction > first and table.chains:
                        options = table.options(first, junction, kind)
                        link = table.kinds()[kind][1][junction]
                        cost = options.cost(rate, table.most)
                        lowest = np.minimum.accumulate(cost) if len(cost) else cost
                        falls = np.flatnonzero(lowest < np.concatenate([[np.inf], lowest[:-1]]))
                        falls = falls[np.isfinite(cost[falls])] if rate <= link else falls[:0]
                        times.append(options.time_us[falls])
                        costs.append(cost[falls])
                        at += len(falls)
                    starts[number, junction, kind + 1] = at
        self.curve_start = starts
        self.curve_time = np.concatenate(times) if times else np.zeros(0)
        self.curve_cost = np.concatenate(costs) if costs else np.zeros(0)

    @property
    def arrays(self) -> Arrays:
        """Arguments of kernels."""
        own = {name: getattr(self, name) for name in Arrays._fields[:-2]}
        return Arrays(**own, most=self.table.most, common=self.group_budget)

    def best(self, members: Sequence[int]) -> Group:
        """The best plan of a group."""
        cost, root = best_of(np.array(members, dtype=np.int64), self.arrays)
        return Group(items=tuple(members), root=root, cost=cost)

    def at(self, members: Sequence[int], junction: int) -> Group:
        """The best plan that meets at a given block."""
        cost, root = best_at(junction, np.array(members, dtype=np.int64), self.arrays)
        return Group(items=tuple(members), root=root, cost=cost)

    def costs_beside(self) -> Floats:
        """[R, items] what an item costs beside its part of the root; infinite where it cannot join.

        0 where it boards directly. With `group_budget` budgets are each item's own here.
        """
        return self._beside(lambda item, options: self.cost(float(self.rate[item]), options))

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
            lambda item, o: o.price * np.maximum(o.work, 1 / together[item]) * self.rate[item]
        )

    def cost(self, rate_rps: float, options: Options) -> Floats:
        """[options] what a stage of a rate costs."""
        return options.cost(rate_rps, self.table.most)

    def _beside(self, cost_of: Callable[[int, Options], Floats]) -> Floats:
        """[R, items] the least cost of the alignment stage of each item, by item and options."""
        out = np.full((len(self.root_time), len(self.items)), np.inf)
        for item, (block, limit) in enumerate(zip(self.block.tolist(), self.limit, strict=True)):
            for junction in range(block, self.table.blocks):
                roots = np.arange(self.root_start[junction], self.root_start[junction + 1])
                if len(roots):
                    left, rate = limit - self.root_time[roots], float(self.rate[item])
                    cost = partial(cost_of, item)
                    out[roots, item] = self.aligned(block, roots, left, rate, cost)
        return out

    def aligned(
        self,
        start: int,
        roots: Ints,
        left: Floats,
        rate_rps: float,
        cost_of: Callable[[Options], Floats],
    ) -> Floats:
        """[roots] the least cost of an alignment stage in the time that each root leaves.

        0 where items of this start board.

        Args:
            start: block of the items, no later than the roots' junction.
            roots: of one junction.
            left: [roots] for the stage (µs).
            rate_rps: of an item, which the link of one vGPU must carry.
            cost_of: of the options.
        """
        junction, found = int(self.root_junction[roots[0]]), np.full(len(roots), np.inf)
        if start == junction:
            return np.where(left >= 0, 0.0, np.inf)
        for kind, (_, link) in enumerate(self.table.kinds() if self.table.chains else ()):
            options = self.table.options(start, junction, kind)
            if len(options) and rate_rps <= link[junction]:
                lowest = np.minimum.accumulate(cost_of(options))
                row = np.searchsorted(options.time_us, left, "right") - 1
                mine = (self.root_kind[roots] == kind) & (row >= 0)
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


@kernel
def _beside(curve: int, junction: int, kind: int, left: float, arrays: Arrays) -> float:
    """The least cost of an alignment stage within a time; `FAR` where there is none."""
    curve_start, curve_time = arrays.curve_start, arrays.curve_time
    first, end = curve_start[curve, junction, kind], curve_start[curve, junction, kind + 1]
    count = np.searchsorted(curve_time[first:end], left, side="right")
    return arrays.curve_cost[first + count - 1] if count > 0 else FAR


@kernel
def _direct(junction: int, members: Ints, least: float, arrays: Arrays) -> float:
    """The least limit of those that board at a junction; `FAR` if none does."""
    direct = FAR
    for m in range(len(members)):
        if arrays.block[members[m]] == junction:
            direct = min(direct, arrays.limit[members[m]], least)
    return direct


@kernel
def _alignments(
    root: int, junction: int, members: Ints, least: float, most: float, arrays: Arrays
) -> float:
    """The cost of alignment stages beside a root; at least `most` where that is exceeded."""
    cost, kind = 0.0, arrays.root_kind[root]
    for m in range(len(members)):
        e = members[m]
        if cost >= most:
            break
        if arrays.block[e] < junction:
            left = min(arrays.limit[e], least) - arrays.root_time[root]
            cost += _beside(arrays.curve[e], junction, kind, left, arrays)
    return cost


@kernel
def _at(junction: int, members: Ints, below: float, arrays: Arrays) -> tuple[float, int]:
    """Cost and root of the best plan that meets at a block; `below` and -1: none costs less."""
    total, least = 0.0, FAR
    for m in range(len(members)):
        total += arrays.rate[members[m]]
        if arrays.common:
            least = min(least, arrays.limit[members[m]])
    direct = _direct(junction, members, least, arrays)
    best, chosen = below, -1
    for kind in range(arrays.curve_start.shape[2] - 1):
        cheapest = FAR
        for root in range(arrays.root_start[junction], arrays.root_start[junction + 1]):
            if arrays.root_kind[root] != kind:
                continue
            if arrays.root_time[root] > direct:
                break
            vgpus = max(1.0, np.ceil(total * arrays.root_work[root] * (1 - ROUNDING)))
            cost = arrays.root_price[root] * vgpus
            if vgpus > arrays.most or cost >= cheapest:  # as cheap and faster ones came before
                continue
            cheapest = cost
            cost += _alignments(root, junction, members, least, best - cost, arrays)
            if cost < best:
                best, chosen = cost, root
    return best, chosen


@kernel_entry
def best_at(junction: int, members: Ints, arrays: Arrays) -> tuple[float, int]:
    """Cost and root of the best plan that meets at a block; `FAR` and -1 where there is none."""
    return _at(junction, members, FAR, arrays)


@kernel_entry
def best_of(members: Ints, arrays: Arrays) -> tuple[float, int]:
    """Cost and root of the best plan of a group; `FAR` and -1 where there is none."""
    last = 0
    for m in range(len(members)):
        last = max(last, arrays.block[members[m]])
    best, chosen = FAR, -1
    for junction in range(last, len(arrays.root_start) - 1):
        cost, root = _at(junction, members, best, arrays)
        if root >= 0:
            best, chosen = cost, root
    return best, chosen


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
