"""Parts of unequal size beside each other on a GPU, whichever models they serve.

The pool planner's program over cuts. Sets: configurations c of model m(c) with stages s of type
t(c, s) (class and share); cuts p of one GPU of class k(p), with a_pt parts of every type. GPUs of a
class of percents may hold parts of several models; where sizes are 1/v a cut belongs to one model,
as these are placed.

    g_cs whole   vGPUs of stage s of configuration c
    x_c  ≥ 0     rate of configuration c
    n_p  whole   GPUs that are cut so
    z            the lowest rate / weight (1 where cost or power are minimised)

    maximise     z - Σ_p price_k(p) n_p
    deliver_cs:  x_c ≤ rate_cs g_cs
    share_m:     weight_m z ≤ Σ_{c of m} x_c
    floor_m:     minimum_m ≤ Σ_{c of m} x_c           where one is asked for
    hold_t:      Σ_cs g_cs ≤ Σ_p a_pt n_p             (of every model by itself where sizes are 1/v)
    capacity_k:  Σ_{p of k} n_p ≤ gpus_k

The relaxation (x and n alone, a vGPU for every rate_cs of rate) prices the types: π_t. With V = Σ_k
gpus_k max(0, max_p Σ_t a_pt π_t - price_k) and w_m the least that a configuration of m pays per
sample/s, any plan has z ≤ V / Σ_m weight_m w_m, or a cost of Σ_m weight_m w_m - V at least: that is
the bound, recomputed from the prices. What using a configuration loses against it screens, as in
`pool.bound`.

The plan of equal parts (`pool.search`) is known before; what is found here is taken where it is
better. So offering more sizes is never worse.

A cut may carry a_pm requests/s of models in turns on its other parts (`gpulets.open_seats`). These
are taken off `share` and `floor`, and a model either takes turns or has pipelines:

    y_m 0 or 1   m takes turns
    turns_m:     Σ_{p with a_pm > 0} n_p ≤ (all GPUs) y_m
    pipes_m:     Σ_{c of m} x_c ≤ (the bound) weight_m (1 - y_m)
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.engine.cover import raised
from flows.planning.inputs import Problem
from flows.planning.packing import Part, cuts_of
from flows.planning.pool.at_prices.blocks import step_of
from flows.planning.pool.attempts import COLUMNS
from flows.planning.pool.bound import Bound, Goal, least_loss, undominated
from flows.planning.pool.columns import Columns, Counted, enumerate_columns
from flows.planning.pool.integer import add_level, models_rps, trimmed
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import ProgramBuilder
from flows.planning.solver.solve import SEARCH_NODES, Limits, solve_integer, solve_linear
from flows.planning.solver.tolerances import ROUNDING, SOLVED
from flows.planning.watch import Watch
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.shares import PER_PERCENT, share_text

SPACE = "pool-parts"
MOST_SEQUENCES = 400  # of types along a pipeline: the certificate says which sizes are left out

Gpus = dict[int, list[tuple[tuple[int, int], ...]]]
"""By class number, the parts of every GPU.

(row of a configuration, stage), in the order of slots.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Ways to cut one GPU.

    Attributes:
        parts: [cut, type] how many parts of every type.
        kind: [cut] class number.
        mixed: [type] whether parts of several models may lie beside each other.
        carried: [cut, model] requests/s in turns; None where no model takes turns.
    """

    parts: Ints
    kind: Ints
    mixed: NDArray[np.bool_]
    carried: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Configurations of which plans over cuts may consist, and what is asked of these.

    Attributes:
        columns: n configurations of the problem.
        most: so many are in the integer program, those that lose least.
        times: [n] what each takes (µs), where plans divide time: then those that take less than all
            that lose less are in the program, too.
        beside: adds what rates keep beside the rows here: to the program, for rows of `columns`,
            the variables x of these, where no plan's score is above the last argument.
        bound: the relaxation's, by prices of types, where it is known.
    """

    problem: Problem
    columns: Columns
    cuts: Cuts
    goal: Goal
    most: int = COLUMNS
    times: Floats | None = None
    beside: Callable[[ProgramBuilder, Ints, Ints, float], None] | None = None
    bound: Bound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan over cuts: configurations, their vGPUs [n, S], and how GPUs are cut.

    No plan's score exceeds `bound`. `columns` is None where no plan better than the one known was
    found. `held` are the GPUs of every cut.
    """

    bound: float
    score: float
    columns: Columns | None = None
    vgpus: Ints | None = None
    gpus: Gpus | None = None
    held: Ints | None = None

    @property
    def counted(self) -> Counted:
        """Configurations of the plan that was found, with their vGPUs."""
        assert self.columns is not None
        assert self.vgpus is not None
        return self.columns, self.vgpus


def offered(cluster: Cluster, max_partitions: int) -> tuple[Cluster, list[str]]:
    """The cluster with as many sizes as are combined, and a line for each class that has more.

    Kept are the largest of those of which as many fit a GPU, then as even a choice of the others as
    there is room for.
    """
    per_class = int(MOST_SEQUENCES ** (1 / max_partitions)) // max(1, len(cluster.gpu_classes))
    notes: list[str] = []
    classes = list(cluster.gpu_classes)
    for number, gpu_class in enumerate(classes):
        listed = sorted(gpu_class.vgpu_percents)
        if len(listed) <= per_class:
            continue
        alike = {max(p for p in listed if 100 // p == 100 // q) for q in listed}
        alike = set(sorted(alike, reverse=True)[:per_class])
        others = [p for p in listed if p not in alike]
        room = per_class - len(alike)
        even = {others[round(at)] for at in np.linspace(0, len(others) - 1, room)}
        kept = tuple(sorted(alike | even))
        cuts = tuple(cut for cut in gpu_class.partitions if set(cut) <= set(kept))
        if gpu_class.partitions and not cuts:
            continue
        classes[number] = replace(gpu_class, vgpu_percents=kept, partitions=cuts)
        text = ", ".join(share_text(p * PER_PERCENT) for p in kept)
        notes.append(f"{gpu_class.name}: of {len(listed)} sizes {text} were combined")
    return replace(cluster, gpu_classes=tuple(classes)), notes


def cuts_of_problem(problem: Problem, cluster: Cluster, watch: Watch) -> Cuts | None:
    """Every way to cut a GPU that nothing can be added to.

    None where there are too many, or the time is over.
    """
    rows: list[Ints] = []
    kinds: list[int] = []
    mixed = np.array([bool(cluster.gpu_classes[c].vgpu_percents) for c, _ in problem.types])
    for number, gpu_class in enumerate(cluster.gpu_classes):
        types = [t for t, (c, _) in enumerate(problem.types) if c == number]
        if not types:
            continue
        found = [[problem.types[t][1] if t == only else 0 for t in types] for only in types]
        if gpu_class.vgpu_percents:  # memory is bound per part, so every cut fits it
            bare = replace(gpu_class, memory_gib=None, taken_gib=None)
            parts = [Part(share=problem.shares[t]) for t in types]
            every = cuts_of(bare, parts, [problem.types[t][1] for t in types], watch)
            if every is None:
                return None
            found = [list(cut) for cut in every]
        for cut in found:
            row = np.zeros(len(problem.types), dtype=np.int64)
            row[types] = cut
            rows.append(row)
            kinds.append(number)
    return Cuts(parts=np.array(rows), kind=np.array(kinds), mixed=mixed)


def no_cuts(watch: Watch) -> str:
    """The note that there are none."""
    reason = "no time is left to cut GPUs" if watch.over() else "too many ways to cut a GPU"
    return f"{reason}: GPUs were cut into equal parts alone"


def unreplaced(problem: Problem, max_partitions: int, optional: Container[int] = ()) -> Columns:
    """Every configuration that no other replaces; models by number may have none.

    Raises:
        InfeasibleError: another model has none.
    """
    feasible = enumerate_columns(problem, max_partitions, optional)
    rows = undominated(problem, feasible, np.arange(len(feasible)))
    return feasible.take(rows)


def search(
    candidates: Candidates, known: float, options: PlanOptions, trace: Trace, watch: Watch
) -> Answer:
    """A plan over cuts above a known score, if one is found, and the bound on all of them.

    The score is minus infinity where no plan is known.
    """
    columns, goal = candidates.columns, candidates.goal
    trace.configurations["with parts"] = len(columns)
    if watch.over() and not np.isfinite(known):
        return Answer(bound=np.inf, score=known)
    bound = candidates.bound or _relaxed(candidates, watch)
    step = step_of(goal.price) if goal.fixed else 0.0  # costs are multiples of it

    def whole(score: float) -> float:
        return -raised(-score, step)

    top = whole(bound.score)
    if watch.over():
        return Answer(bound=max(top, known), score=known)
    least = known + step * (1 - SOLVED)  # of what is better than known
    loss = least_loss(candidates.problem.types_apart(), columns, bound)
    rows = _order(candidates, loss)
    open_rows = rows[loss[rows] < bound.score - least]
    chosen, left_out = open_rows[: candidates.most], open_rows[candidates.most :]
    ceiling = whole(bound.score - float(loss[left_out].min())) if len(left_out) else known
    settled = np.isfinite(known) and top <= known + abs(known) * options.gap
    if settled or (not len(chosen) and candidates.cuts.carried is None):
        return Answer(bound=max(known, min(top, max(known, ceiling))), score=known)
    answer = _integer(candidates, np.sort(chosen), (least, bound.score), options, watch)
    trace.configurations["with parts kept"] = len(chosen)
    proven = whole(answer.bound) if answer.bound > least + abs(least) * SOLVED else known
    most = max(known, min(top, max(proven, ceiling)))
    if answer.columns is None or answer.score <= known + abs(known) * ROUNDING:
        return Answer(bound=most, score=known)
    return replace(answer, bound=max(most, answer.score))


def _order(candidates: Candidates, loss: Floats) -> Ints:
    """Rows by what they lose; where time counts, those first that are on a front of loss and time.

    The first front of a model is what nothing exceeds that takes no longer, the second what nothing
    else does, and so on.
    """
    rows = np.argsort(loss, kind="stable")
    times, model = candidates.times, candidates.columns.model
    if times is None:
        return rows
    front = np.zeros(len(rows), dtype=np.int64)
    for number in np.unique(model):
        ends: list[float] = []  # the least time on every front so far
        for row in rows[model[rows] == number].tolist():
            at = bisect_right(ends, float(times[row]))
            front[row] = at
            ends[at : at + 1] = [float(times[row])]
    return rows[np.argsort(front[rows], kind="stable")]


def _goal_rows(
    build: ProgramBuilder, columns: Columns, goal: Goal, rates: Ints
) -> tuple[Ints, Ints]:
    """Add z and the rows `share` and `floor`; returns these."""
    z = add_level(build, goal)
    share = build.rows("share", len(goal.weight), upper=0.0)
    build.entries(share, z, goal.weight)
    build.entries(share[columns.model], rates, -1.0)
    floor = build.rows("floor", len(goal.weight), upper=-goal.minimum_rps)
    build.entries(floor[columns.model], rates, -1.0)
    return share, floor


def _turns_or_pipelines(
    build: ProgramBuilder,
    columns: Columns,
    rates: Ints,
    takes: tuple[Ints, Floats],
    most_rps: Floats,
    total: float,
) -> None:
    """Add y and the rows `turns` and `pipes`.

    Args:
        build: the program.
        columns: configurations.
        rates: their variables x.
        takes: variables n of cuts, and [cut, model] what each carries.
        most_rps: [models] that pipelines may serve.
        total: GPUs there are.
    """
    models, (gpus, carried) = len(most_rps), takes
    y = build.variables("y", models, upper=1.0, whole=True)
    turns = build.rows("turns", models, upper=0.0)
    build.entries(turns, gpus, carried > 0)
    build.entries(turns, y, -total)
    pipes = build.rows("pipes", models, upper=most_rps)
    build.entries(pipes[columns.model], rates, 1.0)
    build.entries(pipes, y, most_rps)


def _relaxed(candidates: Candidates, watch: Watch) -> Bound:
    """Prices of types, and the bound that follows from them whatever the solver's tolerances."""
    problem, columns = candidates.problem, candidates.columns
    cuts, goal = candidates.cuts, candidates.goal
    used = columns.usage_of_types(len(problem.types))
    build = ProgramBuilder()
    rates = build.variables("x", len(columns))
    gpus = build.variables("n", len(cuts.kind), cost=-goal.price[cuts.kind])
    hold = build.rows("hold", len(problem.types), upper=0.0)
    build.entries(hold, rates[:, None], used)
    build.entries(hold, gpus[:, None], -cuts.parts)
    capacity = build.rows("capacity", len(problem.gpus), upper=problem.gpus)
    build.entries(capacity[cuts.kind], gpus, 1.0)
    _goal_rows(build, columns, goal, rates)
    found = solve_linear(build.build(), watch.left_s())
    price = np.full(len(problem.types), 1.0)  # any prices bound; these where the solver fails
    if found is not None:
        price = np.maximum(found[1][hold], 0.0)
    worth = np.full(len(problem.models), np.inf)
    np.minimum.at(worth, columns.model, used @ price)
    value = np.zeros(len(problem.gpus))
    np.maximum.at(value, cuts.kind, cuts.parts @ price - goal.price[cuts.kind])
    total, asked = float(value @ problem.gpus), float(goal.weight @ worth)
    scale = 1.0 if goal.fixed else 1.0 / asked if asked > 0 else 0.0
    return Bound(
        score=total - asked if goal.fixed else total * scale if scale else np.inf,
        gpu_price=price * scale,
        rate_price=worth * scale,
    )


def _integer(
    candidates: Candidates,
    chosen: Ints,
    within: tuple[float, float],
    options: PlanOptions,
    watch: Watch,
) -> Answer:
    """The integer program over some candidates, for scores above the one known to the ceiling."""
    (known, ceiling), columns = within, candidates.columns.take(chosen)
    problem, cuts, goal = candidates.problem, candidates.cuts, candidates.goal
    column, stage = np.nonzero(np.isfinite(columns.rate_rps))
    kind = columns.types[column, stage]
    # A holder is a cut, for one model where sizes are 1/v and for all of them (-1) else.
    owner = np.where(cuts.mixed[kind], -1, columns.model[column])
    apart = cuts.parts[:, ~cuts.mixed].any(axis=1)
    owners = [(c, -1) for c in np.flatnonzero(~apart)]
    owners += [(c, int(m)) for c in np.flatnonzero(apart) for m in np.unique(owner[owner >= 0])]
    cut, whose = np.array(owners, dtype=np.int64).T
    build = ProgramBuilder()
    room = problem.gpus[problem.type_class[kind]] * problem.type_divisor[kind]
    vgpus = build.variables("g", len(column), upper=room, whole=True)
    rates = build.variables("x", len(columns))
    limit = problem.gpus[cuts.kind[cut]]
    price = goal.price[cuts.kind[cut]]
    gpus = build.variables("n", len(cut), upper=limit, cost=-price, whole=True)
    deliver = build.rows("deliver", len(column), upper=0.0)
    build.entries(deliver, rates[column], 1.0)
    build.entries(deliver, vgpus, -columns.rate_rps[column, stage])
    keys, key = np.unique(np.stack([kind, owner], axis=1), axis=0, return_inverse=True)
    hold = build.rows("hold", len(keys), upper=0.0)
    build.entries(hold[key.reshape(-1)], vgpus, 1.0)
    for number, (t, model) in enumerate(keys.tolist()):
        build.entries(hold[number], gpus, -cuts.parts[cut, t] * (whose == model))
    capacity = build.rows("capacity", len(problem.gpus), upper=problem.gpus)
    build.entries(capacity[cuts.kind[cut]], gpus, 1.0)
    asked = _goal_rows(build, columns, goal, rates)
    if cuts.carried is not None:
        takes = gpus[:, None], cuts.carried
        for rows in asked:
            build.entries(rows, takes[0], -takes[1])
        total = float(problem.gpus.sum())
        _turns_or_pipelines(build, columns, rates, takes, ceiling * goal.weight, total)
    if candidates.beside is not None:
        candidates.beside(build, chosen, rates, ceiling)
    limits = Limits(
        relative_gap=options.gap, nodes=SEARCH_NODES, seconds=watch.left_s(), cutoff=known
    )
    solved = solve_integer(build.build(), limits, options.solver)
    if solved.values is None:
        return Answer(bound=solved.bound, score=known)
    counts = np.zeros(columns.types.shape, dtype=np.int64)
    counts[column, stage] = np.rint(solved.values[vgpus]).astype(np.int64)
    if candidates.beside is not None:  # a configuration that serves nothing keeps nothing
        asked = goal.rates(ceiling)[columns.model]
        counts[solved.values[rates] <= SOLVED * asked] = 0
    counts = trimmed(columns, counts)
    number = np.rint(solved.values[gpus]).astype(np.int64)
    filled = _filled(
        columns, counts, cuts, list(zip(cut.tolist(), whose.tolist(), number.tolist(), strict=True))
    )
    held = np.bincount(cut, number, len(cuts.kind)).astype(np.int64)
    served = models_rps(columns, counts, len(goal.weight))
    if cuts.carried is not None:
        served = served + held @ cuts.carried
    used = np.array([len(filled.get(k, ())) for k in range(len(problem.gpus))])
    score = -float(goal.price @ used) if goal.fixed else float((served / goal.weight).min())
    if np.any(served < goal.asked_rps * (1 - ROUNDING)):
        return Answer(bound=solved.bound, score=known)
    return Answer(
        bound=solved.bound, score=score, columns=columns, vgpus=counts, gpus=filled, held=held
    )


def _filled(
    columns: Columns, counts: Ints, cuts: Cuts, held: Sequence[tuple[int, int, int]]
) -> Gpus:
    """Which part of which GPU is which vGPU: `held` are (cut, model or -1, GPUs)."""
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, stage in np.argwhere(counts > 0).tolist():
        t = int(columns.types[row, stage])
        owner = -1 if cuts.mixed[t] else int(columns.model[row])
        waiting.setdefault((t, owner), []).extend([(row, stage)] * int(counts[row, stage]))
    gpus: Gpus = {}
    for cut, owner, number in held:
        for _ in range(number):
            parts = [
                waiting[t, owner].pop(0)
                for t in np.flatnonzero(cuts.parts[cut]).tolist()
                for _ in range(min(int(cuts.parts[cut, t]), len(waiting.get((t, owner), ()))))
            ]
            if parts:
                gpus.setdefault(int(cuts.kind[cut]), []).append(tuple(parts))
    return gpus


def alike(problem: Problem, counted: Counted, score: float, bound: float) -> Answer:
    """A plan of equal parts, each GPU for one model, as a plan over cuts."""
    columns, vgpus = counted
    cuts = Cuts(
        parts=np.diag(problem.type_divisor),
        kind=problem.type_class,
        mixed=np.zeros(len(problem.types), dtype=np.bool_),
    )
    need: dict[tuple[int, int], int] = {}
    for row, stage in np.argwhere(vgpus > 0).tolist():
        key = (int(columns.types[row, stage]), int(columns.model[row]))
        need[key] = need.get(key, 0) + int(vgpus[row, stage])
    held = [(t, m, -(-count // problem.types[t][1])) for (t, m), count in need.items()]
    gpus = _filled(columns, vgpus, cuts, held)
    return Answer(bound=bound, score=score, columns=columns, vgpus=vgpus, gpus=gpus)
