"""`replan --backtest`: what replanning would have done on a table of measured counts.

Here: inputs from files and the warehouse, and the chart's figures. Not here: the planner and the
check by simulation (`flows/steps/backtest`), the arithmetic of periods (`flows/replanning`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flows.cli.output import Report, note
from flows.cli.stored import check_known
from flows.files import check_writable, read_cluster, read_workload
from flows.operations.replanning.backtest_run import Backtested, BacktestOptions, run_backtest
from flows.planning.stored_plans import load_profiles
from flows.reporting.backtest_chart import (
    BacktestPicture,
    ModelCurve,
    check_drawable,
    draw_backtest,
)
from flows.workspace import workspace
from triton_backend.contract.errors import InputError

HOUR_S = 3600


def replay(parameters: Mapping[str, Any], asked: BacktestOptions, report: Report) -> Backtested:
    """Replay the table.

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
    if any(c.hourly_cost is None for c in cluster.gpu_classes):
        note("no hourly_cost for every class: GPUs are counted, not their cost")
    return run_backtest(profiles, cluster, workload, asked, report)


def check_chart(path: Path) -> None:
    """Refuse a file that could not be drawn after a long run.

    Raises:
        InputError: it cannot be written, or nothing draws its type.
    """
    check_writable(path, makes_folders=True)
    check_drawable(path)


def draw(done: Backtested, path: Path) -> Path:
    """Rates of every model and the GPUs used, over time.

    Raises:
        InputError: the picture cannot be written.
    """
    found, rps = done.found, np.nan_to_num(done.history.rps)
    spans = [rps[p.first : p.first + p.intervals] for p in found.periods]
    edges = [p.first for p in found.periods]
    edges.append(edges[-1] + found.periods[-1].intervals)
    curves = [
        ModelCurve(
            name=name,
            mean_rps=[float(span[:, number].mean()) for span in spans],
            highest_rps=[float(span[:, number].max()) for span in spans],
            planned_rps=[p.planned_rps[number] for p in found.periods],
        )
        for number, name in enumerate(found.names)
    ]
    picture = BacktestPicture(
        title=f"Replanning: {found.served_fraction:.2%} of requests served with"
        f" {found.mean_gpus / found.static_gpus:.0%} of the static plan's GPUs",
        hours=[edge * found.interval_s / HOUR_S for edge in edges],
        models=curves,
        gpus=[p.gpus for p in found.periods],
        static_gpus=found.static_gpus,
        mean_gpus=found.mean_gpus,
        served_percent=[
            100.0 * sum(p.served_rps) / sum(p.offered_rps) if sum(p.offered_rps) else 100.0
            for p in found.periods
        ],
    )
    try:
        return draw_backtest(picture, path)
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be drawn: {error}") from error
