"""Divide the GPUs among the models, then plan every model alone: a plan and a proof at once.

A small master program decides how many GPUs a_mk of every class each model gets:

    a_mk whole, z          maximise  z - Σ_mk price_k · a_mk
    capacity_k:  Σ_m a_mk ≤ gpus_k
    price_mj:    Σ_k price_jk · a_mk ≥ weight_m · z, and ≥ minimum_m where one is asked for
    known_mi:    a_m ≤ ā_i  ⇒  weight_m · z ≤ β_i

`price` are optimal prices of the relaxation of model m alone with some GPUs: they hold for every
number of GPUs, because the relaxation only scales. `known` are what integer programs showed: with
the GPUs ā_i, and so with fewer, model m delivers at most β_i. The implication is written with
binaries y_mkl = 1 ⇒ a_mk ≥ l, one of which must be 1 for the row to be off.

The master program's value is a bound for every plan. Its GPUs, planned model by model, are a plan;
where a model falls short of what the master program hoped for, a row `price` or `known` tells it.
A program of one model with a few GPUs is proven in a fraction of the time that all models
together take (Benders 1962, with logic in place of the dual, Hooker & Ottosson 2003).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from flows.planning.pool.bound import Bound, Goal, solve_bound
from flows.planning.pool.incumbent import Incumbent
from flows.planning.pool.integer import add_level
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import PROOF_GAP, PROOF_NODES, Limits, solve_integer
from flows.planning.solver.tolerances import SOLVED
from flows.planning.watch import Watch

LONGER = 4  # by how much an attempt without success lengthens the next

Gpus = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleModelResult:
    """One model on some GPUs: vGPUs [its configurations, S], rate, bound, effort."""

    vgpus: Ints | None
    rate_rps: float
    most_rps: float
    effort: int
    times: int = 1


Solve = Callable[[Incumbent, Bound, float, int], SingleModelResult]
"""Plans a model until its rate is enough (samples/s); the last argument lengthens the search."""


@dataclass(slots=True)
class GpuSplit:
    """One division: rows of the master program, and what models were seen to do alone.

    Attributes:
        best: the best plan known; better ones are put there.
        ceiling: no plan's score is above this.
        solve: plans one model.
        watch: the clock.
    """

    best: Incumbent
    ceiling: float
    solve: Solve
    watch: Watch
    parts: list[Incumbent] = field(default_factory=list[Incumbent])
    prices: list[tuple[int, Floats]] = field(default_factory=list[tuple[int, Floats]])
    seen: dict[tuple[int, Gpus], SingleModelResult] = field(
        default_factory=dict[tuple[int, Gpus], SingleModelResult]
    )

    def __post_init__(self) -> None:
        models = range(len(self.best.problem.models))
        self.parts = [_part(self.best, number) for number in models]

    def improve(self, effort: int, settled: Callable[[float], bool]) -> float:
        """Improve the best plan until it is settled or the effort is spent; returns a bound."""
        bound = self.ceiling
        while not settled(bound) and effort > 0:
            reached, share, z = self._master()
            bound = min(bound, max(reached, self.best.score))
            if not share or settled(bound):
                break
            hoped = self.best.goal.needed_rps(z)
            if self._price(share, hoped):
                effort -= 1
                continue
            spent = self._try(share, hoped, effort)
            if not spent:
                break  # nothing is open but tolerances of the master program
            effort -= spent
        return bound

    def _price(self, share: list[Gpus], hoped: Floats) -> bool:
        """Tell the master program which models hope for more than their relaxation allows."""
        short = False
        for number, gpus in enumerate(share):
            bound = self._relaxed(number, gpus)
            if bound is None or bound.score < hoped[number] * (1 - SOLVED):
                prices = _scarce(self.parts[number]) if bound is None else bound.gpu_price
                self.prices.append((number, prices))
                short = True
        return short

    def _relaxed(self, number: int, gpus: Gpus) -> Bound | None:
        """The relaxation of one model with some GPUs; None where they are none at all."""
        part = _with_gpus(self.parts[number], gpus)
        return solve_bound(part.problem, part.columns, part.goal) if any(gpus) else None

    def _try(self, share: list[Gpus], hoped: Floats, effort: int) -> int:
        """Plan the models one by one, small ones first, while a better plan is possible."""
        spent = 0
        order = sorted(range(len(share)), key=lambda m: len(self.parts[m].columns))
        counts = np.zeros(self.best.columns.types.shape, dtype=np.int64)
        enough, goal = 0.0 * hoped, self.best.goal
        if self.best.vgpus is not None:
            enough = np.maximum(goal.weight * self.best.score, goal.minimum_rps)
        for number in order:
            alone = self._alone(number, share[number], float(hoped[number]), effort - spent)
            spent += alone.effort
            if alone.vgpus is None or alone.most_rps < enough[number] * (1 + SOLVED):
                return spent
            counts[self.best.columns.model == number] = alone.vgpus
        self.best.offer(counts)
        return spent

    def _alone(self, number: int, gpus: Gpus, hoped: float, effort: int) -> SingleModelResult:
        """The result of a model on some GPUs; solved again, longer, while it is open."""
        known, least = self.seen.get((number, gpus)), hoped * (1 - SOLVED)
        if known is not None and (
            known.most_rps < least or known.rate_rps >= least or known.effort * LONGER > effort
        ):
            return replace(known, effort=0)
        bound = self._relaxed(number, gpus)
        assert bound is not None  # `_price` asked for GPUs before
        times = 1 if known is None else known.times * LONGER
        alone = self.solve(_with_gpus(self.parts[number], gpus), bound, hoped, times)
        if known is not None:
            alone = replace(alone, most_rps=min(alone.most_rps, known.most_rps))
        self.seen[number, gpus] = replace(alone, times=times)
        return alone

    def _master(self) -> tuple[float, list[Gpus], float]:
        """Bound, GPUs of every model and z; no GPUs where none were found."""
        problem, goal = self.best.problem, self.best.goal
        build = ProgramBuilder()
        shape = len(problem.models), len(problem.gpus)
        owned = build.variables("a", shape, upper=problem.gpus, cost=-goal.price, whole=True)
        most = 1.0 if goal.fixed else self.ceiling
        z = add_level(build, goal, self.ceiling)
        capacity = build.rows("capacity", len(problem.gpus), upper=problem.gpus)
        build.entries(capacity, owned, 1.0)
        for number, prices in self.prices:
            row = build.rows("price", 1, upper=0.0)
            build.entries(row, owned[number], -prices)
            build.entries(row, z, goal.weight[number])
            if goal.minimum_rps[number]:
                row = build.rows("floor", 1, upper=-goal.minimum_rps[number])
                build.entries(row, owned[number], -prices)
        self._known_rows(build, owned, z, most)
        program = build.build()
        limits = Limits(relative_gap=PROOF_GAP, nodes=PROOF_NODES, seconds=self.watch.left_s())
        answer = solve_integer(program, limits)
        if answer.values is None:
            return answer.bound, [], 0.0
        share = [tuple(int(a) for a in np.round(answer.values[row])) for row in owned]
        return answer.bound, share, float(answer.values[z[0]])

    def _known_rows(self, build: ProgramBuilder, owned: Ints, z: Ints, most: float) -> None:
        goal, gpus = self.best.goal, self.best.problem.gpus
        steps = _steps(build, owned, sorted(self.seen), gpus)
        for (number, given), alone in self.seen.items():
            y = [steps[number, k, count + 1] for k, count in enumerate(given) if count < gpus[k]]
            if alone.most_rps < goal.minimum_rps[number] * (1 - SOLVED):
                row = build.rows("known", 1, upper=-1.0)
                build.entries(row, y, -1.0)
            elif alone.most_rps < goal.weight[number] * most:
                short = most - alone.most_rps / goal.weight[number]
                row = build.rows("known", 1, upper=most - short)
                build.entries(row, z, 1.0)
                build.entries(row, y, -short)


def _steps(
    build: ProgramBuilder, owned: Ints, seen: list[tuple[int, Gpus]], gpus: Ints
) -> dict[tuple[int, int, int], int]:
    """Binaries y of (model, class, l), each 1 only where the model has l GPUs of the class."""
    levels: dict[tuple[int, int], set[int]] = {}
    for number, given in seen:
        for k, count in enumerate(given):
            if count < gpus[k]:
                levels.setdefault((number, k), set()).add(count + 1)
    found: dict[tuple[int, int, int], int] = {}
    for (number, k), counts in levels.items():
        ordered = sorted(counts)
        y = build.variables("y", len(ordered), upper=1.0, whole=True)
        row = build.rows("step", 1, upper=0.0)
        build.entries(row, y, np.diff([0, *ordered]))
        build.entries(row, owned[number, k], -1.0)
        order = build.rows("order", len(y) - 1, upper=0.0)
        build.entries(order, y[1:], 1.0)
        build.entries(order, y[:-1], -1.0)
        found |= {(number, k, level): int(v) for level, v in zip(ordered, y, strict=True)}
    return found


def _part(best: Incumbent, number: int) -> Incumbent:
    """A model by itself, its rate the score."""
    columns = best.columns.take(np.flatnonzero(best.columns.model == number))
    return Incumbent(
        replace(best.problem, models=(best.problem.models[number],)),
        replace(columns, model=np.zeros_like(columns.model)),
        Goal.level(np.ones(1), len(best.goal.price)),
    )


def _with_gpus(part: Incumbent, gpus: Gpus) -> Incumbent:
    """The same model with other GPUs."""
    return replace(part, problem=replace(part.problem, gpus=np.array(gpus, dtype=np.int64)))


def _scarce(part: Incumbent) -> Floats:
    """Prices of the relaxation where every class has one GPU: they hold everywhere."""
    ones = _with_gpus(part, (1,) * len(part.problem.gpus))
    return solve_bound(ones.problem, ones.columns, ones.goal).gpu_price
