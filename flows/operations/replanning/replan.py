"""Replanning: what was measured, what comes, a plan for it, and whether it is worth a rollout.

Old and new plan are simulated on the same arrivals: the busiest minutes that were measured, drawn
again from a seed. What is not simulated is not claimed: quiet minutes are served by both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import numpy as np

from flows.clock import now_utc
from flows.operations.replanning.decide import (
    PlanWorth,
    Recommendation,
    decide,
    left_to_loop,
    share_shift,
)
from flows.operations.replanning.demands import offered_between, with_rates
from flows.operations.replanning.forecast import forecast_rps, rates_to_plan
from flows.operations.replanning.options import ForecastOptions, Thresholds
from flows.operations.replanning.planner import least_or_most
from flows.operations.replanning.rates import RateHistory
from flows.operations.replanning.rows import as_measured, measured_rows, with_rows
from flows.operations.replanning.simulated import arrivals_for, outcomes
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import demand_names, planned_rates
from triton_backend.simulator.run import SimOptions, simulate

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


def measured_rates(
    work: Workspace, workload: Workload, since: datetime, until: datetime
) -> RateHistory:
    """Per-minute rates of all that clients ask for, from the warehouse.

    Minutes without a request count as 0. Requests at entries that the workload does not list count
    for the listed one at their cut (`entry_of_block`).

    Raises:
        InputError: nothing was measured in that time.
    """
    names = demand_names(workload)
    rows = [row for row in offered_between(work, workload, since, until) if row[1] in names]
    if not rows:
        when = f"{since:%Y-%m-%d %H:%M %Z}"
        reason = f"no request of {', '.join(names)} was measured since {when}"
        raise InputError("replan", f"{reason}; `poolpipe ingest` reads what a gateway has counted")
    first = min(minute for minute, _, _ in rows)
    minutes = int((max(row[0] for row in rows) - first).total_seconds()) // MINUTE_S + 1
    rps = np.zeros((minutes, len(names)))
    for minute, name, offered_rps in rows:
        at = int((minute - first).total_seconds()) // MINUTE_S
        rps[at, names.index(name)] += offered_rps
    return RateHistory(names=names, interval_s=MINUTE_S, rps=rps)


def replan(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    in_force: Plan | None,
    options: ReplanOptions,
    loop: str | None = None,
) -> Replanned:
    """Forecast, plan, simulate old against new, decide. Nothing is rolled out.

    Modules of applications are planned, and both plans simulated, with the rows that were measured.

    Args:
        work: the project.
        cluster: the GPUs there are.
        workload: the demands, whose rates are replaced by those to come.
        in_force: the plan in force; None where nothing is served.
        options: how to look ahead, plan and weigh.
        loop: the process that brings plans by the load meanwhile (`autoscale`, `steer`), in words.
            It keeps to the GPUs and the demands of the plan in force: a new plan for other ones is
            worth a rollout beside it.

    Raises:
        InputError: nothing was measured, or no plan can meet an SLO.
    """
    until = now_utc()
    since = until - timedelta(hours=options.forecast.history_hours)
    history = measured_rates(work, workload, since, until)
    names = history.names
    rows = measured_rows(work, since, until)
    workload = replace(workload, applications=with_rows(workload.applications, rows))
    horizon = int(options.horizon.total_seconds()) // MINUTE_S
    foreseen = forecast_rps(history, len(history.rps), horizon, options.forecast)
    rates = rates_to_plan(names, foreseen)
    planning = replace(options.planning, previous=in_force)
    asked = with_rates(workload, rates)
    plan = least_or_most(partial(_stored, work), cluster, asked, planning)
    arrivals = busiest_minutes(history, options.seed)
    new = judge(plan, asked, arrivals, options.seed)
    before = None if in_force is None else as_measured(in_force, rows)
    old = None if before is None else judge(before, asked, arrivals, options.seed)
    shift = 0.0 if in_force is None else _shift(in_force, history)
    recommendation = decide(old, new, options.thresholds)
    if loop is not None and in_force is not None and _follows(in_force, cluster, names):
        recommendation = left_to_loop(recommendation, loop)
    return Replanned(
        plan=plan,
        recommendation=recommendation,
        forecast_rps=rates,
        share_shift=shift,
        old=old,
        new=new,
    )


def _follows(in_force: Plan, cluster: Cluster, names: tuple[str, ...]) -> bool:
    """True if a loop that goes on from the plan in force serves these names on these GPUs."""
    return in_force.cluster == cluster and set(planned_rates(in_force)) == set(names)


def _stored(work: Workspace, cluster: Cluster, asked: Workload, options: PlanOptions) -> Plan:
    return plan_step(work, cluster, asked, options).plan


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


def judge(plan: Plan, asked: Workload, arrivals: Mapping[str, np.ndarray], seed: int) -> PlanWorth:
    """A plan's attainment on given arrivals, simulated.

    What it has no door for attains 0.
    """
    duration_s = BUSIEST_MINUTES * float(MINUTE_S)
    offered = arrivals_for(plan, asked, arrivals)
    run = SimOptions(arrivals=offered, duration_s=duration_s, seed=seed)
    found = outcomes(plan, asked, simulate(plan, replace(run, keep_uses=False)))
    doors = {id(outcome): outcome for outcome in found.values()}
    return PlanWorth(
        plan_id=plan.plan_id,
        attainment={n: found[n].attainment if n in found else 0.0 for n in arrivals},
        served_rps=sum(outcome.served for outcome in doors.values()) / duration_s,
        gpus=sum(plan.gpus_used.values()),
    )


def _shift(plan: Plan, history: RateHistory) -> float:
    planned = planned_rates(plan)
    measured = np.nanmean(history.rps, axis=0)
    return share_shift([planned.get(name, 0.0) for name in history.names], measured.tolist())
