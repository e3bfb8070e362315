"""How many GPUs follow which pattern.

Cutting stock over whole GPUs, with a bound over all patterns. Sets: models m, classes k, patterns c
of a class. Data: a_cm requests/s that a GPU of pattern c carries of m, N_k GPUs, w_m demand,
price_k. Variables: n_c whole, z.

    throughput   maximise z                     price   minimise sum price_k n_c
    demand_m     w_m z <= sum_c a_cm n_c                w_m <= sum_c a_cm n_c
    gpus_k       sum_{c of k} n_c <= N_k                the same

A GPU that carries more of a model than is asked for helps no more than one that carries just that:
with T no less than the best z, a_cm may be cut to T w_m. This makes the relaxation much tighter
where GPUs are few. Where the cut relaxation reaches less than T, no plan reaches more than that, so
T may fall to it: again and again.

Whether a plan reaches a given T is closer still: either one GPU carries all of T w_m, or two carry
some of it at least.

    halves_m     1 <= sum_c h_cm n_c,    h = 1 where a_cm >= T w_m, 1/2 where a_cm > 0, else 0

The highest T that the relaxation with these rows leaves open is found by bisection.

Patterns come by column generation: prices go to `Patterns.best`, which answers exactly. Any prices
l >= 0 prove, by weak duality and with V_k(l) the most that a pattern of k is worth,

    throughput, sum_m l_m w_m = 1:   z <= sum_k N_k V_k(l)
    price:                           cost >= l w - sum_k N_k max(0, V_k(l) - price_k)

whatever patterns have been generated. A dive (relax, fix what is whole or else the largest, relax
what is left) gives a plan, an integer program over all patterns met a better one. Then patterns
whose use costs less than what is still open are enumerated (no other can be part of a better plan),
those that another replaces are dropped, and an integer program over the rest settles it, or says
what is left. Few GPUs are settled target by target (`_targets`), because near the best plan few
patterns cost little enough; and what is branched on first is how many GPUs carry a model, some of
it or all, and two models together: whole numbers that say more than those of single patterns.

Here: bounds and counts. Not here: what a pattern is (`patterns`), what a plan looks like (`plan`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.gpulets.pairs import FULL
from flows.planning.gpulets.patterns import DualPrices, Parts, Pattern, Patterns, undominated
from flows.planning.gpulets.tables import Tables
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer, solve_linear
from flows.planning.watch import Watch

ROUNDS = 300  # of column generation
DIVES = 6  # at different targets
DIVE_ROUNDS = 4  # of column generation after every step of a dive
FALLS = 40  # of the bound on throughput
MOST_PATTERNS = 4_000  # columns of the last integer program
LIKELY = 1_000  # of them that are likely in a good plan
FEW = 16  # GPUs that are settled target by target
TARGETS = 12  # plans tried then
STEP = 0.004  # relative, from a bound to the next target
GUESSES = 25  # at where the relaxation closes
NEAR = 0.001  # relative, of such a guess
NODES = (200, 1_000)  # of the first integer programs and of the last
_CLOSE = 1e-9  # of a bound
_FALL = 1e-4  # relative, of a bound that is worth going on for
_MISSING = 1e3  # cost of a whole demand that is not met, in prices of all GPUs

Key = tuple[int, Parts]
Chosen = list[tuple[Pattern, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The demand.

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
    """The demand left after some GPUs have their pattern.

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

    def most(self, worth: DualPrices) -> tuple[Floats, list[Pattern]]:
        """[class] the most that a pattern is worth at prices, and the best ones."""
        values = np.zeros(len(self.tables.classes))
        found: list[Pattern] = []
        for own in self.patterns:
            for value, pattern in own.best(worth):
                values[own.number] = max(values[own.number], value)
                found.append(pattern)
        return values, found

    def solve(self, goal: Goal, watch: Watch) -> Answer:
        """The best counts of patterns, and the bound."""
        self.columns = {}
        models = len(goal.demand)
        for number in range(models):
            self._take(self.most(DualPrices.of(np.eye(models)[number], np.full(models, np.inf)))[1])
        bound, worth, rest = self._bound(goal, watch)
        trace = Trace()
        best: Chosen = []
        score = -np.inf

        def improve(found: Chosen) -> float:
            nonlocal best, score
            if found and self.score(found, goal) > score:
                best, score = found, self.score(found, goal)
            return score

        few = goal.prices is None and self._few()
        if not (goal.prices is None and bound < goal.enough < np.inf) and bound > -np.inf:
            if few:
                # A plan at once, whatever time is left.
                improve(self._recombined(goal, rest, watch))
                bound = self._targets(goal, bound, improve, trace, watch)
            if goal.prices is not None or bound > 0:
                self._by_columns(goal, (rest, bound), improve, watch)
            open_ = not settled(score, bound, goal) and np.isfinite(score)
            if not few and open_ and not watch.over():
                columns, left_out = self._screened(
                    (goal, rest), worth, (bound, score), MOST_PATTERNS, watch
                )
                trace.configurations["screened"] = len(columns)
                found, proven = self._whole(columns, (goal, rest), score, 1, watch)
                improve(found)
                if left_out > score:
                    trace.notes.append("more patterns than the last program takes")
                bound = max(score, min(bound, max(proven, left_out)))
        trace.configurations["generated"] = len(self.columns)
        trace.status = "optimal" if settled(score, bound, goal) else "gap left"
        bound = max(bound, score)
        chosen = [(c, n) for c, n in best if n and c.rates_rps.any()]
        return Answer(chosen=chosen, score=score, bound=bound, trace=trace)

    def _by_columns(
        self,
        goal: Goal,
        known: tuple[Rest, float],
        improve: Callable[[Chosen], float],
        watch: Watch,
    ) -> None:
        """Plans of the patterns that the relaxation meets.

        Dives, parts recombined, an integer program.
        """
        rest, bound = known
        if not settled(improve([]), bound, goal):
            self._dives(goal, rest, bound, improve, watch)
        if not settled(improve([]), bound, goal):
            improve(self._recombined(goal, rest, watch))
        score = improve([])
        if not settled(score, bound, goal):
            columns = _undominated(list(self.columns.values()), rest.caps)
            improve(self._whole(columns, (goal, rest), score, 0, watch)[0])

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

    def _few(self) -> bool:
        return int(self._gpus.sum()) <= FEW

    def _bound(self, goal: Goal, watch: Watch) -> tuple[float, DualPrices, Rest]:
        """The score that no plan exceeds, the prices that prove it, and the caps it holds with."""
        caps = np.full(len(goal.demand), np.inf)
        if goal.prices is not None:
            caps = goal.demand
        elif goal.enough < np.inf:
            caps = goal.enough * goal.demand
        rest = Rest(served=np.zeros(len(goal.demand)), gpus=self._gpus, caps=caps)
        bound, worth, _ = self._relaxed(goal, rest, ROUNDS, watch)
        if goal.prices is not None:
            if (goal.prices == 1).all():
                bound = -float(np.ceil(-bound - 1e-6))
            return bound, worth, rest
        if goal.enough < np.inf or self._few():
            return bound, worth, replace(rest, caps=np.minimum(caps, bound * goal.demand))
        for _ in range(FALLS):
            rest = replace(rest, caps=bound * goal.demand)
            lower, prices, _ = self._relaxed(goal, rest, ROUNDS, watch)
            fell = bound - lower
            if lower < bound:
                bound, worth = lower, prices
            if fell <= _FALL * bound or watch.over():
                break
        return bound, worth, rest

    def _relaxed(
        self, goal: Goal, rest: Rest, rounds: int, watch: Watch
    ) -> tuple[float, DualPrices, Floats]:
        """The least bound, the prices that gave it, counts of the columns known now."""
        bound, worth = np.inf, DualPrices.of(np.zeros(len(goal.demand)), rest.caps)
        counts = np.zeros(0)
        for _ in range(rounds):
            columns = list(self.columns.values())
            program = _program(columns, goal, rest, whole=False)
            solved = solve_linear(program)
            if solved is None:
                break
            counts = solved[0][: len(columns)]
            prices = _prices(goal, rest, solved[1])
            values, found = self.most(prices)
            limit = dual_bound(goal, rest, prices, values)
            if limit < bound:
                bound, worth = limit, prices
            value = float(program.cost @ solved[0])
            if not self._take(found) or bound - value <= _CLOSE * abs(bound) or watch.over():
                break
        return bound, worth, counts

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
        """A plan from the parts of all known patterns, put together again.

        Counts x of parts and y of partitions, whole: x of a share is at most what the partitions of
        y have of it. Parts are taken to feel the most that any of them presses; what a combination
        really carries is seen afterwards, so this proves nothing.
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
        worth = DualPrices.of(prices, rest.caps)
        found = [p for p in self.most(worth)[1] if rest.gpus[p.gpu_class]]
        self._take(found)

        def met(pattern: Pattern) -> float:
            return float(((rest.served + pattern.rates_rps) / goal.demand).min())

        return max(found, key=met, default=None)

    def _targets(
        self,
        goal: Goal,
        bound: float,
        improve: Callable[[Chosen], float],
        trace: Trace,
        watch: Watch,
    ) -> float:
        """Few GPUs: plans and proofs at targets between the best plan and the bound.

        The bound left.
        """
        bound = self._narrowed(goal, bound, watch)
        if bound <= 0 or bound < goal.enough < np.inf:
            return bound
        cover = self._cover(goal, min(goal.enough, bound * (1 - STEP)))
        columns, _ = self._near(cover, LIKELY, watch)
        score = max(0.0, improve(self._most_of(cover, columns, 0.0, watch)))
        undecided = 0.0
        for _ in range(TARGETS):
            if bound - max(score, undecided) <= NEAR * bound and undecided > score:
                break
            if settled(score, bound, goal) or watch.over():
                break
            target = min(goal.enough, (max(score, undecided) + bound) / 2)
            cover = self._cover(goal, target)
            columns, all_of_them = self._near(cover, MOST_PATTERNS, watch)
            trace.configurations["screened"] = len(columns)
            proven = False
            if all_of_them:
                found, proven = self._met(cover, columns, watch)
                score = max(score, improve(found))
            if proven:
                bound = target
            elif score < target:
                if not undecided:  # a plan at least, if not the best
                    columns = columns if all_of_them else self._near(cover, LIKELY, watch)[0]
                    found = self._most_of(cover, columns, score / target, watch)
                    score = max(score, improve(found))
                undecided = target
            if undecided == goal.enough:
                break
        return bound

    def _narrowed(self, goal: Goal, bound: float, watch: Watch) -> float:
        """The bound on throughput that the relaxation with `halves` leaves, nearly.

        GPUs needed grow with the target, nearly in proportion: so the next target is guessed. A
        model that is served at all is served once within its limit: where that is too much, no plan
        serves every model.
        """
        least = float((1e6 / self.tables.limit_us / goal.demand).min())
        gpus = float(self._gpus.sum())
        open_, closed = (0.0, 0.0), (bound, np.inf)  # targets, and the GPUs they need
        target = min(bound, goal.enough)
        for _ in range(GUESSES):
            if closed[0] - open_[0] <= NEAR * closed[0] or watch.over():
                break
            needed = self._needed(goal, target, watch)
            if needed > gpus * (1 + _CLOSE):
                if target <= least:
                    return 0.0
                closed = (target, needed)
            elif target >= min(bound, goal.enough):
                return bound
            else:
                open_ = (target, needed)
            slope = (closed[1] - open_[1]) / (closed[0] - open_[0])
            guess = open_[0] + (gpus - open_[1]) / slope
            width = closed[0] - open_[0]
            # past the guess by a little, so that the next one closes in from the other side
            past = NEAR * closed[0] / 2 if guess - open_[0] > closed[0] - guess else 0.0
            target = min(max(guess + past, open_[0] + width / 8), closed[0] - width / 8)
            target = max(target, min(least, closed[0] / 2))
        return closed[0]

    def _needed(self, goal: Goal, target: float, watch: Watch) -> float:
        """GPUs that a target needs at least, were there enough of every class."""
        cover, rest = self._cover(goal, target)
        many = replace(rest, gpus=np.where(rest.gpus > 0, 8 * rest.gpus.sum(), 0))
        return -self._relaxed(cover, many, ROUNDS, watch)[0]

    def _cover(self, goal: Goal, target: float) -> tuple[Goal, Rest]:
        """The fewest GPUs for a target."""
        demand = target * goal.demand
        rest = Rest(served=np.zeros(len(demand)), gpus=self._gpus, caps=demand)
        ones = np.ones(len(self.tables.classes))
        return replace(goal, demand=demand, prices=ones, enough=np.inf), rest

    def _most_of(
        self, cover: tuple[Goal, Rest], columns: list[Pattern], known: float, watch: Watch
    ) -> Chosen:
        """A plan of these patterns that comes close to a demand, and closer than what is known."""
        goal, rest = cover
        most = replace(goal, prices=None, enough=1.0)
        return self._whole(columns, (most, rest), known, 0, watch)[0] if columns else []

    def _met(
        self, cover: tuple[Goal, Rest], columns: list[Pattern], watch: Watch
    ) -> tuple[Chosen, bool]:
        """A plan of these patterns for a demand, where one is found; whether there is none."""
        if not columns:
            return [], True
        goal, rest = cover
        any_plan = replace(goal, prices=np.zeros(len(self.tables.classes)))
        found, bound = self._whole(columns, (any_plan, rest), -np.inf, 1, watch)
        return found, not found and bound == -np.inf

    def _near(
        self, cover: tuple[Goal, Rest], most: int, watch: Watch
    ) -> tuple[list[Pattern], bool]:
        """Patterns that a plan for a demand may use.

        None where there is no plan; whether these are all.
        """
        goal, rest = cover
        least = -float(self._gpus.sum()) * (1 + _CLOSE)
        bound, worth, _ = self._relaxed(goal, rest, ROUNDS, watch)
        if bound < least:
            return [], True
        columns, left_out = self._screened(cover, worth, (bound, least), most, watch)
        return columns, left_out < least

    def _screened(
        self,
        asked: tuple[Goal, Rest],
        worth: DualPrices,
        between: tuple[float, float],
        most: int,
        watch: Watch,
    ) -> tuple[list[Pattern], float]:
        """Patterns that a better plan may use, and the bound on plans with others."""
        goal, rest = asked
        kept = dict(self.columns)
        left_out = -np.inf
        bound, score = between
        worth = replace(worth, caps=rest.caps)
        values, _ = self.most(worth)
        limit = dual_bound(goal, rest, worth, values)
        spare = limit - score
        scale = float(worth.rate @ goal.demand) if goal.prices is None else 1.0
        for own in self.patterns:
            price = 0.0 if goal.prices is None else float(goal.prices[own.number])
            top = max(float(values[own.number]), price)
            wanted = max(0.0, top - spare * scale)
            found, least = own.above(worth, wanted, most, watch)
            kept |= {pattern.key: pattern for pattern in found}
            if least > wanted:
                left_out = max(left_out, min(bound, limit - (top - least) / scale))
        return _undominated(list(kept.values()), rest.caps), left_out

    def _whole(
        self,
        columns: list[Pattern],
        asked: tuple[Goal, Rest],
        score: float,
        effort: int,
        watch: Watch,
    ) -> tuple[Chosen, float]:
        """The integer program: an answer (empty where none is better) and its bound."""
        goal, rest = asked
        program = _program(columns, goal, rest, whole=True)
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


def settled(score: float, bound: float, goal: Goal) -> bool:
    """True if a score is proven within the gap asked for, or is enough."""
    if score >= goal.enough:
        return True
    return bool(np.isfinite(score)) and bound - score <= goal.gap * abs(score) + 1e-12


def _program(columns: list[Pattern], goal: Goal, rest: Rest, *, whole: bool) -> Program:
    """The master program over these patterns (module docstring); demand in units of itself."""
    builder = ProgramBuilder()
    count, models = len(columns), len(goal.demand)
    classes = np.array([c.gpu_class for c in columns], dtype=np.int64)
    rates = np.array([c.rates_rps for c in columns])
    carried = np.minimum(rates, rest.caps) / goal.demand
    served = rest.served / goal.demand
    price = 0.0 if goal.prices is None else -goal.prices[classes]
    n = builder.variables("n", count, upper=rest.gpus[classes], cost=price, whole=whole)
    c, m = np.nonzero(carried)
    if goal.prices is None:
        z = builder.variables("z", 1, cost=1.0, upper=goal.enough)
        demand = builder.rows("demand", models, upper=served)
        builder.entries(demand, np.repeat(z, models), 1.0)
    else:
        demand = builder.rows("demand", models, upper=np.minimum(0.0, served - 1.0))
        halves = builder.rows("halves", models, upper=np.where(_wanted(rest), -1.0, 0.0))
        builder.entries(halves[m], n[c], -_halves(rates, rest)[c, m])
        if not whole:  # a missed demand costs more than any plan
            total = _MISSING * float(goal.prices @ rest.gpus)
            for rows in (demand, halves):
                missing = builder.variables("missing", models, cost=-total)
                builder.entries(rows, missing, -1.0)
    limit = builder.rows("gpus", len(rest.gpus), upper=rest.gpus)
    builder.entries(demand[m], n[c], -carried[c, m])
    builder.entries(limit[classes], n, 1.0)
    if whole and int(rest.gpus.sum()) <= FEW:
        _count_carriers(builder, n, rates, rest)
    return builder.build()


def _count_carriers(builder: ProgramBuilder, n: Ints, rates: Floats, rest: Rest) -> None:
    """Whole numbers to branch on: GPUs that carry a model, carry all of it, carry two models."""
    some = rates > 0
    first, second = np.triu_indices(rates.shape[1], 1)
    families = np.concatenate(
        [some.T, (rates >= rest.caps * FULL).T, (some[:, first] & some[:, second]).T]
    )
    most = float(rest.gpus.sum())
    numbers = builder.variables("carriers", len(families), upper=most, whole=True)
    family, column = np.nonzero(families)
    for sign in (1.0, -1.0):  # equal
        rows = builder.rows("carriers", len(families), upper=0.0)
        builder.entries(rows, numbers, -sign)
        builder.entries(rows[family], n[column], sign)


def _wanted(rest: Rest) -> np.ndarray:
    """[model] of which something is still to be served."""
    return rest.caps > _CLOSE * np.maximum(rest.served, 1e-300)


def _halves(rates: Floats, rest: Rest) -> Floats:
    """[column, model] of the rows `halves`."""
    return 0.5 * (rates > 0) + 0.5 * (rates >= rest.caps * FULL)


def _prices(goal: Goal, rest: Rest, duals: Floats) -> DualPrices:
    """Prices of demand from the duals of the rows."""
    models = len(goal.demand)
    rate = np.maximum(0.0, duals[:models]) / goal.demand
    at_all = np.zeros(models)
    if goal.prices is not None:
        at_all = np.where(_wanted(rest), np.maximum(0.0, duals[models : 2 * models]), 0.0)
    return DualPrices(rate=rate, at_all=at_all, caps=rest.caps)


def dual_bound(goal: Goal, rest: Rest, worth: DualPrices, values: Floats) -> float:
    """The score that no plan exceeds, from any prices."""
    of_all = float(worth.rate @ goal.demand)
    if goal.prices is None:
        if of_all <= 0:
            return np.inf
        return (float(rest.gpus @ values) + float(worth.rate @ rest.served)) / of_all
    needed = float(worth.rate @ np.maximum(0.0, goal.demand - rest.served) + worth.at_all.sum())
    return -(needed - float(rest.gpus @ np.maximum(0.0, values - goal.prices)))


def _undominated(columns: list[Pattern], caps: Floats) -> list[Pattern]:
    """Without patterns that another of their class dominates for every model, up to caps."""
    kept: list[Pattern] = []
    for number in sorted({c.gpu_class for c in columns}):
        own = [c for c in columns if c.gpu_class == number]
        keep = undominated(np.minimum([c.rates_rps for c in own], caps))
        kept += [own[i] for i in np.flatnonzero(keep).tolist()]
    return kept
