"""The best plan known, and attempts to better it by integer programs, ever longer.

Here: `Incumbent`, which makes what it is offered lean, scores it and compares it; a first plan by
rounding the relaxation; integer programs over some configurations until proven or the limits end.
Before each, the GPUs that every model can own in a *better* plan are narrowed (`integer.tighten`),
which often is the whole proof. Not here: which configurations are tried, and what the bound over
all of them is (`search`).
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.level import halved
from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import (
    counts_of,
    delivered_rps,
    gpus_in_use,
    integer_program,
    is_as_good,
    lowest_share,
    reaches_rates,
    score_of,
    tighten,
    trimmed,
)
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits, Solution, most_variables, solve_integer
from flows.planning.solver.tolerances import EXACT, SOLVED
from flows.planning.watch import Watch


@dataclass(slots=True)
class Incumbent:
    """The best plan known.

    Attributes:
        vgpus: [n, S] counts over all configurations, None before the first plan.
        score: its score; before the first plan, one that it has to reach to be of use.
    """

    problem: Problem
    columns: Columns
    goal: Goal
    vgpus: Ints | None = None
    score: float = -np.inf

    def gap_to(self, bound: float) -> float:
        """The possible gain of a plan, relative to the score; infinite without a plan."""
        if np.isinf(self.score):
            return np.inf
        return max(0.0, bound - self.score) / abs(self.score) if self.score else np.inf

    def offer(self, vgpus: Ints | None) -> bool:
        """Take a plan [n, S] if it is better, or as good and simpler.

        Tells whether it was better.
        """
        if vgpus is None:
            return False
        vgpus = self._without_idle(trimmed(self.columns, vgpus))
        if not reaches_rates(self.columns, vgpus, self.goal):
            return False
        score = score_of(self.problem, self.columns, vgpus, self.goal)
        better = score > self.score * (1 + np.copysign(EXACT, self.score))
        if better or (score >= self.score and self._simpler(vgpus)):
            self.vgpus, self.score = vgpus, score
        return better

    def prefer(self, vgpus: Ints) -> bool:
        """Take a plan [n, S] that is as good, however simple; tells whether it was."""
        vgpus = trimmed(self.columns, vgpus)
        if not is_as_good(self.problem, self.columns, vgpus, (self.goal, self.score)):
            return False
        self.vgpus = vgpus
        return True

    def _without_idle(self, vgpus: Ints) -> Ints:
        """Without pipelines that the plan's own score does not need, the slowest first."""
        rate = delivered_rps(self.columns, vgpus)
        asked = self.goal.weight * lowest_share(self.columns, vgpus, self.goal)
        spare = np.bincount(self.columns.model, weights=rate, minlength=len(asked))
        spare -= np.maximum(asked, self.goal.minimum_rps)
        vgpus = vgpus.copy()
        used = np.flatnonzero(vgpus.any(axis=1))
        for row in used[np.argsort(rate[used], kind="stable")]:
            model = self.columns.model[row]
            if rate[row] <= spare[model]:
                vgpus[row] = 0
                spare[model] -= rate[row]
        return vgpus

    def _simpler(self, vgpus: Ints) -> bool:
        """True if a plan of equal score has fewer stages, or as many and fewer GPUs."""
        if self.vgpus is None:
            return True

        def size(counts: Ints) -> tuple[int, int]:
            used = gpus_in_use(self.problem, self.columns, counts)
            return int(np.count_nonzero(counts)), int(used.sum())

        return size(vgpus) < size(self.vgpus)


def round_down(problem: Problem, columns: Columns, rates_rps: Floats, goal: Goal) -> Ints | None:
    """[n, S] vGPU counts for the largest multiple of the rates that fits; None where none does.

    Where rates are fixed (cost, power), the multiple is 1: all or nothing.
    """
    if goal.fixed:
        whole = _rounded(columns, rates_rps)
        return whole if _fits(problem, columns, whole) else None

    def fits(multiple: float) -> bool:
        return _fits(problem, columns, _rounded(columns, multiple * rates_rps))

    multiple = 1.0 if fits(1.0) else halved(fits, 0.0, 1.0)[0]
    return _rounded(columns, multiple * rates_rps) if multiple > 0 else None


def _rounded(columns: Columns, rates_rps: Floats) -> Ints:
    return np.ceil(rates_rps[:, None] / columns.rate_rps - 1e-9).astype(np.int64)


def _fits(problem: Problem, columns: Columns, vgpus: Ints) -> bool:
    return bool(np.all(gpus_in_use(problem, columns, vgpus) <= problem.gpus))


_SHORT = 2  # stages up to which pipelines are short; longer ones leave wider gaps
_FIRST_NODES = 50  # branch-and-bound nodes of the first attempt
_FEWEST_NODES = 10  # an attempt with fewer is not worth its start
LONGER = 4  # by how much an attempt without success lengthens the next
_LEAST_NODES = 50
_NODE_CELLS = 120_000  # nodes × stages of configurations that a program may take by default
_FAR = 0.01  # a relative gap beyond which the node budget is extended, once
_EXTENSION = 2  # by this many times
_ENDED = ("optimal", "infeasible")
_STEP = 0.1  # of the relative gap


@dataclass(slots=True)
class Attempts:
    """Attempts to improve the best plan.

    Attributes:
        ceiling: no plan's score is above this.
        enough: a score that ends the search.
        nodes: most branch-and-bound nodes of one call; None sets it by size.
        effort: simplex iterations so far.
    """

    best: Incumbent
    ceiling: float
    options: PlanOptions
    trace: Trace
    watch: Watch
    enough: float = np.inf
    nodes: int | None = None
    effort: int = 0

    def improve(self, rows: Ints, *, thorough: bool) -> float:
        """Look for better plans over some configurations.

        After each success the GPUs of models are narrowed again. Without success, `thorough` makes
        ever longer attempts; else that is the end.

        Returns:
            what no plan over these configurations exceeds.
        """
        columns = self.best.columns.take(rows)
        ceiling = self.ceiling
        nodes = self._node_budget(columns)
        attempt = _FIRST_NODES
        extended = self.nodes is not None or self.short
        while nodes >= min(_FEWEST_NODES, self._node_budget(columns)):
            cutoff = self.cutoff()
            answer = self._attempt(columns, cutoff, min(attempt, nodes))
            if answer is None:
                self.trace.status = "optimal"
                return min(ceiling, cutoff)
            self.trace.status = answer.status
            # a solver that stops by itself has shown that nothing beats its answer or the cutoff
            ceiling = min(ceiling, max(answer.bound, cutoff))
            improved = self.best.offer(self._spread(rows, answer.values))
            if self.best.score >= self.enough:
                return ceiling
            if answer.status in _ENDED or self.settled(ceiling):
                self.trace.status = "optimal"
                return ceiling
            if self.watch.over():
                self.trace.status = "time limit reached"
                return ceiling
            if not (improved or thorough):
                break
            nodes -= max(answer.nodes, 1)
            attempt = attempt if improved else attempt * LONGER
            if not (improved or extended) and self.far(ceiling):
                extended = True
                nodes += _EXTENSION * self._node_budget(columns)
                attempt = nodes
        return ceiling

    def _attempt(self, columns: Columns, cutoff: float, nodes: int) -> Solution | None:
        """One run of the integer program, vGPU counts [n, S] for values; None: nothing better."""
        best = self.best
        program, layout = integer_program(best.problem, columns, best.goal, -np.inf)
        if np.isfinite(cutoff):
            narrowed = tighten(best.problem, columns, best.goal, cutoff, self.watch)
            if narrowed is None:
                return None
            program, _ = narrowed
        limits = Limits(
            relative_gap=self.options.gap,
            nodes=nodes,
            seconds=self.watch.left_s(),
            cutoff=cutoff,
            enough=self.enough,
        )
        answer = solve_integer(program, limits, self.options.solver)
        self.effort += answer.iterations
        if answer.values is None:
            return answer
        return replace(answer, values=counts_of(layout, columns, answer.values))

    def _spread(self, rows: Ints, vgpus: Ints | None) -> Ints | None:
        """vGPU counts of some configurations as counts over all of them."""
        if vgpus is None:
            return None
        whole = np.zeros(self.best.columns.types.shape, dtype=np.int64)
        whole[rows] = vgpus
        return whole

    @property
    def short(self) -> bool:
        """True if pipelines are short."""
        return self.options.max_partitions <= _SHORT

    def far(self, proven: float) -> bool:
        """True if the proof is so weak that more effort is due."""
        return self.best.gap_to(proven) > _FAR

    def settled(self, proven: float) -> bool:
        """True if the best plan is proven within the relative gap, or good enough."""
        return self.best.score >= self.enough or (self.best.gap_to(proven) <= self.options.gap)

    def cutoff(self) -> float:
        """The least score that is looked for."""
        if np.isinf(self.best.score):
            return self.best.score
        step = max(self.options.gap * _STEP, SOLVED)
        return self.best.score + step * abs(self.best.score)

    def fitting(self, rows: Ints) -> int:
        """How many of the first rows fit the size that the solver's licence allows."""
        most = most_variables(self.options.solver)
        if most is None:
            return len(rows)
        problem = self.best.problem
        fixed = len(problem.models) * (len(problem.types) + len(problem.gpus)) + 1
        per_row = 1 + self.best.columns.stages[rows]
        return int(np.searchsorted(np.cumsum(per_row), most - fixed, side="right"))

    def _node_budget(self, columns: Columns) -> int:
        cells = int(np.isfinite(columns.rate_rps).sum())
        by_size = max(_LEAST_NODES, _NODE_CELLS // max(1, cells))
        return by_size if self.nodes is None else self.nodes
