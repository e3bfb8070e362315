"""Applications planned exactly: the planner `pool`, where a workload has them.

By accounting of gathering (`--gathering`):

    fixed       1.3 (b - 1) / rate: configurations of any number of stages on the cluster's GPUs
                (`pools`)
    tc-padded   whole machines of whole models are paid, and may run full (`machines`)
    tc-tail, tc-even   billing by occupancy, as the paper counts, and as theorem 1 reads literally

The last three plan each line by itself, so the GPUs of a class must suffice for what is cheapest.
Here: which oracle, and reading its answer. Not here: the division of time (`division`).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from flows.clock import Stopwatch
from flows.planning.applications.division import (
    MOST_BOXES,
    BudgetSplit,
    Separate,
    Stair,
    Staircase,
    divide,
    of_sets,
)
from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import Machine, MachineSet, cheapest, even
from flows.planning.applications.options import billing_of, gathering_of, in_percents
from flows.planning.applications.outcome import (
    answer,
    decided_by_sets,
    out_of_reach,
)
from flows.planning.applications.tables import (
    demanded,
    filled_by_tasks,
    input_times,
    line_problem,
    machine_tables,
)
from flows.planning.certificate import objective_of
from flows.planning.inputs import ALIKE, EVERY, Problem, gpu_prices, require_rates
from flows.planning.pool import unequal
from flows.planning.pool.applications import parts
from flows.planning.pool.applications.pools import SHARE, STEP_SHARE, Pools
from flows.planning.pool.bound import goal_of
from flows.planning.pool.plan import on_parts, pipelines_of
from flows.planning.pool.search import Found
from flows.planning.pool.spare_gpus import promised_rps
from flows.planning.registry import Inputs, Outcome, PlanOptions, Trace
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.applications import Module
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.workload import ModelDemand, Workload

_PRICINGS = 20  # of scarce GPUs
_FEWEST_SIZES = 4  # stages for which as few sizes are offered as ever, where cuts are many
_SKETCH, _MANY = 24, 64  # boxes looked at before one program is asked; after it
_MOST = 200  # for throughput: before it
_ENDS = "time limit reached"


def plan_exactly(inputs: Inputs) -> Outcome:
    """The best plan of a workload with applications, with a proof.

    Raises:
        InputError: options do not go together, a price or a rate is missing, or bindings do not
            fit.
        InfeasibleError: an application cannot keep its SLO, or the cluster is too small.
    """
    gathering, billing = gathering_of(inputs), billing_of(inputs.options)
    _check(inputs, gathering, billing)
    lines = demanded(inputs)
    require_rates(inputs.workload, inputs.options.objective)
    problem = line_problem(inputs, lines, ALIKE)
    plan = _on_pools if gathering == "fixed" else _on_machines
    if in_percents(inputs.cluster):
        plan = _on_parts
    found = plan(inputs, lines, problem)
    return replace(found, settled={"gathering": gathering, "billing": billing})


def _check(inputs: Inputs, gathering: str, billing: str) -> None:
    options, classes = inputs.options, inputs.cluster.gpu_classes
    if options.pinned_models:
        raise InputError("option pinned_models", "applications are planned again as a whole")
    if options.minimum_rps:
        raise InputError("option minimum_rps", "is for models; an application says its rate_rps")
    if options.own.get("overflow"):
        raise InputError("option overflow", "is for workloads of models alone")
    if gathering != "fixed" and options.objective != "cost":
        raise InputError("option gathering", f"{gathering} is defined for the objective cost alone")
    if gathering != "fixed" and in_percents(inputs.cluster):
        cut = next(c.name for c in classes if c.vgpu_percents)
        reason = f"{gathering} plans equal parts, class {cut} is cut into percents: fixed plans it"
        raise InputError("option gathering", reason)
    wanted = "gpu" if gathering in ("fixed", "tc-padded") else "occupancy"
    if billing != wanted:
        raise InputError("option billing", f"{gathering} is defined for billing {wanted} alone")


# On pools


def _pools(inputs: Inputs, lines: Lines, problem: Problem) -> Pools:
    greatest, options = lines.room([0] * len(lines)), inputs.options
    gathering = [
        np.array([demand.gathering_us(batch) for batch in range(1, model.batches + 1)]) + moved_us
        for demand, model, moved_us in zip(
            lines.demands, problem.models, input_times(inputs, problem), strict=True
        )
    ]
    models = tuple(
        replace(model, limit_us=room - gathering_us)
        for model, room, gathering_us in zip(problem.models, greatest, gathering, strict=True)
    )
    limited = replace(problem, models=models)
    return Pools(
        lines=lines,
        problem=limited,
        gathering_us=gathering,
        goal=goal_of(limited, options.objective, {}, gpu_prices(inputs.cluster, options.objective)),
        options=options,
        watch=inputs.watch,
        proof=inputs.prove,
    )


def _on_pools(inputs: Inputs, lines: Lines, problem: Problem) -> Outcome:
    laps = Stopwatch()
    pools = _pools(inputs, lines, problem)
    try:
        divided = _divided(pools)
    except InfeasibleError as error:  # a line alone takes longer than its applications may
        raise out_of_reach(lines, problem) from error
    if divided is None:
        raise _no_plan(inputs, lines, problem)
    best, division = divided
    goal = pools.goal
    score, bound = best.score, max(best.score, -division.bound)
    promised = promised_rps(best.columns, best.vgpus, goal, score)
    trace = _trace(laps, division, inputs.options)
    trace.configurations = pools.configurations
    decided = Outcome(
        pipelines=pipelines_of(pools.problem, best.columns, best.vgpus, promised),
        promised_rps=tuple(promised.tolist()),
        objective=objective_of(inputs.options.objective, score, bound),
        trace=trace,
    )
    return answer(decided, inputs, lines, problem, pools.used(best))


def _on_parts(inputs: Inputs, lines: Lines, problem: Problem) -> Outcome:
    """The plan of equal parts, or a better one with parts of several sizes and lines."""
    laps, trace = Stopwatch(), Trace()
    pools, best, space = _parts(inputs, lines, problem, trace)
    trace.seconds["parts"] = laps.seconds()
    decided = on_parts(inputs, pools.goal, pools.problem, best, trace, space)
    return answer(decided, inputs, lines, pools.problem, pools.times_of(*best.counted))


def _parts(
    inputs: Inputs, lines: Lines, problem: Problem, trace: Trace
) -> tuple[Pools, unequal.Answer, str | None]:
    """The best plan of equal and unequal parts, of which lines, and the space of its bound.

    Raises:
        InfeasibleError: there is none.
    """
    equal = _equal_parts(inputs, lines, problem)
    wide, notes, cuts = problem, list[str](), None
    fewer = max(2, inputs.options.max_partitions)
    for stages in range(fewer, max(fewer, _FEWEST_SIZES) + 1):
        cluster, notes = unequal.offered(inputs.cluster, stages)
        wide = line_problem(replace(inputs, cluster=cluster), lines, EVERY)
        cuts = unequal.cuts_of_problem(wide, cluster, inputs.watch)
        if cuts is not None:
            break
    trace.notes += notes
    if cuts is None:
        trace.notes.append(unequal.no_cuts(inputs.watch))
        if equal is None:
            raise _no_plan(inputs, lines, problem)
        trace.details["over_equal_parts"] = 1.0
        return *equal, None
    pools = _pools(inputs, lines, wide)
    try:
        pools.enumerate()
    except InfeasibleError as error:  # a line alone takes longer than its applications may
        raise out_of_reach(lines, wide) from error
    known = None if equal is None else (equal[1].score, equal[0].times_of(*equal[1].counted))
    found = parts.search(pools, cuts, known, trace)
    if found.columns is not None:
        of, best = pools, found
    elif equal is not None:
        of, best = equal
    else:
        raise _no_plan(inputs, lines, problem)
    if pools.goal.fixed:
        wider = parts.with_room(pools, cuts, best, of.times_of(*best.counted))
        of, best = (of, best) if wider.columns is None else (pools, wider)
        best = parts.that_fill(of, best, of.times_of(*best.counted))
    before = known[0] if known else 0.0
    trace.details["over_equal_parts"] = best.score / before if before else None
    return of, replace(best, bound=max(found.bound, best.score)), unequal.SPACE


def _equal_parts(
    inputs: Inputs, lines: Lines, problem: Problem
) -> tuple[Pools, unequal.Answer] | None:
    """The plan of which every GPU has parts of one size for one line; None where there is none."""
    part = replace(inputs, watch=inputs.watch.part(STEP_SHARE), prove=False)
    pools = _pools(part.asking(time_limit_s=None), lines, problem)  # its own bound says nothing
    try:
        divided = _divided(pools)
    except InfeasibleError:
        return None
    if divided is None:
        return None
    best, division = divided
    bound = max(best.score, -division.bound)
    return pools, unequal.alike(problem, (best.columns, best.vgpus), best.score, bound)


def _no_plan(inputs: Inputs, lines: Lines, problem: Problem) -> InfeasibleError:
    watch = inputs.watch
    return watch.no_plan() if watch.over() else out_of_reach(lines, problem)


def _divided(pools: Pools) -> tuple[Found, BudgetSplit] | None:
    """The best plan known, and its division with a bound; None where nothing was found.

    The best plan of fewer stages first, so that more freedom never is worse. No line shares a GPU,
    so as many GPUs are needed at least.
    """
    if len(pools.lines) > pools.problem.gpus.sum():
        return None
    pools.enumerate()  # while there is time: fewer stages may take all of it
    search = _Search(pools, _of_fewer_stages(pools))
    search.plan()
    if pools.options.time_limit_s:
        search.prove()
    return search.found()


@dataclass(slots=True)
class _Search:
    """Plans of at most so many stages.

    The best one known, what none is better than, boxes looked at.
    """

    pools: Pools
    best: Found | None
    bound: float = inf
    boxes: int = 0
    extra: Floats | None = None

    def plan(self) -> None:
        """Look for plans and for a bound.

        At least cost lines by themselves, which is all where GPUs suffice for what is cheapest; at
        prices of scarce GPUs where they do not. Boxes of budgets, many for throughput, first of all
        where no plan is known and GPUs are scarce. Where that leaves a gap, one program for time
        and GPUs; where that leaves one too, more boxes.
        """
        goal = self.pools.goal
        steps = (lambda: self._search_budgets(_SKETCH),)
        if not goal.fixed:
            steps = (lambda: self._search_budgets(_MOST, share=STEP_SHARE),)
        if goal.fixed and goal.price.any():
            scarce = bool(self._scarcity().any())
            first = self.best is None and scarce
            alone = self._solve_lines_separately
            steps = (*steps, alone) if first else (alone, *steps)
            if scarce and self.pools.options.max_partitions > 1:
                steps = (self._allocate_by_bounds, *steps)
        for step in (*steps, self._solve_jointly, lambda: self._search_budgets(_MANY)):
            step()
            if self._settled():
                return

    def prove(self) -> None:
        """Better the bound while there is time.

        Plans that turn up are taken only where there is none. One of more stages begins with what
        `plan` found, and would be worse than one of fewer that had more.
        """
        if not self._settled():
            self._search_budgets(MOST_BOXES, plans=self.best is None)

    def found(self) -> tuple[Found, BudgetSplit] | None:
        """The best plan with its bound."""
        best = self.best
        if best is None:
            return None
        bound = max(self.bound, best.score)
        times = tuple(self.pools.used(best))
        return best, BudgetSplit(times=times, cost=-best.score, bound=-bound, boxes=self.boxes)

    def _settled(self) -> bool:
        best, watch = self.best, self.pools.watch
        if best is None:
            return watch.over()
        watch.report(best.score, self.bound)
        gap = self.pools.options.gap * abs(best.score)
        return self.bound <= best.score + gap or watch.over()

    def _offer(self, found: Found | None) -> None:
        if found is not None and (self.best is None or found.score > self.best.score):
            self.best = found

    def _solve_lines_separately(self) -> None:
        """Lines by themselves.

        At what GPUs cost, or, where that takes too many, at what scarce ones are worth. What they
        are worth is what the relaxation pays, then in steps along what is used beyond what there
        is, as long as a bound above the best plan would be (Polyak).
        """
        pools = self.pools
        extra = self._scarcity() if self.extra is None else self.extra
        scarce = pools.watch.part(SHARE)  # no proof by itself: other steps need their time
        for _ in range(_PRICINGS):
            watch = scarce if extra.any() else pools.watch
            apart = pools.apart(extra, watch)
            if apart is None:
                return
            division, priced, beyond = apart
            self._offer(pools.cheapest())
            self.bound, self.boxes = min(self.bound, -division.bound), self.boxes + division.boxes
            if self._settled() or watch.over():
                return
            beyond = np.where(priced > 0, beyond, np.maximum(beyond, 0))
            if self.best is None or not beyond.any():
                extra = pools.scarcity(division.times)
            else:
                open_ = -self.best.score - division.bound
                extra = np.maximum(priced + open_ * beyond / float(beyond @ beyond), 0.0)

    def _allocate_by_bounds(self) -> None:
        """GPUs and time by what relaxations of lines need (`line_bounds`).

        Whole models are proven without.
        """
        pools = self.pools
        cutoff = inf if self.best is None else -self.best.score
        found = pools.hand_out(pools.watch.part(STEP_SHARE), cutoff)
        self._offer(pools.cheapest())
        self.bound, self.extra = min(self.bound, -found.bound), found.extra

    def _scarcity(self) -> Floats:
        """[C] what the relaxation pays for GPUs beyond cost, in the times of the best plan."""
        pools = self.pools
        free = pools.lines.room([0] * len(pools.lines))
        return pools.scarcity(free if self.best is None else pools.used(self.best))

    def _search_budgets(self, most: int, *, plans: bool = True, share: float = 1.0) -> None:
        pools = self.pools
        watch, pools.relaxed = pools.watch.part(share), 0
        start = None if self.best is None else pools.used(self.best)
        division = divide(pools.lines, pools, pools.options.gap, watch, start, most)
        if division is not None:
            if plans:
                self._offer(pools.known(division.times))
            self.bound, self.boxes = min(self.bound, -division.bound), self.boxes + division.boxes

    def _solve_jointly(self) -> None:
        best, gap = self.best, self.pools.options.gap
        cutoff = -inf if best is None else best.score + gap * abs(best.score) / 2
        better, self.bound = self.pools.together(cutoff, self.bound)
        self._offer(better)


def _of_fewer_stages(pools: Pools) -> Found | None:
    """The best plan of one stage less, as one that is known.

    It has the time that it would have if it were all that is asked for.
    """
    options = pools.options
    if options.max_partitions == 1:
        return None
    less = replace(options, max_partitions=options.max_partitions - 1)
    before = Pools(
        lines=pools.lines,
        problem=pools.problem,
        gathering_us=pools.gathering_us,
        goal=pools.goal,
        options=less,
        watch=pools.watch.part(1.0),
        proof=pools.proof,
    )
    try:
        before.enumerate()
        search = _Search(before, _of_fewer_stages(before))
        search.plan()
    except InfeasibleError:  # some line fits its paths only in more stages
        return None
    if search.best is not None:
        pools.offered.append(search.best)
    return search.best


def _trace(laps: Stopwatch, division: BudgetSplit, options: PlanOptions) -> Trace:
    trace = Trace()
    trace.seconds["divide"] = laps.seconds()
    trace.details["division"] = {"boxes": division.boxes, "bound": division.bound}
    gap = (division.cost - division.bound) / abs(division.cost) if division.cost else 0.0
    if gap > options.gap * (1 + ROUNDING):
        trace.status = _ENDS
        trace.notes.append(f"{_ENDS}: this is the best division found, with its gap")
    return trace


def application_rates(inputs: Inputs) -> tuple[Workload, str]:
    """The workload with batch-building rates where gathering needs them, and where they come from.

    They are what every line reaches in a plan of most throughput without gathering time, of whole
    models where there is one: how many stages a plan may have does not change what is asked of it.
    """
    options, demands = inputs.options, demanded(inputs).demands
    if "gathering" not in options.own or gathering_of(inputs) != "fixed":
        return inputs.workload, "none"
    stated = {d.name for d in demands if d.batch_building_rate_rps is not None}
    if len(stated) == len(demands):
        return inputs.workload, "given"
    free = inputs.asking(objective="throughput", planner="pool", own={}, previous=None, gap=0.05)
    lines = demanded(free)
    gathered = tuple(replace(d, batch_building_rate_rps=None) for d in lines.demands)
    lines = replace(lines, demands=gathered)
    problem = line_problem(free, lines, ALIKE)
    divided = None
    for stages in range(1, options.max_partitions + 1):
        try:
            divided = _divided(_pools(free.asking(max_partitions=stages), lines, problem))
        except InfeasibleError as error:
            if stages == options.max_partitions and not in_percents(inputs.cluster):
                raise out_of_reach(lines, problem) from error
        if divided is not None:
            break
    if divided is not None:
        level = divided[0].score
    elif in_percents(inputs.cluster):
        level = _parts(free, lines, problem, Trace())[1].score
    else:
        raise _no_plan(inputs, lines, problem)
    if level <= 0:
        raise _no_plan(inputs, lines, problem)
    return _building(inputs.workload, level, stated), "pool without gathering"


def _building(workload: Workload, level: float, stated: Collection[str]) -> Workload:
    """The workload with the batch-building rates of a level, but for lines that state some."""

    def model(m: ModelDemand) -> ModelDemand:
        if m.name in stated:
            return m
        return replace(m, batch_building_rate_rps=level * m.normaliser())

    def module(m: Module, asked: float) -> Module:
        if m.model in stated:
            return m
        return replace(m, batch_building_rate_rps=level * asked * m.rows_per_request)

    return replace(
        workload,
        models=tuple(map(model, workload.models)),
        applications=tuple(
            replace(a, modules=tuple(module(m, a.normaliser()) for m in a.modules))
            for a in workload.applications
        ),
    )


# On machines


def set_within(
    accounting: str,
    table: tuple[Machine, ...],
    rate_rps: float,
    budget_us: int,
    *,
    dummies: bool,
    costs: tuple[float, float] = (0.0, inf),
) -> MachineSet | None:
    """The cheapest set of machines within a budget, by accounting.

    None where none costs less than `costs[1]`. `costs[0]` is a cost that none falls below.
    """
    if accounting == "tc-even":
        return even(table, rate_rps, budget_us, dummies=dummies)
    whole = accounting == "tc-padded"
    return cheapest(table, rate_rps, budget_us, dummies=dummies, whole=whole, costs=costs)


def line_steps(
    accounting: str, table: tuple[Machine, ...], rate_rps: float, *, dummies: bool
) -> Staircase[Stair]:
    """The cost of one line as a function of its budget."""
    return of_sets(
        lambda budget_us, costs: set_within(
            accounting, table, rate_rps, budget_us, dummies=dummies, costs=costs
        )
    )


def _on_machines(inputs: Inputs, lines: Lines, problem: Problem) -> Outcome:
    laps, accounting, options = Stopwatch(), gathering_of(inputs), inputs.options
    dummies = bool(options.own["dummies"])
    tables = filled_by_tasks(machine_tables(inputs, problem), lines)
    rates = [demand.rate_rps or 0.0 for demand in lines.demands]
    steps = [
        line_steps(accounting, table, rate, dummies=dummies)
        for table, rate in zip(tables, rates, strict=True)
    ]
    division = divide(lines, Separate(steps), options.gap, inputs.watch)
    if division is None:
        raise _no_plan(inputs, lines, problem)
    sets = [
        set_within(accounting, table, rate, budget, dummies=dummies)
        for table, rate, budget in zip(tables, rates, division.times, strict=True)
    ]
    trace = _trace(laps, division, options)
    by = "" if options.own["gathering"] == accounting else ", the default here,"
    trace.notes.append(f"--gathering {accounting}{by} plans whole models on GPUs of equal parts")
    kept = [served for served in sets if served is not None]
    decided = decided_by_sets(problem, lines, kept, division.bound, trace, accounting)
    return answer(decided, inputs, lines, problem, [served.time_us for served in kept])
