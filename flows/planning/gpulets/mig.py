"""GPUs divided into parts that share nothing, as MIG slices.

How many slices do what, and how cards are divided. Where no part disturbs another, a pattern of a
GPU is a division with any option in each of its slices. Then options are counted by themselves, and
every choice of the counts can be put on GPUs: one program over thousands of options stands for one
over all their combinations.

Sets: models m, classes k, kinds of slices s of a class, options o of a kind (`parts`; of n
processes that run one model in a slice, n vGPUs), divisions g of a card of k into slices. Data:
a_om requests/s that a slice of option o carries of m, c_gs slices of a kind, N_k GPUs, w_m demand,
price_k. Variables: x_o slices, y_g GPUs, whole; z.

    throughput   maximise z                     price   minimise sum price_k y_g
    demand_m     w_m z <= sum_o a_om x_o                w_m <= sum_o a_om x_o
    slices_s     sum_{o of s} x_o <= sum_g c_gs y_g     the same
    gpus_k       sum_{g of k} y_g <= N_k                the same

A slice that carries more of a model than is asked for helps no more than one that carries just
that: where T is no less than the best z, a_om may be cut to T w_m, and T may fall to what the cut
relaxation reaches (as in `master`).

Options that another of the same kind replaces are dropped. The relaxation is solved by column
generation; prices l >= 0 prove a bound as in `master`, with V_k(l) = max_g sum_s c_gs max_o l a_o.
An option that is worth l a_o costs a plan that uses it max_o l a_o - l a_o at least: what costs
more than is open between plan and bound cannot be part of a better plan. Integer programs over the
cheapest options, more of them each time, find plans, each begun with the one before; the last one
has all that are left, and settles it, or says what is open.

Here: that program. Not here: what a slice may do (`parts`), what a plan looks like (`plan`).
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from flows.planning.gpulets.master import (
    Answer,
    Chosen,
    Goal,
    Key,
    Master,
    Rest,
    dual_bound,
    settled,
)
from flows.planning.gpulets.patterns import DualPrices, Pattern, Patterns, undominated
from flows.planning.gpulets.tables import Tables
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer, solve_linear
from flows.planning.watch import Watch
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import mig_cell

ROUNDS = 500  # of column generation
FALLS = 20  # of the bound on throughput
STEPS = (
    (60, 200, 0.1),
    (400, 1_000, 0.3),
    (8_000, 20_000, 1.0),
)  # options, nodes, share of the time left
_FALL = 1e-5  # relative, of a bound that is worth going on for
_CLOSE = 1e-9
_MISSING = 1e3  # cost of a whole demand that is not met, in prices of all GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of slice of a class, and the n options that no other replaces.

    Attributes:
        rates_rps: [n, model] that a slice carries.
        counted: [n, model] of them, what helps a plan.
        share, row, copies: [n] of the vGPUs of a slice, all alike, and how many they are.
    """

    gpu_class: int
    rates_rps: Floats
    counted: Floats
    share: Ints
    row: Ints
    copies: Ints

    def up_to(self, caps: Floats) -> "Kind":
        """The same where more than caps [model] of a model does not count."""
        counted = np.minimum(self.rates_rps, caps)
        kept = np.flatnonzero(undominated(counted))
        return Kind(
            gpu_class=self.gpu_class,
            rates_rps=self.rates_rps[kept],
            counted=counted[kept],
            share=self.share[kept],
            row=self.row[kept],
            copies=self.copies[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigLayout:
    """Slices of a card by number of the kind."""

    gpu_class: int
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Options that a program is made of: numbers of the kind and of the option in it."""

    kind: Ints
    option: Ints


class SliceMaster(Master):
    """Options of all kinds of slices, and the programs over them; reusable for any demand."""

    def __init__(self, tables: Tables) -> None:
        """Enumerate what slices may do.

        Raises:
            InputError: parts of a class that is not MIG share memory or slow each other down.
        """
        super().__init__(tables)
        self._kinds: list[Kind] = []
        self._divisions: list[MigLayout] = []
        for own in self.patterns:
            _check_apart(own)
            self._add(own)

    def _add(self, own: Patterns) -> None:
        """The kinds and divisions of a class."""
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
        self._divisions += [
            MigLayout(gpu_class=own.number, slices=slices)
            for slices in sorted(found)
            if slices and not any(Counter(slices) < Counter(other) for other in found)
        ]

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of options and divisions, and the bound."""
        trace = Trace()
        trace.configurations["slice options"] = sum(len(k.rates_rps) for k in self._kinds)
        asked, worth, bound = self._tightened(goal, watch)
        chosen: Chosen = []
        score = -np.inf
        order, losses, limit = asked.by_loss(worth)
        scale = float(worth.rate @ goal.demand) if goal.prices is None else 1.0
        start: tuple[Ints, Ints] | None = None
        for most, nodes, share in STEPS:
            spare = (limit - score) * scale if np.isfinite(score) else np.inf
            near = int(np.searchsorted(losses, spare * (1 + _CLOSE) + _CLOSE, side="right"))
            count = min(most, near)
            columns = Columns(kind=order.kind[:count], option=order.option[:count])
            part = watch.part(share) if share < 1 else watch
            found, proven = asked.whole(columns, (score, nodes, start), part)
            if found is not None:
                gpus = asked.gpus_of(columns, *found)
                if self.score(gpus, goal) > score:
                    chosen, score, start = gpus, self.score(gpus, goal), found
            left_out = limit - float(losses[count]) / scale if count < near else -np.inf
            if proven < goal.enough:
                bound = max(score, min(bound, max(proven, left_out)))
            if goal.prices is not None and (goal.prices == 1).all() and np.isfinite(bound):
                bound = -float(np.ceil(-bound - 1e-6))
            trace.configurations["in the last program"] = count
            if settled(score, bound, goal) or bound <= 0 < goal.enough - bound or watch.over():
                break
        trace.status = "optimal" if settled(score, bound, goal) else "gap left"
        chosen = [(c, n) for c, n in chosen if n and c.rates_rps.any()]
        return Answer(chosen=chosen, score=score, bound=max(bound, score), trace=trace)

    def _tightened(self, goal: Goal, watch: Watch) -> tuple["_Asked", DualPrices, float]:
        """The problem with what counts at most, the prices of its least bound, and that bound."""
        caps = np.full(len(goal.demand), np.inf)
        if goal.prices is not None:
            caps = goal.demand
        elif goal.enough < np.inf:
            caps = goal.enough * goal.demand
        asked = self._asked(goal, caps)
        worth, bound = asked.relaxed(watch)
        if goal.prices is not None or goal.enough < np.inf:
            return asked, worth, bound
        for _ in range(FALLS):
            tighter = self._asked(goal, bound * goal.demand)
            prices, lower = tighter.relaxed(watch)
            fell = bound - lower
            if fell > 0:
                asked, worth, bound = tighter, prices, lower
            if fell <= _FALL * bound or watch.over():
                break
        return asked, worth, bound

    def _asked(self, goal: Goal, caps: Floats) -> "_Asked":
        kinds = tuple(kind.up_to(caps) for kind in self._kinds)
        return _Asked(
            goal=goal, gpus=self.tables.gpus, kinds=kinds, divisions=tuple(self._divisions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The demand, the GPUs, and the options of their slices.

    The programs of the module's head.
    """

    goal: Goal
    gpus: Ints
    kinds: tuple[Kind, ...]
    divisions: tuple[MigLayout, ...]

    def relaxed(self, watch: Watch) -> tuple[DualPrices, float]:
        """The prices of the least bound, and that bound."""
        known: dict[tuple[int, int], None] = {}
        for number, kind in enumerate(self.kinds):
            for option in np.unique(kind.counted.argmax(axis=0)).tolist():
                known[number, option] = None
        goal, models = self.goal, len(self.goal.demand)
        bound, worth = np.inf, DualPrices.of(np.zeros(models), np.full(models, np.inf))
        for _ in range(ROUNDS):
            pairs = np.array(list(known), dtype=np.int64).reshape(-1, 2)
            columns = Columns(kind=pairs[:, 0], option=pairs[:, 1])
            program, _ = self._program(columns, whole=False)
            solved = solve_linear(program)
            if solved is None:
                break
            rate = np.maximum(0.0, solved[1][:models]) / goal.demand
            prices = DualPrices.of(rate, worth.caps)
            values = self._values(prices)
            limit = self._limit(prices, values)
            if limit < bound:
                bound, worth = limit, prices
            value = float(program.cost @ solved[0])
            before = len(known)
            known |= {(number, int(v.argmax())): None for number, v in enumerate(values)}
            if len(known) == before or bound - value <= _CLOSE * abs(bound) or watch.over():
                break
        return worth, bound

    def by_loss(self, worth: DualPrices) -> tuple[Columns, Floats, float]:
        """All options with their least cost to a plan, rising, and the bound on every plan."""
        values = self._values(worth)
        losses = np.concatenate([v.max() - v for v in values])
        kinds = np.repeat(np.arange(len(values)), [len(v) for v in values])
        options = np.concatenate([np.arange(len(v)) for v in values])
        rising = np.argsort(losses, kind="stable")
        order = Columns(kind=kinds[rising], option=options[rising])
        return order, losses[rising], self._limit(worth, values)

    def _values(self, worth: DualPrices) -> list[Floats]:
        """[kind] what options are worth."""
        return [kind.counted @ worth.rate for kind in self.kinds]

    def _limit(self, worth: DualPrices, values: list[Floats]) -> float:
        """The score that no plan exceeds, from any prices."""
        tops = [float(v.max()) for v in values]
        by_class = np.zeros(len(self.gpus))
        for division in self.divisions:
            value = sum(tops[kind] for kind in division.slices)
            by_class[division.gpu_class] = max(by_class[division.gpu_class], value)
        rest = Rest(served=np.zeros(len(worth.rate)), gpus=self.gpus, caps=worth.caps)
        return dual_bound(self.goal, rest, worth, by_class)

    def _program(self, columns: Columns, *, whole: bool) -> tuple[Program, Ints]:
        """The program over these options, and which of its variables are y.

        Demand in units of itself.
        """
        builder, goal, models = ProgramBuilder(), self.goal, len(self.goal.demand)
        of = np.array([division.gpu_class for division in self.divisions], dtype=np.int64)
        widest = max(len(division.slices) for division in self.divisions)
        classes = np.array([kind.gpu_class for kind in self.kinds], dtype=np.int64)
        most = self.gpus[classes[columns.kind]].astype(np.float64) * widest
        x = builder.variables("x", len(columns.kind), upper=most, whole=whole)
        price = 0.0 if goal.prices is None else -goal.prices[of]
        y = builder.variables("y", len(of), upper=self.gpus[of], cost=price, whole=whole)
        if goal.prices is None:
            upper = goal.enough if whole else np.inf
            z = builder.variables("z", 1, cost=1.0, upper=upper)
            demand = builder.rows("demand", models, upper=0.0)
            builder.entries(demand, np.repeat(z, models), 1.0)
        else:
            demand = builder.rows("demand", models, upper=-1.0)
            if not whole:  # a missed demand costs more than any plan
                total = _MISSING * float(goal.prices @ self.gpus)
                missing = builder.variables("missing", models, cost=-total)
                builder.entries(demand, missing, -1.0)
        pairs = zip(columns.kind, columns.option, strict=True)
        carried = np.array([self.kinds[kind].counted[option] for kind, option in pairs])
        at, model = np.nonzero(carried)
        builder.entries(demand[model], x[at], -carried[at, model] / goal.demand[model])
        slices = builder.rows("slices", len(self.kinds), upper=0.0)
        builder.entries(slices[columns.kind], x, 1.0)
        counts = np.array(
            [[d.slices.count(kind) for kind in range(len(self.kinds))] for d in self.divisions]
        )
        at, kind = np.nonzero(counts)
        builder.entries(slices[kind], y[at], -counts[at, kind].astype(np.float64))
        limit = builder.rows("gpus", len(self.gpus), upper=self.gpus)
        builder.entries(limit[of], y, 1.0)
        return builder.build(), y

    def whole(
        self, columns: Columns, known: tuple[float, int, tuple[Ints, Ints] | None], watch: Watch
    ) -> tuple[tuple[Ints, Ints] | None, float]:
        """The integer program: counts of options and divisions, where some are better; its bound.

        Args:
            columns: its options.
            known: the best score, nodes at most, and counts to begin with, of the first options.
            watch: the clock.
        """
        score, nodes, before = known
        program, y = self._program(columns, whole=True)
        start = None
        if before is not None and len(before[0]) <= len(columns.kind):
            start = np.zeros(program.shape[1])
            start[: len(before[0])] = before[0]
            start[y] = before[1]
            if self.goal.prices is None:
                start[y[-1] + 1] = min(score, self.goal.enough)
        limits = Limits(
            relative_gap=self.goal.gap / 2,
            nodes=nodes,
            seconds=watch.left_s(),
            cutoff=score if start is None else -np.inf,
            enough=self.goal.enough,
        )
        answer = solve_integer(program, limits, self.goal.solver, start)
        bound = max(answer.bound, score)
        if answer.values is None:
            return None, bound
        counts = np.round(answer.values).astype(np.int64)
        return (counts[: len(columns.kind)], counts[y]), bound

    def gpus_of(self, columns: Columns, x: Ints, y: Ints) -> Chosen:
        """GPUs of every division with slices taken from the options in their order."""
        stock: dict[int, list[tuple[int, int]]] = {}  # option and how many, the last first
        for kind, option, count in zip(columns.kind, columns.option, x, strict=True):
            if count:
                stock.setdefault(int(kind), []).insert(0, (int(option), int(count)))
        chosen: dict[Key, tuple[Pattern, int]] = {}
        for division, gpus in zip(self.divisions, y, strict=True):
            for _ in range(int(gpus)):
                taken = [(kind, _taken(stock.get(kind, []))) for kind in division.slices]
                used = [(self.kinds[kind], option) for kind, option in taken if option is not None]
                if used:
                    pattern = _pattern(division.gpu_class, used)
                    _, before = chosen.get(pattern.key, (pattern, 0))
                    chosen[pattern.key] = pattern, before + 1
        return list(chosen.values())


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
    parts: list[Ints] = []  # [n, (share, row, copies)]
    for share in shares:
        options = own.options[share]
        cell = mig_cell(share)
        copies = 1 if cell is None else cell.processes
        rows = np.arange(options.count)
        speed = options.speed(rows, options.turn_us)
        carried = np.zeros((options.count, len(own.tables.models) + 1))  # the last is no model
        for seat in range(options.model.shape[1]):
            carried[rows, options.model[:, seat]] += options.batch[:, seat] * speed
        rates.append(copies * carried[:, :-1])
        parts.append(np.stack([np.full_like(rows, share), rows, np.full_like(rows, copies)], 1))
    every, vgpus = np.concatenate(rates), np.concatenate(parts)
    kept = np.flatnonzero(undominated(every))
    share, row, copies = vgpus[kept].T
    return Kind(
        gpu_class=own.number,
        rates_rps=every[kept],
        counted=every[kept],
        share=share,
        row=row,
        copies=copies,
    )


def _taken(pile: list[tuple[int, int]]) -> int | None:
    """The next option of a pile; None where it is used up."""
    if not pile:
        return None
    option, count = pile.pop()
    if count > 1:
        pile.append((option, count - 1))
    return option


def _pattern(gpu_class: int, slices: list[tuple[Kind, int]]) -> Pattern:
    """A GPU whose slices do this."""
    parts = [
        (int(kind.share[option]), int(kind.row[option]))
        for kind, option in slices
        for _ in range(int(kind.copies[option]))
    ]
    rates = np.sum([kind.rates_rps[option] for kind, option in slices], axis=0)
    return Pattern(gpu_class=gpu_class, parts=tuple(sorted(parts)), rates_rps=rates)
