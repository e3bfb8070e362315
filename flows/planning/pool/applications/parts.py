"""Lines on parts of unequal size, which lie beside each other on a GPU.

The program over cuts of `pool.unequal` with what `levels` asks of time: rates are served within one
level per line, and levels fit the paths. Its relaxation without paths screens configurations and
bounds every plan. Two steps, each from the best plan known:

    the budgets of the plan of equal parts   a program without levels: quick, and nearly always
                                             better already
    time and cuts together                   for the bound, and for budgets that suit smaller parts

Where cost or power are minimised, the rest of the GPUs that are paid is handed out, too: the
highest level of all rates on as many GPUs, at the plan's budgets.

The plan of equal parts is known before. So offering more sizes is never dearer. Where there is no
such plan (it gives every line GPUs of its own), the second step begins with none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.applications.lines import Lines
from flows.planning.inputs import Problem
from flows.planning.pool import unequal
from flows.planning.pool.applications.levels import add_levels, add_paths
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.watch import Watch

MOST_TOGETHER = 400  # configurations of the program for time and cuts
_SHARE = 0.3  # of the time that is left: what one step at known budgets may take
_ROOM_GAP = 0.05  # of the level to which GPUs that are paid are filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Configurations of lines on parts of every size.

    Attributes:
        columns: n configurations of lines.
        times: [n] what each takes with gathering (µs).
    """

    lines: Lines
    problem: Problem
    cuts: unequal.Cuts
    goal: Goal
    columns: Columns
    times: Floats

    def search(
        self,
        known: tuple[float, Sequence[int] | None],
        options: PlanOptions,
        trace: Trace,
        watch: Watch,
    ) -> unequal.Answer:
        """A plan above the score known, if one is found, and the bound on all of them.

        Args:
            known: score and times by line of the plan of equal parts; minus infinity and None
                where there is none.
            options: how to plan.
            trace: gets the numbers of configurations.
            watch: ends it earlier.
        """
        score, times = known
        first = unequal.Answer(bound=np.inf, score=score)
        if times is not None:
            first = self._ask(self._within(times), score, options, trace, watch.part(_SHARE))
        every = unequal.Candidates(
            columns=self.columns, most=MOST_TOGETHER, times=self.times, beside=self._in_time
        )
        answer = self._ask(every, first.score, options, trace, watch)
        return answer if answer.columns is not None else replace(first, bound=answer.bound)

    def with_room(
        self, gpus: Ints, times: Sequence[int], options: PlanOptions, watch: Watch
    ) -> unequal.Answer:
        """A plan on so many GPUs [C], at these times by line, that could serve more than is asked.

        Its score is the highest level of the rates, 1 where none above that is found.
        """
        free = replace(self.goal, price=np.zeros_like(self.goal.price), fixed=False)
        problem = replace(self.problem, gpus=gpus)
        loose = replace(options, gap=max(options.gap, _ROOM_GAP))
        given = (problem, self._within(times), self.cuts, free, 1.0)
        return unequal.search(*given, loose, Trace(), watch.part(_SHARE))

    def _within(self, times: Sequence[int]) -> unequal.Candidates:
        """Configurations within the budgets of times by line, resized to fill the limits."""
        budgets = np.array(self.lines.filled(times), dtype=np.float64)
        rows = np.flatnonzero(self.times <= budgets[self.columns.model] + 1e-6)
        return unequal.Candidates(columns=self.columns.take(rows))

    def _ask(
        self,
        candidates: unequal.Candidates,
        score: float,
        options: PlanOptions,
        trace: Trace,
        watch: Watch,
    ) -> unequal.Answer:
        given = (self.problem, candidates, self.cuts, self.goal, score)
        return unequal.search(*given, options, trace, watch)

    def _in_time(self, build: ProgramBuilder, rows: Ints, rates: Ints, ceiling: float) -> None:
        most = self.goal.weight * (1.0 if self.goal.fixed else ceiling)
        known = (self.columns.model[rows], self.times[rows])
        levels, chosen = add_levels(build, known, rates, most)
        for graph in self.lines.graphs:
            add_paths(build, graph, levels, chosen)
