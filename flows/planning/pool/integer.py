"""The integer program of a plan over the configurations that are left.

Sets: configurations c of model m(c) with stages s of class k(c, s) and vGPU divisor v(c, s);
groups (m, k, v): the GPUs of class k that model m cuts into v vGPUs each.

    g_cs whole   vGPUs of stage s of configuration c
    x_c  ≥ 0     rate of configuration c, for those of several stages; a single stage delivers
                 rate_c · g_c
    n_mkv whole  GPUs of a group, for v > 1; with v = 1 the vGPUs are the GPUs
    a_mk whole   GPUs of class k that model m owns: implied, but good to bound and branch on
    z            the lowest rate / weight (fixed at 1 where cost or power are minimised)

    maximise     z - Σ_mk price_k · a_mk
    deliver_cs:  x_c ≤ rate_cs · g_cs                        for every stage of several
    share_m:     weight_m · z ≤ Σ_{c of m} (rate of c)       for every model
    floor_m:     minimum_m ≤ Σ_{c of m} (rate of c)          where one is asked for
    fit_mkv:     Σ_{cs in the group} g_cs ≤ v · n_mkv        for every group with v > 1
    own_mk:      Σ_v n_mkv ≤ a_mk                            for every model and class
    capacity_k:  Σ_m a_mk ≤ gpus_k                           for every class
    better:      z - Σ_mk price_k · a_mk ≥ cutoff            where a plan is known

`fit` makes every plan placeable: vGPUs of one GPU belong to one model and one divisor.

Narrowing (`tighten`): with the row `better` in the program, the relaxation says between which
numbers of GPUs of each class a model must own; rounding these to whole numbers cuts deep, because
few GPUs of a class are shared by few models. Repeated while it helps. No plan that is better is
lost.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Relaxation
from flows.planning.solver.tolerances import EXACT, ROUNDING
from flows.planning.watch import Watch

_WHOLE = 1e-6  # a relaxed extreme this close to a whole number is that number


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the variables of the integer program stand, to narrow bounds and read answers.

    Attributes:
        cell_column, cell_stage: [cells] configuration and stage of every g.
        vgpus: [cells] variable number of every g.
        groups: [groups, 3] model, class, divisor of every group, those with divisor 1 included.
        cell_group: [cells] group of every g.
        gpus: [groups] variable number of n, -1 where the divisor is 1.
        owned: [models, C] variable number of a.
        rates: [columns] variable number of x, -1 for single stages.
        z: variable number of z.
    """

    cell_column: Ints
    cell_stage: Ints
    vgpus: Ints
    groups: Ints
    cell_group: Ints
    gpus: Ints
    owned: Ints
    rates: Ints
    z: int


def integer_program(
    problem: Problem, columns: Columns, goal: Goal, cutoff: float
) -> tuple[Program, Layout]:
    """Build the program; only plans with a score of at least `cutoff` are looked for."""
    build = ProgramBuilder()
    layout = add_integer_program(build, problem, columns, goal, cutoff)
    return build.build(), layout


def add_integer_program(
    build: ProgramBuilder, problem: Problem, columns: Columns, goal: Goal, cutoff: float
) -> Layout:
    """Add the program's variables and rows to a larger one."""
    column, stage = np.nonzero(np.isfinite(columns.rate_rps))
    kind = columns.types[column, stage]
    key = [columns.model[column], problem.type_class[kind], problem.type_divisor[kind]]
    groups, group = np.unique(np.stack(key, axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    room = problem.gpus[groups[group, 1]] * groups[group, 2]
    vgpus = build.variables("g", len(column), upper=room, whole=True)
    several = np.flatnonzero(columns.stages > 1)
    rates = np.full(len(columns), -1, dtype=np.int64)
    rates[several] = build.variables("x", len(several))
    shared = groups[:, 2] > 1
    gpus = np.full(len(groups), -1, dtype=np.int64)
    limits = problem.gpus[groups[:, 1]]
    gpus[shared] = build.variables("n", int(shared.sum()), upper=limits[shared], whole=True)
    shape = len(problem.models), len(problem.gpus)
    owned = build.variables("a", shape, upper=problem.gpus, cost=-goal.price, whole=True)
    z = int(add_level(build, goal)[0])
    layout = Layout(
        cell_column=column,
        cell_stage=stage,
        vgpus=vgpus,
        groups=groups,
        cell_group=group,
        gpus=gpus,
        owned=owned,
        rates=rates,
        z=z,
    )
    _goal_rows(build, columns, goal, layout)
    _delivery_rows(build, columns, layout)
    _gpu_rows(build, problem, layout)
    if np.isfinite(cutoff):
        better = build.rows("better", 1, upper=-cutoff)
        build.entries(better, z, 0.0 if goal.fixed else -1.0)
        build.entries(better, layout.owned, goal.price)
    return layout


def _delivery_rows(build: ProgramBuilder, columns: Columns, layout: Layout) -> None:
    inner = np.flatnonzero(layout.rates[layout.cell_column] >= 0)
    deliver = build.rows("deliver", len(inner), upper=0.0)
    column, stage = layout.cell_column[inner], layout.cell_stage[inner]
    build.entries(deliver, layout.rates[column], 1.0)
    build.entries(deliver, layout.vgpus[inner], -columns.rate_rps[column, stage])


def _gpu_rows(build: ProgramBuilder, problem: Problem, layout: Layout) -> None:
    shared = layout.gpus >= 0
    groups = layout.groups
    fit = np.full(len(groups), -1, dtype=np.int64)
    fit[shared] = build.rows("fit", int(shared.sum()), upper=0.0)
    build.entries(fit[shared], layout.gpus[shared], -groups[shared, 2])
    part = np.flatnonzero(shared[layout.cell_group])
    build.entries(fit[layout.cell_group[part]], layout.vgpus[part], 1.0)
    own = build.rows("own", layout.owned.shape, upper=0.0)
    build.entries(own[groups[shared, 0], groups[shared, 1]], layout.gpus[shared], 1.0)
    straight = np.flatnonzero(~shared[layout.cell_group])
    of = groups[layout.cell_group[straight]]
    build.entries(own[of[:, 0], of[:, 1]], layout.vgpus[straight], 1.0)
    build.entries(own, layout.owned, -1.0)
    capacity = build.rows("capacity", len(problem.gpus), upper=problem.gpus)
    build.entries(capacity, layout.owned, 1.0)


def add_level(build: ProgramBuilder, goal: Goal, most: float = np.inf) -> Ints:
    """Add z: fixed at 1, or maximised up to `most`."""
    low, high = (1.0, 1.0) if goal.fixed else (0.0, most)
    return build.variables("z", 1, lower=low, upper=high, cost=0.0 if goal.fixed else 1.0)


def _goal_rows(build: ProgramBuilder, columns: Columns, goal: Goal, layout: Layout) -> None:
    """Add the rows `share` and `floor`."""
    models = len(goal.weight)
    share = build.rows("share", models, upper=0.0)
    build.entries(share, layout.z, goal.weight)
    asked = np.flatnonzero(goal.minimum_rps > 0)
    floor = np.full(models, -1, dtype=np.int64)
    floor[asked] = build.rows("floor", len(asked), upper=-goal.minimum_rps[asked])
    for rows in (share, floor):
        take_rates(build, columns, layout, rows[columns.model], np.ones(len(columns)))


def take_rates(
    build: ProgramBuilder, columns: Columns, layout: Layout, rows: Ints, per: Floats
) -> None:
    """Take rates of configurations, divided by `per` [n], off their rows [n]; below 0: no row."""
    several = np.flatnonzero((layout.rates >= 0) & (rows >= 0))
    build.entries(rows[several], layout.rates[several], -1.0 / per[several])
    here = np.flatnonzero(((layout.rates < 0) & (rows >= 0))[layout.cell_column])
    single = layout.cell_column[here]
    rate = columns.rate_rps[single, layout.cell_stage[here]]
    build.entries(rows[single], layout.vgpus[here], -rate / per[single])


def counts_of(layout: Layout, columns: Columns, values: Floats) -> Ints:
    """[n, S] vGPU counts of an answer, without those that deliver nothing more."""
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    vgpus[layout.cell_column, layout.cell_stage] = np.round(values[layout.vgpus])
    return trimmed(columns, vgpus)


def values_of(columns: Columns, layout: Layout, vgpus: Ints, size: int) -> Floats:
    """[size] variables g, x, n and a of a plan [n, S], to start a search from; 0 elsewhere."""
    values = np.zeros(size)
    values[layout.vgpus] = vgpus[layout.cell_column, layout.cell_stage]
    several = np.flatnonzero(layout.rates >= 0)
    values[layout.rates[several]] = delivered_rps(columns, vgpus)[several]
    count = np.bincount(
        layout.cell_group, weights=values[layout.vgpus], minlength=len(layout.groups)
    )
    model, kind, divisor = layout.groups.T
    gpus, cut = np.ceil(count / divisor), layout.gpus >= 0
    np.add.at(values, layout.owned[model, kind], gpus)
    values[layout.gpus[cut]] = gpus[cut]
    return values


def trimmed(columns: Columns, vgpus: Ints) -> Ints:
    """The fewest vGPUs per stage that deliver the same rates."""
    rate = delivered_rps(columns, vgpus)
    needed = np.ceil(rate[:, None] / columns.rate_rps * (1 - EXACT)).astype(np.int64)
    return np.where(np.isfinite(columns.rate_rps), needed, 0)


def delivered_rps(columns: Columns, vgpus: Ints) -> Floats:
    """[n] rate of every configuration: the lowest of vGPUs times rate over its stages."""
    with np.errstate(invalid="ignore"):
        stage = np.where(np.isfinite(columns.rate_rps), vgpus * columns.rate_rps, np.inf)
    return stage.min(axis=1)


def models_rps(columns: Columns, vgpus: Ints, models: int) -> Floats:
    """[models] rates that vGPU counts [n, S] deliver."""
    rates = np.bincount(columns.model, delivered_rps(columns, vgpus), models)
    return rates.astype(np.float64)


def lowest_share(columns: Columns, vgpus: Ints, goal: Goal) -> float:
    """The lowest rate / weight over models."""
    rates = models_rps(columns, vgpus, len(goal.weight))
    return 1.0 if goal.fixed else float((rates / goal.weight).min())


def reaches_rates(columns: Columns, vgpus: Ints, goal: Goal) -> bool:
    """True if vGPU counts [n, S] reach every rate asked for."""
    rates = models_rps(columns, vgpus, len(goal.weight))
    return not np.any(rates < goal.asked_rps * (1 - ROUNDING))


def score_of(problem: Problem, columns: Columns, vgpus: Ints, goal: Goal) -> float:
    """The lowest rate / weight, or minus the price of the GPUs in use."""
    if goal.fixed:
        return -float(goal.price @ gpus_in_use(problem, columns, vgpus))
    return lowest_share(columns, vgpus, goal)


def gpus_in_use(problem: Problem, columns: Columns, vgpus: Ints) -> Ints:
    """[C] whole GPUs that vGPU counts [n, S] take."""
    column, stage = np.nonzero(vgpus)
    used = np.zeros(len(problem.gpus), dtype=np.int64)
    if not len(column):
        return used
    kind = columns.types[column, stage]
    per_group = np.zeros((len(problem.models), len(problem.types)), dtype=np.int64)
    np.add.at(per_group, (columns.model[column], kind), vgpus[column, stage])
    whole = -(-per_group // problem.type_divisor)
    np.add.at(used, problem.type_class, whole.sum(axis=0))
    return used


def tighten(
    problem: Problem, columns: Columns, goal: Goal, cutoff: float, watch: Watch
) -> Program | None:
    """The program with narrower bounds on the GPUs of models.

    Narrowed as long as there is time. None where no plan reaches `cutoff`. The row `better` stays
    out of the program: solvers find plans faster without it.
    """
    program, layout = integer_program(problem, columns, goal, cutoff)
    relaxation, owned = Relaxation(program), layout.owned.reshape(-1).tolist()
    plain, _ = integer_program(problem, columns, goal, -np.inf)
    lower, upper = plain.lower.copy(), plain.upper.copy()
    narrowed = True
    while narrowed:
        narrowed = False
        for variable in owned:
            if lower[variable] == upper[variable] or watch.over():
                continue
            least, most = relaxation.extreme(variable, -1.0), relaxation.extreme(variable, 1.0)
            if least is None or most is None:
                return None
            low = max(float(lower[variable]), float(np.ceil(least - _WHOLE)))
            high = min(float(upper[variable]), float(np.floor(most + _WHOLE)))
            if low > high:
                return None
            if low > lower[variable] or high < upper[variable]:
                lower[variable], upper[variable] = low, high
                relaxation.bound(variable, low, high)
                narrowed = True
    return replace(plain, lower=lower, upper=upper)
