"""GPUs and money a day for the load of an access log, with and without PoolPipe.

Three ways to serve the same minutes, each planned by the same planner code on the same profiles:
whole models sized for the highest minute, split models sized for it, and split models replanned
every few hours. Here: that comparison. Not here: the log (`access_log`), forecasts and periods
(`flows.operations.replanning`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flows.operations.adoption.access_log import AccessLog
from flows.operations.replanning.backtest import backtest
from flows.operations.replanning.demands import with_rates
from flows.operations.replanning.forecast import ForecastOptions
from flows.operations.replanning.planner import cheapest_planner, priced
from flows.operations.replanning.rates import RateHistory
from flows.planning import PlanOptions, make_plan
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import planned_rates

HOURS_A_DAY = 24
PLANNING_S = 20.0  # at most, for each plan
WARM_UP_PART = 4  # the first so-manieth of a log is only learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to serve the load.

    Attributes:
        gpus: on average.
        gpu_hours: a day.
        cost: a day, where every class states an hourly cost.
        served: share of requests within the plans' capacity.
        note: a reason where the cluster is too small for it.
    """

    name: str
    gpus: float
    gpu_hours: float
    cost: float | None
    served: float
    note: str = ""


def ways_of(
    log: AccessLog,
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    *,
    period_s: int,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Way, ...]:
    """The three ways, for the models and applications of the workload.

    Raises:
        InputError: the log has no request of them, is too short for a period, or does not
            distinguish them; or the inputs do not fit together.
    """
    history = _of(log, workload)
    if len(history.rps) < WARM_UP_PART:
        raise InputError(
            str(log.path),
            f"spans {len(history.rps)} min; {WARM_UP_PART} at least are needed, since rates are "
            "forecast from its first part",
        )
    costs = all(c.hourly_cost is not None for c in cluster.gpu_classes)
    counted = priced(cluster)
    peak = {n: float(r) for n, r in zip(history.names, history.rps.max(axis=0), strict=True)}
    asked = with_rates(workload, {name: max(rate, 1e-3) for name, rate in peak.items()})
    ways: list[Way] = []
    for name, options in (
        ("whole models, sized for the peak", PlanOptions(max_partitions=1)),
        ("split models, sized for the peak", PlanOptions()),
    ):
        report(name)
        ways.append(_sized(name, asked, options, (profiles, counted), history, costs=costs))
    report(f"split models, replanned every {period_s / 3600:g} h")
    ways.append(_replanned(history, profiles, counted, workload, period_s, report, costs=costs))
    return tuple(ways)


def check_in_log(workload: Workload) -> None:
    """Check that a log shows how much is asked of everything in a workload.

    Raises:
        InputError: a model lists entries; a request for it names the model alone.
    """
    for model in workload.models:
        if model.entries:
            reason = "are not distinguished in a log, whose lines name the model alone"
            raise InputError(f"workload model {model.name!r}, entries", reason)


def asked_names(workload: Workload) -> dict[str, str]:
    """Of every model and application of a workload, the name that clients ask for."""
    names = {model.name: model.size_of or model.name for model in workload.models}
    return names | {one.name: one.name for one in workload.applications}


def _of(log: AccessLog, workload: Workload) -> RateHistory:
    """The rates of a workload's models and applications."""
    check_in_log(workload)
    asked = asked_names(workload)
    names = tuple(asked)
    column = {name: number for number, name in enumerate(log.history.names)}
    if not set(asked.values()) & set(column):
        known = ", ".join(log.history.names)
        reason = f"has no request of {', '.join(names)}; its models: {known}"
        raise InputError(str(log.path), reason)
    empty = np.zeros(len(log.history.rps))
    shares = _shares_of_sizes(workload)
    rps = [
        log.history.rps[:, column[asked[name]]] * shares.get(name, 1.0)
        if asked[name] in column
        else empty
        for name in names
    ]
    return replace(log.history, names=names, rps=np.stack(rps, axis=1))


def _shares_of_sizes(workload: Workload) -> dict[str, float]:
    """Of every model, its share of the requests under the name in the log: 1, or a size's."""
    totals: dict[str, float] = {}
    for model in workload.models:
        name = model.size_of or model.name
        totals[name] = totals.get(name, 0.0) + model.normaliser()
    return {m.name: m.normaliser() / totals[m.size_of or m.name] for m in workload.models}


def _sized(
    name: str,
    asked: Workload,
    options: PlanOptions,
    known: tuple[Mapping[str, ModelProfile], Cluster],
    history: RateHistory,
    *,
    costs: bool,
) -> Way:
    """One plan for the highest minute; for the most that the cluster carries where it is less."""
    quick = replace(options, objective="cost", time_limit_s=PLANNING_S)
    note = ""
    try:
        plan = make_plan(*known, asked, quick)
    except InfeasibleError as error:
        note = str(error)
        try:
            plan = make_plan(*known, asked, replace(quick, objective="throughput"))
        except InfeasibleError:
            return Way(name=name, gpus=0, gpu_hours=0, cost=None, served=0.0, note=note)
    planned = planned_rates(plan)
    rates = np.array([planned[name] for name in history.names])
    offered = history.rps.sum()
    served = float(np.minimum(history.rps, rates * (1 + 1e-9)).sum() / offered)
    return _way(name, [(plan, 1.0)], served, costs=costs, note=note)


def _replanned(
    history: RateHistory,
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    period_s: int,
    report: Callable[[str], None],
    *,
    costs: bool,
) -> Way:
    warm_up_s = len(history.rps) // WARM_UP_PART * history.interval_s
    planner = cheapest_planner(profiles, cluster, workload, PlanOptions(), report)
    found = backtest(
        history, planner, period_s=period_s, warm_up_s=warm_up_s, options=ForecastOptions()
    )
    plans = [(period.plan, float(period.intervals)) for period in found.periods]
    name = f"split models, replanned every {period_s / 3600:g} h"
    return _way(name, plans, found.served_fraction, costs=costs)


def _way(
    name: str, plans: list[tuple[Plan, float]], served: float, *, costs: bool, note: str = ""
) -> Way:
    weights = [weight for _, weight in plans]
    gpus = float(np.average([sum(p.gpus_used.values()) for p, _ in plans], weights=weights))
    paid = float(np.average([p.price_paid or 0.0 for p, _ in plans], weights=weights))
    return Way(
        name=name,
        gpus=gpus,
        gpu_hours=gpus * HOURS_A_DAY,
        cost=paid * HOURS_A_DAY if costs else None,
        served=served,
        note=note,
    )


def to_dict(log: AccessLog, ways: tuple[Way, ...]) -> dict[str, Any]:
    """Plain form, as `advise --json` prints it."""
    return {
        "log": {
            "start": f"{log.start:%Y-%m-%dT%H:%MZ}",
            "hours": log.hours,
            "requests": dict(log.requests),
            "other_lines": log.others,
            "undated_requests": log.undated,
        },
        "ways": [
            {
                "name": way.name,
                "gpus": way.gpus,
                "gpu_hours_a_day": way.gpu_hours,
                "cost_a_day": way.cost,
                "served_fraction": way.served,
                "note": way.note,
            }
            for way in ways
        ],
    }
