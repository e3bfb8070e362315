"""Headroom: pools that carry a factor more than a plan promises, so that bursts are in time too.

Where rates are asked for, the plan is that of the rates times the factors, and promises them as
they are. Where nothing is asked (`throughput`), weights are multiplied and rates divided. Either
way pools carry `headroom_factor` times what the plan promises, as its options state, or what
`headroom_factors` states by name of a model or application.

`poisson99` seeks the least factors of a grid with which the simulator finds every model and
application surely in time for 99 % of Poisson arrivals at 0.9 of the promised rates, and for 99 %
of requests at equal gaps at these rates (`factors`, `attainment`).

Here: for every planner. Not here: how planners of entries read a factor (`entries/tables.py`):
phases of clients are those of the rates as listed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from flows.options import Option
from flows.planning.certificate import plan_identity
from flows.planning.promises.attainment import LOAD, shortfall, surely_attained
from flows.planning.promises.factors import GRID, Factors, Groups, Steps
from flows.planning.registry import Inputs, PlanOptions, product_planners
from flows.planning.watch import BEFORE, Watch
from triton_backend.contract.applications import Application
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.workload import ModelDemand, Workload, line_factors
from triton_backend.simulator.goodput import ATTAINMENT

AUTO, POISSON, NO_HEADROOM = "auto", "poisson99", "none"
HEADROOM = Option(
    name="headroom",
    default=AUTO,
    help="Times the promised rates that pools carry: a factor, poisson99 (the least that holds "
    "99 % of Poisson arrivals at 0.9), none; auto: poisson99 for entries at listed rates of "
    "planners that are not for comparison, else none.",
)
MOST_FACTOR = 1000  # as of forecasts
_Carrying = Callable[[Mapping[str, float], Watch], Plan]
_Demand = TypeVar("_Demand", ModelDemand, Application)


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

    `poisson99`: factors are tried (`factors`), each for a part of the time that is left; the plan
    of those found gets the rest. Where the GPUs are too few for factors that attain, or the time is
    over, the plan that attains most is returned; its notes say so. A plan too large to be simulated
    is as without headroom, and says so.

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
    throughput = options.objective == "throughput"
    if throughput and workload.has_entries == (asked == POISSON):
        return promising_less(made(replace(inputs, options=none)), options)

    def carrying(factors: Mapping[str, float], watch: Watch) -> Plan:
        now, least = replace(inputs, watch=watch), min(factors.values())
        if workload.has_entries:
            return made(replace(now, options=_with(options, f"{least:g}")))
        now = replace(now, options=none)
        if throughput and max(factors.values()) == least:
            return _divided(made(now), least)
        more = multiplied(workload, factors, options.objective)
        return _as_asked(made(replace(now, workload=more)), workload, factors)

    groups = _groups(workload)
    if asked != POISSON:
        factors = dict.fromkeys(groups, factor_of(asked))
        return _stated(carrying(factors, inputs.watch), options, factors)
    return _sought(carrying, groups, options, inputs.watch)


def promising_less(plan: Plan, options: PlanOptions) -> Plan:
    """A plan of most throughput with the headroom that options ask for: its rates are divided.

    Raises:
        InputError: as `headroom_of`.
    """
    asked = headroom_of(options, plan.workload)
    if asked == NO_HEADROOM:
        return plan
    if asked != POISSON:
        factor = factor_of(asked)
        return _stated(_divided(plan, factor), options, {"": factor})

    def carrying(factors: Mapping[str, float], watch: Watch) -> Plan:
        del watch
        return _divided(plan, min(factors.values()))

    return _sought(carrying, {"": 0}, options, Watch())


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


def multiplied(workload: Workload, factors: Mapping[str, float], objective: str) -> Workload:
    """The workload with each rate, or with each weight of the objective `throughput`, so often."""

    def of(demand: _Demand) -> _Demand:
        more = factors[demand.name] * demand.normaliser(objective)
        if objective == "throughput":
            return replace(demand, weight=more)
        return replace(demand, rate_rps=more)

    models = tuple(map(of, workload.models))
    return replace(workload, models=models, applications=tuple(map(of, workload.applications)))


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


def _groups(workload: Workload) -> dict[str, int]:
    """Models and applications that share a factor: variants of one model, all that list entries."""
    names = [*(m.name for m in workload.models), *(a.name for a in workload.applications)]
    if workload.has_entries:
        return dict.fromkeys(names, 0)
    variant_of = workload.variant_of
    numbers = {name: number for number, name in enumerate(n for n in names if n not in variant_of)}
    return {name: numbers[variant_of.get(name, name)] for name in names}


def _sought(carrying: _Carrying, groups: Groups, options: PlanOptions, watch: Watch) -> Plan:
    """The plan of the least factors found that attain, else of those that attain most."""

    def carried(steps: Steps) -> Plan:
        *own, common = steps
        if common > GRID:
            return _divided(found.plans[*own, GRID], common / GRID)
        made = partial(carrying, found.factors(steps))
        return _hastily(made, watch, needed=steps == found.ones)

    found = Factors(groups=groups, carrying=carried, watch=watch)
    if not found.begin():
        note = "headroom: the plan is too large to be simulated, it has none"
        plan = _noted(found.plans[found.ones], note)
        return _stated(plan, options, found.factors(found.ones))
    found.seek()
    if options.objective == "throughput" and not found.attains(found.best()):
        for steps in {found.ones, found.best()}:
            found.divide(steps)
    steps = found.best()
    factors = found.factors(steps)
    plan, attained = found.plans[steps], min(found.attained[steps])
    time_left = watch.limit_s is not None and not watch.over()
    if time_left and plan.objective.gap > options.gap:
        plan = _longer(plan, partial(carrying, factors, watch), attained)
    if not found.attains(steps):
        plan = _noted(plan, _not_held(attained, max(factors.values()), found.refused))
    return _stated(plan, options, factors)


def _hastily(made: Callable[[Watch], Plan], watch: Watch, *, needed: bool) -> Plan:
    """The plan that a part of the time makes; a plan that is needed gets all of it if need be."""
    if watch.limit_s is None:
        return made(watch)
    try:
        return made(watch.part(BEFORE))
    except InfeasibleError:
        if not needed or watch.over():
            raise
        return made(watch)


def _not_held(attained: float, factor: float, refused: Mapping[Steps, str]) -> str:
    why = ""
    if refused:
        steps = min(refused, key=sum)
        why = f"; by {max(steps) / GRID:g}: {refused[steps]}"
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
    attained = surely_attained(found) or {"": 0.0}
    return found if min(attained.values()) >= min(least, ATTAINMENT) else plan


# Plans


def _with(options: PlanOptions, headroom: str) -> PlanOptions:
    if HEADROOM.name not in options.own:
        return options
    return replace(options, own={**options.own, HEADROOM.name: headroom})


def _as_asked(plan: Plan, workload: Workload, factors: Mapping[str, float]) -> Plan:
    """A plan for multiples of rates or weights as one that promises the workload's own."""
    planned, objective = plan.workload, plan.objective.name
    models = tuple(
        replace(model, rate_rps=asked.rate_rps, weight=asked.weight)
        for model, asked in zip(planned.models, workload.models, strict=True)
    )
    applications = tuple(
        replace(application, rate_rps=asked.rate_rps, weight=asked.weight)
        for application, asked in zip(planned.applications, workload.applications, strict=True)
    )
    asked = replace(planned, models=models, applications=applications)
    parts = {name: 1 / factor for name, factor in line_factors(asked, factors, objective).items()}
    parts |= {a.name: 1 / factors[a.name] for a in applications}
    return replace(_promising(plan, parts), workload=asked)


def _divided(plan: Plan, factor: float) -> Plan:
    """A plan of most throughput whose promise, and what bounds it, is divided."""
    objective = replace(
        plan.objective,
        value=plan.objective.value / factor,
        upper_bound=plan.objective.upper_bound / factor,
    )
    proof = [{**part, "bound": part["bound"] / factor} for part in plan.certificate["proof"]]
    certificate = {**plan.certificate, "proof": proof}
    names = (*(m.name for m in plan.models), *(a.name for a in plan.workload.applications))
    less = _promising(plan, dict.fromkeys(names, 1 / factor))
    return replace(less, objective=objective, certificate=certificate)


def _promising(plan: Plan, parts: Mapping[str, float]) -> Plan:
    """The plan with parts of its rates by line and application, pool by pool the same."""
    return replace(
        plan,
        models=tuple(_model_promising(model, parts[model.name]) for model in plan.models),
        applications=tuple(
            replace(planned, application=_at_rate(planned.application, parts))
            for planned in plan.applications
        ),
    )


def _at_rate(application: Application, parts: Mapping[str, float]) -> Application:
    part = parts[application.name]
    return replace(application, rate_rps=(application.rate_rps or 0.0) * part)


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


def _stated(plan: Plan, options: PlanOptions, factors: Mapping[str, float]) -> Plan:
    """The plan with the headroom as it was asked for, so that replanning seeks it again.

    Factors above the least one are stated by name.
    """
    least = min(factors.values())
    own = {name: factor for name, factor in sorted(factors.items()) if factor > least}
    given: dict[str, Any] = {"headroom": options.own[HEADROOM.name], "headroom_factor": least}
    if own:
        given["headroom_factors"] = own
    plan = replace(plan, options={**plan.options, **given})
    return replace(plan, plan_id=plan_identity(plan))
