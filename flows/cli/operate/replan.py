"""`replan`: a plan for what comes, from what was measured.

`--backtest`, what that would have done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import shared_options
from flows.cli.console import Report, note, print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    ClusterFile,
    WarehouseFile,
    WorkloadFile,
    pairs,
    rates,
)
from flows.operations.replanning.options import ForecastOptions, Thresholds
from flows.options import asked
from flows.planning.options import CommonOptions
from flows.release.rollout.options import RolloutOptions
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.operations.replanning.backtest_run import Backtested, BacktestOptions

HOUR_S = 3600
INTERVAL_S, PERIOD_HOURS, WARM_UP_HOURS = 60.0, 1.0, 24.0  # of a backtest
REPLANNED, IN_FORCE = ("max_partitions", "slo_margin"), "as in the plan in force"


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """A table of counts to replay, and how.

    Raises:
        InputError: there is no table but another option, which would go unused beside a rollout; or
            the chart cannot be drawn.
    """

    backtest: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Backtest",
            help="Replay this table of counts per interval and report the effect of replanning.",
        ),
    ] = None
    trace_interval: shared_options.TraceInterval = INTERVAL_S
    trace_names: shared_options.TraceNames = None
    peak: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=RPS",
            rich_help_panel="Backtest",
            help="Scale the counts of this model so that their peak is this rate.",
        ),
    ] = None
    period_hours: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            min=0.01,
            max=1e4,
            rich_help_panel="Backtest",
            help="Time between two plans, in hours.",
        ),
    ] = PERIOD_HOURS
    warm_up_hours: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            min=0.01,
            max=1e5,
            rich_help_panel="Backtest",
            help="Hours of the table that precede the first plan.",
        ),
    ] = WARM_UP_HOURS
    simulate_minutes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=10**6,
            rich_help_panel="Backtest",
            help="Also simulate this many intervals of the table.",
        ),
    ] = 0
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Backtest",
            help="Draw the backtest to this file (.png, .svg).",
        ),
    ] = None

    def __post_init__(self) -> None:
        given = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        if self.backtest is None and (name := next(given, None)) is not None:
            flag = "--map" if name == "trace_names" else f"--{name.replace('_', '-')}"
            raise InputError(flag, "needs --backtest, the table to replay")
        if (interval := self.trace_interval or INTERVAL_S) % 1:
            raise InputError("--trace-interval", f"{interval:g} is no whole number of seconds")
        if self.chart is not None:
            _check_chart(self.chart)

    def asked(
        self, table: Path, forecast: Mapping[str, Any], planning: Mapping[str, Any]
    ) -> "BacktestOptions":
        """The replay of a table, with options of forecasts and of planning.

        Raises:
            InputError: an option is out of its range.
        """
        from flows.operations.replanning.backtest_run import BacktestOptions
        from flows.planning import PlanOptions

        series: dict[str, list[str]] = {}
        for column, model in pairs("--map", self.trace_names).items():
            series.setdefault(model, []).append(column)
        return BacktestOptions(
            table=table,
            interval_s=round(self.trace_interval or INTERVAL_S),
            series={model: tuple(columns) for model, columns in series.items()},
            peak_rps=rates("--peak", self.peak),
            period_s=round(self.period_hours * HOUR_S),
            warm_up_s=round(self.warm_up_hours * HOUR_S),
            forecast=ForecastOptions(**forecast),
            planning=PlanOptions(**planning),
            simulated_minutes=self.simulate_minutes,
        )


@command(
    "replan",
    "poolpipe replan --cluster cluster.yaml --workload workload.yaml --advisory",
    "poolpipe replan --cluster cluster.yaml --workload workload.yaml"
    " --backtest counts.csv.gz --map f1=resnet --period-hours 1 --chart backtest.png",
)
def replan(
    *,
    cluster: ClusterFile,
    workload: WorkloadFile,
    forecast: Annotated[dict[str, Any], asked(ForecastOptions)],
    thresholds: Annotated[dict[str, Any], asked(Thresholds)],
    planning: Annotated[dict[str, Any], asked(CommonOptions, *REPLANNED, instead=IN_FORCE)],
    watching: Annotated[dict[str, Any], asked(RolloutOptions, "bake_seconds")],
    advisory: Annotated[
        bool,
        typer.Option(
            "--advisory",
            rich_help_panel="Rollout",
            help="Make and show the plan, but do not roll it out.",
        ),
    ] = False,
    replayed: Backtest,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Plan for the rates to come, from measured ones.

    The planner and its options are those of the plan in force, but for those given. The new plan is
    rolled out if it gains enough; otherwise the command states why the old one stays. A plan that
    was rolled out and taken back ends it with 1.
    """
    parameters: dict[str, Any] = {
        "warehouse": warehouse,
        "cluster": cluster,
        "workload": workload,
        "advisory": advisory,
        **forecast,
        **thresholds,
        **planning,
        **watching,
    }
    table_file = replayed.backtest
    if table_file is None:
        _replan_now(parameters, as_json=as_json)
        return
    with progress("backtesting") as report:
        done = _replay(parameters, replayed.asked(table_file, forecast, planning), report)
    document = done.to_dict()
    if replayed.chart is not None:
        _draw(done, replayed.chart)
    if as_json:
        print_json(document | ({} if replayed.chart is None else {"chart": replayed.chart}))
        return
    show(table(("backtest", ""), [(k.replace("_", " "), v) for k, v in _figures(document)]))


def _figures(document: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            inner: dict[str, Any] = value
            rows += [(f"{name} {key}", given) for key, given in _figures(inner)]
        else:
            rows.append((name, ", ".join(value) if isinstance(value, list) else value))
    return rows


def _replan_now(parameters: dict[str, Any], *, as_json: bool) -> None:
    """The flow of the nightly deployment, in this process."""
    from flows.deployments.orchestration.home import prepare_prefect
    from flows.files import read_cluster, read_workload
    from flows.state import project_state

    # Said at once, not after the seconds in which Prefect starts.
    read_cluster(parameters["cluster"])
    read_workload(parameters["workload"])
    prepare_prefect(project_state().prefect)
    note("replanning; the first step starts Prefect")
    from flows.deployments.orchestration.server import start_prefect_server

    server = start_prefect_server()
    from flows.deployments.parameters import ReplanParameters
    from flows.deployments.replan import replan_flow
    from flows.release.rollout.guarded import ROLLED_BACK

    if server is not None:
        server.wait()
    found = replan_flow(ReplanParameters(**parameters))
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found["outcome"] == ROLLED_BACK:
        raise typer.Exit(1)


def _show(found: Mapping[str, Any]) -> None:
    rates = ", ".join(f"{name} {rate:.1f} rps" for name, rate in found["forecast_rps"].items())
    show(f"forecast: {rates}; shares moved by {found['share_shift']:.1%}")
    recommendation = "worth a rollout" if found["roll_out"] else "not worth a rollout"
    show(f"plan {found['plan_id']} is {recommendation}: {found['reason']}")
    show(f"outcome: {found['outcome']}")


def _replay(
    parameters: Mapping[str, Any], asked: "BacktestOptions", report: Report
) -> "Backtested":
    """Replay the table.

    Raises:
        InputError: a file does not fit the others.
    """
    from flows.cli.project import check_known
    from flows.files import read_cluster, read_workload
    from flows.operations.replanning.backtest_run import run_backtest
    from flows.planning.stored_plans import load_interference, load_profiles
    from flows.workspace import workspace

    files = (parameters["cluster"], parameters["workload"])
    cluster, workload = read_cluster(files[0]), read_workload(files[1])
    work = workspace(parameters["warehouse"])
    check_known(work, files, (cluster, workload))
    profiles, warnings = load_profiles(work, cluster, workload)
    for text in warnings:
        note(text)
    if any(c.hourly_cost is None for c in cluster.gpu_classes):
        note("no hourly_cost for every class: GPUs are counted, not their cost")
    known = load_interference(work)
    return run_backtest(profiles, cluster, workload, asked, report, interference=known)


def _check_chart(path: Path) -> None:
    """Refuse a file that could not be drawn after a long run.

    Raises:
        InputError: it cannot be written, or nothing draws its type.
    """
    from flows.files import check_writable
    from flows.reporting.plots import check_drawable

    check_writable(path, makes_folders=True)
    check_drawable(path)


def _draw(done: "Backtested", path: Path) -> Path:
    """Rates of every model and the GPUs used, over time.

    Raises:
        InputError: the picture cannot be written.
    """
    import numpy as np

    from flows.reporting.backtest_chart import BacktestPicture, ModelCurve, draw_backtest

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
