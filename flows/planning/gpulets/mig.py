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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.columns import Columns, Pool, undominated
from flows.planning.engine.cover import Relaxed, relax
from flows.planning.engine.level import highest
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced, Within
from flows.planning.engine.proof import by_slack
from flows.planning.engine.rounding import Incumbent, Rung, Tools
from flows.planning.gpulets.divisions import Divisions
from flows.planning.gpulets.master import Answer, Chosen, Goal, Master
from flows.planning.gpulets.patterns import Key, Parts, Pattern, Patterns
from flows.planning.gpulets.tables import Tables
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
FALLS = 1e-5  # relative, of a bound that is worth going on for


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of slice of a class, and the n options that no other replaces.

    Attributes:
        rates_rps: [n, model] that a slice carries.
        parts: [n] share and row of every vGPU of a slice, all alike.
    """

    gpu_class: int
    rates_rps: Floats
    parts: Sequence[Parts]


@dataclass(slots=True, kw_only=True)
class SlicePricer:
    """A pricer of options; those of a kind are a group without a price.

    Attributes:
        prices: [class] of a GPU.
        unit: [model] requests/s in a unit of its demand.
    """

    kinds: Sequence[Kind]
    divisions: Divisions
    prices: Floats
    unit: Floats
    quick: bool = False
    _cap: bytes = b""
    _useful: list[tuple[Ints, Floats]] | None = None

    @property
    def fewest(self) -> Floats:
        """[kind] slices in use, and the price of one."""
        return np.zeros(len(self.kinds))

    cheapest = fewest

    @property
    def most(self) -> Floats:
        """[kind] slices: as many as divisions lend."""
        return np.full(len(self.kinds), np.inf)

    def useful(self, cap: Floats) -> list[tuple[Ints, Floats]]:
        """By kind the options that none replaces up to caps, and their rates, in units."""
        if self._useful is None or self._cap != cap.tobytes():
            counted = [np.minimum(kind.rates_rps / self.unit, cap) for kind in self.kinds]
            kept = [np.flatnonzero(undominated(rates)) for rates in counted]
            self._cap = cap.tobytes()
            self._useful = [(own, rates[own]) for own, rates in zip(kept, counted, strict=True)]
        return self._useful

    def price(self, duals: Duals, cap: Floats, *, thorough: bool) -> Priced:
        """The best option of every kind; slices and GPUs dear enough that none pays off."""
        del thorough
        useful = self.useful(cap)
        values = [rates @ duals.demand for _, rates in useful]
        tops = np.array([float(value.max()) for value in values])
        gpus = np.zeros(len(self.prices))
        of = self.divisions.gpu_class
        np.maximum.at(gpus, of, self.divisions.counts @ tops - self.prices[of])
        resource = np.concatenate([tops, gpus])
        best = [
            (number, int(own[value.argmax()]))
            for number, ((own, _), value) in enumerate(zip(useful, values, strict=True))
        ]
        feasible = None
        if not np.array_equal(resource, duals.resource):
            feasible = replace(duals, resource=resource)
        least = duals.resource[: len(tops)] - tops
        return Priced(columns=self.columns(best), least=least, feasible=feasible)

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Within:
        """The options of the lowest reduced costs up to the slack."""
        useful = self.useful(cap)
        reduced = [
            duals.resource[number] - rates @ duals.demand
            for number, (_, rates) in enumerate(useful)
        ]
        kind = np.repeat(np.arange(len(useful)), [len(own) for own, _ in useful])
        option, cost = np.concatenate([own for own, _ in useful]), np.concatenate(reduced)
        order = np.argsort(cost, kind="stable")
        near = order[cost[order] <= slack[kind[order]] + 1e-9 * np.abs(duals.resource).max()][:most]
        left, rest = np.full(len(useful), np.inf), np.ones(len(cost), dtype=np.bool_)
        rest[near] = False
        np.minimum.at(left, kind[rest], cost[rest])
        found = list(zip(kind[near].tolist(), option[near].tolist(), strict=True))
        return Within(columns=self.columns(found), left_out=left)

    def columns(self, options: Sequence[tuple[int, int]]) -> Columns:
        """For the engine: options by kind and number."""
        kinds = np.array([kind for kind, _ in options], dtype=np.int64)
        rates = np.array([self.kinds[kind].rates_rps[option] for kind, option in options])
        use = np.eye(len(self.kinds), len(self.kinds) + len(self.prices))[kinds]
        return Columns.dense(
            np.zeros(len(options)),
            rates.reshape(-1, len(self.unit)) / self.unit,
            use,
            kinds,
            options,
        )

    def alone(self, cap: Floats) -> Columns:
        """The best option of each kind for each model."""
        found = [
            (number, int(own[at]))
            for number, (own, rates) in enumerate(self.useful(cap))
            for at in np.unique(rates.argmax(axis=0)).tolist()
        ]
        return self.columns(found)


class SliceMaster(Master):
    """Options of all kinds of slices, and the best of them for any demand."""

    def __init__(self, tables: Tables) -> None:
        """Enumerate what slices may do.

        Raises:
            InputError: parts of a class that is not MIG share memory or slow each other down.
        """
        super().__init__(tables)
        self._kinds: list[Kind] = []
        divisions: list[tuple[int, tuple[int, ...]]] = []
        for own in self.patterns:
            _check_apart(own)
            divisions += self._add(own)
        self._divisions = Divisions(
            gpu_class=np.array([number for number, _ in divisions], dtype=np.int64),
            parts=tuple(slices for _, slices in divisions),
            kinds=len(self._kinds),
        )

    def _add(self, own: Patterns) -> list[tuple[int, tuple[int, ...]]]:
        """Add the kinds of a class; its divisions."""
        by_name: dict[int, list[int]] = {}
        for share, options in own.options.items():
            if options.count:
                by_name.setdefault(_kind_name(share), []).append(share)
        numbers: dict[int, int] = {}
        for name, shares in sorted(by_name.items()):
            numbers[name] = len(self._kinds)
            self._kinds.append(_kind(own, shares))
        found: set[tuple[int, ...]] = set()
        for partition in own.table.partitions:
            names = map(_kind_name, partition)
            found.add(tuple(sorted(numbers[name] for name in names if name in numbers)))
        return [
            (own.number, slices)
            for slices in sorted(found)
            if slices and not any(Counter(slices) < Counter(other) for other in found)
        ]

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of options and divisions, and the bound."""
        trace = Trace()
        trace.configurations["slice options"] = sum(len(k.rates_rps) for k in self._kinds)
        prices = np.zeros(len(self.tables.classes)) if goal.prices is None else goal.prices
        pricer = SlicePricer(
            kinds=self._kinds, divisions=self._divisions, prices=prices, unit=goal.demand
        )

        def judged(columns: Columns, counts: Ints, free: Floats) -> float:
            served = counts @ columns.matrix(len(goal.demand) + self._divisions.kinds)
            gpus = free[: len(self._divisions.parts)]
            price = float(gpus @ prices[self._divisions.gpu_class])
            return goal.cost(served[: len(goal.demand)], price)

        best, pool = Incumbent(judge=judged), Pool()
        cover, relaxed = self._relaxed(goal, pricer, pool, watch)
        widest = max(map(len, self._divisions.parts))
        slices = np.array([widest * self.tables.classes[k.gpu_class].gpus for k in self._kinds])
        tools = Tools(
            solver=goal.solver,
            gap=goal.gap,
            most=lambda columns: slices[columns.group].astype(np.float64),
            begin=True,
            whole_costs=goal.whole_costs(),
        )
        bound = -by_slack(cover, pricer, pool, relaxed, best, RUNGS, tools, watch)
        trace.configurations["generated"] = len(pool)
        score = -best.cost
        trace.status = "optimal" if goal.settled(score, bound) else "gap left"
        chosen = [(c, n) for c, n in self._chosen(best) if n and c.rates_rps.any()]
        return Answer(chosen=chosen, score=score, bound=max(bound, score), trace=trace)

    def _relaxed(
        self, goal: Goal, pricer: SlicePricer, pool: Pool, watch: Watch
    ) -> tuple[Cover, Relaxed]:
        """The linear optimum at a price, or of the level with rates cut to what is in reach."""
        asked = goal.asked(self.tables.gpus.astype(np.float64))
        cover = self._divisions.cover(asked, pricer.prices)
        pool.add(pricer.alone(cover.cap))
        if goal.prices is not None:
            return cover, relax(cover, pricer, pool, watch)
        return highest(cover, np.ones(len(goal.demand)), pricer, pool, watch, falls=FALLS)

    def _chosen(self, best: Incumbent) -> Chosen:
        """GPUs of every division with slices taken from the options in their order."""
        stock: dict[int, list[tuple[int, int]]] = {}  # the last first
        for (kind, option), count in zip(best.columns.source, best.counts.tolist(), strict=True):
            stock.setdefault(kind, [])[:0] = [(kind, option)] * count
        counted: Counter[Key] = Counter()
        patterns: dict[Key, Pattern] = {}
        for gpu_class, slices in self._divisions.on_gpus(best.free, stock):
            pattern = _pattern(gpu_class, [(self._kinds[kind], option) for kind, option in slices])
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


def _kind(own: Patterns, shares: list[int]) -> Kind:
    """The options of a kind of slice, with any of these shares in it."""
    rates: list[Floats] = []
    parts: list[Parts] = []
    for share in shares:
        options, cell = own.options[share], mig_cell(share)
        copies, rows = 1 if cell is None else cell.processes, np.arange(options.count)
        rates.append(copies * options.rates_rps(rows, options.turn_us, len(own.tables.models)))
        parts += [((share, row),) * copies for row in rows.tolist()]
    every = np.concatenate(rates)
    kept = np.flatnonzero(undominated(every))
    return Kind(
        gpu_class=own.number, rates_rps=every[kept], parts=[parts[n] for n in kept.tolist()]
    )


def _pattern(gpu_class: int, slices: list[tuple[Kind, int]]) -> Pattern:
    """A GPU whose slices do this."""
    parts = [part for kind, option in slices for part in kind.parts[option]]
    rates = np.sum([kind.rates_rps[option] for kind, option in slices], axis=0)
    return Pattern(gpu_class=gpu_class, parts=tuple(sorted(parts)), rates_rps=rates)
