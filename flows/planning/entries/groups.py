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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flows.planning.engine.columns import Columns
from flows.planning.entries.options import Options, vgpus_for
from flows.planning.entries.tables import ModelTable
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.scheduler.compiled import entry as kernel_entry

MOST_UNITS = 2_000  # of rates together


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


def item_of(table: ModelTable, members: Sequence[int]) -> EntryClass:
    """Entries of one start as one item, in the least time of them."""
    return EntryClass(
        block=table.entries[members[0]].block,
        limit_us=float(min(table.limits_us[n] for n in members)),
        rate_rps=math.fsum(table.rates_rps[n] for n in members),
        members=tuple(members),
    )


def items_of(table: ModelTable) -> list[EntryClass]:
    """Every entry by itself, by start, then by falling limit."""
    found = [item_of(table, [number]) for number in range(len(table.entries))]
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

    Its R roots are those of the `Layout` of the items' starts, each with the price of a vGPU.
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
        layout = table.layout(np.unique(self.block))
        self.root_start, self.root_junction = layout.root_start, layout.root_junction
        self.root_time, self.root_work = layout.root_time, layout.root_work
        self.root_kind, self.root_price = layout.root_kind, table.prices[layout.root_size]
        self.options_from = layout.options_from
        self.options = np.array([layout.time, table.prices[layout.size], layout.work])
        self.link_rps = np.array([kind.link_rps for kind in table.kinds])

    def aligning(self, start: int, root: int) -> Options:
        """Alignment stages from a start to a root."""
        return self.table.options(start, int(self.root_junction[root]), int(self.root_kind[root]))

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
            least = np.full(len(some), self.limit[some].min())
            beside = self.aligned(self.block[some], least, self.rate[some])[roots]
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
        return self.aligned(self.block, self.limit, self.rate)

    def parts_beside(self, counts: Ints | None = None) -> Floats:
        """[R, items] the least an item pays for an alignment stage shared by its start.

        That is its part of the cheapest vGPUs in time: all of them where all items of its start
        fill them, else one.

        Args:
            counts: of each item; None: 1.
        """
        rates = self.rate if counts is None else counts * self.rate
        together = np.bincount(self.block, rates)[self.block]
        return self.aligned(self.block, self.limit, self.rate, part=self.rate / together)

    def aligned(
        self,
        block: Ints,
        limit: Floats,
        rate: Floats,
        part: Floats | None = None,
        largest: Floats | None = None,
    ) -> Floats:
        """[R, n] the least cost of alignment stages beside every root; 0 where they board.

        Args:
            block: [n] where each of them starts.
            limit: [n] for both stages (µs).
            rate: [n] that it carries.
            part: [n] of a vGPU that is paid at least, of more so much as it is busy; None: whole
                vGPUs are paid.
            largest: [n] rate of an item among those of each, which the link of one vGPU must carry;
                None: each is one.
        """
        least = np.full(len(block), -1.0) if part is None else part
        asked = np.column_stack(
            [block.astype(np.float64), rate, least, rate if largest is None else largest]
        )
        alike, which = np.unique(asked, axis=0, return_inverse=True)
        lowest = np.full((len(alike), self.options.shape[1]), np.inf)
        options = self.options_from, self.options, self.link_rps
        _fill_lowest(alike, options, float(self.table.most), lowest)
        out = np.full((len(self.root_time), len(block)), np.inf)
        roots = self.root_junction, self.root_time, self.root_kind
        _align((block, limit, which.ravel()), roots, options, lowest, out)
        return out

    def parts(self, counts: Ints | None = None) -> Floats:
        """[R, items] the least an item pays for the root and to come there (`parts_beside`)."""
        whole = float(self.rate.sum() if counts is None else counts @ self.rate)
        unit = self.root_price * np.maximum(self.root_work, 1 / whole)
        return self.parts_beside(counts) + unit[:, None] * self.rate

    @cached_property
    def unit(self) -> float:
        """A rate that loads are counted in: the largest that all are multiples of, or part of all.

        Rates are compared in millionths of a request/s.
        """
        least, whole = float(self.rate.sum()) / MOST_UNITS, np.rint(self.rate * 1e6)
        near = np.allclose(whole, self.rate * 1e6, rtol=0, atol=1e-3)  # of a millionth
        common = math.gcd(*map(int, whole)) / 1e6 if near and whole.min(initial=1.0) >= 1 else 0.0
        return max(common, least)

    def least_time(self, item: int) -> float:
        """The least time in which an entry can be served (µs), whatever it costs."""
        block, table = int(self.block[item]), self.table
        least = float(table.options(block, table.blocks).time_us.min(initial=np.inf))
        for root in range(int(self.root_start[block + 1]), len(self.root_time)):
            junction, kind = int(self.root_junction[root]), int(self.root_kind[root])
            if table.chains:
                first = table.options(block, junction, kind).time_us.min(initial=np.inf)
                least = min(least, float(first + self.root_time[root]))
        return least


def columns_of(groups: Sequence[Group]) -> Columns:
    """Groups for the engine, those of a root a group of columns."""
    items = [sorted(group.items) for group in groups]
    return Columns(
        cost=np.array([g.cost for g in groups]),
        starts=np.cumsum([0, *map(len, items)]),
        rows=np.array([i for own in items for i in own], dtype=np.int64),
        values=np.ones(sum(map(len, items))),
        group=np.array([g.root for g in groups], dtype=np.int64),
        source=groups,
    )


@kernel_entry
def _fill_lowest(
    alike: Floats, known: tuple[Ints, Floats, Floats], most: float, lowest: Floats
) -> None:
    """Fill in [alike, options] the least cost up to an option of the same range and kind.

    Args:
        alike: [alike, 4] start, rate, part of a vGPU paid at least or -1, rate of the largest item.
        known: where options of a start, junction and kind begin and end; options; links.
        most: vGPUs of a stage.
        lowest: infinite before.
    """
    options_from, options, link_rps = known
    for n in range(len(alike)):
        rate, least, spans = alike[n, 1], alike[n, 2], options_from[int(alike[n, 0])]
        for junction in range(spans.shape[0]):
            for kind in range(spans.shape[1]):
                cheapest = np.inf
                if alike[n, 3] > link_rps[kind, junction]:
                    continue
                for option in range(spans[junction, kind, 0], spans[junction, kind, 1]):
                    vgpus = max(rate * options[2, option], least)
                    if least < 0:
                        vgpus = max(1.0, np.ceil(vgpus * (1 - ROUNDING)))
                    if least >= 0 or vgpus <= most:
                        cheapest = min(cheapest, options[1, option] * vgpus)
                    lowest[n, option] = cheapest


@kernel_entry
def _align(
    asked: tuple[Ints, Floats, Ints],
    roots: tuple[Ints, Floats, Ints],
    known: tuple[Ints, Floats, Floats],
    lowest: Floats,
    out: Floats,
) -> None:
    """Fill in `GroupingProblem.aligned`."""
    block, limit, which = asked
    junction, time, kind = roots
    options_from, options, _ = known
    for root in range(len(time)):
        for n in range(len(block)):
            left = limit[n] - time[root]
            if left < 0 or block[n] > junction[root]:
                continue
            if block[n] == junction[root]:
                out[root, n] = 0.0
                continue
            span = options_from[block[n], junction[root], kind[root]]
            times = options[0, span[0] : span[1]]
            number = np.searchsorted(times, left, side="right")
            if number > 0:
                out[root, n] = lowest[which[n], span[0] + number - 1]
