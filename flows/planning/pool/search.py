"""Enumerate, bound, screen, solve: from a problem to vGPU counts with a proof.

Here: the sequence of steps and the bookkeeping of the proof. Not here: the steps themselves.

The proof: no plan is better than the relaxation's bound; a plan that uses a configuration dropped
by the screen is at most as good as the best plan known then, or, where only the cheapest
configurations were kept, at most bound - least loss of the cheapest one left out; any other plan
is covered by the bound of the integer program. Where several models share the GPUs, the bound of
their division (`divide`) covers every plan by itself.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from flows.clock import Stopwatch
from flows.planning.inputs import Problem
from flows.planning.pool.at_prices.blocks import placeable
from flows.planning.pool.at_prices.stages import plan_at_prices
from flows.planning.pool.attempts import Attempts, Incumbent, round_down
from flows.planning.pool.bound import Bound, Goal, least_loss, solve_bound, undominated
from flows.planning.pool.columns import Columns, enumerate_columns
from flows.planning.pool.divide import GpuSplit, Part, SingleModelResult
from flows.planning.pool.integer import prove, tighten
from flows.planning.registry import PlanOptions, Trace
from flows.planning.solver.arrays import Ints
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError

# Models from which a division of GPUs that leaves a gap is followed by planning one by one at
# prices (and with more than two classes not tried at all), and models from which nothing else is
# tried.
PRICES_FIRST_FROM_MODELS_MANY_CLASSES, PRICES_FIRST_FROM_MODELS = 8, 25
_SKETCHES = (60, 200)  # cheapest configurations of the first, short integer programs
_COLUMNS, _COLUMNS_DEEP = 240, 400  # most configurations by default, at most 2 stages or more
_WHOLE_SPACE = 6_000  # configurations that the last narrowing may look at together
_BOXES = 8  # ranges of GPUs per model that the last narrowing may split into
_DIVISION_EFFORT = 25_000  # simplex iterations that dividing the GPUs may take
_PAIR = 2  # classes among which GPUs are divided quickly
_SURE = 1e-4  # a gap above which a plan of fewer stages may be as good
_ENDS = {"time limit reached": "time limit hit", "stopped": "stopped"}
_ALONE_NODES = 100  # branch-and-bound nodes of an integer program of one model, at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The problem, every feasible configuration, and the prices of the relaxation over them."""

    problem: Problem
    columns: Columns
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A solved problem.

    Attributes:
        columns: configurations in use.
        vgpus: [n, S] vGPUs of every stage of them.
        score: z, or minus the cost.
        bound: no plan's score is above this.
        space: what it was found in.
    """

    columns: Columns
    vgpus: Ints
    score: float
    bound: float
    trace: Trace
    space: Space


def search(
    problem: Problem,
    goal: Goal,
    options: PlanOptions,
    watch: Watch | None = None,
    *,
    proof: bool = True,
) -> Found:
    """Find the best plan.

    Args:
        problem: models and GPUs.
        goal: what is asked of the rates.
        options: how to plan.
        watch: the clock; one of its own without it.
        proof: whether a proof is wanted; without, a good plan of many models is enough.

    Raises:
        InfeasibleError: a model has no feasible configuration, the GPUs are too few for all models,
            or the rates asked for cannot be reached.
    """
    trace = Trace()
    watch, laps = watch or Watch(limit_s=options.time_limit_s), Stopwatch()
    feasible = enumerate_columns(problem, options.max_partitions)
    columns = feasible.take(undominated(problem, feasible, np.arange(len(feasible))))
    trace.configurations = {"enumerated": feasible.enumerated, "feasible": len(feasible)}
    trace.seconds["enumerate"] = laps.restart()
    if len(problem.models) > problem.gpus.sum():  # a search would end no sooner than its limits
        _check_placeable(problem, columns)
    bound = solve_bound(problem, columns, goal)
    trace.seconds["bound"] = laps.restart()
    best = Incumbent(problem, columns, goal)
    proven = bound.score
    if not _prices_first(problem, proof=proof):
        proven = _Run(Attempts(best, bound.score, options, trace, watch), bound).solve()
        if best.gap_to(proven) > min(options.gap, _SURE) and not watch.over():
            _with_fewer_stages(best, options, watch)
    if (
        len(problem.models)
        >= (PRICES_FIRST_FROM_MODELS_MANY_CLASSES if proof else PRICES_FIRST_FROM_MODELS)
        and best.gap_to(proven) > options.gap
    ):
        trace.configurations["kept"] = len(columns)
        relaxed = replace(bound, score=proven)
        proven, price = plan_at_prices(best, relaxed, options, watch, proof=proof)
        trace.details["prices"] = dict(zip(problem.classes, price.tolist(), strict=True))
        settled = best.gap_to(proven) <= options.gap * (1 + ROUNDING)
        trace.status = "optimal" if settled else "effort limit reached"
    if watch.over() and best.gap_to(proven) > options.gap:
        trace.status = "stopped" if watch.stopped() else "time limit reached"
        trace.notes.append(f"{_ENDS[trace.status]}: this is the best plan found, with its gap")
    trace.seconds["solve"] = laps.restart()
    watch.report(best.score, proven)
    vgpus = best.vgpus
    if vgpus is None or not (goal.fixed or best.score > 0):
        raise _no_plan(best, watch)
    used = np.flatnonzero(vgpus.any(axis=1))
    return Found(
        columns=columns.take(used),
        vgpus=vgpus[used],
        score=best.score,
        bound=max(proven, best.score),
        trace=trace,
        space=Space(problem=problem, columns=feasible, bound=bound),
    )


def _prices_first(problem: Problem, *, proof: bool) -> bool:
    """True if models are planned at prices before, and instead of, anything else.

    With more than two classes, divided GPUs take tens of seconds for as few as 18 models.
    """
    several = proof and np.count_nonzero(problem.gpus) > _PAIR
    return len(problem.models) >= (
        PRICES_FIRST_FROM_MODELS_MANY_CLASSES if several else PRICES_FIRST_FROM_MODELS
    )


def _no_plan(best: Incumbent, watch: Watch) -> InfeasibleError:
    """Why there is no plan: models that find no GPU, or rates out of reach."""
    if watch.over():
        return watch.no_plan()
    try:
        _check_placeable(best.problem, best.columns)
    except InfeasibleError as error:
        return error
    return InfeasibleError("workload", "no plan in whole GPUs was found for the rates asked for")


def _check_placeable(problem: Problem, columns: Columns) -> None:
    """Check that every model finds GPUs beside the others.

    Raises:
        InfeasibleError: the GPUs are too few, with the models that are left out.
    """
    out = placeable(problem, columns)[1]
    if out:
        names = [problem.models[number].name for number in out]
        raise InfeasibleError(
            f"workload model {names[0]!r}",
            f"the GPUs are too few for {len(problem.models)} models: at most "
            f"{len(problem.models) - len(names)} can be placed, all but {', '.join(names)}",
        )


def _with_fewer_stages(best: Incumbent, options: PlanOptions, watch: Watch) -> None:
    """Offer the best plan of fewer stages too, so that more freedom never is worse."""
    fewer = np.flatnonzero(best.columns.stages < options.max_partitions)
    models = np.unique(best.columns.model[fewer])
    if len(models) < len(best.problem.models):
        return
    less = replace(options, max_partitions=options.max_partitions - 1)
    if len(fewer) == len(best.columns):  # nothing has so many stages
        _with_fewer_stages(best, less, watch)
        return
    columns = best.columns.take(fewer)
    bound = solve_bound(best.problem, columns, best.goal)
    alone = Incumbent(best.problem, columns, best.goal, score=best.score)
    attempts = Attempts(alone, bound.score, less, Trace(), watch.part(1.0))
    proven = _Run(attempts, bound).solve()
    if alone.gap_to(proven) > min(options.gap, _SURE) and not watch.over():
        _with_fewer_stages(alone, less, watch)
    if alone.vgpus is not None:
        vgpus = np.zeros(best.columns.types.shape, dtype=np.int64)
        vgpus[fewer] = alone.vgpus
        best.offer(vgpus)


@dataclass(slots=True)
class _Run:
    """One search: attempts at the best plan, and the relaxation's bound."""

    attempts: Attempts
    bound: Bound
    best: Incumbent = field(init=False)
    trace: Trace = field(init=False)

    def __post_init__(self) -> None:
        self.best, self.trace = self.attempts.best, self.attempts.trace

    def solve(self) -> float:
        """Improve the best plan until it is proven or the limits end; returns the proven bound."""
        best = self.best
        loss = least_loss(best.problem, best.columns, self.bound)
        rows = np.argsort(loss, kind="stable")
        loss = loss[rows]
        best.offer(round_down(best.problem, best.columns, self.bound.rate_rps, best.goal))
        proven, kept = self.bound.score, 0
        sizes = self._sizes()
        for number, most in enumerate(sizes):
            size = int(np.searchsorted(loss, self.bound.score - best.score))
            open_rows = rows[:size]
            kept = min(most, self.attempts.fitting(open_rows))
            chosen, left_out = open_rows[:kept], open_rows[kept:]
            kept = len(chosen)
            last = most == self._most_columns() or not len(left_out)
            if number == min(1, len(sizes) - 1) and len(best.problem.models) > 1:
                proven = min(proven, self._divide(proven))
                several = len(best.problem.models) >= PRICES_FIRST_FROM_MODELS_MANY_CLASSES
                far = self.attempts.far(proven)  # else nothing closes what a division leaves
                if not far or several or self.attempts.watch.over():
                    self._note(0, proven)
                    break
            ceiling = -np.inf
            if len(left_out):
                ceiling = self.bound.score - float(loss[kept])
            inside = self.attempts.improve(np.sort(chosen), thorough=last)
            proven = min(proven, max(inside, ceiling, best.score))
            self.attempts.watch.report(best.score, proven)
            if last or self.attempts.settled(proven) or self.attempts.watch.over():
                more = self.attempts.settled(inside) or self.attempts.far(proven)
                if len(left_out) and more and not self.attempts.watch.over():
                    proven = min(proven, self._whole_space(open_rows))
                self._note(len(left_out), proven)
                break
        self.trace.configurations["kept"] = kept
        return proven

    def _divide(self, proven: float) -> float:
        """Divide the GPUs among the models; returns a bound."""

        def done(bound: float) -> bool:
            self.attempts.watch.report(self.best.score, bound)
            return self.attempts.settled(bound) or self.attempts.watch.over()

        proven = GpuSplit(self.best, proven, self._alone, self.attempts.watch).improve(
            _DIVISION_EFFORT, done
        )
        self.trace.status = "optimal" if self.attempts.settled(proven) else "effort limit reached"
        if self.attempts.watch.over():
            self.trace.status = "time limit reached"
        return proven

    def _alone(self, part: Part, bound: Bound, enough: float, times: int) -> SingleModelResult:
        """Plan one model on the GPUs it was given."""
        options, watch = self.attempts.options, self.attempts.watch.part(1.0)
        best = Incumbent(part.problem, part.columns, part.goal)
        trace = Trace()
        attempts = Attempts(
            best, bound.score, options, trace, watch, enough, nodes=_ALONE_NODES * times
        )
        most = _Run(attempts, bound).solve()
        return SingleModelResult(
            vgpus=best.vgpus,
            rate_rps=best.score,
            most_rps=max(most, best.score),
            effort=1 + attempts.effort,
        )

    def _whole_space(self, rows: Ints) -> float:
        """The bound of the narrowed relaxation over all configurations left open."""
        best, cutoff = self.best, self.attempts.cutoff()
        if not np.isfinite(cutoff) or len(rows) > _WHOLE_SPACE:
            return self.bound.score
        columns = best.columns.take(np.sort(rows))
        narrowed = tighten(best.problem, columns, best.goal, cutoff, self.attempts.watch)
        if narrowed is None:
            self.trace.status = "optimal"
            return cutoff
        _, ceiling = narrowed
        if self.attempts.short or not self.attempts.far(ceiling):
            return max(cutoff, ceiling)
        return prove(best.problem, columns, best.goal, cutoff, _BOXES, self.attempts.watch)

    def _sizes(self) -> list[int]:
        """How many configurations each integer program may have, the last one the most."""
        if self.attempts.settled(self.bound.score):
            return []
        most = self._most_columns()
        return [size for size in _SKETCHES if 2 * size <= most] + [most]

    def _most_columns(self) -> int:
        return _COLUMNS if self.attempts.short else _COLUMNS_DEEP

    def _note(self, left_out: int, proven: float) -> None:
        if left_out and not self.attempts.settled(proven):
            self.trace.notes.append(
                f"{left_out} configurations that the exact screen left open were set aside; "
                "the gap covers them through the relaxation's bound"
            )
