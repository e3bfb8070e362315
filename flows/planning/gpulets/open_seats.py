"""The planner `gpulets-open`.

Parts that models share in turns beside parts that stages of pipelines have alone. A part of a GPU
is *closed*, with seats of models that take turns there (`parts`), or *open*: one vGPU for any stage
of any pipeline. A GPU may give 60 % to a pipeline's stage and 40 % to two small models in turns. A
model either takes turns or has pipelines, because a model has one dispatch policy.

Sets: models m, types t of open seats (class and share), patterns c of a class k(c) that carry a_cm
requests/s of m in turns and have s_ct open seats of type t, configurations f of model m(f) whose
stage i is of type t(f, i) (`pool.columns`).

    n_c whole   GPUs that follow pattern c          y_m 0 or 1   m takes turns
    g_fi whole  vGPUs of stage i                    x_f >= 0     rate of configuration f
    z           the lowest rate / weight

    maximise    z
    demand_m    w_m z <= sum_c a_cm n_c + sum_{f of m} x_f
    deliver_fi  x_f <= rate_fi g_fi
    hold_t      sum_{f, i of type t} g_fi <= sum_c s_ct n_c
    gpus_k      sum_{c of k} n_c <= N_k
    turns_m     sum_{c with m} n_c <= N y_m
    pipes_m     sum_{f of m} x_f <= (bound) w_m (1 - y_m)

To the pricer (`patterns`) an open seat of type t is one more model, which runs on that share alone
for so long that no other model could take a turn beside it: it is always alone on its part, and its
rate is 1. So column generation prices all patterns of both kinds exactly. Prices l of demand and p
of open seats, with l_m no more than the least that a configuration of m pays for its seats, prove
by weak duality

    z <= sum_k N_k V_k(l, p) / sum_m w_m l_m

whatever patterns were generated. Patterns and configurations whose use costs more than what is open
between that and the best plan known are left out, the integer program settles the rest. Plans of
`gpulets` and of `pool` are known before, so that this is never below either.

Where interference is planned with, an open seat presses as hard as any stage may and bears the most
that any neighbour may press: its latencies contain that much, which its pool states as felt.

Here: that program and what its answer looks like. Not here: patterns, configurations, and planning
without the other kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.gpulets.master import Chosen, Key, Master
from flows.planning.gpulets.patterns import DualPrices, Pattern
from flows.planning.gpulets.plan import POLICY, places, seat_pipelines, slot_runs
from flows.planning.gpulets.plan import plan as plan_turns
from flows.planning.gpulets.tables import Cell, ClassTable, Tables, read_tables
from flows.planning.inputs import EVERY, Problem, build_problem, stage_memory
from flows.planning.placement import joined
from flows.planning.pool import unequal
from flows.planning.pool.bound import Bound, least_loss, undominated
from flows.planning.pool.columns import Columns, enumerate_columns, stacked
from flows.planning.pool.integer import delivered_rps, trimmed
from flows.planning.pool.plan import pipelines_of
from flows.planning.pool.plan import plan as plan_pipelines
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedCut,
    PlannedPipeline,
    PlannedStage,
    PlanOptions,
    Trace,
)
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, solve_integer, solve_linear
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import (
    DEFAULT_POLICY,
    Objective,
    PlacementRun,
    PoolInterference,
    SeatInterference,
)
from triton_backend.contract.shares import SOLO, WHOLE_GPU, share_text

SPACE = "gpu-patterns-and-pipelines"
TURN_US = 1_000_000  # of an open seat: its rate is then 1
ROUNDS = 300  # of column generation
MOST_PATTERNS = 2_000  # of the integer program
MOST_COLUMNS = 160
MOST_NODES = 2_000
_CLOSE = 1e-9
_BETTER = 1e-9
_BEFORE = 0.25  # of the time that is left: what planning with one kind alone may take, each


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPartType:
    """A type of open seats.

    Attributes:
        gpu_class: its number.
        pressure: that it presses at most.
        felt: that neighbours press on it at most; 0 where there can be none.
        inflation: of factors beside neighbours.
    """

    gpu_class: int
    share: int
    pressure: float = 0.0
    felt: float = 0.0
    inflation: float = 1.0

    def factor(self, susceptibility: Floats | float) -> Floats:
        """The parts of a stage's latency."""
        if not self.felt:
            return np.ones_like(susceptibility, dtype=np.float64)
        return np.maximum(1.0, np.asarray(susceptibility) + self.felt) * self.inflation


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSeatProblem:
    """Patterns with open seats, and the configurations that may take them.

    Attributes:
        seats: the types, as in `problem.types`; to the patterns they are the models after the real
            ones.
        priced: [model or type] what the pricer must multiply prices with: beside neighbours it
            takes an open seat for slower.
    """

    weights: Floats
    master: Master
    seats: tuple[OpenPartType, ...]
    problem: Problem
    columns: Columns
    priced: Floats

    @property
    def models(self) -> int:
        """Real ones."""
        return len(self.weights)

    def usage(self, columns: Columns) -> Floats:
        """[configuration, type] open seats per request/s."""
        used = np.zeros((len(columns), len(self.seats)))
        row, stage = np.nonzero(np.isfinite(columns.rate_rps))
        kind = columns.types[row, stage]
        np.add.at(used, (row, kind), 1.0 / columns.rate_rps[row, stage])
        return used

    def open_of(self, patterns: list[Pattern]) -> Floats:
        """[pattern, type] open seats."""
        found = np.zeros((len(patterns), len(self.seats)))
        for at, pattern in enumerate(patterns):
            if not pattern.rates_rps.any():
                continue  # it does not work
            own = next(p for p in self.master.patterns if p.number == pattern.gpu_class)
            for share, row in pattern.parts:
                first = int(own.options[share].model[row, 0])
                if first >= self.models:
                    found[at, first - self.models] += 1
        return found

    def carried(self, patterns: list[Pattern]) -> Floats:
        """[pattern, model] requests/s in turns."""
        return np.array([p.rates_rps[: self.models] for p in patterns])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSeatPlan:
    """A plan of both kinds.

    Patterns with their GPUs, configurations and the vGPUs of their stages [n, S].
    """

    score: float
    chosen: Chosen
    columns: Columns
    vgpus: Ints


def plan(inputs: Inputs, options: PlanOptions) -> Outcome:
    """The best counts of patterns and pipelines, with a bound over all of both.

    Raises:
        InputError: inputs do not fit together; a class is not cut into percents.
        InfeasibleError: a model has no plan of either kind, or no plan serves every model.
    """
    for gpu_class in inputs.cluster.gpu_classes:
        if not gpu_class.vgpu_percents:
            where = f"gpu_classes.{gpu_class.name}.vgpu_percents"
            raise InputError(where, "is missing; gpulets-open cuts GPUs into percents")
    if options.minimum_rps:
        raise InputError("option minimum_rps", "gpulets-open plans weights, no least rates")
    trace = Trace()
    both = read(inputs, options, trace)
    alone = _of_one_kind(inputs, options, both, trace)
    known = max((o.objective.value for o in alone), default=0.0)
    bound, mixed = _search(both, known, inputs, options, trace)
    best = max(alone, key=lambda o: o.objective.value, default=None)
    score = known if mixed is None else mixed.score
    if mixed is None and best is None:
        reason = (
            "no plan found in which its GPUs serve every model; that there is none is not proven"
        )
        raise InfeasibleError("cluster", reason)
    bound = max(bound, score)
    settled = bound - score <= options.gap * score + 1e-12
    trace.status = "optimal" if settled else "gap left"
    objective = objective_of("throughput", score, bound)
    if mixed is not None:
        return _outcome(both, inputs, mixed, objective, trace)
    assert best is not None  # one of the two is there
    return replace(best, objective=objective, trace=trace)


def read(inputs: Inputs, options: PlanOptions, trace: Trace) -> OpenSeatProblem:
    """Both kinds as arrays.

    Raises:
        InfeasibleError: a model has neither a turn nor a pipeline within its SLO.
    """
    tables = read_tables(inputs, options, reachable=False)
    cluster, notes = unequal.offered(inputs.cluster, options.max_partitions)
    trace.notes += notes
    problem = build_problem(
        inputs.profiles, cluster, inputs.workload, _of_pool(options), percents=EVERY
    )
    seats = tuple(
        _seat(tables, number, share)
        for (number, _), share in zip(problem.types, problem.shares, strict=True)
    )
    problem = _slowed(inputs, problem, seats)
    if any(seat.felt for seat in seats):
        trace.notes.append("open seats are planned for the most that neighbours may press")
    tables = _with_open(inputs, tables, seats)
    priced = np.concatenate([np.ones(len(problem.models)), [seat.inflation for seat in seats]])
    master = Master(tables)
    return OpenSeatProblem(
        weights=np.array([d.normaliser("throughput") for d in inputs.workload.models]),
        master=master,
        seats=seats,
        problem=problem,
        columns=_columns(master, problem, options.max_partitions),
        priced=priced,
    )


def _of_pool(options: PlanOptions) -> PlanOptions:
    """The same for pipelines: they wait for company and for GPUs, not for turns."""
    margin = options.own["pipeline_margin"]
    return replace(options.for_planner("pool"), slo_margin=margin, slo_margins={})


def _of_gpulets(options: PlanOptions) -> PlanOptions:
    """The same for turns alone."""
    own = {name: value for name, value in options.own.items() if name != "pipeline_margin"}
    return replace(options.for_planner("gpulets"), own=own)


def _seat(tables: Tables, gpu_class: int, share: int) -> OpenPartType:
    """Pressure and sensitivity of an open seat of a share."""
    table = tables.classes[gpu_class]
    if not table.interference:
        return OpenPartType(gpu_class=gpu_class, share=share)
    most = {
        other: max((float(cell.pressure.max()) for cell in cells.values()), default=0.0)
        for other, cells in table.cells.items()
    }
    felt = 0.0
    for cut in table.partitions:
        if share in cut:
            felt = max(felt, math.fsum(most[other] for other in cut) - most[share])
    beside = any(share in cut and len(cut) > 1 for cut in table.partitions)
    return OpenPartType(
        gpu_class=gpu_class,
        share=share,
        pressure=most[share],
        felt=max(felt, _CLOSE) if beside else 0.0,
        inflation=table.inflation if beside else 1.0,
    )


def _slowed(inputs: Inputs, problem: Problem, seats: tuple[OpenPartType, ...]) -> Problem:
    """Latencies as they are on open seats."""
    if not any(seat.felt for seat in seats):
        return problem
    models = list(problem.models)
    for number, model in enumerate(models):
        latency = model.latency_us.copy()
        for row, kind in enumerate(model.types.tolist()):
            factor = seats[kind].factor(_susceptibility(inputs, model.name, seats[kind]))
            count = min(len(factor), latency.shape[-1])
            slowed = np.ceil(latency[row, ..., :count] * factor[:count] - 1e-6)
            latency[row, ..., :count] = slowed
        models[number] = replace(model, latency_us=latency)
    return replace(problem, models=tuple(models))


def _susceptibility(inputs: Inputs, model: str, seat: OpenPartType) -> Floats:
    """[batch] of a model on open seats of a type."""
    name = inputs.cluster.gpu_classes[seat.gpu_class].name
    used = inputs.profiles[model].utilisation(name, seat.share)
    known = inputs.interference[name]
    if used is None:
        where = f"profile of {model!r} on {share_text(seat.share)} of {name}"
        raise InputError(where, "has no utilisation, which interference needs (or plan without)")
    return np.asarray(known.susceptibility(*used))


def _with_open(inputs: Inputs, tables: Tables, seats: tuple[OpenPartType, ...]) -> Tables:
    """The tables with a model more for every type of open seat."""
    models = len(tables.models)
    cells = [{s: dict(own) for s, own in table.cells.items()} for table in tables.classes]
    limits = list(tables.limit_us)
    static = list(tables.static_gib)
    for number, seat in enumerate(seats):
        table: ClassTable = tables.classes[seat.gpu_class]
        one = np.ones(1, dtype=np.int64)
        # Feasible just as long as neighbours press no more than it bears.
        cells[seat.gpu_class][seat.share][models + number] = Cell(
            batches=one,
            latency_us=TURN_US * one,
            turn_us=TURN_US * one,
            susceptibility=np.array([1.0 - seat.felt]) if seat.felt else np.zeros(1),
            pressure=np.array([seat.pressure]),
        )
        limits.append(2.0 * math.ceil(TURN_US * seat.inflation))
        room = 0.0
        if np.isfinite(table.memory_gib):  # a stage may fill its part (`inputs`)
            room = max(0.0, table.memory_gib * seat.share / WHOLE_GPU - table.process_gib)
        static.append(room)
    names = [
        f"open {share_text(s.share)} of {inputs.cluster.gpu_classes[s.gpu_class].name}"
        for s in seats
    ]
    return replace(
        tables,
        models=(*tables.models, *names),
        classes=tuple(
            replace(table, cells=own) for table, own in zip(tables.classes, cells, strict=True)
        ),
        limit_us=np.array(limits),
        static_gib=np.array(static),
        dynamic_gib=np.concatenate([tables.dynamic_gib, np.zeros(len(seats))]),
    )


def _columns(master: Master, problem: Problem, max_partitions: int) -> Columns:
    """Configurations of all models that none replaces; a model that can take turns needs none."""
    in_turns = {
        int(m)
        for own in master.patterns
        for options in own.options.values()
        for m in np.unique(options.model)
    }
    parts: list[tuple[Columns, Ints]] = []
    for number, model in enumerate(problem.models):
        try:
            own = enumerate_columns(replace(problem, models=(model,)), max_partitions)
        except InfeasibleError:
            if number not in in_turns:
                raise
            continue
        own = replace(own, model=np.full(len(own), number))
        parts.append((own, np.zeros(own.types.shape, dtype=np.int64)))
    if not parts:
        empty = np.zeros((0, 1), dtype=np.int64)
        return Columns(
            model=empty[:, 0],
            batch=empty[:, 0],
            stages=empty[:, 0],
            types=empty,
            cuts=np.zeros((0, 2), dtype=np.int64),
            rate_rps=empty.astype(np.float64),
            usage=np.zeros((0, len(problem.gpus))),
            enumerated=0,
        )
    found, _ = stacked(parts)
    return found.take(undominated(problem, found, np.arange(len(found))))


def _of_one_kind(
    inputs: Inputs, options: PlanOptions, both: OpenSeatProblem, trace: Trace
) -> list[Outcome]:
    """Plans of turns alone and of pipelines alone, where there are any."""
    found: list[Outcome] = []
    bare = replace(options, previous=None)
    part = replace(inputs, watch=inputs.watch.part(_BEFORE))
    try:
        found.append(plan_turns(part, _of_gpulets(bare)))
    except InfeasibleError as error:
        trace.notes.append(f"turns alone: {error}")
    if any(seat.felt for seat in both.seats):
        return found  # the planner of pipelines knows of no interference
    part = replace(inputs, watch=inputs.watch.part(_BEFORE))
    try:
        found.append(plan_pipelines(part, _of_pool(bare)))
    except InfeasibleError as error:
        trace.notes.append(f"pipelines alone: {error}")
    return found


# The program


def _search(
    both: OpenSeatProblem, known: float, inputs: Inputs, options: PlanOptions, trace: Trace
) -> tuple[float, OpenSeatPlan | None]:
    """The bound, and a plan better than what is known where one is found."""
    patterns: dict[Key, Pattern] = {}
    bound, worth, prices = _relaxed(both, patterns, inputs)
    trace.configurations["patterns"] = len(patterns)
    trace.configurations["pipelines"] = len(both.columns)
    if bound <= known * (1 + options.gap):
        return bound, None
    kept, rows, left_out = _screened(both, patterns, (bound, known), worth, prices)
    trace.configurations["patterns kept"] = len(kept)
    trace.configurations["pipelines kept"] = len(rows)
    if left_out > known:
        trace.notes.append("more patterns or pipelines than the integer program takes")
    columns = both.columns.take(rows)
    program, where = _program(both, kept, columns, bound)
    limits = Limits(
        relative_gap=options.gap / 2,
        nodes=MOST_NODES,
        seconds=inputs.watch.left_s(),
        cutoff=known,
    )
    solved = solve_integer(program, limits, options.solver)
    bound = min(bound, max(solved.bound, left_out, known))
    if solved.values is None:
        return bound, None
    counts = np.rint(solved.values[where["n"]]).astype(np.int64)
    column, stage = np.nonzero(np.isfinite(columns.rate_rps))
    vgpus = np.zeros(columns.types.shape, dtype=np.int64)
    vgpus[column, stage] = np.rint(solved.values[where["g"]]).astype(np.int64)
    vgpus = trimmed(columns, vgpus)
    rates = np.bincount(columns.model, delivered_rps(columns, vgpus), both.models)
    rates += counts @ both.carried(kept)
    score = float((rates / both.weights).min())
    if score <= known * (1 + _BETTER):
        return bound, None
    used = np.flatnonzero(vgpus.any(axis=1))
    chosen = [(p, int(n)) for p, n in zip(kept, counts, strict=True) if n]
    return bound, OpenSeatPlan(
        score=score, chosen=chosen, columns=columns.take(used), vgpus=vgpus[used]
    )


def _relaxed(
    both: OpenSeatProblem, patterns: dict[Key, Pattern], inputs: Inputs
) -> tuple[float, DualPrices, Floats]:
    """The bound by column generation, with the prices of patterns and [model or type] behind it."""
    every = both.models + len(both.seats)
    uncapped = np.full(every, np.inf)
    for number in range(every):
        _take(patterns, both.master.most(DualPrices.of(np.eye(every)[number], uncapped))[1])
    used = both.usage(both.columns)
    gpus = both.master.tables.gpus
    bound, prices = np.inf, np.zeros(every)
    for _ in range(ROUNDS):
        known = list(patterns.values())
        program, where = _program(both, known, both.columns, np.inf, whole=False)
        solved = solve_linear(program)
        if solved is None:
            break
        asked = np.maximum(solved[1][where["demand"]], 0.0)
        paid = np.maximum(solved[1][where["hold"]], 0.0)
        least = np.full(both.models, np.inf)
        np.minimum.at(least, both.columns.model, used @ paid)
        asked = np.minimum(asked, least)
        now = np.concatenate([asked, paid])
        values, found = both.master.most(DualPrices.of(now * both.priced, uncapped))
        scale = float(asked @ both.weights)
        limit = float(gpus @ values) / scale if scale > 0 else np.inf
        if limit < bound:
            bound, prices = limit, now / scale
        value = float(solved[0][where["z"][0]])
        if not _take(patterns, found) or bound - value <= _CLOSE * bound or inputs.watch.over():
            break
    return bound, DualPrices.of(prices * both.priced, uncapped), prices


def _take(patterns: dict[Key, Pattern], found: list[Pattern]) -> int:
    before = len(patterns)
    for pattern in found:
        patterns.setdefault(pattern.key, pattern)
    return len(patterns) - before


def _screened(
    both: OpenSeatProblem,
    patterns: dict[Key, Pattern],
    between: tuple[float, float],
    worth: DualPrices,
    prices: Floats,
) -> tuple[list[Pattern], Ints, float]:
    """Patterns and configurations that a better plan may use, and the bound on all others."""
    bound, known = between
    left_out = -np.inf
    values, _ = both.master.most(worth)
    kept = dict(patterns)
    for own in both.master.patterns:
        top = float(values[own.number])
        wanted = max(0.0, top - (bound - known))
        found, least = own.above(worth, wanted, MOST_PATTERNS)
        kept |= {pattern.key: pattern for pattern in found}
        if least > wanted:
            left_out = max(left_out, bound - (top - least))
    per_seat, asked = prices[both.models :], prices[: both.models]
    paid = both.usage(both.columns) @ per_seat
    apart = replace(
        both.problem,
        classes=tuple(map(str, range(len(both.seats)))),
        types=tuple((number, 1) for number in range(len(both.seats))),
    )  # every type has a price of its own
    priced = Bound(
        score=bound,
        gpu_price=per_seat,
        rate_price=asked,
        reduced_cost=np.maximum(paid - asked[both.columns.model], 0.0),
        rate_rps=np.zeros(len(both.columns)),
    )
    loss = least_loss(apart, both.columns, priced)
    rows = np.argsort(loss, kind="stable")
    rows = rows[loss[rows] < bound - known]
    if len(rows) > MOST_COLUMNS:
        left_out = max(left_out, bound - float(loss[rows[MOST_COLUMNS]]))
    return list(kept.values()), np.sort(rows[:MOST_COLUMNS]), left_out


def _program(
    both: OpenSeatProblem,
    patterns: list[Pattern],
    columns: Columns,
    bound: float,
    *,
    whole: bool = True,
) -> tuple[Program, Mapping[str, Ints]]:
    """The program (head of this file) and where its variables and rows are.

    Relaxed, a vGPU is a rate.
    """
    build = ProgramBuilder()
    gpus = both.master.tables.gpus
    kind = np.array([p.gpu_class for p in patterns], dtype=np.int64)
    carried, opened = both.carried(patterns), both.open_of(patterns)
    n = build.variables("n", len(patterns), upper=gpus[kind], whole=whole)
    x = build.variables("x", len(columns))
    z = build.variables("z", 1, cost=1.0)
    demand = build.rows("demand", both.models, upper=0.0)
    build.entries(demand, np.repeat(z, both.models), both.weights)
    row, model = np.nonzero(carried)
    build.entries(demand[model], n[row], -carried[row, model])
    build.entries(demand[columns.model], x, -1.0)
    hold = build.rows("hold", len(both.seats), upper=0.0)
    row, seat = np.nonzero(opened)
    build.entries(hold[seat], n[row], -opened[row, seat])
    limit = build.rows("gpus", len(gpus), upper=gpus)
    build.entries(limit[kind], n, 1.0)
    where = {"n": n, "x": x, "z": z, "demand": demand, "hold": hold}
    column, stage = np.nonzero(np.isfinite(columns.rate_rps))
    taken = columns.types[column, stage]
    if not whole:
        used = both.usage(columns)
        row, seat = np.nonzero(used)
        build.entries(hold[seat], x[row], used[row, seat])
        return build.build(), where
    room = gpus[both.problem.type_class[taken]] * both.problem.type_divisor[taken]
    g = build.variables("g", len(column), upper=room, whole=True)
    deliver = build.rows("deliver", len(column), upper=0.0)
    build.entries(deliver, x[column], 1.0)
    build.entries(deliver, g, -columns.rate_rps[column, stage])
    build.entries(hold[taken], g, 1.0)
    y = build.variables("y", both.models, upper=1.0, whole=True)
    in_turns = build.rows("turns", both.models, upper=0.0)
    row, model = np.nonzero(carried)
    build.entries(in_turns[model], n[row], 1.0)
    build.entries(in_turns, y, -float(gpus.sum()))
    most = bound * both.weights
    piped = build.rows("pipes", both.models, upper=most)
    build.entries(piped[columns.model], x, 1.0)
    build.entries(piped, y, most)
    return build.build(), where | {"g": g}


# From the answer to pipelines


def _outcome(
    both: OpenSeatProblem, inputs: Inputs, mixed: OpenSeatPlan, objective: Objective, trace: Trace
) -> Outcome:
    """Pools of closed parts with their seats, and pools of open seats for stages."""
    promised = both.weights * mixed.score
    carried = both.carried([p for p, _ in mixed.chosen])
    total = np.array([n for _, n in mixed.chosen]) @ carried
    share = np.minimum(1.0, promised / np.where(total > 0, total, 1.0))
    share = np.concatenate([share, np.zeros(len(both.seats))])
    gpus_of = places(both.master, inputs.cluster, mixed.chosen, None)
    found: list[PlannedPipeline] = []
    free: dict[int, list[PlacementRun]] = {}
    pools = 0
    for (pattern, _), gpus in zip(mixed.chosen, gpus_of, strict=True):
        own = next(p for p in both.master.patterns if p.number == pattern.gpu_class)
        for slot, (part, row) in enumerate(pattern.parts):
            first = int(own.options[part].model[row, 0])
            if first >= both.models:
                free.setdefault(first - both.models, []).extend(
                    PlacementRun(node=node, gpu=gpu, slot=slot) for node, gpu in sorted(gpus)
                )
                continue
            runs = slot_runs(gpus, slot)
            found += seat_pipelines(both.master, inputs, (pattern, slot), (pools, runs), share)
            pools += 1
    planned = pipelines_of(both.problem, mixed.columns, mixed.vgpus, promised)
    for row, pipeline in enumerate(planned):
        types = mixed.columns.types[row]
        stages = tuple(
            _stage(both, inputs, (pipeline, stage), int(types[at]), free)
            for at, stage in enumerate(pipeline.stages)
        )
        found.append(replace(pipeline, stages=stages))
    in_turns = np.flatnonzero(total > 0)
    policies = {int(m): POLICY for m in in_turns}
    return Outcome(
        pipelines=tuple(found),
        objective=objective,
        trace=trace,
        promised_rps=tuple(promised.tolist()),
        policy=DEFAULT_POLICY,
        policies=policies,
    )


def _stage(
    both: OpenSeatProblem,
    inputs: Inputs,
    planned: tuple[PlannedPipeline, PlannedStage],
    kind: int,
    free: dict[int, list[PlacementRun]],
) -> PlannedStage:
    """A stage on the next open seats of its type."""
    pipeline, stage = planned
    seat = both.seats[kind]
    taken, free[kind] = free[kind][: stage.vgpus], free[kind][stage.vgpus :]
    name = both.master.tables.models[pipeline.model]
    profile = inputs.profiles[name]
    interference, latency = None, None
    if both.master.tables.classes[seat.gpu_class].interference:
        susceptibility = float(_susceptibility(inputs, name, seat)[pipeline.batch - 1])
        factor = float(seat.factor(susceptibility))
        interference = PoolInterference(
            pressure=seat.pressure,
            felt=seat.felt,
            inflation=seat.inflation,
            seats=(
                SeatInterference(
                    susceptibility=susceptibility, pressure=seat.pressure, factor=factor
                ),
            ),
        )
        table = profile.table(stage.gpu_class, seat.share, SOLO)
        assert table is not None  # it was enumerated from this table
        solo = table.stage_latency_us(stage.blocks)[: pipeline.batch]
        latency = tuple(math.ceil(int(v) * factor - 1e-6) for v in solo)
    cut = PlannedCut(share=seat.share, placement=tuple(joined(taken)), interference=interference)
    memory = stage_memory(profile, stage.blocks)
    return replace(stage, divisor=1, cut=cut, latency_us_by_batch=latency, memory=memory)
