"""Attempts at the best plan until it is proven.

Integer programs, ever longer, run over more and more configurations. Before each, the GPUs that
every model can own in a *better* plan are narrowed (`integer.tighten`), which often is the whole
proof. Where several models share the GPUs, these are divided (`divide`).
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.pool.bound import Bound, least_loss
from flows.planning.pool.columns import Columns
from flows.planning.pool.divide import LONGER, GpuSplit, SingleModelResult
from flows.planning.pool.incumbent import Incumbent, round_down
from flows.planning.pool.integer import counts_of, integer_program, tighten
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Ints
from flows.planning.solver.solve import Limits, Solution, solve_integer
from flows.planning.solver.tolerances import SOLVED
from flows.planning.watch import Watch

# Models from which a division of GPUs that leaves a gap is followed by planning one by one at
# prices (and with more than two classes not tried at all), and models from which nothing else is
# tried.
PRICES_FIRST_FROM_MODELS_MANY_CLASSES, PRICES_FIRST_FROM_MODELS = 8, 25
_SHORT = 2  # stages up to which pipelines are short; longer ones leave wider gaps
_FIRST_NODES = 50  # branch-and-bound nodes of the first attempt, and of all at least
_NODE_CELLS = 120_000  # nodes × stages of configurations that a program may take by default
_FAR = 0.01  # a relative gap beyond which programs follow a division
_ENDED = ("optimal", "infeasible")
_SKETCHES = (60, 200)  # cheapest configurations of the first, short integer programs
COLUMNS, _COLUMNS_DEEP = 240, 400  # most configurations by default, at most 2 stages or more
_DIVISION_EFFORT = 25_000  # simplex iterations that dividing the GPUs may take
_ALONE_NODES = 100  # branch-and-bound nodes of an integer program of one model, at first


@dataclass(slots=True)
class Attempts:
    """Attempts to improve the best plan.

    Attributes:
        bound: the relaxation's prices and bound.
        enough: a score that ends the search.
        nodes: most branch-and-bound nodes of one call; None sets it by size.
        effort: simplex iterations so far.
    """

    best: Incumbent
    bound: Bound
    options: PlanOptions
    trace: Trace
    watch: Watch
    enough: float = np.inf
    nodes: int | None = None
    effort: int = 0

    def solve(self) -> float:
        """Improve the best plan until it is proven or the limits end; returns the proven bound."""
        best = self.best
        loss = least_loss(best.problem, best.columns, self.bound)
        rows = np.argsort(loss, kind="stable")
        loss = loss[rows]
        best.offer(round_down(best.problem, best.columns, self.bound.rate_rps, best.goal))
        proven, kept = self.bound.score, 0
        sizes = self._sizes()
        for number, most in enumerate(sizes):
            size = int(np.searchsorted(loss, self.bound.score - best.score))
            open_rows = rows[:size]
            chosen, left_out = open_rows[:most], open_rows[most:]
            kept = len(chosen)
            last = most == self._most_columns() or not len(left_out)
            if number == min(1, len(sizes) - 1) and len(best.problem.models) > 1:
                proven = min(proven, self._divide(proven))
                several = len(best.problem.models) >= PRICES_FIRST_FROM_MODELS_MANY_CLASSES
                far = best.gap_to(proven) > _FAR  # else nothing closes what a division leaves
                if not far or several or self.watch.over():
                    break
            ceiling = -np.inf
            if len(left_out):
                ceiling = self.bound.score - float(loss[kept])
            inside = self.improve(np.sort(chosen), thorough=last)
            proven = min(proven, max(inside, ceiling, best.score))
            self.watch.report(best.score, proven)
            if last or self.settled(proven) or self.watch.over():
                if len(left_out) and not self.settled(proven):
                    self.trace.notes.append(
                        f"{len(left_out)} configurations that the exact screen left open were set "
                        "aside; the gap covers them through the relaxation's bound"
                    )
                break
        self.trace.configurations["kept"] = kept
        return proven

    def _divide(self, proven: float) -> float:
        """Divide the GPUs among the models; returns a bound."""

        def done(bound: float) -> bool:
            self.watch.report(self.best.score, bound)
            return self.settled(bound) or self.watch.over()

        split = GpuSplit(self.best, proven, self._alone, self.watch)
        return split.improve(_DIVISION_EFFORT, done)

    def _alone(self, best: Incumbent, bound: Bound, enough: float, times: int) -> SingleModelResult:
        """Plan one model on the GPUs it was given."""
        watch, nodes = self.watch.part(1.0), _ALONE_NODES * times
        attempts = Attempts(best, bound, self.options, Trace(), watch, enough, nodes)
        most = attempts.solve()
        return SingleModelResult(
            vgpus=best.vgpus,
            rate_rps=best.score,
            most_rps=max(most, best.score),
            effort=1 + attempts.effort,
        )

    def _sizes(self) -> list[int]:
        """How many configurations each integer program may have, the last one the most."""
        if self.settled(self.bound.score):
            return []
        most = self._most_columns()
        return [size for size in _SKETCHES if 2 * size <= most] + [most]

    def _most_columns(self) -> int:
        short = self.options.max_partitions <= _SHORT
        return COLUMNS if short else _COLUMNS_DEEP

    def improve(self, rows: Ints, *, thorough: bool) -> float:
        """Look for better plans over some configurations.

        After each success the GPUs of models are narrowed again. Without success, `thorough` makes
        ever longer attempts; else that is the end.

        Returns:
            what no plan over these configurations exceeds.
        """
        columns = self.best.columns.take(rows)
        ceiling = self.bound.score
        nodes = self._node_budget(columns)
        attempt = _FIRST_NODES
        while nodes > 0:
            cutoff = self.cutoff()
            answer = self._attempt(columns, cutoff, min(attempt, nodes))
            if answer is None:
                return min(ceiling, cutoff)
            # a solver that stops by itself has shown that nothing beats its answer or the cutoff
            ceiling = min(ceiling, max(answer.bound, cutoff))
            found = None if answer.values is None else self.best.columns.counts(rows, answer.values)
            improved = self.best.offer(found)
            if answer.status in _ENDED or self.settled(ceiling) or self.watch.over():
                return ceiling
            if not (improved or thorough):
                break
            nodes -= max(answer.nodes, 1)
            attempt = attempt if improved else attempt * LONGER
        return ceiling

    def _attempt(self, columns: Columns, cutoff: float, nodes: int) -> Solution | None:
        """One run of the integer program, vGPU counts [n, S] for values; None: nothing better."""
        best = self.best
        program, layout = integer_program(best.problem, columns, best.goal, -np.inf)
        if np.isfinite(cutoff):
            program = tighten(best.problem, columns, best.goal, cutoff, self.watch)
        if program is None:
            return None
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

    def settled(self, proven: float) -> bool:
        """True if the best plan is proven within the relative gap, or good enough."""
        return self.best.score >= self.enough or (self.best.gap_to(proven) <= self.options.gap)

    def cutoff(self) -> float:
        """The least score that is looked for."""
        if np.isinf(self.best.score):
            return self.best.score
        step = max(self.options.gap / 10, SOLVED)
        return self.best.score + step * abs(self.best.score)

    def _node_budget(self, columns: Columns) -> int:
        cells = int(np.isfinite(columns.rate_rps).sum())
        by_size = max(_FIRST_NODES, _NODE_CELLS // max(1, cells))
        return by_size if self.nodes is None else self.nodes
