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
from dataclasses import replace

import numpy as np

from flows.planning.pool import unequal
from flows.planning.pool.applications.levels import add_levels, add_paths
from flows.planning.pool.applications.pools import Pools
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.watch import Watch

MOST_TOGETHER = 400  # configurations of the program for time and cuts
_SHARE = 0.3  # of the time that is left: what one step at known budgets may take
_ROOM_GAP = 0.05  # of the level to which GPUs that are paid are filled


def search(
    pools: Pools, cuts: unequal.Cuts, known: tuple[float, Sequence[int] | None], trace: Trace
) -> unequal.Answer:
    """A plan above the score known, if one is found, and the bound on all of them.

    Args:
        pools: lines on parts of every size.
        cuts: of a GPU.
        known: score and times by line of the plan of equal parts; minus infinity and None where
            there is none.
        trace: gets the numbers of configurations.
    """
    columns, every = pools.enumerate()
    lines, goal, (score, times) = pools.lines, pools.goal, known

    def in_time(build: ProgramBuilder, rows: Ints, rates: Ints, ceiling: float) -> None:
        most = goal.weight * (1.0 if goal.fixed else ceiling)
        levels, chosen = add_levels(build, (columns.model[rows], every[rows]), rates, most)
        for graph in lines.graphs:
            add_paths(build, graph, levels, chosen)

    def ask(candidates: unequal.Candidates, score: float, watch: Watch) -> unequal.Answer:
        given = (pools.problem, candidates, cuts, goal, score)
        return unequal.search(*given, pools.options, trace, watch)

    first = unequal.Answer(bound=np.inf, score=score)
    if times is not None:
        first = ask(_within(pools, times), score, pools.watch.part(_SHARE))
    together = unequal.Candidates(columns=columns, most=MOST_TOGETHER, times=every, beside=in_time)
    answer = ask(together, first.score, pools.watch)
    return answer if answer.columns is not None else replace(first, bound=answer.bound)


def with_room(pools: Pools, cuts: unequal.Cuts, gpus: Ints, times: Sequence[int]) -> unequal.Answer:
    """A plan on so many GPUs [C], at these times by line, that could serve more than is asked.

    Its score is the highest level of the rates, 1 where none above that is found.
    """
    free = replace(pools.goal, price=np.zeros_like(pools.goal.price), fixed=False)
    problem = replace(pools.problem, gpus=gpus)
    loose = replace(pools.options, gap=max(pools.options.gap, _ROOM_GAP))
    given = (problem, _within(pools, times), cuts, free, 1.0)
    return unequal.search(*given, loose, Trace(), pools.watch.part(_SHARE))


def _within(pools: Pools, times: Sequence[int]) -> unequal.Candidates:
    """Configurations within the budgets of times by line, resized to fill the limits."""
    columns, every = pools.enumerate()
    budgets = np.array(pools.lines.filled(times), dtype=np.float64)
    rows = np.flatnonzero(every <= budgets[columns.model] + 1e-6)
    return unequal.Candidates(columns=columns.take(rows))
