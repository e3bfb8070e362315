"""Integer programs over some configurations, ever longer, until proven or the limits end.

Before each, the GPUs that every model can own in a *better* plan are narrowed (`tighten`), which
often is the whole proof.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.options import PlanOptions
from flows.planning.pool.best import Best
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import counts_of, integer_program
from flows.planning.pool.tighten import tighten
from flows.planning.solver.solve import Answer, Limits, solve_integer

_SHORT = 2  # stages up to which pipelines are short; longer ones leave wider gaps
_FIRST_NODES = 50  # branch-and-bound nodes of the first attempt
_FEWEST_NODES = 10  # an attempt with fewer is not worth its start
_LONGER = 4  # by how much an attempt without success lengthens the next
_LEAST_NODES = 50
_NODE_CELLS = 120_000  # nodes × stages of configurations that a program may take by default
_LICENCE_SIZE = 2_000  # variables, and rows, that gurobipy's own licence allows
_FAR = 0.01  # a relative gap beyond which the node budget is extended, once
_EXTENSION = 2  # by this many times
_ENDED = ("optimal", "infeasible")
_STEP = 0.1  # of the relative gap
_LEAST_STEP = 1e-7  # below it, solver tolerances blur what is better


@dataclass(slots=True)
class Trace:
    """What the certificate says of a run; `effort` counts simplex iterations.

    `ties`: stages in use, and whether no plan as good has fewer stages or moves fewer GPUs.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    configurations: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])
    status: str = "optimal"
    solver: str = "highs"
    effort: int = 0
    ties: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Attempts:
    """Attempts to improve the best plan.

    Attributes:
        ceiling: no plan's score is above this.
        enough: a score that ends the search.
    """

    best: Best
    ceiling: float
    options: PlanOptions
    trace: Trace
    watch: Stopwatch
    enough: float = np.inf

    def improve(self, rows: NDArray[np.int64], *, thorough: bool) -> float:
        """Look for better plans over some configurations.

        After each success the GPUs of models are narrowed anew. Without success, `thorough` makes
        ever longer attempts; else that is the end.

        Returns:
            what no plan over these configurations exceeds.
        """
        columns = self.best.columns.take(rows)
        ceiling = self.ceiling
        nodes = self._node_budget(columns)
        attempt = _FIRST_NODES
        extended = self.options.node_limit is not None or self.short
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
            if self.out_of_time():
                self.trace.status = "time limit reached"
                return ceiling
            if not (improved or thorough):
                break
            nodes -= max(answer.nodes, 1)
            attempt = attempt if improved else attempt * _LONGER
            if not (improved or extended) and self.far(ceiling):
                extended = True
                nodes += _EXTENSION * self._node_budget(columns)
                attempt = nodes
        return ceiling

    def _attempt(self, columns: Columns, cutoff: float, nodes: int) -> Answer | None:
        """One run of the integer program, vGPU counts [n, S] for values; None: nothing better."""
        best = self.best
        program, layout = integer_program(best.problem, columns, best.goal, -np.inf)
        if np.isfinite(cutoff):
            narrowed = tighten(best.problem, columns, best.goal, cutoff)
            if narrowed is None:
                return None
            program = narrowed.program
        limits = Limits(
            relative_gap=self.options.relative_gap,
            nodes=nodes,
            seconds=self.seconds_left(),
            cutoff=cutoff,
            enough=self.enough,
        )
        answer = solve_integer(program, limits, self.options.solver)
        self.trace.effort += answer.iterations
        if answer.note is not None:
            self.trace.solver = "highs"
            if answer.note not in self.trace.notes:
                self.trace.notes.append(answer.note)
        if answer.values is None:
            return answer
        return replace(answer, values=counts_of(layout, columns, answer.values))

    def _spread(
        self, rows: NDArray[np.int64], vgpus: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """vGPU counts of some configurations as counts over all of them."""
        if vgpus is None:
            return None
        whole = np.zeros(self.best.columns.types.shape, dtype=np.int64)
        whole[rows] = vgpus
        return whole

    @property
    def short(self) -> bool:
        """Whether pipelines are short."""
        return self.options.max_partitions <= _SHORT

    def far(self, proven: float) -> bool:
        """Whether the proof is so weak that more effort is due."""
        return self.best.gap_to(proven) > _FAR

    def settled(self, proven: float) -> bool:
        """Whether the best plan is proven within the relative gap, or good enough."""
        return self.best.score >= self.enough or (
            self.best.gap_to(proven) <= self.options.relative_gap
        )

    def cutoff(self) -> float:
        """The least score that is looked for."""
        if self.best.vgpus is None:
            return self.best.score
        step = max(self.options.relative_gap * _STEP, _LEAST_STEP)
        return self.best.score + step * abs(self.best.score)

    def fitting(self, rows: NDArray[np.int64]) -> int:
        """How many of the first rows fit the size that the solver's free licence allows."""
        if self.options.solver != "gurobi":
            return len(rows)
        problem = self.best.problem
        fixed = len(problem.models) * (len(problem.types) + len(problem.gpus)) + 1
        per_row = 1 + self.best.columns.stages[rows]
        return int(np.searchsorted(np.cumsum(per_row), _LICENCE_SIZE - fixed, side="right"))

    def _node_budget(self, columns: Columns) -> int:
        cells = int(np.isfinite(columns.rate_rps).sum())
        by_size = max(_LEAST_NODES, _NODE_CELLS // max(1, cells))
        return by_size if self.options.node_limit is None else self.options.node_limit

    def seconds_left(self) -> float | None:
        """What is left of the time limit; None without one."""
        if self.options.time_limit_s is None:
            return None
        return max(0.1, self.options.time_limit_s - self.watch.seconds())

    def out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        limit = self.options.time_limit_s
        return limit is not None and self.watch.seconds() >= limit
