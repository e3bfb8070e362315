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
    hold_t      sum_{f, i of type t} g_fi <= sum_c s_ct n_c
    gpus_k      sum_{c of k} n_c <= N_k
    deliver_fi  x_f <= rate_fi g_fi
    turns_m     sum_{c with m} n_c <= N y_m
    pipes_m     sum_{f of m} x_f <= (bound) w_m (1 - y_m)

Relaxed, a vGPU is a rate: x_f takes seats itself. To the engine demand and hold then are demands,
gpus a resource, patterns are columns, all else is free columns.

To the pricer (`patterns`) an open seat of type t is one more model, which runs on that share alone
for so long that no other model could take a turn beside it: it is always alone on its part, and its
rate is 1. So column generation prices all patterns of both kinds exactly, and its prices are those
at which no configuration pays off.

Patterns and configurations whose use costs more than what is open between the bound and the best
plan known are left out; the integer program, with patterns as cuts (`pool.unequal`), settles the
rest. Plans of `gpulets` and of `pool` are known before, so that this is never below either.

Where interference is planned with, an open seat presses as hard as any stage may and bears the most
that any neighbour may press: its latencies contain that much, which its pool states as felt.

Here: the relaxation, and what an answer looks like. Not here: patterns, configurations, the program
in whole numbers, and planning without the other kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.engine.columns import Pool
from flows.planning.engine.cover import Relaxed, relax, screened
from flows.planning.engine.level import level_cover
from flows.planning.engine.master import Cover, Free
from flows.planning.gpulets.master import MOST_PATTERNS, Chosen, Master, PatternPricer
from flows.planning.gpulets.patterns import Pattern
from flows.planning.gpulets.plan import POLICY, places, seat_pipelines, slot_runs
from flows.planning.gpulets.plan import plan as plan_turns
from flows.planning.gpulets.tables import Cell, ClassTable, Tables, read_tables, utilisation
from flows.planning.inputs import EVERY, Problem, build_problem, stage_memory
from flows.planning.placement import joined
from flows.planning.pool import unequal
from flows.planning.pool.bound import Bound, Goal
from flows.planning.pool.columns import Columns as Configurations
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
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import BEFORE
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import (
    DEFAULT_POLICY,
    Objective,
    PlacementRun,
    PoolInterference,
    SeatInterference,
)
from triton_backend.contract.shares import SOLO, WHOLE_GPU, share_text
from triton_backend.contract.units import US_PER_S

SPACE = "gpu-patterns-and-pipelines"
TURN_US = US_PER_S  # of an open seat: its rate is then 1
MOST_COLUMNS = 160  # configurations of the integer program


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
    """

    weights: Floats
    master: Master
    seats: tuple[OpenPartType, ...]
    problem: Problem
    columns: Configurations

    @property
    def models(self) -> int:
        """Real ones."""
        return len(self.weights)

    def open_of(self, pattern: Pattern) -> Floats:
        """[type] open seats."""
        found = np.zeros(len(self.seats))
        if pattern.rates_rps.any():  # it works
            options = self.master.of_class(pattern.gpu_class).options
            for share, row in pattern.parts:
                first = int(options[share].model[row, 0])
                if first >= self.models:
                    found[first - self.models] += 1
        return found

    def carried(self, patterns: Sequence[Pattern]) -> Floats:
        """[pattern, model] requests/s in turns."""
        rates = [pattern.rates_rps[: self.models] for pattern in patterns]
        return np.array(rates).reshape(-1, self.models)

    def supply(self, patterns: Sequence[Pattern]) -> Floats:
        """[pattern, demand] rates in units of weights, then open seats in whole numbers.

        The pricer takes an open seat beside neighbours for slower.
        """
        opened = [self.open_of(pattern) for pattern in patterns]
        return np.hstack([self.carried(patterns) / self.weights, opened])


def plan(inputs: Inputs) -> Outcome:
    """The best counts of patterns and pipelines, with a bound over all of both.

    Raises:
        InputError: inputs do not fit together; a class is not cut into percents.
        InfeasibleError: a model has no plan of either kind, or no plan serves every model.
    """
    for gpu_class in inputs.cluster.gpu_classes:
        if not gpu_class.vgpu_percents:
            where = f"gpu_classes.{gpu_class.name}.vgpu_percents"
            raise InputError(where, "is missing; gpulets-open cuts GPUs into percents")
    if inputs.options.minimum_rps:
        raise InputError("option minimum_rps", "gpulets-open plans weights, no least rates")
    trace = Trace()
    both = read(inputs, trace)
    alone = _of_one_kind(inputs, both, trace)
    known = max((o.objective.value for o in alone), default=0.0)
    bound, mixed = _search(both, known, inputs, trace)
    best = max(alone, key=lambda o: o.objective.value, default=None)
    score = known if mixed is None else mixed[0].score
    if mixed is None and best is None:
        reason = (
            "no plan found in which its GPUs serve every model; that there is none is not proven"
        )
        raise InfeasibleError("cluster", reason)
    bound = max(bound, score)
    settled = bound - score <= inputs.options.gap * score + 1e-12
    trace.status = "optimal" if settled else "gap left"
    objective = objective_of("throughput", score, bound)
    if mixed is not None:
        return _outcome(both, inputs, *mixed, objective, trace)
    assert best is not None  # one of the two is there
    return replace(best, objective=objective, trace=trace, space=None)


def read(inputs: Inputs, trace: Trace) -> OpenSeatProblem:
    """Both kinds as arrays.

    Raises:
        InfeasibleError: a model has neither a turn nor a pipeline within its SLO.
    """
    tables, stages = read_tables(inputs, reachable=False), inputs.options.max_partitions
    cluster, notes = unequal.offered(inputs.cluster, stages)
    trace.notes += notes
    on_pools = replace(inputs, cluster=cluster, options=_of_pool(inputs.options))
    problem = build_problem(on_pools, percents=EVERY)
    seats = tuple(
        _seat(tables, number, share)
        for (number, _), share in zip(problem.types, problem.shares, strict=True)
    )
    problem = _slowed(inputs, problem, seats)
    if any(seat.felt for seat in seats):
        trace.notes.append("open seats are planned for the most that neighbours may press")
    tables = _with_open(inputs, tables, seats)
    master = Master(tables, inputs.watch)
    return OpenSeatProblem(
        weights=np.array([d.normaliser("throughput") for d in inputs.workload.models]),
        master=master,
        seats=seats,
        problem=problem,
        columns=_columns(master, problem, stages),
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
        felt=max(felt, ROUNDING) if beside else 0.0,
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
            if not seats[kind].felt:
                continue
            factor = seats[kind].factor(_susceptibility(inputs, model.name, seats[kind]))
            count = min(len(factor), latency.shape[-1])
            slowed = np.ceil(latency[row, ..., :count] * factor[:count] - 1e-6)
            latency[row, ..., :count] = slowed
        models[number] = replace(model, latency_us=latency)
    return replace(problem, models=tuple(models))


def _susceptibility(inputs: Inputs, model: str, seat: OpenPartType) -> Floats:
    """[batch] of a model on open seats of a type."""
    name = inputs.cluster.gpu_classes[seat.gpu_class].name
    used = utilisation(inputs.profiles[model], name, seat.share)
    return np.asarray(inputs.interference[name].susceptibility(*used))


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


def _columns(master: Master, problem: Problem, max_partitions: int) -> Configurations:
    """Configurations of all models that none replaces; a model that can take turns needs none."""
    in_turns = {
        int(m)
        for own in master.patterns
        for options in own.options.values()
        for m in np.unique(options.model)
    }
    return unequal.unreplaced(problem, max_partitions, in_turns)


def _of_one_kind(inputs: Inputs, both: OpenSeatProblem, trace: Trace) -> list[Outcome]:
    """Plans of turns alone and of pipelines alone, where there are any."""
    bare = replace(inputs.options, previous=None)
    kinds = [("turns", plan_turns, _of_gpulets(bare))]
    if not any(seat.felt for seat in both.seats):  # the planner of pipelines knows no interference
        kinds.append(("pipelines", plan_pipelines, _of_pool(bare)))
    found: list[Outcome] = []
    for kind, planned, own in kinds:
        part = replace(inputs, options=own, watch=inputs.watch.part(BEFORE))
        try:
            found.append(planned(part))
        except InfeasibleError as error:
            trace.notes.append(f"{kind} alone: {error}")
    return found


# The program


def _search(
    both: OpenSeatProblem, known: float, inputs: Inputs, trace: Trace
) -> tuple[float, tuple[unequal.Answer, Chosen] | None]:
    """The bound, and a plan better than what is known where one is found."""
    gpus, options = both.master.tables.gpus.astype(np.float64), inputs.options
    pricer = PatternPricer(
        patterns=both.master.patterns,
        most=gpus,
        cheapest=np.zeros(len(gpus)),
        unit=np.concatenate([both.weights, [1.0 / seat.inflation for seat in both.seats]]),
        watch=inputs.watch,
        supply=both.supply,
    )
    pool = Pool()
    pricer.alone(pool, inputs.watch)
    cover = _relaxed_cover(both, gpus)
    relaxed = relax(cover, pricer, pool, inputs.watch)
    bound = -relaxed.bound
    trace.configurations["patterns"] = len(pool)
    trace.configurations["pipelines"] = len(both.columns)
    if bound <= known * (1 + options.gap):
        return bound, None
    screen = screened(cover, pricer, relaxed.duals, -known, MOST_PATTERNS)
    pool.add(screen.columns)
    patterns: Sequence[Pattern] = pool.columns.source
    trace.configurations["patterns kept"] = len(patterns)
    if -screen.outside > known * (1 + ROUNDING):
        trace.notes.append("more patterns than the integer program takes")
    cuts = unequal.Cuts(
        parts=np.array([both.open_of(p) for p in patterns]).astype(np.int64),
        kind=np.array([p.gpu_class for p in patterns]),
        mixed=np.ones(len(both.seats), dtype=np.bool_),
        carried=both.carried(patterns),
    )
    candidates = unequal.Candidates(
        problem=both.problem,
        columns=both.columns,
        cuts=cuts,
        goal=Goal.level(both.weights, len(gpus)),
        most=MOST_COLUMNS,
        bound=_prices(both, relaxed),
    )
    closer = replace(options, gap=options.gap / 2)
    answer = unequal.search(candidates, known, closer, trace, inputs.watch)
    bound = min(bound, max(answer.bound, -screen.outside))
    if answer.columns is None or answer.held is None:
        return bound, None
    return bound, (answer, list(zip(patterns, answer.held.tolist(), strict=True)))


def _relaxed_cover(both: OpenSeatProblem, gpus: Floats) -> Cover:
    """The program relaxed: a vGPU is a rate, so configurations take seats."""
    level = level_cover(np.append(np.ones(both.models), np.zeros(len(both.seats))), gpus)
    count = len(both.columns)
    serves = np.eye(both.models)[both.columns.model] / both.weights
    configurations = Free.dense(
        np.zeros(count),
        np.hstack([serves, -both.columns.usage_of_types(len(both.seats))]),
        np.zeros((count, len(gpus))),
    )
    free = level.free.and_these(configurations)
    return replace(level, free=free, cap=np.full(len(level.need), np.inf))


def _prices(both: OpenSeatProblem, relaxed: Relaxed) -> Bound:
    """The relaxation's bound and prices, as configurations read them."""
    per_seat = relaxed.duals.demand[both.models :]
    asked = relaxed.duals.demand[: both.models] / both.weights
    return Bound(score=-relaxed.bound, gpu_price=per_seat, rate_price=asked)


# From the answer to pipelines


def _outcome(
    both: OpenSeatProblem,
    inputs: Inputs,
    mixed: unequal.Answer,
    every: Chosen,
    objective: Objective,
    trace: Trace,
) -> Outcome:
    """Pools of closed parts with their seats, and pools of open seats for stages."""
    assert mixed.columns is not None
    assert mixed.vgpus is not None
    promised = both.weights * mixed.score
    chosen = [(pattern, count) for pattern, count in every if count]
    total = np.array([n for _, n in chosen]) @ both.carried([p for p, _ in chosen])
    share = np.minimum(1.0, promised / np.where(total > 0, total, 1.0))
    share = np.concatenate([share, np.zeros(len(both.seats))])
    gpus_of = places(both.master, inputs.cluster, chosen, None)
    found: list[PlannedPipeline] = []
    free: dict[int, list[PlacementRun]] = {}
    pools = 0
    for (pattern, _), gpus in zip(chosen, gpus_of, strict=True):
        own = both.master.of_class(pattern.gpu_class)
        for slot, (part, row) in enumerate(pattern.parts):
            first = int(own.options[part].model[row, 0])
            if first >= both.models:
                free.setdefault(first - both.models, []).extend(
                    PlacementRun(node=node, gpu=gpu, slot=slot) for node, gpu in sorted(gpus)
                )
                continue
            runs = slot_runs(gpus, slot)
            found += seat_pipelines(both.master, inputs, pattern, slot, pools, runs, share)
            pools += 1
    used = np.flatnonzero(mixed.vgpus.any(axis=1))
    columns = mixed.columns.take(used)
    planned = pipelines_of(both.problem, columns, mixed.vgpus[used], promised)
    for row, pipeline in enumerate(planned):
        types = columns.types[row]
        stages = tuple(
            _stage(both, inputs, pipeline, stage, int(types[at]), free)
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
    pipeline: PlannedPipeline,
    stage: PlannedStage,
    kind: int,
    free: dict[int, list[PlacementRun]],
) -> PlannedStage:
    """A stage on the next open seats of its type."""
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
