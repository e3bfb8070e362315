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

from flows.planning.pool import unequal
from flows.planning.pool.applications.levels import add_levels, add_paths, only_used
from flows.planning.pool.applications.pools import Pools
from flows.planning.pool.columns import Counted
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.watch import Watch

MOST_TOGETHER = 400  # configurations of the program for time and cuts
_SHARE = 0.3  # of the time that is left: what one step at known budgets may take
_ROOM_GAP = 0.05  # of the level to which GPUs that are paid are filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A plan on parts: configurations with their vGPUs, how GPUs are cut, and the score."""

    counted: Counted
    gpus: unequal.Gpus
    score: float


def search(
    pools: Pools, cuts: unequal.Cuts, known: tuple[float, Sequence[int]] | None, trace: Trace
) -> tuple[Placed | None, float]:
    """A plan above the score known, if one is found, and the bound on all of them.

    Args:
        pools: lines on parts of every size.
        cuts: of a GPU.
        known: score and times by line of the plan of equal parts; None where there is none.
        trace: gets the numbers of configurations.
    """
    columns, every = pools.enumerate()
    lines, goal = pools.lines, pools.goal

    def in_time(build: ProgramBuilder, rows: Ints, rates: Ints, ceiling: float) -> None:
        most = goal.weight * (1.0 if goal.fixed else ceiling)
        levels, chosen = add_levels(build, (columns.model[rows], every[rows]), rates, most)
        for graph in lines.graphs:
            add_paths(build, graph, levels, chosen)

    def ask(candidates: unequal.Candidates, score: float, watch: Watch) -> unequal.Answer:
        given = (pools.problem, candidates, cuts, goal, score)
        return unequal.search(*given, pools.options, trace, watch)

    first = unequal.Answer(bound=np.inf, score=-np.inf)
    if known is not None:
        first = ask(_within(pools, known[1]), known[0], pools.watch.part(_SHARE))
    together = unequal.Candidates(columns=columns, most=MOST_TOGETHER, times=every, beside=in_time)
    answer = ask(together, first.score, pools.watch)
    return _placed(answer) or _placed(first), answer.bound


def with_room(
    pools: Pools, cuts: unequal.Cuts, gpus: unequal.Gpus, times: Sequence[int]
) -> Placed | None:
    """A plan on the GPUs in use, at these times by line, that could serve more than is asked.

    None where none above that is found.
    """
    used = np.array([len(gpus.get(number, ())) for number in range(len(pools.problem.gpus))])
    free = replace(pools.goal, price=np.zeros_like(pools.goal.price), fixed=False)
    problem = replace(pools.problem, gpus=used)
    loose = replace(pools.options, gap=max(pools.options.gap, _ROOM_GAP))
    given = (problem, _within(pools, times), cuts, free, 1.0)
    found = _placed(unequal.search(*given, loose, Trace(), pools.watch.part(_SHARE)))
    if found is None:
        return None
    held = [len(found.gpus.get(number, ())) for number in range(len(used))]
    return replace(found, score=-float(pools.goal.price @ held))


def times_of(pools: Pools, placed: Placed) -> list[int]:
    """By line, the time that the slowest configuration of a plan takes."""
    return pools.times_of(only_used(*placed.counted)[0])


def _placed(answer: unequal.Answer) -> Placed | None:
    if answer.columns is None or answer.vgpus is None or answer.gpus is None:
        return None
    return Placed(counted=(answer.columns, answer.vgpus), gpus=answer.gpus, score=answer.score)


def _within(pools: Pools, times: Sequence[int]) -> unequal.Candidates:
    """Configurations within the budgets of times by line, resized to fill the limits."""
    columns, every = pools.enumerate()
    budgets = np.array(pools.lines.filled(times), dtype=np.float64)
    rows = np.flatnonzero(every <= budgets[columns.model] + 1e-6)
    return unequal.Candidates(columns=columns.take(rows))
