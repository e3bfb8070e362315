"""Time and whole GPUs handed out together.

One integer program over configurations and latency levels. Sets and variables of `pool/integer.py`,
and

    w_c  ≥ 0      rate that configuration c serves; more than that it only could
    u_mk 0 or 1   line m keeps level k; levels Λ_m1 < Λ_m2 < … are the times of its configurations
    s_v  ≥ 0      when module v may start

    served_c:  w_c ≤ rate of c
    serve_m:   weight_m · z ≤ Σ_{c of m} w_c
    one_m:     Σ_k u_mk = 1
    keep_mk:   Σ_{c of m slower than Λ_mk-1} w_c ≤ most_m · Σ_{k' ≥ k} u_mk'   every k but the first
    after_pv:  s_p + Σ_k Λ_k · u_k(p) ≤ s_v                  every edge
    end_v:     s_v + Σ_k Λ_k · u_k(v) ≤ limit                every module
    floor_mp:  Σ_k least_mp(Λ_mk) · u_mk ≤ Σ_c p_c · a_mc    prices p tried (`staircases`)

`most_m` is what the line serves at most: its rate where that is prescribed, else what the
relaxation allows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from flows.planning.applications.lines import Graph, Lines
from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import (
    Layout,
    add_integer_program,
    counts_of,
    take_rates,
)
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import PROOF_NODES, Limits, solve_integer
from flows.planning.solver.tolerances import SOLVED

Floor = tuple[int, Floats, Callable[[Floats], Floats]]
"""A line, prices [C], and what it costs at least at these within budgets [n] (µs)."""


def solve_levels(
    lines: Lines,
    problem: Problem,
    columns: Columns,
    times: Floats,
    goal: Goal,
    floors: Sequence[Floor],
    limits: tuple[float, float, float, float | None],
) -> tuple[Ints | None, float]:
    """A plan [n, S] above the cutoff or None, and the bound on every plan.

    Args:
        lines: paths and limits.
        problem: classes and GPUs.
        columns: configurations, n of them.
        times: [n] what each takes with gathering (µs).
        goal: what is asked for.
        floors: what lines are known to cost at least.
        limits: least score of interest, the relaxation's score, relative gap, seconds or None.
    """
    cutoff, ceiling, gap, seconds = limits
    build = ProgramBuilder()
    layout = add_integer_program(build, problem, columns, goal, -np.inf)
    served = _served(build, columns, goal, layout)
    most = goal.rates(ceiling)
    levels, chosen = add_levels(build, (columns.model, times), served, most)
    for line, price, proven in floors:
        _floor(build, layout.owned[line], price, chosen[line], proven(levels[line]))
    for graph in lines.graphs:
        add_paths(build, graph, levels, chosen)
    ends = Limits(relative_gap=gap, nodes=PROOF_NODES, seconds=seconds, cutoff=cutoff)
    answer = solve_integer(build.build(), ends)
    bound = max(cutoff, answer.bound)  # below the cutoff nothing was looked at
    if answer.values is None:
        return None, bound
    vgpus = counts_of(layout, columns, answer.values)
    floor = SOLVED * most[columns.model]
    vgpus[answer.values[served] <= floor] = 0
    return vgpus, bound


def add_levels(
    build: ProgramBuilder, known: tuple[Ints, Floats], served: Ints, most: Floats
) -> tuple[list[Floats], list[Ints]]:
    """One level per line that nothing in use exceeds: by line all levels (µs) and their variables.

    Args:
        build: the program.
        known: [n] lines of configurations and what each takes (µs).
        served: [n] variables of the rates that these serve.
        most: [lines] rate that a line serves at most.
    """
    line_of, times = known
    levels = [np.unique(times[line_of == line]) for line in range(len(most))]
    chosen = [build.variables("u", len(level), upper=1.0, whole=True) for level in levels]
    for line, (level, numbers) in enumerate(zip(levels, chosen, strict=True)):
        rows = np.flatnonzero(line_of == line)
        place = np.searchsorted(level, times[rows])
        _keep(build, served[rows], place, numbers, float(most[line]))
    return levels, chosen


def _served(build: ProgramBuilder, columns: Columns, goal: Goal, layout: Layout) -> Ints:
    """[n] numbers of w, with their rows."""
    served = build.variables("w", len(columns))
    able = build.rows("served", len(columns), upper=0.0)
    build.entries(able, served, 1.0)
    take_rates(build, columns, layout, able, np.ones(len(columns)))
    serve = build.rows("serve", len(goal.weight), upper=0.0)
    build.entries(serve[columns.model], served, -1.0)
    build.entries(serve, layout.z, goal.weight)
    return served


def _keep(build: ProgramBuilder, numbers: Ints, place: Ints, levels: Ints, most: float) -> None:
    """One level, and no configuration that is slower: w by number and place among the levels."""
    add_one(build, levels)
    keep = build.rows("keep", max(0, len(levels) - 1), upper=0.0)
    build.entries(keep, numbers[:, None], place[:, None] > np.arange(len(keep)))
    later = np.tri(len(levels), dtype=np.bool_).T[1:]  # levels from each but the first on
    build.entries(keep[:, None], levels, np.where(later, -most, 0.0))


def _floor(build: ProgramBuilder, gpus: Ints, price: Floats, numbers: Ints, least: Floats) -> None:
    """GPUs at prices cost no less than the level kept.

    Levels of which nothing is enough are not kept.
    """
    never = np.flatnonzero(np.isinf(least))
    if len(never):
        row = build.rows("never", 1, upper=0.0)
        build.entries(row, numbers[never], 1.0)
    some = np.flatnonzero(np.isfinite(least) & (least > 0))
    if len(some):
        row = build.rows("floor", 1, upper=0.0)
        build.entries(row, numbers[some], least[some])
        build.entries(row, gpus, -price)


def add_one(build: ProgramBuilder, numbers: Ints) -> None:
    """Of binary variables one is 1."""
    both = np.array([1.0, -1.0])
    build.entries(build.rows("one", 2, upper=both)[:, None], numbers, both[:, None])


def add_paths(
    build: ProgramBuilder, graph: Graph, levels: Sequence[Floats], chosen: Sequence[Ints]
) -> None:
    """Starts of modules along the edges, in ms, so that times and rates are of one size.

    Args:
        build: the program.
        graph: the modules.
        levels: by line the times (µs) of which it keeps one.
        chosen: by line the binary variables of these.
    """
    start = build.variables("s", len(graph.lines))
    for at, line in enumerate(graph.lines):
        end = build.rows("end", 1, upper=(graph.limit_us + 1e-3) / 1e3)
        build.entries(end, start[at], 1.0)
        build.entries(end, chosen[line], levels[line] / 1e3)
        for parent in graph.parents[at]:
            before = graph.lines[parent]
            after = build.rows("after", 1, upper=0.0)
            build.entries(after, start[[parent, at]], [1.0, -1.0])
            build.entries(after, chosen[before], levels[before] / 1e3)
