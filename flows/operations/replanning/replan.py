"""Replanning: what was measured, what comes, a plan for it, and whether it is worth a rollout.

Old and new plan are simulated on the same arrivals: the busiest minutes that were measured, drawn
again from a seed. What is not simulated is not claimed: quiet minutes are served by both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np

from flows.clock import now_utc
from flows.operations.replanning.decide import (
    PlanWorth,
    Recommendation,
    decide,
    planned_rates,
    share_shift,
)
from flows.operations.replanning.forecast import forecast_rps, rates_to_plan
from flows.operations.replanning.options import ForecastOptions, Thresholds
from flows.operations.replanning.rates import RateHistory
from flows.operations.replanning.rows import as_measured, measured_rows, with_rows
from flows.planning import PlanOptions
from flows.planning.entries import AS_LISTED
from flows.planning.stored_plans import plan_step
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import Workload
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.run import SimOptions, simulate
from warehouse.observations import rates_between

MINUTE_S = 60
BUSIEST_MINUTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanOptions:
    """How careful to be, how far to look ahead, and how much must be gained."""

    horizon: timedelta = timedelta(hours=24)
    forecast: ForecastOptions = field(default_factory=ForecastOptions)
    thresholds: Thresholds = field(default_factory=Thresholds)
    planning: PlanOptions = field(default_factory=PlanOptions)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """The result of replanning; `plan` is the new plan, worth a rollout or not."""

    plan: Plan
    recommendation: Recommendation
    forecast_rps: Mapping[str, float]
    share_shift: float
    old: PlanWorth | None
    new: PlanWorth


def options_of(in_force: Plan | None) -> PlanOptions:
    """How the plan in force was planned; how plans are made by default where there is none.

    Plans of entries state phases and headroom; one that states none was made by rates alone.

    Raises:
        InputError: its planner is not known any more.
    """
    if in_force is None:
        return PlanOptions()
    usual = AS_LISTED if in_force.workload.has_entries else {}
    return PlanOptions.from_dict(in_force.planner, {**usual, **in_force.options})


def measured_rates(
    work: Workspace, names: Sequence[str], since: datetime, until: datetime
) -> RateHistory:
    """Per-minute rates of models and applications from the warehouse.

    Minutes without a request count as 0.

    Raises:
        InputError: nothing was measured in that time.
    """
    with work.open(read_only=True) as warehouse:
        rows = rates_between(warehouse, since, until)
    rows = [row for row in rows if row["model"] in names]
    if not rows:
        raise InputError("replan", f"no request of {', '.join(names)} was measured since {since}")
    first = min(row["minute"] for row in rows)
    minutes = int((max(row["minute"] for row in rows) - first).total_seconds()) // MINUTE_S + 1
    rps = np.zeros((minutes, len(names)))
    for row in rows:
        at = int((row["minute"] - first).total_seconds()) // MINUTE_S
        rps[at, names.index(row["model"])] += row["offered_rps"]
    return RateHistory(names=tuple(names), interval_s=MINUTE_S, rps=rps)


def replan(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    in_force: Plan | None,
    options: ReplanOptions,
) -> Replanned:
    """Forecast, plan, simulate old against new, decide. Nothing is rolled out.

    Modules of applications are planned, and both plans simulated, with the rows that were measured.

    Raises:
        InputError: nothing was measured, or no plan can meet an SLO.
    """
    until = now_utc()
    since = until - timedelta(hours=options.forecast.history_hours)
    names = [one.name for one in (*workload.models, *workload.applications)]
    history = measured_rates(work, names, since, until)
    rows = measured_rows(work, since, until)
    workload = replace(workload, applications=with_rows(workload.applications, rows))
    horizon = int(options.horizon.total_seconds()) // MINUTE_S
    foreseen = forecast_rps(history, len(history.rps), horizon, options.forecast)
    rates = rates_to_plan(names, foreseen)
    planning = replace(options.planning, previous=in_force)
    plan = _plan(work, cluster, with_rates(workload, rates), planning)
    arrivals = busiest_minutes(history, options.seed)
    new = judge(plan, arrivals, options.seed)
    old = None if in_force is None else judge(as_measured(in_force, rows), arrivals, options.seed)
    shift = 0.0 if in_force is None else _shift(in_force, history)
    return Replanned(
        plan=plan,
        recommendation=decide(old, new, options.thresholds),
        forecast_rps=rates,
        share_shift=shift,
        old=old,
        new=new,
    )


def _plan(work: Workspace, cluster: Cluster, workload: Workload, options: PlanOptions) -> Plan:
    """For cost or power the least that carries the rates; else, or beyond the cluster, the most."""
    asked = priced(cluster) if options.objective == "cost" else cluster
    try:
        return plan_step(work, asked, workload, options).plan
    except InfeasibleError:
        if options.objective == "throughput":
            raise
        return plan_step(work, cluster, workload, replace(options, objective="throughput")).plan


def priced(cluster: Cluster) -> Cluster:
    """A cluster with prices; where one is missing, every GPU counts the same."""
    if all(c.hourly_cost is not None for c in cluster.gpu_classes):
        return cluster
    classes = tuple(replace(c, hourly_cost=1.0) for c in cluster.gpu_classes)
    return replace(cluster, gpu_classes=classes)


def with_rates(workload: Workload, rates: Mapping[str, float]) -> Workload:
    """The workload with the forecast of each model and application as its rate and its weight."""
    return replace(
        workload,
        models=tuple(
            replace(model, rate_rps=rates[model.name], weight=rates[model.name])
            for model in workload.models
        ),
        applications=tuple(
            replace(asked, rate_rps=rates[asked.name], weight=rates[asked.name])
            for asked in workload.applications
        ),
    )


def busiest_minutes(history: RateHistory, seed: int) -> dict[str, np.ndarray]:
    """Instants (µs) per model: the busiest minutes one after another, Poisson at their rates."""
    busiest = np.sort(np.argsort(history.rps.sum(axis=1), kind="stable")[-BUSIEST_MINUTES:])
    instants: dict[str, np.ndarray] = {}
    for number, name in enumerate(history.names):
        rng = np.random.default_rng([seed, number])
        parts = [
            (place * MINUTE_S + np.sort(rng.uniform(0, MINUTE_S, size=count))) * US_PER_S
            for place, count in enumerate(rng.poisson(history.rps[busiest, number] * MINUTE_S))
        ]
        instants[name] = np.concatenate(parts).astype(np.int64)
    return instants


def judge(plan: Plan, arrivals: Mapping[str, np.ndarray], seed: int) -> PlanWorth:
    """A plan's attainment on given arrivals, simulated.

    A model or application it does not have attains 0.
    """
    served = {one.name for one in (*plan.models, *plan.applications)}
    known = {name: instants for name, instants in arrivals.items() if name in served}
    duration_s = BUSIEST_MINUTES * float(MINUTE_S)
    run = SimOptions(arrivals=Instant(by_model=known), duration_s=duration_s, seed=seed)
    result = simulate(plan, replace(run, keep_uses=False))
    outcomes = {model.name: model.outcome for model in result.models}
    outcomes |= {name: application.outcome for name, application in result.applications.items()}
    return PlanWorth(
        plan_id=plan.plan_id,
        attainment={n: outcomes[n].attainment if n in outcomes else 0.0 for n in arrivals},
        served_rps=sum(outcome.served for outcome in outcomes.values()) / duration_s,
        gpus=sum(plan.gpus_used.values()),
    )


def _shift(plan: Plan, history: RateHistory) -> float:
    planned = planned_rates(plan)
    measured = np.nanmean(history.rps, axis=0)
    return share_shift([planned.get(name, 0.0) for name in history.names], measured.tolist())
