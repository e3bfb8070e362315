"""Entries planned.

A rule or the exact way for every model, the objective, pools on GPUs, pipelines. Here: which rule,
rates under throughput, what is paid, where pools lie. Not here: groups (`groups`, `search`,
`similar`), pools of groups (`pooling`).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.engine.cover import raised
from flows.planning.engine.level import halved
from flows.planning.entries.groups import Group, GroupingProblem, items_of
from flows.planning.entries.phases import fitted
from flows.planning.entries.pooling import Pooled, pooled
from flows.planning.entries.search import cheapest
from flows.planning.entries.shadow import (
    Shadow,
    places_in_force,
    shadow_of,
    shadow_pipelines,
    to_place,
    with_shadow_entries,
)
from flows.planning.entries.similar import merged, realigned, similar_groups
from flows.planning.entries.tables import EVEN, ModelTable, in_periods_of, read_tables
from flows.planning.inputs import gpu_price, stage_memory
from flows.planning.placement import (
    PoolToPlace,
    ShareToPlace,
    gpus_held,
    place,
    place_shares,
    whole_gpus,
)
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedCut,
    PlannedPipeline,
    PlannedStage,
    PlanOptions,
    Trace,
)
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import BEFORE
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import PlacementRun
from triton_backend.contract.shares import PER_PERCENT, WHOLE_GPU
from triton_backend.contract.units import us_to_ms
from triton_backend.contract.workload import MARGIN

_CLASS, _ALL = "gpu_classes.", "cluster"
_WEIGHTINGS, _DEARER = 16, 1.2  # tries to use less of a class that has too few GPUs
_WASTES = (0.1, 0.3, 1.0)  # tries to have shares that fill GPUs, where there is one class
_CLOSE = 1e-3  # relative, of the search for a throughput
_TRACE = 1e-6  # of the rates: a level at which no stage lacks vGPUs or links

Runs = tuple[PlacementRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One model: its pools, what they cost, and a bound over all plans of pools (None: by rule).

    Attributes:
        shadow: its shadow pool, where one is asked for.
        runs: of every pool once it is placed; `shadow_runs` of the shadow pool.
    """

    table: ModelTable
    pooled: Pooled
    bound: float | None
    notes: tuple[str, ...] = ()
    shadow: Shadow | None = None
    runs: tuple[Runs, ...] = ()
    shadow_runs: Runs = ()


Placed = tuple[list[Solved], Mapping[str, int]]
"""Models with the runs of their pools, and whole GPUs by class."""

Rule = Callable[[ModelTable, Inputs], Solved]


# Rules


def exactly(table: ModelTable, inputs: Inputs) -> Solved:
    """The cheapest pools that are found, and what any cost at least."""
    field = GroupingProblem(table, items_of(table))
    require_reachable(field)
    step, count = _step_of(table, inputs.options), len(field.items)
    best, bound = cheapest(
        field,
        inputs.watch,
        gap=inputs.options.gap,
        step=step,
        prove=inputs.prove,
        wanted=inputs.most,
    )
    if best.cost < bound * (1 - ROUNDING):
        bound = raised(float(field.parts().min(axis=0).sum()), step)
    return Solved(
        table=table,
        pooled=best,
        bound=min(bound, best.cost),
        notes=(f"{table.name}: {count} entries",),
    )


def _step_of(table: ModelTable, options: PlanOptions) -> float:
    """The step of costs, a percent of a GPU where GPUs are counted; 0: any."""
    if options.objective not in ("share", "gpus", "throughput"):
        return 0.0
    unit = 1.0 if options.objective == "share" else PER_PERCENT / WHOLE_GPU
    parts = np.array([size.price / unit for size in table.sizes])
    whole = np.rint(parts).astype(np.int64)
    return unit * int(np.gcd.reduce(whole)) if np.abs(parts - whole).max() < ROUNDING else 0.0


def by_rule(table: ModelTable, field: GroupingProblem, groups: Sequence[Group]) -> Solved:
    """Groups as a plan whose equal stages stay apart, as the papers' systems run them.

    It has no bound.
    """
    note = f"{table.name}: {len(table.entries)} entries in {len(field.items)} fragments"
    return Solved(
        table=table,
        pooled=pooled(field, groups, apart=True),
        bound=None,
        notes=(note,),
    )


def graft(table: ModelTable, inputs: Inputs) -> Solved:
    """Merged, grouped by similarity, re-aligned (sections 4.1 to 4.3)."""
    options = inputs.options
    field = fragments(table, options, options.own["merge_threshold"])
    alike = similar_groups(
        field.items,
        size=options.own["group_size"],
        weights=_weights(options.own["factor_weights"]),
        distance=options.own["edges"] == "distance",
        seed=options.own["seed"],
    )
    return by_rule(table, field, [plan for group in alike for plan in realigned(field, group)])


def fragments(
    table: ModelTable, options: PlanOptions, threshold: float, *, chains: bool = True
) -> GroupingProblem:
    """Entries of a model, uniform ones merged where their spare rate is above a threshold.

    Args:
        table: the model's entries and options.
        options: `budget_rule` says whose budget a group keeps.
        threshold: `similar.merged` has it; -infinity merges all that are uniform.
        chains: whether an entry may have an alignment stage.

    Raises:
        InfeasibleError: an entry cannot be served by itself.
    """
    apart = GroupingProblem(table, items_of(table))
    require_reachable(apart, chains=chains)
    common, items = options.own["budget_rule"] == "group", merged(table, threshold)
    same = items == apart.items and not common
    return apart if same else GroupingProblem(table, items, group_budget=common)


def _weights(text: str) -> tuple[float, float, float]:
    try:
        start, budget, rate = (float(part) for part in text.split(","))
    except ValueError as error:
        reason = f"{text!r} is not three numbers: of start, budget and rate"
        raise InputError("option factor_weights", reason) from error
    if min(start, budget, rate) < 0:
        raise InputError("option factor_weights", f"{text!r}: one is negative")
    return (start, budget, rate)


def require_reachable(field: GroupingProblem, *, chains: bool = True) -> None:
    """Check that every entry can be served by itself.

    Raises:
        InfeasibleError: one cannot; with its budget and its least latency.
    """
    for number, item in enumerate(field.items):
        block = int(field.block[number])
        group = field.best([number]) if chains else field.at([number], block)
        if group.root >= 0:
            continue
        table, entry = field.table, field.table.entries[item.members[0]]
        where = f"workload model {table.name!r}"
        where += f", entry {entry.name}" if table.listed else ""
        least = field.least_time(number)
        limit = table.limits_us[item.members[0]]
        if math.isinf(least):
            raise InfeasibleError(where, f"blocks from {block} on fit no vGPU's memory")
        if least > limit:
            reason = (
                f"budget less margin allows {us_to_ms(limit):.3f} ms of"
                f" {us_to_ms(entry.budget_us):.3f} ms,"
                f" its least latency is {us_to_ms(round(least)):.3f} ms"
            )
        else:
            reason = (
                f"{entry.rate_rps:g} requests/s need more than {table.most} vGPUs within"
                f" {us_to_ms(limit):.3f} ms (max_instances)"
            )
        raise InfeasibleError(where, reason)


def in_any_phase(rule: Rule, table: ModelTable, inputs: Inputs) -> Solved:
    """A model by a rule; entries of several rates at the period at which they cost least.

    Then every pool has the vGPUs that its own clients need. Their bound is that of plans by rates
    alone, which hold no more than plans for any phases.
    """
    if not table.references_us:
        return rule(table, inputs)
    by_rates = rule(table, replace(inputs, watch=inputs.watch.part(BEFORE)))
    found: list[Solved] = []
    failed: InfeasibleError | None = None
    for number, period_us in enumerate(table.references_us):
        if found and inputs.watch.over():
            break
        part = inputs.watch.part(1 / (len(table.references_us) - number))
        try:
            solved = rule(in_periods_of(table, period_us), replace(inputs, prove=False, watch=part))
            found.append(replace(solved, pooled=fitted(solved.pooled, table)))
        except InfeasibleError as error:
            failed = error
    if not found:
        assert failed is not None
        raise failed
    best = min(found, key=lambda solved: solved.pooled.cost)
    note = f"{table.name}: entries of several rates, bounded by rates alone"
    return replace(
        best,
        bound=by_rates.bound,
        notes=(*best.notes, note) if by_rates.bound is not None else best.notes,
    )


# All models


def plan(rule: Rule, inputs: Inputs) -> Outcome:
    """Every model by a rule, placed.

    Raises:
        InputError: the inputs or the options do not fit together.
        InfeasibleError: an entry cannot keep its budget, or the cluster is too small.
    """
    options, watch = inputs.options, Stopwatch()
    if options.pinned_models or options.minimum_rps:
        raise InputError("options", "entries are planned as a whole, at the rates they list")
    level, most = 1.0, math.inf
    if options.objective == "throughput":
        level, most, placed = _highest(rule, inputs)
        value, bound = level, -most
    else:
        placed, bound = _within(rule, inputs, 1.0)
        value = _paid(inputs, placed)
    models, _ = placed
    trace = Trace(status="optimal" if rule is exactly else "heuristic")
    trace.notes = [note for solved in models for note in solved.notes]
    space = "pools" if rule is exactly else "its own rule"
    trace.details["space"] = space
    trace.configurations["pools"] = sum(len(solved.pooled.pools) for solved in models)
    trace.seconds["solve"] = watch.seconds()
    score = value if options.objective == "throughput" else -value
    limit = most if options.objective == "throughput" else -min(bound, value)
    objective = objective_of(options.objective, score, limit)
    if rule is exactly and objective.gap > options.gap:
        trace.status = "feasible"
    pipelines = _pipelines(inputs, models)
    demands = zip(inputs.workload.models, (solved.shadow for solved in models), strict=True)
    return Outcome(
        pipelines=tuple(pipelines),
        promised_rps=tuple(
            math.fsum(p.rate_rps for p in pipelines if p.model == number)
            for number in range(len(models))
        ),
        lines=tuple(
            d if shadow is None else with_shadow_entries(d, shadow) for d, shadow in demands
        )
        if any(solved.shadow for solved in models)
        else None,
        objective=objective,
        trace=trace,
        space=space,
        settled={
            "billing": billing_of(options),
            "phases": options.own["phases"],
            "headroom": options.own["headroom"],
        },
        waits=MARGIN,
    )


def billing_of(options: PlanOptions) -> str:
    """The paid part of a GPU.

    Raises:
        InputError: entries cannot be billed so.
    """
    asked = str(options.own["billing"])
    if asked == "occupancy":
        raise InputError(
            "option billing", "occupancy is for models and applications without entries"
        )
    return {"auto": "share", "paid": "gpu"}.get(asked, asked)


def _whole_gpus(options: PlanOptions) -> bool:
    return options.objective == "gpus" or (
        options.objective in ("cost", "power") and billing_of(options) == "gpu"
    )


def _within(
    rule: Rule, inputs: Inputs, level: float, tables: Sequence[ModelTable] = ()
) -> tuple[Placed, float]:
    """A plan on the cluster's GPUs, and what any plan costs at least.

    Classes that have too few GPUs are made dearer until the plan fits. Where there is one, plans of
    every rule pay for what their shares leave of a GPU (`read_tables`). The bound is that without.

    Args:
        rule: makes the plan of a model.
        inputs: of all models.
        level: multiplies their rates.
        tables: of the models at another level, if there are any.

    Raises:
        InfeasibleError: no plan fits, or the time is over before one does.
    """
    weights: dict[str, float] = {}
    wastes = iter(_WASTES)
    waste, bound = 0.0, 0.0
    for attempt in range(_WEIGHTINGS):
        if attempt and inputs.watch.over():
            raise inputs.watch.no_plan()
        tables = read_tables(inputs, level, weights, waste, tables)
        models = [
            replace(
                in_any_phase(rule, table, inputs),
                shadow=shadow_of(table, demand.slo_us, inputs.options),
            )
            for table, demand in zip(tables, inputs.workload.models, strict=True)
        ]
        if attempt == 0:
            bound = _bound(inputs, models)
        try:
            placed = _placed(inputs, models)
        except InfeasibleError as error:
            most, inputs = inputs.most, replace(inputs, most=None)
            held = math.fsum(model.pooled.cost for model in models)
            if most is not None and held <= most:  # a cheaper plan may fit
                continue
            used = {s.gpu_class for t in tables for s in t.sizes}
            waste = next(wastes, 0.0) if len(used) == 1 else 0.0
            if attempt == _WEIGHTINGS - 1 or (len(used) == 1 and not waste):
                raise (error if len(used) == 1 else _last_of_all(error)) from None
            if not waste:
                gpu_class = error.where.removeprefix(_CLASS)
                weights[gpu_class] = weights.get(gpu_class, 1.0) * _DEARER
            continue
        if any(model.bound is None for model in models):
            bound = _paid(inputs, placed)
        return placed, bound
    raise AssertionError  # pragma: no cover - the last attempt raises


def _bound(inputs: Inputs, models: Sequence[Solved]) -> float:
    """The least that any plan costs; of rules without a bound, the cost of their own."""
    bound = math.fsum(m.pooled.cost if m.bound is None else m.bound for m in models)
    bound += math.fsum(m.shadow.price for m in models if m.shadow is not None)
    if inputs.options.objective == "gpus":
        bound = raised(bound, 1.0)
    proven = all(m.bound is not None for m in models)
    if inputs.most is not None and bound > inputs.most and proven:
        raise InfeasibleError(_ALL, f"a plan holds {bound:g} GPUs or more")
    return bound


def _last_of_all(error: InfeasibleError) -> InfeasibleError:
    """The complaint about one class, of the last plan; others were short of other classes."""
    tried = f"the last of {_WEIGHTINGS} plans with other weights of classes"
    return InfeasibleError(error.where, f"{tried} {error.reason}")


def _highest(rule: Rule, inputs: Inputs) -> tuple[float, float, Placed]:
    """The largest multiple of all rates that is found to fit, one that none exceeds, and the plan.

    At each multiple any plan that fits ends the search for one, and so does a bound above all GPUs.
    """
    gpus = sum(inputs.cluster.gpus(c.name) for c in inputs.cluster.gpu_classes)
    # Clients of any phase need, beyond their rates, the less per request the faster they send.
    by_rates = inputs.asking(own={**inputs.options.own, "phases": EVEN})
    tables = read_tables(by_rates, _TRACE)
    needed = math.fsum(map(_least_work, tables))
    inputs = replace(inputs, prove=False)  # only fitting counts
    if len(inputs.workload.models) == 1:
        inputs = replace(inputs, most=float(gpus))
    placed: dict[float, Placed] = {}
    beyond = [gpus / needed]

    def fits(level: float) -> bool:
        try:
            placed[level] = _within(rule, inputs, level, tables)[0]
        except InfeasibleError as error:
            if error.where == _ALL:  # no plan holds as little as is there
                beyond.append(level)
        return level in placed

    low = above = beyond[0]
    if not fits(above):
        watch, low = inputs.watch, 0.0
        if fits(_TRACE * above):  # else halving would go on to nothing
            low, _ = halved(lambda at: not watch.over() and fits(at), low, above, close=_CLOSE)
    if low not in placed:
        none = "its GPUs serve not all entries at once, at any rate"
        raise inputs.watch.no_plan() if inputs.watch.over() else InfeasibleError(_ALL, none)
    return low, max(min(beyond), low), placed[low]


def _least_work(table: ModelTable) -> float:
    """GPUs that the rates of a model keep busy at least, whatever the plan and the level."""
    field = GroupingProblem(table, items_of(table))
    require_reachable(field)
    many = np.full(len(field.items), round(1 / _TRACE**2))  # no part of a vGPU counts
    return float(field.parts(many).min(axis=0).sum()) / _TRACE


def _paid(inputs: Inputs, placed: Placed) -> float:
    """The objective's value."""
    (models, gpus), options = placed, inputs.options
    if _whole_gpus(options):
        return math.fsum(
            gpu_price(inputs.cluster.gpu_class(name), options.objective) * count
            for name, count in gpus.items()
        )
    held = [
        (solved.table.sizes[number], vgpus)
        for solved in models
        for (_, _, number, _), vgpus in solved.pooled.pools
    ]
    shadows = (solved.shadow for solved in models)
    held += [(s.table.sizes[s.size], s.vgpus) for s in shadows if s is not None]
    return math.fsum(
        gpu_price(inputs.cluster.gpu_class(size.gpu_class), options.objective)
        * size.share
        / WHOLE_GPU
        * vgpus
        for size, vgpus in held
    )


# Places and pipelines


def _placed(inputs: Inputs, models: list[Solved]) -> Placed:
    """Models with the runs of every pool, and whole GPUs by class.

    Parts of percents wherever they fit, equal parts of one model by divisors. What the plan in
    force has goes on where it is, unless whole GPUs are paid.

    Raises:
        InfeasibleError: a class has too few GPUs; it is named.
    """
    cluster, options = inputs.cluster, inputs.options
    keeps = options.previous is not None and not _whole_gpus(options)
    in_force = places_in_force(options.previous, cluster) if keeps and options.previous else {}
    wanted = [
        to_place(solved.table, (number, vgpus), [(first, last)], batch, cluster, in_force)
        for solved in models
        for (first, last, number, batch), vgpus in solved.pooled.pools
    ]
    shadows = [solved.shadow for solved in models if solved.shadow is not None]
    wanted += [to_place(s.table, (s.size, s.vgpus), s.tails, 1, cluster, in_force) for s in shadows]
    shares = [one for one in wanted if isinstance(one, ShareToPlace)]
    parts = [one for one in wanted if isinstance(one, PoolToPlace)]
    gpus = whole_gpus((p.gpu_class, p.model, p.divisor, p.vgpus) for p in parts)
    for name, count in gpus.items():
        if count > cluster.gpus(name):
            reason = f"needs {count} GPUs or more, the cluster has {cluster.gpus(name)}"
            raise InfeasibleError(_CLASS + name, reason)
    try:
        found = place_shares(cluster, shares)
    except InputError as error:
        raise InfeasibleError(_CLASS + error.where.removeprefix("class "), error.reason) from error
    for name in (c.name for c in cluster.gpu_classes):
        both = zip(shares, found, strict=True)
        gpus[name] += len(gpus_held(runs for share, runs in both if share.gpu_class == name))
    of_shares, of_parts = iter(found), iter(place(cluster, parts) if parts else [])
    each = (next(of_parts if isinstance(one, PoolToPlace) else of_shares) for one in wanted)
    runs = [tuple(next(each) for _ in solved.pooled.pools) for solved in models]
    placed = [
        replace(solved, runs=own, shadow_runs=() if solved.shadow is None else next(each))
        for solved, own in zip(models, runs, strict=True)
    ]
    return placed, gpus


def _pipelines(inputs: Inputs, models: list[Solved]) -> list[PlannedPipeline]:
    found: list[PlannedPipeline] = []
    first = 0
    for solved in models:
        table, pools, runs = solved.table, solved.pooled.pools, solved.runs
        chains = solved.pooled.chains
        boarding = Counter(p for chain in chains for p in chain.pools for _ in chain.item.members)
        for chain in chains:
            batch = chain.steps[0].batch
            stages = tuple(
                _stage(
                    table,
                    pools[p],
                    runs[p],
                    first + p,
                    batch,
                    joint=boarding[p] > 1 or pools[p][0][3] != batch,
                )
                for p in chain.pools
            )
            found += [
                PlannedPipeline(
                    model=table.number,
                    entry=table.entries[member].name if table.listed else None,
                    batch=batch,
                    rate_rps=table.entries[member].rate_rps,
                    stages=stages,
                )
                for member in chain.item.members
            ]
        first += len(pools)
    demands = zip(inputs.workload.models, models, strict=True)
    for number, (demand, solved) in enumerate(demands, start=first):
        if solved.shadow is not None:
            found += shadow_pipelines(demand, solved.shadow, number, solved.shadow_runs)
    return found


def _stage(
    table: ModelTable,
    pool: tuple[tuple[int, int, int, int], int],
    runs: Runs,
    shared: int,
    planned: int,
    *,
    joint: bool,
) -> PlannedStage:
    (first, last, number, batch), vgpus = pool
    size = table.sizes[number]
    latency = size.table.stage_latency_us((first, last))[:batch]
    return PlannedStage(
        blocks=(first, last),
        gpu_class=size.gpu_class,
        divisor=1,
        vgpus=vgpus,
        shared=shared,
        cut=PlannedCut(share=size.share, placement=runs),
        latency_us_by_batch=tuple(int(v) for v in latency),
        batch=batch if batch != planned else None,
        boards=joint,
        memory=stage_memory(table.profile, (first, last)),
    )
