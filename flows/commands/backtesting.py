"""`replan --backtest`: what replanning would have done on a table of measured counts.

Here: the table scaled to the cluster, the planner the backtest calls, and its chart's figures.
Not here: the forecast and the arithmetic of periods (`flows/replanning`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flows.commands.output import Report, note
from flows.commands.stored import check_known
from flows.files import read_cluster, read_workload
from flows.planning import PlanOptions, make_plan
from flows.replanning.backtest import Backtest, Planner, backtest
from flows.replanning.forecast import ForecastOptions
from flows.replanning.rates import RateHistory, read_counts
from flows.reporting.plots import backtest_chart
from flows.steps.planning import load_profiles
from flows.steps.workspace import workspace
from triton_backend.core.cluster import Cluster
from triton_backend.core.errors import InfeasibleError, InputError
from triton_backend.core.plan import Plan
from triton_backend.core.profiles import ModelProfile
from triton_backend.core.workload import Workload

PEAK_SHARE = 0.9  # of what the whole cluster serves, where no peak is stated
HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestOptions:
    """What to replay.

    Attributes:
        series: model to its column of the table; a model not named has a column of its own name.
        peak_rps: highest rate of each model; models not named get 0.9 of what the cluster serves.
    """

    table: Path
    interval_s: int
    period_s: int
    warm_up_s: int
    series: Mapping[str, str] = field(default_factory=dict[str, str])
    peak_rps: Mapping[str, float] = field(default_factory=dict[str, float])


def run_backtest(
    parameters: Mapping[str, Any], asked: BacktestOptions, report: Report
) -> tuple[Backtest, RateHistory]:
    """Replay the table; the figures, and the rates as they were scaled.

    Raises:
        InputError: a file does not fit the others.
    """
    files = (parameters["cluster"], parameters["workload"])
    cluster, workload = read_cluster(files[0]), read_workload(files[1])
    work = workspace(parameters["warehouse"])
    check_known(work, files, (cluster, workload))
    profiles, warnings = load_profiles(work, cluster, workload)
    for text in warnings:
        note(text)
    planning = PlanOptions(
        max_partitions=parameters["max_partitions"], slo_margin=parameters["slo_margin"]
    )
    names = [model.name for model in workload.models]
    history = read_counts(
        asked.table,
        interval_s=asked.interval_s,
        series={name: asked.series.get(name, name) for name in names},
    )
    whole = make_plan(profiles, cluster, workload, planning)
    peaks = {
        name: asked.peak_rps.get(name, PEAK_SHARE * whole.model(name).throughput_rps)
        for name in names
    }
    history = history.scaled_to_peak(peaks)
    found = backtest(
        history,
        _planner(profiles, _priced(cluster), workload, planning, report),
        period_s=asked.period_s,
        warm_up_s=asked.warm_up_s,
        options=ForecastOptions(quantile=parameters["quantile"], headroom=parameters["headroom"]),
    )
    return found, history


def _priced(cluster: Cluster) -> Cluster:
    """A cluster with prices; where one is missing, every GPU counts the same."""
    if all(c.hourly_cost is not None for c in cluster.gpu_classes):
        return cluster
    note("no hourly_cost for every class: GPUs are counted, not their cost")
    classes = tuple(replace(c, hourly_cost=1.0) for c in cluster.gpu_classes)
    return replace(cluster, gpu_classes=classes)


def _planner(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
    report: Report,
) -> Planner:
    """Least cost at the rates asked for; the most the cluster can do where they are too high."""
    number = 0

    def plan(rates_rps: Mapping[str, float]) -> Plan:
        nonlocal number
        number += 1
        report(f"backtesting: plan {number}")
        asked = Workload(
            models=tuple(
                replace(m, rate_rps=rates_rps[m.name], weight=rates_rps[m.name])
                for m in workload.models
            )
        )
        try:
            return make_plan(profiles, cluster, asked, replace(options, objective="cost"))
        except InfeasibleError:
            return make_plan(profiles, cluster, asked, options)

    return plan


def draw(found: Backtest, history: RateHistory, path: Path) -> Path:
    """Offered, planned and served rates over time, above the GPUs used.

    Raises:
        InputError: the picture cannot be written.
    """
    starts = [period.first for period in found.periods]
    ends = [*starts[1:], len(history.rps)]
    hours = [first * found.interval_s / HOUR_S for first in starts]
    rates = {
        "offered, highest of the period": [
            float(np.nansum(history.rps[a:b], axis=1).max())
            for a, b in zip(starts, ends, strict=True)
        ],
        "planned": [sum(period.planned_rps) for period in found.periods],
        "served, mean": [sum(period.served_rps) for period in found.periods],
    }
    gpus = [float(period.gpus) for period in found.periods]
    try:
        return backtest_chart(hours, rates, gpus, path, title="replanning over measured load")
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be drawn: {error}") from error
