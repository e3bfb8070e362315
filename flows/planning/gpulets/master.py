"""How many GPUs follow which pattern: cutting stock over whole GPUs, with a bound over all patterns.

Sets: models m, classes k, patterns c of a class. Data: a_cm requests/s that a GPU of pattern c carries of m,
N_k GPUs, w_m demand, price_k. Variables: n_c whole, z.

    throughput   maximise z                     price   minimise sum price_k n_c
    demand_m     w_m z <= sum_c a_cm n_c                w_m <= sum_c a_cm n_c
    gpus_k       sum_{c of k} n_c <= N_k                the same

A GPU that carries more of a model than is asked for helps no more than one that carries just that: with T no less than
the best z, a_cm may be cut to T w_m. This makes the relaxation much tighter where GPUs are few. Where the cut
relaxation reaches less than T, no plan reaches more than that, so T may fall to it: again and again.

Patterns come by column generation: prices of demand go to `Patterns.best`, which answers exactly. Any prices l >= 0
prove, by weak duality and with V_k(l) the most that a pattern of k is worth,

    sum_m l_m w_m = 1:  z <= sum_k N_k V_k(l)        cost >= l w - sum_k N_k max(0, V_k(l) - price_k)

whatever patterns have been generated. A dive (relax, fix what is whole or else the largest, relax what is left) gives a
plan, an integer program over all patterns met a better one. Then patterns whose use costs less than what is still
open are enumerated (no other can be part of a better plan), those that another replaces are dropped, and an
integer program over the rest settles it, or says what is left.

Here: bounds and counts. Not here: what a pattern is (`patterns`), what a plan looks like (`plan`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.gpulets.patterns import Parts, Pattern, Patterns
from flows.planning.gpulets.tables import Floats, Ints, Tables
from flows.planning.registry import Trace
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer, solve_linear
from flows.planning.watch import Watch

ROUNDS = 300  # of column generation
DIVES = 6  # at different targets
DIVE_ROUNDS = 4  # of column generation after every step of a dive
FALLS = 40  # of the bound on throughput
MOST_PATTERNS = 2_000  # in the last integer program
NODES = (200, 1_000)  # of the first integer programs and of the last
_CLOSE = 1e-9  # of a bound
_FALL = 1e-4  # relative, of a bound that is worth going on for
_MISSING = 1e3  # cost of a whole demand that is not met, in prices of all GPUs

Key = tuple[int, Parts]
Chosen = list[tuple[Pattern, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is asked for.

    Attributes:
        demand: [model] weights where the objective is throughput, else requests/s.
        prices: [class] where it is a price, else None.
        gap: relative, at which the search ends.
        enough: of throughput: a value beyond which nothing more is asked.
    """

    demand: Floats
    prices: Floats | None = None
    gap: float = 1e-4
    solver: str = "highs"
    enough: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is still to be served, after some GPUs have been given their pattern.

    Attributes:
        served: [model] requests/s.
        gpus: [class] that are left.
        caps: [model] requests/s that count at most.
    """

    served: Floats
    gpus: Ints
    caps: Floats


@dataclass(slots=True)
class Answer:
    """Counts of patterns, a score (negated price) and the score that no plan exceeds.

    Attributes:
        chosen: patterns with how many GPUs follow each; empty where no plan was found.
    """

    chosen: Chosen
    score: float
    bound: float
    trace: Trace = field(default_factory=Trace)


class Master:
    """Patterns of all classes, and the programs over them; reusable for any demand."""

    def __init__(self, tables: Tables) -> None:
        """Enumerate what parts of GPUs may do."""
        self.tables = tables
        self.patterns = [
            Patterns(tables, number) for number, c in enumerate(tables.classes) if c.gpus
        ]
        self.columns: dict[Key, Pattern] = {}
        self._gpus = tables.gpus

    def most(self, prices: Floats, caps: Floats) -> tuple[Floats, list[Pattern]]:
        """[class] the most that a pattern is worth at prices, and the best ones."""
        values = np.zeros(len(self.tables.classes))
        found: list[Pattern] = []
        for own in self.patterns:
            for value, pattern in own.best(prices, caps):
                values[own.number] = max(values[own.number], value)
                found.append(pattern)
        return values, found

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of patterns, and the bound."""
        self.columns = {}
        models = len(goal.demand)
        for number in range(models):
            self._take(self.most(np.eye(models)[number], np.full(models, np.inf))[1])
        bound, duals, rest = self._bound(goal, watch)
        trace = Trace(solver=goal.solver)
        best: Chosen = []
        score = -np.inf

        def improve(found: Chosen) -> float:
            nonlocal best, score
            if found and self.score(found, goal) > score:
                best, score = found, self.score(found, goal)
            return score

        out_of_reach = goal.prices is None and bound < goal.enough < np.inf
        if not out_of_reach and bound > -np.inf:
            self._dives(goal, rest, bound, improve, watch)
            if not _settled(score, bound, goal):
                improve(self._recombined(goal, rest, watch))
            if not _settled(score, bound, goal):
                columns = _undominated(list(self.columns.values()), rest.caps)
                improve(self._whole(columns, (goal, rest), best, 0, watch)[0])
            if not _settled(score, bound, goal) and np.isfinite(score):
                columns, left_out = self._screened(goal, rest, duals, bound, score)
                trace.configurations["screened"] = len(columns)
                found, proven = self._whole(columns, (goal, rest), best, 1, watch)
                improve(found)
                if left_out > score:
                    trace.notes.append("more patterns than the last program takes")
                bound = max(score, min(bound, max(proven, left_out)))
        trace.configurations["generated"] = len(self.columns)
        trace.status = "optimal" if _settled(score, bound, goal) else "gap left"
        bound = max(bound, score)
        chosen = [(c, n) for c, n in best if n and c.rates_rps.any()]
        return Answer(chosen=chosen, score=score, bound=bound, trace=trace)

    def score(self, chosen: Sequence[tuple[Pattern, int]], goal: Goal) -> float:
        """Throughput, or the negated price where demand is met; -inf where it is not."""
        served = sum((n * c.rates_rps for c, n in chosen), np.zeros(len(goal.demand)))
        met = float((served / goal.demand).min())
        if goal.prices is None:
            return met
        if met < 1 - _CLOSE:
            return -np.inf
        return -float(sum(n * goal.prices[c.gpu_class] for c, n in chosen))

    def _take(self, patterns: Sequence[Pattern]) -> int:
        """Remember patterns; how many are new."""
        before = len(self.columns)
        for pattern in patterns:
            self.columns.setdefault(pattern.key, pattern)
        return len(self.columns) - before

    def _bound(self, goal: Goal, watch: Watch) -> tuple[float, Floats, Rest]:
        """The score that no plan exceeds, the prices that prove it, and the caps it holds with."""
        caps = np.full(len(goal.demand), np.inf)
        if goal.prices is not None:
            caps = goal.demand
        elif goal.enough < np.inf:
            caps = goal.enough * goal.demand
        rest = Rest(served=np.zeros(len(goal.demand)), gpus=self._gpus, caps=caps)
        bound, duals, _ = self._relaxed(goal, rest, ROUNDS, watch)
        if goal.prices is not None:
            if (goal.prices == 1).all():
                bound = -float(np.ceil(-bound - 1e-6))
            return bound, duals, rest
        if goal.enough < np.inf:
            return bound, duals, rest
        for _ in range(FALLS):
            rest = replace(rest, caps=bound * goal.demand)
            lower, prices, _ = self._relaxed(goal, rest, ROUNDS, watch)
            fell = bound - lower
            if lower < bound:
                bound, duals = lower, prices
            if fell <= _FALL * bound or watch.over():
                break
        return bound, duals, rest

    def _relaxed(
        self, goal: Goal, rest: Rest, rounds: int, watch: Watch
    ) -> tuple[float, Floats, Floats]:
        """The least bound, the prices of demand that gave it, counts of the columns known now."""
        bound, duals = np.inf, np.zeros(len(goal.demand))
        counts = np.zeros(0)
        for _ in range(rounds):
            columns = list(self.columns.values())
            program = _program(columns, goal, rest, whole=False)
            solved = solve_linear(program)
            if solved is None:
                break
            counts = solved[0][: len(columns)]
            prices = np.maximum(0.0, solved[1][: len(goal.demand)]) / goal.demand
            values, found = self.most(prices, rest.caps)
            limit = _dual_bound(goal, rest, prices, values)
            if limit < bound:
                bound, duals = limit, prices
            value = float(program.cost @ solved[0])
            if not self._take(found) or bound - value <= _CLOSE * abs(bound) or watch.over():
                break
        return bound, duals, counts

    def _dives(
        self,
        goal: Goal,
        rest: Rest,
        bound: float,
        improve: Callable[[Chosen], float],
        watch: Watch,
    ) -> None:
        """Dives at targets between the best known and the bound; one where the demand is given."""
        if goal.prices is not None:
            improve(self._dive(goal, rest, watch))
            return
        ones = np.ones(len(self.tables.classes))
        low, high = 0.0, bound
        for number in range(DIVES):
            target = min(goal.enough, (low + high) / 2 if number else bound)
            demand = target * goal.demand
            cover = replace(goal, demand=demand, prices=ones, enough=np.inf)
            score = improve(self._dive(cover, replace(rest, caps=demand), watch))
            low = max(low, score)
            if score < target:
                high = min(high, target)
            if high - low <= goal.gap * low or low >= goal.enough or watch.over():
                break

    def _dive(self, goal: Goal, rest: Rest, watch: Watch) -> Chosen:
        """GPUs given their pattern a few at a time, what is left relaxed again each time."""
        caps = rest.caps
        chosen: dict[Key, int] = {}
        while (rest.gpus > 0).any():
            if goal.prices is not None and (rest.served >= goal.demand).all():
                break
            if int(rest.gpus.sum()) == 1:
                last = self._last(goal, rest)
                if last is not None:
                    chosen[last.key] = chosen.get(last.key, 0) + 1
                break
            _, _, counts = self._relaxed(goal, rest, DIVE_ROUNDS, watch)
            columns = list(self.columns.values())[: len(counts)]
            if not columns or counts.max() <= _CLOSE:
                break
            fixed = np.floor(counts + 1e-7).astype(np.int64)
            if not fixed.any():
                fixed[int(np.argmax(counts))] = 1
            left, served = rest.gpus.copy(), rest.served.copy()
            for at in np.flatnonzero(fixed).tolist():
                column = columns[at]
                count = int(min(fixed[at], left[column.gpu_class]))
                chosen[column.key] = chosen.get(column.key, 0) + count
                left[column.gpu_class] -= count
                served += count * column.rates_rps
            rest = Rest(served=served, gpus=left, caps=np.maximum(0.0, caps - served))
        return [(self.columns[key], n) for key, n in chosen.items()]

    def _recombined(self, goal: Goal, rest: Rest, watch: Watch) -> Chosen:
        """A plan from the parts of all known patterns, put together anew.

        Counts x of parts and y of partitions, whole: x of a share is at most what the partitions of y have of it. Parts
        are taken to feel the most that any of them presses; what a combination really carries is seen
        afterwards, so this proves nothing.
        """
        keys = list(
            {
                (column.gpu_class, share, row, len(column.parts) > 1): None
                for column in self.columns.values()
                for share, row in column.parts
            }
        )
        pressures = {
            key: float(self._of_class(key[0]).options[key[1]].pressure[key[2]]) for key in keys
        }

        most = {
            number: max((p for k, p in pressures.items() if k[0] == number and k[3]), default=0.0)
            for number in {key[0] for key in keys}
        }
        rates = np.array(
            [
                self._of_class(key[0]).part_rates(key[1], key[2], most[key[0]], beside=key[3])
                for key in keys
            ]
        )
        cuts = [(own.number, cut) for own in self.patterns for cut in own.table.partitions]
        builder = ProgramBuilder()
        gpus = rest.gpus
        price = 0.0 if goal.prices is None else [-goal.prices[k] for k, _ in cuts]
        x = builder.variables("x", len(keys), upper=float(gpus.sum() * 8), whole=True)
        y = builder.variables(
            "y", len(cuts), upper=[float(gpus[k]) for k, _ in cuts], cost=price, whole=True
        )
        models = len(goal.demand)
        if goal.prices is None:
            z = builder.variables("z", 1, cost=1.0, upper=goal.enough)
            demand = builder.rows("demand", models, upper=0.0)
            builder.entries(demand, np.repeat(z, models), 1.0)
        else:
            demand = builder.rows("demand", models, upper=-1.0)
        at, m = np.nonzero(rates)
        carried = np.minimum(rates, rest.caps) / goal.demand
        builder.entries(demand[m], x[at], -carried[at, m])
        limit = builder.rows("gpus", len(gpus), upper=gpus)
        builder.entries(limit[np.array([k for k, _ in cuts])], y, 1.0)
        kinds = sorted({(k, share, beside) for k, share, _, beside in keys})
        room = builder.rows("parts", len(kinds), upper=0.0)
        where = {kind: room[i] for i, kind in enumerate(kinds)}
        builder.entries(np.array([where[k, s, b] for k, s, _, b in keys]), x, 1.0)
        for number, (k, cut) in enumerate(cuts):
            for share in set(cut):
                row = where.get((k, share, len(cut) > 1))
                if row is not None:
                    builder.entries(np.array([row]), y[[number]], -float(cut.count(share)))
        limits = Limits(
            relative_gap=goal.gap,
            nodes=NODES[0],
            seconds=watch.left_s(),
        )
        answer = solve_integer(builder.build(), limits, goal.solver)
        if answer.values is None:
            return []
        counts = np.round(answer.values).astype(np.int64)
        return self._assembled(
            {key: int(n) for key, n in zip(keys, counts[x].tolist(), strict=True)},
            [(k, cut, int(n)) for (k, cut), n in zip(cuts, counts[y].tolist(), strict=True)],
        )

    def _assembled(
        self,
        parts: Mapping[tuple[int, int, int, bool], int],
        cuts: Sequence[tuple[int, tuple[int, ...], int]],
    ) -> Chosen:
        """Patterns from counts of parts and of cuts, parts taken in their order."""
        stock: dict[tuple[int, int, bool], list[int]] = {}
        for (k, share, row, beside), count in parts.items():
            stock.setdefault((k, share, beside), []).extend([row] * count)
        chosen: dict[Key, int] = {}
        for k, cut, count in cuts:
            for _ in range(count):
                piles = [(share, stock.get((k, share, len(cut) > 1), [])) for share in cut]
                taken = [(share, pile.pop()) for share, pile in piles if pile]
                if not taken:
                    continue
                pattern = self._of_class(k).pattern(
                    tuple(share for share, _ in taken), np.array([row for _, row in taken])
                )
                self.columns.setdefault(pattern.key, pattern)
                chosen[pattern.key] = chosen.get(pattern.key, 0) + 1
        return [(self.columns[key], n) for key, n in chosen.items()]

    def _of_class(self, number: int) -> Patterns:
        return next(own for own in self.patterns if own.number == number)

    def _last(self, goal: Goal, rest: Rest) -> Pattern | None:
        """The pattern for the last GPU: all that is missing, if any pattern carries that."""
        missing = rest.caps > _CLOSE * goal.demand
        if not missing.any():
            return None
        prices = np.where(missing, 1.0 / np.where(missing, rest.caps, 1.0), 0.0)
        found = [p for p in self.most(prices, rest.caps)[1] if rest.gpus[p.gpu_class]]
        self._take(found)

        def met(pattern: Pattern) -> float:
            return float(((rest.served + pattern.rates_rps) / goal.demand).min())

        return max(found, key=met, default=None)

    def _screened(
        self, goal: Goal, rest: Rest, duals: Floats, bound: float, score: float
    ) -> tuple[list[Pattern], float]:
        """Patterns that a better plan may use, and the score that plans with others do not exceed."""
        kept = dict(self.columns)
        left_out = -np.inf
        values, _ = self.most(duals, rest.caps)
        limit = _dual_bound(goal, rest, duals, values)
        spare = limit - score
        scale = float(duals @ goal.demand) if goal.prices is None else 1.0
        for own in self.patterns:
            price = 0.0 if goal.prices is None else float(goal.prices[own.number])
            top = max(float(values[own.number]), price)
            wanted = max(0.0, top - spare * scale)
            found, least = own.above(duals, rest.caps, wanted, MOST_PATTERNS)
            kept |= {pattern.key: pattern for _, pattern in found}
            if least > wanted:
                left_out = max(left_out, min(bound, limit - (top - least) / scale))
        return _undominated(list(kept.values()), rest.caps), left_out

    def _whole(
        self,
        columns: list[Pattern],
        asked: tuple[Goal, Rest],
        best: Chosen,
        effort: int,
        watch: Watch,
    ) -> tuple[Chosen, float]:
        """The integer program: an answer (empty where none is better) and its bound."""
        goal, rest = asked
        program = _program(columns, goal, rest, whole=True)
        score = self.score(best, goal)
        limits = Limits(
            relative_gap=goal.gap / 2,
            nodes=NODES[effort],
            seconds=watch.left_s(),
            cutoff=score,
            enough=goal.enough,
        )
        answer = solve_integer(program, limits, goal.solver)
        bound = max(answer.bound, score)
        if answer.values is None:
            return [], bound
        counts = np.round(answer.values[: len(columns)]).astype(np.int64)
        return [(c, int(n)) for c, n in zip(columns, counts, strict=True) if n], bound


def _settled(score: float, bound: float, goal: Goal) -> bool:
    if score >= goal.enough:
        return True
    return bool(np.isfinite(score)) and bound - score <= goal.gap * abs(score) + 1e-12


def _program(columns: list[Pattern], goal: Goal, rest: Rest, *, whole: bool) -> Program:
    """The master program over these patterns (module docstring); demand in units of itself."""
    builder = ProgramBuilder()
    count, models = len(columns), len(goal.demand)
    classes = np.array([c.gpu_class for c in columns], dtype=np.int64)
    carried = np.minimum([c.rates_rps for c in columns], rest.caps) / goal.demand
    served = rest.served / goal.demand
    price = 0.0 if goal.prices is None else -goal.prices[classes]
    n = builder.variables("n", count, upper=rest.gpus[classes], cost=price, whole=whole)
    if goal.prices is None:
        z = builder.variables("z", 1, cost=1.0, upper=goal.enough)
        demand = builder.rows("demand", models, upper=served)
        builder.entries(demand, np.repeat(z, models), 1.0)
    else:
        demand = builder.rows("demand", models, upper=np.minimum(0.0, served - 1.0))
        if not whole:  # what is missing costs more than any plan
            total = _MISSING * float(goal.prices @ rest.gpus)
            missing = builder.variables("missing", models, cost=-total)
            builder.entries(demand, missing, -1.0)
    limit = builder.rows("gpus", len(rest.gpus), upper=rest.gpus)
    c, m = np.nonzero(carried)
    builder.entries(demand[m], n[c], -carried[c, m])
    builder.entries(limit[classes], n, 1.0)
    return builder.build()


def _dual_bound(goal: Goal, rest: Rest, prices: Floats, values: Floats) -> float:
    """The score that no plan exceeds, from any prices."""
    worth = float(prices @ goal.demand)
    if goal.prices is None:
        if worth <= 0:
            return np.inf
        return (float(rest.gpus @ values) + float(prices @ rest.served)) / worth
    needed = float(prices @ np.maximum(0.0, goal.demand - rest.served))
    return -(needed - float(rest.gpus @ np.maximum(0.0, values - goal.prices)))


def _undominated(columns: list[Pattern], caps: Floats) -> list[Pattern]:
    """Without patterns that another of their class equals or exceeds for every model, up to caps."""
    kept: list[Pattern] = []
    rates = {c.key: np.minimum(c.rates_rps, caps) for c in columns}
    finite = np.where(np.isinf(caps), 1.0, caps)
    order = sorted(columns, key=lambda c: -float((rates[c.key] / np.maximum(finite, 1e-9)).sum()))
    best: dict[int, Floats] = {}
    for column in order:
        own, others = rates[column.key], best.get(column.gpu_class)
        if others is not None and (others >= own).all(axis=1).any():
            continue
        best[column.gpu_class] = own[None, :] if others is None else np.vstack([others, own])
        kept.append(column)
    return kept
