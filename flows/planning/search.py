"""Enumerate, bound, screen, solve: from a problem to vGPU counts with a proof.

Here: the sequence of steps and the bookkeeping of the proof. Not here: the steps themselves.

The proof: no plan is better than the relaxation's bound; a plan that uses a configuration dropped
by the screen is at most as good as the best plan known then, or, where only the cheapest
configurations were kept, at most bound - least loss of the cheapest one left out; any other plan
is covered by the bound of the integer program.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.bound import Bound, Goal, solve_bound
from flows.planning.columns import Columns, enumerate_columns
from flows.planning.integer import (
    counts_of,
    gpus_in_use,
    integer_program,
    lowest_share,
    trimmed,
)
from flows.planning.options import PlanOptions
from flows.planning.problem import Problem
from flows.planning.rounding import round_down
from flows.planning.screen import least_loss, undominated
from flows.planning.solve import Limits, solve_integer
from flows.planning.tighten import tighten

_SKETCH_COLUMNS = 60  # cheapest configurations of the first integer program
_SKETCH_NODES = 20
_STEP = 0.1  # of the relative gap
_LEAST_STEP = 1e-7  # below it, solver tolerances blur what is better


@dataclass(slots=True)
class Trace:
    """What the certificate says of a run."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    configurations: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])
    status: str = "optimal"


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
    trace = Trace()
    watch = Stopwatch()
    columns = enumerate_columns(problem, options.max_partitions)
    trace.seconds["enumerate"] = watch.restart()
    bound = solve_bound(problem, columns, goal)
    trace.seconds["bound"] = watch.restart()
    run = _Run(problem, columns, goal, bound, options, trace)
    rows, loss, best = run.sketch()
    trace.seconds["screen"] = watch.restart()
    found = run.finish(rows, loss, best)
    trace.seconds["solve"] = watch.restart()
    return found


@dataclass(frozen=True, slots=True)
class _Best:
    vgpus: NDArray[np.int64] | None
    score: float


@dataclass(frozen=True, slots=True)
class _Run:
    problem: Problem
    columns: Columns
    goal: Goal
    bound: Bound
    options: PlanOptions
    trace: Trace

    def sketch(self) -> tuple[NDArray[np.int64], NDArray[np.float64], _Best]:
        """A first integer plan, from rounding and a program over the cheapest configurations."""
        loss = least_loss(self.problem, self.columns, self.bound)
        rows = undominated(self.problem, self.columns, np.arange(len(self.columns)))
        rows = rows[np.argsort(loss[rows], kind="stable")]
        best = self._scored(round_down(self.problem, self.columns, self.bound.rate_rps, self.goal))
        gap = (self.bound.score - best.score) / max(abs(best.score), 1e-12)
        if gap > self.options.relative_gap:
            chosen = self._with_used(rows[:_SKETCH_COLUMNS], best)
            best, _ = self._integer(chosen, best, _SKETCH_NODES)
        return rows, loss, best

    def finish(self, rows: NDArray[np.int64], loss: NDArray[np.float64], best: _Best) -> Found:
        """Drop what cannot help, solve the rest, put the proof together."""
        open_rows = rows[loss[rows] < self.bound.score - best.score]
        kept = open_rows[: self.options.max_columns]
        left_out = open_rows[self.options.max_columns :]
        ceiling = -np.inf
        if len(left_out):
            ceiling = self.bound.score - float(loss[left_out[0]])
            self.trace.notes.append(
                f"{len(left_out)} configurations that the exact screen left open were set aside; "
                "the gap covers them through the relaxation's bound"
            )
        self.trace.configurations = {
            "enumerated": self.columns.enumerated,
            "feasible": len(self.columns),
            "kept": len(kept),
        }
        chosen = self._with_used(kept, best)
        proven = best.score
        if self.bound.score - best.score > self.options.relative_gap * abs(best.score):
            best, proven = self._integer(chosen, best, self.options.node_limit)
        else:
            proven = self.bound.score
        if best.vgpus is None:
            raise AssertionError
        score = self.bound.score
        upper = min(score, max(proven, ceiling, best.score))
        used = np.flatnonzero(best.vgpus.any(axis=1))
        return Found(
            columns=self.columns.take(used),
            vgpus=best.vgpus[used],
            score=best.score,
            bound=max(upper, best.score),
            trace=self.trace,
        )

    def _with_used(self, rows: NDArray[np.int64], best: _Best) -> NDArray[np.int64]:
        if best.vgpus is None:
            return np.sort(rows)
        return np.union1d(rows, np.flatnonzero(best.vgpus.any(axis=1)))

    def _scored(self, vgpus: NDArray[np.int64] | None) -> _Best:
        if vgpus is None:
            return _Best(None, -np.inf)
        vgpus = trimmed(self.columns, vgpus)
        if self.goal.fixed:
            used = gpus_in_use(self.problem, self.columns, vgpus)
            return _Best(vgpus, -float(self.goal.price @ used))
        return _Best(vgpus, lowest_share(self.columns, vgpus, self.goal))

    def _integer(self, rows: NDArray[np.int64], best: _Best, nodes: int) -> tuple[_Best, float]:
        """Look for plans over some configurations that beat `best`, again after each success.

        Returns:
            the best plan known, and what no plan over these configurations exceeds.
        """
        columns = self.columns.take(rows)
        ceiling = self.bound.score
        while True:
            cutoff = best.score + self._step(best.score)
            program, layout = integer_program(self.problem, columns, self.goal, cutoff)
            narrowed = tighten(program, layout) if np.isfinite(cutoff) else program
            if narrowed is None:
                self.trace.status = "optimal"
                return best, min(ceiling, cutoff)
            answer = solve_integer(narrowed, self._limits(nodes))
            self.trace.status = answer.status
            ceiling = min(ceiling, max(answer.bound, cutoff))
            if answer.values is None:
                if answer.status == "infeasible":
                    self.trace.status = "optimal"
                    return best, min(ceiling, cutoff)
                return best, ceiling
            whole = np.zeros(self.columns.types.shape, dtype=np.int64)
            whole[rows] = counts_of(layout, columns, answer.values)
            best = max(best, self._scored(whole), key=lambda b: b.score)
            nodes -= answer.nodes
            if ceiling <= best.score + self._step(best.score) or nodes < 1:
                return best, ceiling

    def _limits(self, nodes: int) -> Limits:
        return Limits(
            relative_gap=self.options.relative_gap, nodes=nodes, seconds=self.options.time_limit_s
        )

    def _step(self, score: float) -> float:
        """The least improvement that is looked for."""
        return max(self.options.relative_gap * _STEP, _LEAST_STEP) * abs(score)
