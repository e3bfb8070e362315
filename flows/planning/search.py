"""Enumerate, bound, screen, solve: from a problem to vGPU counts with a proof.

Here: the sequence of steps and the bookkeeping of the proof. Not here: the steps themselves.

The proof: no plan is better than the relaxation's bound; a plan that uses a configuration dropped
by the screen is at most as good as the best plan known then, or, where only the cheapest
configurations were kept, at most bound - least loss of the cheapest one left out; any other plan
is covered by the bound of the integer program.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.bound import Bound, Goal, solve_bound
from flows.planning.columns import Columns, enumerate_columns
from flows.planning.integer import (
    counts_of,
    delivered_rps,
    gpus_in_use,
    integer_program,
    lowest_share,
    trimmed,
)
from flows.planning.options import PlanOptions
from flows.planning.problem import Problem
from flows.planning.rounding import round_down
from flows.planning.screen import least_loss, undominated
from flows.planning.solve import Answer, Limits, solve_integer
from flows.planning.tighten import prove, tighten
from triton_backend.core.errors import InfeasibleError

_SKETCHES = (60, 200)  # cheapest configurations of the first, short integer programs
_COLUMNS, _COLUMNS_DEEP = 240, 400  # most configurations by default, at most 2 stages or more
_SHORT = 2  # stages up to which pipelines are short; longer ones leave wider gaps
_FIRST_NODES = 50  # branch-and-bound nodes of the first attempt
_FEWEST_NODES = 10  # an attempt with fewer is not worth its start
_LONGER = 4  # by how much an attempt without success lengthens the next
_LEAST_NODES = 50
_NODE_CELLS = 120_000  # nodes × stages of configurations that a program may take by default
_LICENCE_SIZE = 2_000  # variables, and rows, that gurobipy's own licence allows
_FAR = 0.01  # a relative gap beyond which the node budget is extended, once
_EXTENSION = 2  # by this many times
_REACHED = 1e-9  # a prescribed rate counts as reached from this close
_EQUAL = 1e-12  # scores this close are ties
_WHOLE_SPACE = 6_000  # configurations that the last narrowing may look at together
_BOXES = 8  # ranges of GPUs per model that the last narrowing may split into
_ENDED = ("optimal", "infeasible")
_STEP = 0.1  # of the relative gap
_LEAST_STEP = 1e-7  # below it, solver tolerances blur what is better


@dataclass(slots=True)
class Trace:
    """What the certificate says of a run."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    configurations: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])
    status: str = "optimal"
    solver: str = "highs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A solved problem.

    Attributes:
        columns: configurations in use.
        vgpus: [n, S] vGPUs of every stage of them.
        score: z, or minus the cost.
        bound: no plan's score is above this.
    """

    columns: Columns
    vgpus: NDArray[np.int64]
    score: float
    bound: float
    trace: Trace


def search(problem: Problem, goal: Goal, options: PlanOptions) -> Found:
    """Find the best plan.

    Raises:
        InfeasibleError: a model has no feasible configuration, or the rates asked for cannot be
            reached.
    """
    trace = Trace(solver=options.solver)
    watch = Stopwatch()
    columns = enumerate_columns(problem, options.max_partitions)
    trace.seconds["enumerate"] = watch.restart()
    bound = solve_bound(problem, columns, goal)
    trace.seconds["bound"] = watch.restart()
    run = _Run(problem, columns, goal, bound, options, trace, watch)
    proven = run.solve()
    trace.seconds["solve"] = watch.restart()
    best = run.best
    if best.vgpus is None:
        raise InfeasibleError("workload", "no plan in whole GPUs was found for the rates asked for")
    used = np.flatnonzero(best.vgpus.any(axis=1))
    return Found(
        columns=columns.take(used),
        vgpus=best.vgpus[used],
        score=best.score,
        bound=max(proven, best.score),
        trace=trace,
    )


def _spread(
    columns: Columns, rows: NDArray[np.int64], vgpus: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """vGPU counts of some configurations as counts over all of them."""
    if vgpus is None:
        return None
    whole = np.zeros(columns.types.shape, dtype=np.int64)
    whole[rows] = vgpus
    return whole


@dataclass(frozen=True, slots=True)
class _Best:
    """The best plan known (None before the first) and its score."""

    vgpus: NDArray[np.int64] | None
    score: float


@dataclass(slots=True)
class _Run:
    """One search: the inputs, the best plan known and what is proven."""

    problem: Problem
    columns: Columns
    goal: Goal
    bound: Bound
    options: PlanOptions
    trace: Trace
    watch: Stopwatch
    best: _Best = field(default_factory=lambda: _Best(None, -np.inf))

    def solve(self) -> float:
        """Improve `best` until it is proven or the limits end; returns the proven bound."""
        loss = least_loss(self.problem, self.columns, self.bound)
        rows = undominated(self.problem, self.columns, np.arange(len(self.columns)))
        rows = rows[np.argsort(loss[rows], kind="stable")]
        self._offer(round_down(self.problem, self.columns, self.bound.rate_rps, self.goal))
        self.trace.seconds["screen"] = self.watch.restart()
        proven = self.bound.score
        kept = 0
        for most in self._sizes():
            open_rows = rows[loss[rows] < self.bound.score - self.best.score]
            size = min(most, self._fitting(open_rows))
            chosen, left_out = open_rows[:size], open_rows[size:]
            kept = len(chosen)
            last = most == self._most_columns() or not len(left_out)
            ceiling = -np.inf
            if len(left_out):
                ceiling = self.bound.score - float(loss[left_out[0]])
            inside = self._integer(np.sort(chosen), thorough=last)
            proven = min(proven, max(inside, ceiling, self.best.score))
            if last or self._settled(proven) or self._out_of_time():
                more = self._settled(inside) or self._far(proven)
                if len(left_out) and more and not self._out_of_time():
                    proven = min(proven, self._whole_space(open_rows))
                self._note(len(left_out), proven)
                break
        self.trace.configurations = {
            "enumerated": self.columns.enumerated,
            "feasible": len(self.columns),
            "kept": kept,
        }
        return proven

    def _whole_space(self, rows: NDArray[np.int64]) -> float:
        """What the narrowed relaxation over all configurations left open still allows."""
        cutoff = self.best.score + self._step()
        if not np.isfinite(cutoff) or len(rows) > _WHOLE_SPACE:
            return self.bound.score
        columns = self.columns.take(np.sort(rows))
        narrowed = tighten(self.problem, columns, self.goal, cutoff)
        if narrowed is None:
            self.trace.status = "optimal"
            return cutoff
        if self.options.max_partitions <= _SHORT or not self._far(narrowed.ceiling):
            return max(cutoff, narrowed.ceiling)
        return prove(self.problem, columns, self.goal, cutoff, _BOXES)

    def _sizes(self) -> list[int]:
        """How many configurations each integer program may have, the last one the most."""
        if self._settled(self.bound.score):
            return []
        most = self._most_columns()
        return [size for size in _SKETCHES if 2 * size <= most] + [most]

    def _most_columns(self) -> int:
        if self.options.max_columns is not None:
            return self.options.max_columns
        return _COLUMNS if self.options.max_partitions <= _SHORT else _COLUMNS_DEEP

    def _note(self, left_out: int, proven: float) -> None:
        if left_out and not self._settled(proven):
            self.trace.notes.append(
                f"{left_out} configurations that the exact screen left open were set aside; "
                "the gap covers them through the relaxation's bound"
            )
        if self.trace.status == "time limit reached":
            self.trace.notes.append("time limit hit: this is the best plan found, with its gap")

    def _far(self, proven: float) -> bool:
        """Whether the proof is so weak that more effort is due."""
        if self.best.vgpus is None:
            return True
        return proven - self.best.score > _FAR * abs(self.best.score)

    def _settled(self, proven: float) -> bool:
        """Whether the best plan is proven within the relative gap."""
        if self.best.vgpus is None:
            return False  # no score yet, so no gap
        return proven - self.best.score <= self.options.relative_gap * abs(self.best.score)

    def _offer(self, vgpus: NDArray[np.int64] | None) -> bool:
        """Take a plan [n, S] if it is better; tells whether it was."""
        if vgpus is None:
            return False
        vgpus = self._without_idle(trimmed(self.columns, vgpus))
        rates = np.bincount(
            self.columns.model,
            weights=delivered_rps(self.columns, vgpus),
            minlength=len(self.goal.weight),
        )
        asked = np.maximum(self.goal.weight * self.goal.fixed, self.goal.minimum_rps)
        if np.any(rates < asked * (1 - _REACHED)):
            return False
        if self.goal.fixed:
            used = gpus_in_use(self.problem, self.columns, vgpus)
            score = -float(self.goal.price @ used)
        else:
            score = lowest_share(self.columns, vgpus, self.goal)
        better = score > self.best.score * (1 + np.copysign(_EQUAL, self.best.score))
        if better or (score >= self.best.score and self._simpler(vgpus)):
            self.best = _Best(vgpus, score)
        return better

    def _without_idle(self, vgpus: NDArray[np.int64]) -> NDArray[np.int64]:
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

    def _simpler(self, vgpus: NDArray[np.int64]) -> bool:
        """Whether a plan of equal score has fewer stages, or as many and fewer GPUs."""
        if self.best.vgpus is None:
            return True

        def size(counts: NDArray[np.int64]) -> tuple[int, int]:
            used = gpus_in_use(self.problem, self.columns, counts)
            return int(np.count_nonzero(counts)), int(used.sum())

        return size(vgpus) < size(self.best.vgpus)

    def _integer(self, rows: NDArray[np.int64], *, thorough: bool) -> float:
        """Look for better plans over some configurations.

        After each success the GPUs of models are narrowed anew, which often is the whole proof.
        Without success, `thorough` makes ever longer attempts; else that is the end.

        Returns:
            what no plan over these configurations exceeds.
        """
        columns = self.columns.take(rows)
        ceiling = self.bound.score
        nodes = self._node_budget(columns)
        attempt = _FIRST_NODES
        extended = self.options.node_limit is not None or self.options.max_partitions <= _SHORT
        while nodes >= min(_FEWEST_NODES, self._node_budget(columns)):
            cutoff = self.best.score + self._step()
            answer = self._attempt(columns, cutoff, min(attempt, nodes))
            if answer is None:
                self.trace.status = "optimal"
                return min(ceiling, cutoff)
            self.trace.status = answer.status
            # a solver that stops by itself has shown that nothing beats its answer or the cutoff
            ceiling = min(ceiling, max(answer.bound, cutoff))
            improved = self._offer(_spread(self.columns, rows, answer.values))
            if answer.status in _ENDED or self._settled(ceiling):
                self.trace.status = "optimal"
                return ceiling
            if self._out_of_time():
                self.trace.status = "time limit reached"
                return ceiling
            if not (improved or thorough):
                break
            nodes -= max(answer.nodes, 1)
            attempt = attempt if improved else attempt * _LONGER
            if not (improved or extended) and self._far(ceiling):
                extended = True
                nodes += _EXTENSION * self._node_budget(columns)
                attempt = nodes
        return ceiling

    def _attempt(self, columns: Columns, cutoff: float, nodes: int) -> Answer | None:
        """One run of the integer program, vGPU counts [n, S] for values; None: nothing better."""
        program, layout = integer_program(self.problem, columns, self.goal, -np.inf)
        if np.isfinite(cutoff):
            narrowed = tighten(self.problem, columns, self.goal, cutoff)
            if narrowed is None:
                return None
            program = narrowed.program
        seconds = self._seconds_left()
        limits = Limits(
            relative_gap=self.options.relative_gap, nodes=nodes, seconds=seconds, cutoff=cutoff
        )
        answer = solve_integer(program, limits, self.options.solver)
        if answer.note is not None:
            self.trace.solver = "highs"
            if answer.note not in self.trace.notes:
                self.trace.notes.append(answer.note)
        if answer.values is None:
            return answer
        return replace(answer, values=counts_of(layout, columns, answer.values))

    def _fitting(self, rows: NDArray[np.int64]) -> int:
        """How many of the first rows fit the size that the solver's free licence allows."""
        if self.options.solver != "gurobi":
            return len(rows)
        fixed = len(self.problem.models) * (len(self.problem.types) + len(self.problem.gpus)) + 1
        per_row = 1 + self.columns.stages[rows]
        return int(np.searchsorted(np.cumsum(per_row), _LICENCE_SIZE - fixed, side="right"))

    def _node_budget(self, columns: Columns) -> int:
        cells = int(np.isfinite(columns.rate_rps).sum())
        by_size = max(_LEAST_NODES, _NODE_CELLS // max(1, cells))
        return by_size if self.options.node_limit is None else self.options.node_limit

    def _seconds_left(self) -> float | None:
        if self.options.time_limit_s is None:
            return None
        return max(0.1, self.options.time_limit_s - self.watch.seconds())

    def _out_of_time(self) -> bool:
        limit = self.options.time_limit_s
        return limit is not None and self.watch.seconds() >= limit

    def _step(self) -> float:
        """The least improvement that is looked for."""
        if self.best.vgpus is None:
            return 0.0
        return max(self.options.relative_gap * _STEP, _LEAST_STEP) * abs(self.best.score)
