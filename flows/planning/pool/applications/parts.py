"""Lines on parts of unequal size, which lie beside each other on a GPU.

The program over cuts of `pool.unequal` with what `levels` asks of time: rates are served within one
level per line, and levels fit the paths. Its relaxation without paths screens configurations and
bounds every plan. Two steps, each from the best plan known:

    the budgets of the plan of equal parts   a program without levels: quick, and nearly always
                                             better already
    time and cuts together                   for the bound, and for budgets that suit smaller parts

Where cost or power are minimised, the rest of the GPUs that are paid is handed out, too: the
highest level of all rates on as many GPUs, at the plan's budgets. Batches that the rates asked for
do not fill are then made smaller: they would only take time from the modules after them.

The plan of equal parts is known before. So offering more sizes is never dearer. Where there is no
such plan (it gives every line GPUs of its own), the second step begins with none.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flows.planning.pool import unequal
from flows.planning.pool.applications.levels import add_levels, add_paths
from flows.planning.pool.applications.pools import STEP_SHARE, Pools
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import delivered_rps
from flows.planning.registry import Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.tolerances import ROUND_OFF_US, ROUNDING
from triton_backend.contract.units import US_PER_S

MOST_TOGETHER = 400  # configurations of the program for time and cuts
_ROOM_GAP = 0.05  # of the level to which GPUs that are paid are filled


def search(
    pools: Pools, cuts: unequal.Cuts, known: tuple[float, Sequence[int]] | None, trace: Trace
) -> unequal.Answer:
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
        known = (columns.model[rows], every[rows])
        levels, chosen = add_levels(build, known, rates, goal.rates(ceiling))
        for graph in lines.graphs:
            add_paths(build, graph, levels, chosen)

    first = unequal.Answer(bound=np.inf, score=-np.inf)
    if known is not None:
        score, times = known
        part = pools.watch.part(STEP_SHARE)
        first = unequal.search(_within(pools, cuts, times), score, pools.options, trace, part)
    together = unequal.Candidates(
        problem=pools.problem,
        columns=columns,
        cuts=cuts,
        goal=goal,
        most=MOST_TOGETHER,
        times=every,
        beside=in_time,
    )
    answer = unequal.search(together, first.score, pools.options, trace, pools.watch)
    return answer if answer.columns is not None else replace(first, bound=answer.bound)


def with_room(
    pools: Pools, cuts: unequal.Cuts, best: unequal.Answer, times: Sequence[int]
) -> unequal.Answer:
    """A plan on the GPUs in use, at these times by line, that could serve more than is asked."""
    asked = replace(
        _within(pools, cuts, times),
        problem=replace(pools.problem, gpus=_gpus_of(best, pools)),
        goal=replace(pools.goal, price=np.zeros_like(pools.goal.price), fixed=False),
    )
    loose = replace(pools.options, gap=max(pools.options.gap, _ROOM_GAP))
    found = unequal.search(asked, 1.0, loose, Trace(), pools.watch.part(STEP_SHARE))
    return replace(found, score=-float(pools.goal.price @ _gpus_of(found, pools)))


def that_fill(pools: Pools, best: unequal.Answer, times: Sequence[int]) -> unequal.Answer:
    """The plan with no batch that the rates asked for do not fill in the SLO of its line.

    At equal gaps such a batch would run with fewer rows than planned, and only wait before that. It
    becomes the largest that fills, where the line still carries its rate.
    """
    columns, vgpus = best.counted
    batch, rate_rps = columns.batch.copy(), columns.rate_rps.copy()
    asked_rps = pools.goal.rates(1.0)
    slos_us = pools.lines.slos_us(pools.lines.filled(times))
    for row in np.flatnonzero(vgpus.any(axis=1)).tolist():
        line = int(columns.model[row])
        run_us = _run_us(pools, columns, row)
        sizes = np.arange(1, batch[row] + 1)
        rest = np.maximum(sizes - pools.lines.rows_at_once(line), 0)
        fills = rest * US_PER_S / asked_rps[line] + run_us.sum(axis=0) <= slos_us[line]
        batch[row] = sizes[fills].max(initial=1)
        runs = sizes[batch[row] - 1] * US_PER_S / run_us[:, batch[row] - 1]
        rate_rps[row, : len(runs)] = np.minimum(rate_rps[row, : len(runs)], runs)
    smaller = replace(columns, batch=batch, rate_rps=rate_rps)
    carried_rps = np.bincount(
        columns.model, delivered_rps(smaller, vgpus), minlength=len(asked_rps)
    )
    short = (carried_rps < asked_rps * (1 - ROUNDING))[columns.model]
    batch[short], rate_rps[short] = columns.batch[short], columns.rate_rps[short]
    return replace(best, columns=smaller)


def _run_us(pools: Pools, columns: Columns, row: int) -> Floats:
    """[stages, batches] run times of a configuration, up to its batch."""
    model = pools.problem.models[columns.model[row]]
    return np.array(
        [
            model.latency_us[
                np.flatnonzero(model.types == columns.types[row, stage])[0],
                columns.cuts[row, stage],
                columns.cuts[row, stage + 1],
                : columns.batch[row],
            ]
            for stage in range(columns.stages[row])
        ]
    )


def _gpus_of(answer: unequal.Answer, pools: Pools) -> Ints:
    """[C] GPUs that a plan takes."""
    gpus = answer.gpus or {}
    return np.array([len(gpus.get(number, ())) for number in range(len(pools.problem.gpus))])


def _within(pools: Pools, cuts: unequal.Cuts, times: Sequence[int]) -> unequal.Candidates:
    """Configurations within the budgets of times by line, resized to fill the limits."""
    columns, every = pools.enumerate()
    budgets = np.array(pools.lines.filled(times), dtype=np.float64)
    rows = np.flatnonzero(every <= budgets[columns.model] + ROUND_OFF_US)
    own = columns.take(rows)
    return unequal.Candidates(problem=pools.problem, columns=own, cuts=cuts, goal=pools.goal)
