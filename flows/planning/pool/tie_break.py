"""Among plans as good as the best: what sustains most, then fewest stages, then fewest GPUs moved.

The integer program once more, with the objective held where it is, and over every configuration
that a plan as good can use:

    on_c    ∈ {0, 1}     configuration c is in use:   g_cs ≤ room_cs · on_c
    stay_u whole         GPUs that go on with use u, blocks of a model on a vGPU type, and no more
                         than run it now:   v · stay_u ≤ Σ_{cs of u} g_cs + idle_u
    idle_u ≥ 0           their idle vGPUs, within those of the group's fewest GPUs:
                         Σ_{cs in the group} g_cs + Σ_u idle_u ≤ v · n ≤ Σ g_cs + v - 1

    first   maximise     the value of `sustain`, where throughput is the objective
    then    minimise     Σ_c stages_c · on_c              at nearly that value
    then    minimise     Σ_mk a_mk - Σ_u stay_u          at no more stages, at nearly that value

Only the scarcest model is at its limit in a plan of the best objective. The first program gives the
others what is left of the GPUs, where it helps most, and prefers forms that leave more time to
wait (record 21 of `flows/planning/DECISIONS.md`).

A GPU stays where all its vGPUs in use keep model, size and blocks; without a plan in force none
does, and the plan with fewest GPUs is left. All solves look only for something better than what
is known, so that most end with the proof that there is nothing. Their effort is limited in nodes;
where one ends without proof, the certificate's `ties` say so.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.planning.placement import Blocks, gpus_alone
from flows.planning.pool.bound import Goal, least_loss
from flows.planning.pool.columns import Columns
from flows.planning.pool.incumbent import Incumbent
from flows.planning.pool.integer import (
    Layout,
    add_integer_program,
    counts_of,
    gpus_in_use,
    lowest_share,
    values_of,
)
from flows.planning.pool.search import Found
from flows.planning.pool.spare_gpus import HEADROOM
from flows.planning.pool.sustained_load import BURSTS, Sustained, needed_by
from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

# Configurations looked at, those with the least loss, and branch-and-bound nodes × stages of
# configurations that each solve may take: a look, or more where a plan is in force.
_LOOK = (48, 600)
_IN_FORCE = (240, 10_000)
_SHARE = 0.1  # of a time limit that each solve may add
_GIVE = 1e-3  # share of the value sustained that stages and moves may cost
_LESS = 0.5  # solutions must be better by more than this to count
_ENOUGH = 1e-4  # of the value: closer to the best is not looked for

Use = tuple[int, int, int, int]  # model, vGPU type, first block, last block


@dataclass(slots=True, kw_only=True)
class _Tied(Incumbent):
    """The configurations of equally good plans, what they sustain, and what GPUs run now."""

    running: Mapping[Use, int]
    sustained: Sustained | None

    def stages(self, vgpus: Ints) -> int:
        """Stages in use."""
        return int(np.count_nonzero(vgpus))

    def moved(self, vgpus: Ints) -> int:
        """GPUs in use less those that stay."""
        groups: dict[tuple[int, int], Counter[Blocks]] = {}
        for row, s in zip(*np.nonzero(vgpus), strict=True):
            model, kind, first, last = self.use(int(row), int(s))
            group = groups.setdefault((model, kind), Counter())
            group[first, last] += int(vgpus[row, s])
        used = int(gpus_in_use(self.problem, self.columns, vgpus).sum())
        return used - sum(self._stay(model, kind, group) for (model, kind), group in groups.items())

    def _stay(self, model: int, kind: int, vgpus: Mapping[Blocks, int]) -> int:
        """GPUs of a group that stay."""
        before = {blocks: self.running.get((model, kind, *blocks), 0) for blocks in vgpus}
        alone = gpus_alone(vgpus, int(self.problem.type_divisor[kind]), before)
        return sum(min(alone[blocks], before[blocks]) for blocks in vgpus)

    def use(self, row: int, s: int) -> Use:
        """The work of a GPU for a stage of a configuration."""
        columns = self.columns
        first, last = columns.cuts[row, s : s + 2]
        return int(columns.model[row]), int(columns.types[row, s]), int(first), int(last)


def break_ties(
    found: Found,
    goal: Goal,
    options: PlanOptions,
    running: Mapping[Use, int],
    margin_us: Floats,
    clock: Watch,
) -> Found:
    """The same objective, better sustained, with fewer stages and fewer GPUs that change hands.

    Args:
        found: the best plan, and the space it was found in.
        goal: what was asked of the rates.
        options: the time limit, and whether a plan is in force.
        running: how many GPUs run what under the plan in force; empty without one.
        margin_us: [models] what their margins leave of the SLOs.
        clock: nothing is looked at any more once it is over.
    """
    if clock.over():
        return found
    watch = Stopwatch()
    in_force = options.previous is not None
    most, node_cells = _IN_FORCE if in_force else _LOOK
    tied, vgpus, proven = _tied(found, goal, running, margin_us, most)
    nodes = max(1, node_cells // int(np.isfinite(tied.columns.rate_rps).sum()))
    limits = Limits(
        relative_gap=0.0,
        nodes=nodes,
        seconds=clock.part(_SHARE).left_s(),
    )
    ties: dict[str, Any] = found.trace.details.setdefault("ties", {})
    least = -np.inf
    if tied.sustained is not None:
        vgpus, ended = _more_sustained(tied, tied.sustained, vgpus, limits)
        proven = proven and ended
        ties["sustained"] = [round(float(e), 4) for e in tied.sustained.shares(vgpus)[0]]
        least = tied.sustained.value(vgpus) - _GIVE
    full = np.array_equal(gpus_in_use(tied.problem, tied.columns, vgpus), tied.problem.gpus)
    if not full:
        vgpus, ended = _fewer(tied, vgpus, limits, least, stages_first=True)
        proven = proven and ended
    if in_force or (goal.fixed and not full):  # free GPUs become slack anyway
        vgpus, ended = _fewer(tied, vgpus, limits, least, stages_first=False)
        proven = proven and ended
    found.trace.seconds["tie_break"] = watch.seconds()
    ties |= {"stages": tied.stages(vgpus), "proven": proven}
    used = np.flatnonzero(vgpus.any(axis=1))
    score = found.score if goal.fixed else lowest_share(tied.columns, vgpus, goal)
    return replace(
        found,
        columns=tied.columns.take(used),
        vgpus=vgpus[used],
        score=score,
        bound=max(score, found.bound),
    )


def _tied(
    found: Found, goal: Goal, running: Mapping[Use, int], margin_us: Floats, most: int
) -> tuple[_Tied, Ints, bool]:
    """Configurations that a plan as good can use, the plan known over them, and if that is all."""
    problem, columns, bound = found.problem, found.feasible, found.relaxed
    loss = least_loss(problem, columns, bound)
    order = np.argsort(loss, kind="stable")
    size = int(np.searchsorted(loss[order], (bound.score - found.score) * (1 + ROUNDING)))
    rows = np.sort(order[: min(size, most)])
    own = _rows_of(found.columns, columns)
    rows = np.union1d(rows, own)
    columns, sustained = columns.take(rows), None
    vgpus = columns.counts(np.searchsorted(rows, own), found.vgpus)
    promised = goal.needed_rps(found.score)
    if not goal.fixed and np.all(promised > 0):
        needed = needed_by(problem, columns, margin_us, promised)
        sustained = Sustained(columns=columns, needed=needed, promised_rps=promised)
    tied = _Tied(
        problem=problem,
        columns=columns,
        goal=goal,
        score=found.score,
        running=running,
        sustained=sustained,
    )
    return tied, vgpus, size <= most


def _rows_of(some: Columns, every: Columns) -> Ints:
    """Where configurations stand among all."""

    def keys(columns: Columns) -> list[bytes]:
        parts = (columns.model[:, None], columns.batch[:, None], columns.stages[:, None])
        table = np.ascontiguousarray(np.hstack([*parts, columns.types, columns.cuts]))
        return [row.tobytes() for row in table]

    number = {key: row for row, key in enumerate(keys(every))}
    return np.array([number[key] for key in keys(some)], dtype=np.int64)


def _more_sustained(
    tied: _Tied, sustained: Sustained, vgpus: Ints, limits: Limits
) -> tuple[Ints, bool]:
    """A plan as good that sustains more, and whether none does."""
    build = ProgramBuilder()
    layout = add_integer_program(build, tied.problem, tied.columns, tied.goal, -np.inf)
    e, h = sustained.variables(build, layout)
    program = _held(tied, build.build(), layout)
    cost = np.zeros_like(program.cost)
    cost[e], cost[h] = 1.0, BURSTS
    start = values_of(tied.columns, layout, vgpus, len(cost))
    start[e], start[h] = sustained.shares(vgpus)
    start[layout.z] = program.lower[layout.z]
    known = sustained.value(vgpus)
    limits = replace(limits, enough=sustained.most() * (1 - _ENOUGH), relative_gap=_ENOUGH)
    answer = solve_integer(replace(program, cost=cost), limits, start=start)
    if answer.values is not None:
        fresh = counts_of(layout, tied.columns, answer.values)
        if sustained.value(fresh) > known and tied.as_good(fresh):
            known, vgpus = sustained.value(fresh), fresh
    return vgpus, answer.bound <= known * (1 + 2 * _ENOUGH)


def _fewer(
    tied: _Tied, vgpus: Ints, limits: Limits, least: float, *, stages_first: bool
) -> tuple[Ints, bool]:
    """A plan as good with fewer stages (or moves, at no more stages), and whether none has less."""
    now = tied.stages(vgpus) if stages_first else tied.moved(vgpus)
    program, layout = _program(tied, None if stages_first else tied.stages(vgpus), least)
    answer = solve_integer(program, replace(limits, cutoff=_LESS - now))
    if answer.values is not None:
        fresh = counts_of(layout, tied.columns, answer.values)
        size = tied.stages(fresh) if stages_first else tied.moved(fresh)
        held = tied.sustained is None or tied.sustained.value(fresh) >= least - ROUNDING
        if size < now and held and tied.as_good(fresh):
            now, vgpus = size, fresh
    return vgpus, answer.bound < _LESS - now


def _held(tied: _Tied, program: Program, layout: Layout) -> Program:
    """The program with its score held."""
    if tied.goal.fixed:
        return program
    lower, upper = program.lower.copy(), program.upper.copy()
    lower[layout.z] = upper[layout.z] = tied.score * (1 - ROUNDING)
    return replace(program, lower=lower, upper=upper)


def _program(tied: _Tied, most_stages: int | None, least: float) -> tuple[Program, Layout]:
    """Fewest stages, or fewest moves with at most so many stages, at the least value."""
    columns, goal = tied.columns, tied.goal
    build = ProgramBuilder()
    cutoff = tied.score if goal.fixed else -np.inf
    layout = add_integer_program(build, tied.problem, columns, goal, cutoff)
    on = build.variables("on", len(columns), upper=1.0, whole=True)
    most = goal.needed_rps(tied.score)
    if tied.sustained is not None:
        tied.sustained.hold(build, tied.sustained.variables(build, layout), least)
        most = most * (1 + HEADROOM)
    most = most[columns.model]
    room = _use_rows(build, tied, layout, on, most)
    stay = _stay_rows(build, tied, layout)
    if most_stages is not None:
        row = build.rows("stages", 1, upper=float(most_stages))
        build.entries(row, on, columns.stages)
    program = _held(tied, build.build(), layout)
    cost, upper = np.zeros_like(program.cost), program.upper.copy()
    if most_stages is None:
        cost[on] = -columns.stages
    else:
        cost[layout.owned.reshape(-1)], cost[stay] = -1.0, 1.0
    upper[layout.vgpus] = np.minimum(upper[layout.vgpus], room)
    return replace(program, cost=cost, upper=upper), layout


def _use_rows(build: ProgramBuilder, tied: _Tied, layout: Layout, on: Ints, most: Floats) -> Floats:
    """Rows that make `on` speak of use; returns the most vGPUs any stage can need."""
    several = np.flatnonzero(layout.rates >= 0)
    used = build.rows("used", len(several), upper=0.0)
    build.entries(used, layout.rates[several], 1.0)
    build.entries(used, on[several], -most[several])
    rate = tied.columns.rate_rps[layout.cell_column, layout.cell_stage]
    room = np.ceil(most[layout.cell_column] / rate - ROUNDING)
    opened = build.rows("opened", len(room), upper=0.0)
    build.entries(opened, layout.vgpus, 1.0)
    build.entries(opened, on[layout.cell_column], -room)
    return room


def _stay_rows(build: ProgramBuilder, tied: _Tied, layout: Layout) -> Ints:
    """Variables `stay` and `idle` with their rows; returns `stay`."""
    cells = zip(layout.cell_column, layout.cell_stage, strict=True)
    uses = [tied.use(int(column), int(stage)) for column, stage in cells]
    number = {use: i for i, use in enumerate(sorted(set(uses) & tied.running.keys()))}
    known = np.array([number.get(use, -1) for use in uses], dtype=np.int64)
    running = np.array([tied.running[use] for use in number], dtype=np.float64)
    group = np.zeros(len(number), dtype=np.int64)
    group[known[known >= 0]] = layout.cell_group[known >= 0]
    divisor = layout.groups[group, 2]
    stay = build.variables("stay", len(number), upper=running, whole=True)
    alone = build.rows("alone", len(number), upper=0.0)
    build.entries(alone, stay, divisor)
    build.entries(alone[known[known >= 0]], layout.vgpus[known >= 0], -1.0)
    cut = np.flatnonzero(divisor > 1)
    idle = build.variables("idle", len(cut))
    build.entries(alone[cut], idle, -1.0)
    shared, at = np.unique(group[cut], return_inverse=True)
    fit = build.rows("idle_fit", len(shared), upper=0.0)
    fewest = build.rows("fewest", len(shared), upper=layout.groups[shared, 2] - 1.0)
    build.entries(fit[at], idle, 1.0)
    where = np.full(len(layout.groups), -1, dtype=np.int64)
    where[shared] = np.arange(len(shared))
    mine = np.flatnonzero(where[layout.cell_group] >= 0)
    for rows, sign in ((fit, 1.0), (fewest, -1.0)):
        build.entries(rows[where[layout.cell_group[mine]]], layout.vgpus[mine], sign)
        build.entries(rows, layout.gpus[shared], -sign * layout.groups[shared, 2])
    return stay
