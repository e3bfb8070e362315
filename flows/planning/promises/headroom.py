"""Headroom: pools that carry a factor more than a plan promises, so that bursts are in time too.

Where rates are asked for, the plan is that of the rates times the factor, and promises them as they
are. Where nothing is asked (`throughput`), the plan stays, and its rates are divided by the factor.
Either way its pools carry `headroom_factor` times what it promises, as its options state.

`poisson99` seeks the least factor of a grid with which the simulator finds every model and
application surely in time for 99 % of Poisson arrivals at 0.9 of the promised rates, and for 99 %
of requests at equal gaps at these rates (`attainment`).

Here: for every planner. Not here: how planners of entries read a factor (`entries/tables.py`):
phases of clients are those of the rates as listed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

from flows.options import Option
from flows.planning.certificate import plan_identity
from flows.planning.engine.level import last
from flows.planning.promises.attainment import LOAD, shortfall, surely_attained
from flows.planning.registry import Inputs, PlanOptions, product_planners
from flows.planning.watch import BEFORE, Watch
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.workload import Workload
from triton_backend.simulator.goodput import ATTAINMENT

AUTO, POISSON, NO_HEADROOM = "auto", "poisson99", "none"
HEADROOM = Option(
    name="headroom",
    default=AUTO,
    help="Times the promised rates that pools carry: a factor, poisson99 (the least that holds "
    "99 % of Poisson arrivals at 0.9), none; auto: poisson99 for entries at listed rates of "
    "planners that are not for comparison, else none.",
)
GRID, MOST = 20, 400  # factors are 1 to 20 in steps of 1 / 20
MOST_FACTOR = 1000  # as of forecasts
_Carrying = Callable[[float, Watch], Plan]


def headroom_of(options: PlanOptions, workload: Workload) -> str:
    """The headroom that is meant: `poisson99`, a factor, or `none`.

    Raises:
        InputError: the text is none of these, or rates to keep are given with it.
    """
    given = str(options.own.get(HEADROOM.name, NO_HEADROOM))
    if given == AUTO:
        listed = workload.has_entries and options.objective != "throughput"
        return POISSON if listed and options.planner in product_planners() else NO_HEADROOM
    factor_of(given)
    if given != NO_HEADROOM and options.minimum_rps:
        reason = "rates to keep (--keep) are planned as they are; ask for them as rate_rps"
        raise InputError("option headroom", reason)
    return given


def factor_of(given: str) -> float:
    """Times the promised rates that pools carry; 1 where that is none or still to be found.

    Raises:
        InputError: the text is no factor from 1 to `MOST_FACTOR`.
    """
    where = "option headroom"
    if given in (AUTO, POISSON, NO_HEADROOM):
        return 1.0
    try:
        factor = float(given)
    except ValueError as error:
        reason = f"{given!r} is none of {AUTO}, {POISSON}, {NO_HEADROOM} and no factor"
        raise InputError(where, reason) from error
    if not 1 <= factor <= MOST_FACTOR:
        raise InputError(where, f"{given} is not within 1 and {MOST_FACTOR}")
    return factor


def without_headroom(options: PlanOptions) -> PlanOptions:
    """The same options, and pools that carry what is promised and no more."""
    return _with(options, NO_HEADROOM)


def plan_with_headroom(made: Callable[[Inputs], Plan], inputs: Inputs) -> Plan:
    """The plan of inputs with the headroom that their options ask for.

    `poisson99`: factors grow by doubled steps, then halves are tried, each for a part of the time
    that is left; the plan of the factor found gets the rest. Where the GPUs are too few for a
    factor that attains, or the time is over, the plan that attains most is returned; its notes say
    so. A plan too large to be simulated is as without headroom, and says so.

    Args:
        made: the plan of inputs that ask for no headroom, or that state a factor and list entries.
        inputs: with the rates asked for.

    Raises:
        InfeasibleError: the cluster is too small for the rates, times the factor if one is given.
        InputError: as `headroom_of`.
    """
    workload, options = inputs.workload, inputs.options
    asked, none = headroom_of(options, workload), without_headroom(options)
    if asked == NO_HEADROOM:
        return made(inputs)
    if options.objective == "throughput" and (asked == POISSON or not workload.has_entries):
        return promising_less(made(replace(inputs, options=none)), options)

    def carrying(factor: float, watch: Watch) -> Plan:
        now = replace(inputs, watch=watch)
        if workload.has_entries:
            return made(replace(now, options=_with(options, f"{factor:g}")))
        more = replace(now, workload=at_part(workload, factor), options=none)
        return _as_asked(made(more), workload, factor)

    return _with_factor(asked, carrying, options, inputs.watch)


def promising_less(plan: Plan, options: PlanOptions) -> Plan:
    """A plan of most throughput with the headroom that options ask for: its rates are divided.

    Raises:
        InputError: as `headroom_of`.
    """
    asked = headroom_of(options, plan.workload)
    if asked == NO_HEADROOM:
        return plan

    def carrying(factor: float, watch: Watch) -> Plan:
        del watch
        return _divided(plan, factor)

    return _with_factor(asked, carrying, options, Watch())


def at_part(workload: Workload, part: float) -> Workload:
    """The workload at a part of its rates, or a multiple."""

    def of(rate_rps: float | None) -> float | None:
        return None if rate_rps is None else rate_rps * part

    models = tuple(
        replace(
            model,
            rate_rps=of(model.rate_rps),
            entries=tuple(replace(e, rate_rps=e.rate_rps * part) for e in model.entries),
        )
        for model in workload.models
    )
    applications = tuple(
        replace(asked, rate_rps=of(asked.rate_rps)) for asked in workload.applications
    )
    return replace(workload, models=models, applications=applications)


def advice(plan: Plan) -> str | None:
    """Attainment that is too little, and the option to give; None where it is enough.

    No option is named where headroom was sought, or where the planner has none.
    """
    said = shortfall(plan)
    planner = product_planners().get(plan.planner)
    sought = plan.options.get("headroom_factor") is not None
    if said is None or sought or planner is None or HEADROOM not in planner.options:
        return said
    more = "promises less" if plan.objective.name == "throughput" else "plans more GPUs"
    return f"{said}; --headroom {POISSON} {more}, so that {ATTAINMENT:.0%} are"


# The search


def _with_factor(asked: str, carrying: _Carrying, options: PlanOptions, watch: Watch) -> Plan:
    """The plan of the factor asked for; of the least one that attains, else that attains most."""
    if asked != POISSON:
        return _stated(carrying(factor_of(asked), watch), options, factor_of(asked))

    known = cache(partial(_hastily, carrying, watch=watch))
    first = surely_attained(known(1.0))
    if first is None:
        note = "headroom: the plan is too large to be simulated, it has none"
        return _stated(_noted(known(1.0), note), options, 1.0)
    tried, refused = _tried(known, first, watch)
    able = [step for step in sorted(tried) if tried[step] >= ATTAINMENT]
    step = able[0] if able else max(sorted(tried), key=lambda each: tried[each])
    plan = known(step / GRID)
    if watch.limit_s is not None and plan.objective.gap > options.gap and not watch.over():
        plan = _longer(plan, partial(carrying, step / GRID, watch), tried[step])
    if not able:
        plan = _noted(plan, _not_held(tried[step], step / GRID, refused))
    return _stated(plan, options, step / GRID)


def _hastily(carrying: _Carrying, factor: float, watch: Watch) -> Plan:
    """The plan of a factor in a part of the time; that of none, if need be, in all of it."""
    if watch.limit_s is None:
        return carrying(factor, watch)
    try:
        return carrying(factor, watch.part(BEFORE))
    except InfeasibleError:
        if factor > 1 or watch.over():
            raise
        return carrying(factor, watch)


def _tried(
    known: Callable[[float], Plan], first: float, watch: Watch
) -> tuple[dict[int, float], dict[int, str]]:
    """Attainment by factors in steps of 1 / `GRID`, and why some have no plan."""
    tried, refused = {GRID: first}, dict[int, str]()

    def short(step: int) -> bool:
        if step not in tried and not watch.over():
            try:
                tried[step] = surely_attained(known(step / GRID)) or 0.0
            except InfeasibleError as error:
                refused[step] = f"; by {step / GRID:g}: {error}"
                return False
        return tried.get(step, 0.0) < ATTAINMENT

    low, high, growth = GRID - 1, GRID, 2
    while high <= MOST and short(high):
        low, high, growth = high, high + growth, 2 * growth
    last(short, low, min(high, MOST + 1))
    return tried, refused


def _not_held(attained: float, factor: float, refused: Mapping[int, str]) -> str:
    why = refused[min(refused)] if refused else ""
    return (
        f"headroom: surely {attained:.2%} of Poisson arrivals at {LOAD:g}, or of requests at equal "
        f"gaps, in time by a factor of {factor:g}, not {ATTAINMENT:.0%}{why}"
    )


def _longer(plan: Plan, made: Callable[[], Plan], least: float) -> Plan:
    """The plan of the rest of the time, if it is nearer to its bound and attains as much."""
    try:
        found = made()
    except InfeasibleError:
        return plan
    if found.objective.gap >= plan.objective.gap:
        return plan
    return found if (surely_attained(found) or 0.0) >= min(least, ATTAINMENT) else plan


# Plans


def _with(options: PlanOptions, headroom: str) -> PlanOptions:
    if HEADROOM.name not in options.own:
        return options
    return replace(options, own={**options.own, HEADROOM.name: headroom})


def _as_asked(plan: Plan, workload: Workload, factor: float) -> Plan:
    """A plan for a multiple of rates as one that promises the rates themselves."""
    planned = plan.workload
    models = tuple(
        replace(model, rate_rps=asked.rate_rps)
        for model, asked in zip(planned.models, workload.models, strict=True)
    )
    applications = tuple(
        replace(application, rate_rps=asked.rate_rps)
        for application, asked in zip(planned.applications, workload.applications, strict=True)
    )
    asked = replace(planned, models=models, applications=applications)
    return replace(_promising(plan, 1 / factor), workload=asked)


def _divided(plan: Plan, factor: float) -> Plan:
    """A plan of most throughput whose promise, and what bounds it, is divided."""
    objective = replace(
        plan.objective,
        value=plan.objective.value / factor,
        upper_bound=plan.objective.upper_bound / factor,
    )
    proof = [{**part, "bound": part["bound"] / factor} for part in plan.certificate["proof"]]
    certificate = {**plan.certificate, "proof": proof}
    return replace(_promising(plan, 1 / factor), objective=objective, certificate=certificate)


def _promising(plan: Plan, part: float) -> Plan:
    """The plan with a part of its rates, pool by pool the same."""
    return replace(
        plan,
        models=tuple(_model_promising(model, part) for model in plan.models),
        applications=tuple(
            replace(
                planned,
                application=replace(
                    planned.application, rate_rps=(planned.application.rate_rps or 0.0) * part
                ),
            )
            for planned in plan.applications
        ),
    )


def _model_promising(model: ModelPlan, part: float) -> ModelPlan:
    return replace(
        model,
        throughput_rps=model.throughput_rps * part,
        entries=tuple(replace(e, rate_rps=e.rate_rps * part) for e in model.entries),
        pipelines=tuple(
            replace(p, throughput_rps=p.throughput_rps * part) for p in model.pipelines
        ),
    )


def _noted(plan: Plan, note: str) -> Plan:
    notes = [*plan.certificate.get("notes", ()), note]
    return replace(plan, certificate={**plan.certificate, "notes": notes})


def _stated(plan: Plan, options: PlanOptions, factor: float) -> Plan:
    """The plan with the headroom as it was asked for, so that replanning seeks it again."""
    given = {"headroom": options.own[HEADROOM.name], "headroom_factor": factor}
    plan = replace(plan, options={**plan.options, **given})
    return replace(plan, plan_id=plan_identity(plan))
