"""GPUs divided into parts that share nothing, as MIG slices.

How many slices do what, and how cards are divided: a cover of `divisions` whose columns are options
of kinds of slices (`parts`; of n processes that run one model in a slice, n vGPUs). One program
over thousands of options stands for one over all their combinations on cards. Options that another
of the same kind replaces are dropped, rates cut to what is asked.

A kind is a group of columns without a price. Prices l of demands prove a bound where slices cost
what their best option is worth, and GPUs what their best division is. An option worth less than
that costs a plan the difference at least. Integer programs over the cheapest options, more of them
each time, find plans, each begun with the one before; the last one has all that are left, and
settles it, or says what is open (`proof.by_slack`).

Here: that pricer and the order of a search. Not here: what a slice may do (`parts`), what a plan
looks like (`plan`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool, undominated
from flows.planning.engine.cover import Relaxed, relax
from flows.planning.engine.level import highest
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.proof import by_slack
from flows.planning.engine.rounding import Incumbent, Rung
from flows.planning.gpulets.divisions import Divisions
from flows.planning.gpulets.master import Answer, Chosen, Goal, Master
from flows.planning.gpulets.patterns import Key, Parts, Pattern, Patterns
from flows.planning.gpulets.tables import Tables
from flows.planning.pool.columns import best_of_each
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.watch import Watch
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import mig_cell

RUNGS = (
    Rung(columns=60, nodes=200, share=0.1),
    Rung(columns=400, nodes=1_000, share=0.3),
    Rung(columns=8_000, nodes=20_000),
)


@dataclass(slots=True, kw_only=True)
class SlicePricer:
    """A pricer of n options; those of a kind are a group without a price.

    Attributes:
        rates: [n, model] that a slice carries, in units of the demand.
        kind: [n] rising.
        prices: [class] of a GPU.
    """

    rates: Floats
    kind: Ints
    divisions: Divisions
    prices: Floats
    quick: bool = False
    _cap: bytes = b""
    _useful: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def fewest(self) -> Floats:
        """[kind] slices in use, and the price of one."""
        return np.zeros(self.divisions.kinds)

    cheapest = fewest

    @property
    def most(self) -> Floats:
        """[kind] slices: as many as divisions lend."""
        return np.full(self.divisions.kinds, np.inf)

    def useful(self, cap: Floats) -> tuple[Ints, Ints, Floats]:
        """Options that none of their kind replaces up to caps, their kinds, and their rates."""
        if self._cap != cap.tobytes():
            self._useful = np.flatnonzero(undominated(np.minimum(self.rates, cap), self.kind))
            self._cap = cap.tobytes()
        rows = self._useful
        return rows, self.kind[rows], np.minimum(self.rates[rows], cap)

    def price(self, duals: Duals, cap: Floats) -> Priced:
        """The best option of every kind; slices and GPUs dear enough that none pays off."""
        rows, kind, rates = self.useful(cap)
        values = rates @ duals.demand
        best = best_of_each([kind], -values)
        tops, gpus, of = values[best], np.zeros(len(self.prices)), self.divisions.gpu_class
        np.maximum.at(gpus, of, self.divisions.counts @ tops - self.prices[of])
        resource = np.concatenate([tops, gpus])
        feasible = None
        if not np.array_equal(resource, duals.resource):
            feasible = replace(duals, resource=resource)
        least = duals.resource[: len(tops)] - tops
        return Priced(columns=self.columns(rows[best]), least=least, feasible=feasible)

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Priced:
        """The options of the lowest reduced costs up to the slack."""
        rows, kind, rates = self.useful(cap)
        cost = duals.resource[kind] - rates @ duals.demand
        order = np.argsort(cost, kind="stable")
        near = order[cost[order] <= slack[kind[order]] + 1e-9 * np.abs(duals.resource).max()][:most]
        left, rest = np.full(self.divisions.kinds, np.inf), np.ones(len(cost), dtype=np.bool_)
        rest[near] = False
        np.minimum.at(left, kind[rest], cost[rest])
        return Priced(columns=self.columns(rows[near]), least=left)

    def alone(self, cap: Floats) -> Columns:
        """The best option of each kind for each model."""
        rows, kind, rates = self.useful(cap)
        return self.columns(rows[np.unique([best_of_each([kind], -rate) for rate in rates.T])])

    def columns(self, options: Ints) -> Columns:
        """For the engine."""
        kinds, classes = self.divisions.kinds, len(self.prices)
        use = np.eye(kinds, kinds + classes)[self.kind[options]]
        none = np.zeros(len(options))
        return Columns.dense(none, self.rates[options], use, self.kind[options], options.tolist())


class SliceMaster(Master):
    """Options of all kinds of slices, and the best of them for any demand."""

    def __init__(self, tables: Tables, watch: Watch | None = None) -> None:
        """Enumerate what slices may do.

        Raises:
            InfeasibleError: the time is over before all is known.
            InputError: parts of a class that is not MIG share memory or slow each other down.
        """
        super().__init__(tables, watch)
        self._class_of: list[int] = []  # of every kind
        self._parts: list[Parts] = []  # of every option
        rates, kinds = list[Floats](), list[int]()
        divisions: list[tuple[int, tuple[int, ...]]] = []
        for own in self.patterns:
            _check_apart(own)
            numbers: dict[int, int] = {}
            for name, shares in _by_kind(own):
                numbers[name] = len(self._class_of)
                every, parts = _slices(own, shares)
                rates.append(every)
                kinds += [numbers[name]] * len(parts)
                self._parts += parts
                self._class_of.append(own.number)
            divisions += [(own.number, parts) for parts in _divisions(own, numbers)]
        self._rates, self._kind = np.concatenate(rates), np.array(kinds, dtype=np.int64)
        self._divisions = Divisions(
            gpu_class=np.array([number for number, _ in divisions], dtype=np.int64),
            parts=tuple(parts for _, parts in divisions),
            kinds=len(self._class_of),
        )

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of options and divisions, and the bound."""
        trace = Trace()
        trace.configurations["slice options"] = len(self._parts)
        prices = np.zeros(len(self.tables.classes)) if goal.prices is None else goal.prices
        pricer = SlicePricer(
            rates=self._rates / goal.demand,
            kind=self._kind,
            divisions=self._divisions,
            prices=prices,
        )

        def judged(columns: Columns, counts: Ints, free: Floats) -> float:
            served = counts @ columns.matrix(len(goal.demand) + self._divisions.kinds)
            gpus = free[: len(self._divisions.parts)]
            price = float(gpus @ prices[self._divisions.gpu_class])
            return goal.cost(served[: len(goal.demand)], price)

        best, pool = Incumbent(judge=judged), Pool()
        cover, relaxed = self._relaxed(goal, pricer, pool, watch)
        widest = max(map(len, self._divisions.parts))
        slices = widest * self.tables.gpus[self._class_of]
        tools = goal.tools(lambda some: slices[some.group].astype(np.float64), begin=True)
        bound = -by_slack(cover, pricer, pool, relaxed, best, RUNGS, tools, watch)
        trace.configurations["generated"] = len(pool)
        return goal.answer(self._chosen(best), -best.cost, bound, trace)

    def _relaxed(
        self, goal: Goal, pricer: SlicePricer, pool: Pool, watch: Watch
    ) -> tuple[Cover, Relaxed]:
        """The linear optimum at a price, or of the level with rates cut to what is in reach."""
        asked = goal.asked(self.tables.gpus.astype(np.float64))
        cover = self._divisions.cover(asked, pricer.prices)
        pool.add(pricer.alone(cover.cap))
        if goal.prices is not None:
            return cover, relax(cover, pricer, pool, watch)
        return highest(cover, np.ones(len(goal.demand)), pricer, pool, watch)

    def _chosen(self, best: Incumbent) -> Chosen:
        """GPUs of every division with slices taken from the options in their order."""
        stock: dict[int, list[int]] = {}  # the last first
        for option, count in zip(best.columns.source, best.counts.tolist(), strict=True):
            stock.setdefault(int(self._kind[option]), [])[:0] = [option] * count
        counted: Counter[Key] = Counter()
        patterns: dict[Key, Pattern] = {}
        for gpu_class, options in self._divisions.on_gpus(best.free, stock):
            pattern = Pattern(
                gpu_class=gpu_class,
                parts=tuple(sorted(part for option in options for part in self._parts[option])),
                rates_rps=self._rates[options].sum(axis=0),
            )
            patterns[pattern.key] = pattern
            counted[pattern.key] += 1
        return [(patterns[key], count) for key, count in counted.items()]


def _check_apart(own: Patterns) -> None:
    """Parts of a class share nothing."""
    table = own.table
    shared = np.isfinite(table.memory_gib) and np.isinf([*table.part_memory_gib.values()]).any()
    if not table.slices and (table.interference or shared):
        what = "slow each other down" if table.interference else "share its memory"
        reason = f"its parts {what}; such classes are not planned together with MIG slices"
        raise InputError(f"gpu_classes.{table.name}", reason)


def _kind_name(share: int) -> int:
    """Compute size of a MIG slice, else the share of a part."""
    cell = mig_cell(share)
    return share if cell is None else cell.compute


def _by_kind(own: Patterns) -> list[tuple[int, list[int]]]:
    """Names of kinds of slices, rising, with the shares of parts in one."""
    shares: dict[int, list[int]] = {}
    for share, options in own.options.items():
        if options.number:
            shares.setdefault(_kind_name(share), []).append(share)
    return sorted(shares.items())


def _divisions(own: Patterns, numbers: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Divisions of a GPU into kinds by number; none that is part of another."""
    found: set[tuple[int, ...]] = set()
    for partition in own.table.partitions:
        names = map(_kind_name, partition)
        found.add(tuple(sorted(numbers[name] for name in names if name in numbers)))
    return [
        kinds
        for kinds in sorted(found)
        if kinds and not any(Counter(kinds) < Counter(other) for other in found)
    ]


def _slices(own: Patterns, shares: list[int]) -> tuple[Floats, list[Parts]]:
    """Options of slices of a kind, with any of these shares in it, that no other replaces.

    Returns:
        [n, model] requests/s, and [n] share and row of every vGPU of a slice, all alike.
    """
    rates: list[Floats] = []
    parts: list[Parts] = []
    for share in shares:
        options, cell = own.options[share], mig_cell(share)
        copies, rows = 1 if cell is None else cell.processes, np.arange(options.number)
        rates.append(copies * options.rates_rps(rows, options.turn_us, len(own.tables.models)))
        parts += [((share, row),) * copies for row in rows.tolist()]
    every = np.concatenate(rates)
    kept = np.flatnonzero(undominated(every))
    return every[kept], [parts[n] for n in kept.tolist()]
