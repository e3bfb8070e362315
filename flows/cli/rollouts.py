"""Commands that change what is being served: rollout, replan."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli import options
from flows.cli.options import (
    WAREHOUSE,
    AsJson,
    ClusterFile,
    WarehouseFile,
    WorkloadFile,
    example,
)
from flows.cli.output import note, print_json, progress, say, show, table


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(
        epilog=example(
            "poolpipe rollout plan.json --bake-seconds 60 --reason 'new SLO'",
            "poolpipe rollout --rollback",
            "poolpipe rollout --status",
        )
    )(rollout)
    app.command(
        epilog=example(
            "poolpipe replan --cluster cluster.yaml --workload workload.yaml --advisory",
            "poolpipe replan --cluster cluster.yaml --workload workload.yaml"
            " --backtest counts.csv.gz --map f1=resnet --period-hours 1 --chart backtest.png",
        )
    )(replan)


def rollout(
    plan: Annotated[
        str | None, typer.Argument(help="A plan.json, or the id of a stored plan.")
    ] = None,
    *,
    bake_seconds: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.0, max=1e6, help="Watch the new plan so long; on breach it goes."
        ),
    ] = 30.0,
    attainment_target: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1.0, help="Attainment under which it goes.")
    ] = 0.95,
    reason: Annotated[str, typer.Option(help="Why, for the history.")] = "requested",
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Bring back the plan before the last rollout.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show the rollouts so far, and do nothing.")
    ] = False,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Bring a plan into force on the running system.

    Checked before and watched after; on breach the former plan comes back.
    """
    from flows.release.rollout.guarded import DONE, RolloutOptions, roll_back, roll_out
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError

    if [plan is not None, rollback, status].count(True) != 1:
        raise InputError("rollout", "takes a plan, --rollback or --status, one of them")
    if status:
        _history(warehouse, as_json=as_json)
        return
    from flows.cli.stored import find_plan

    asked = RolloutOptions(
        bake_seconds=bake_seconds, attainment_target=attainment_target, reason=reason
    )
    work, tell = workspace(warehouse), say(quiet=as_json)
    if plan is None:
        done = roll_back(work, asked, tell)
    else:
        done = roll_out(work, find_plan(plan, warehouse), asked, tell)
    if as_json:
        names = ("rollout_id", "plan_id", "state", "outcome")
        print_json({name: getattr(done, name) for name in names})
    else:
        show(f"{done.state}: {done.outcome}; plan {done.plan_id} is in force")
    if done.state != DONE:
        raise typer.Exit(1)


def _history(warehouse: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    from flows.workspace import workspace
    from warehouse.observations import list_rollouts

    with workspace(warehouse).open(read_only=True) as store:
        rows = [asdict(rollout) for rollout in list_rollouts(store)]
    if as_json:
        print_json({"rollouts": rows})
        return
    names = (
        "rollout_id",
        "plan_id",
        "former_plan_id",
        "state",
        "requested_by",
        "started_at",
        "reason",
        "outcome",
    )
    show(table(names, [[row[name] for name in names] for row in rows]))


def replan(
    *,
    cluster: ClusterFile,
    workload: WorkloadFile,
    history_hours: Annotated[
        float,
        typer.Option(metavar="N", min=0.1, max=1e5, help="How far to look back on measured rates."),
    ] = 24.0,
    quantile: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1.0, help="Of the rates, to plan for.")
    ] = 0.99,
    headroom: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1e3, help="Factor on top of it.")
    ] = 1.1,
    goodput_gain: Annotated[
        float,
        typer.Option(metavar="N", min=0.0, max=1e3, help="Least gain in goodput worth a rollout."),
    ] = 0.02,
    gpu_gain: Annotated[
        float,
        typer.Option(metavar="N", min=0.0, max=1.0, help="Least saving of GPUs worth a rollout."),
    ] = 0.05,
    max_partitions: options.MaxPartitions = 2,
    slo_margin: Annotated[float, typer.Option(metavar="N", min=0.0, max=0.99)] = 0.4,
    bake_seconds: Annotated[float, typer.Option(metavar="N", min=0.0, max=1e6)] = 30.0,
    advisory: Annotated[
        bool, typer.Option("--advisory", help="Everything but the rollout.")
    ] = False,
    backtest: Annotated[
        Path | None,
        typer.Option(help="A table of counts per interval: what replanning would have done."),
    ] = None,
    trace_interval: options.TraceInterval = 60.0,
    trace_names: options.TraceNames = None,
    peak: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=RPS", help="Scale the table so that this is its peak."),
    ] = None,
    period_hours: Annotated[
        float, typer.Option(metavar="N", min=0.01, max=1e4, help="Replan so often.")
    ] = 1.0,
    warm_up_hours: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.01, max=1e5, help="Hours of the table before the first plan."
        ),
    ] = 24.0,
    simulate_minutes: Annotated[
        int,
        typer.Option(
            min=0, max=10**6, help="So many intervals of the backtest are also simulated."
        ),
    ] = 0,
    chart: Annotated[Path | None, typer.Option(help="Draw the backtest here (.png, .svg).")] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Plan for what comes, from what was measured.

    The plan is rolled out where it gains enough; else it is said why the old one stays.
    """
    parameters: dict[str, Any] = {
        "warehouse": warehouse,
        "cluster": cluster,
        "workload": workload,
        "history_hours": history_hours,
        "quantile": quantile,
        "headroom": headroom,
        "goodput_gain": goodput_gain,
        "gpu_gain": gpu_gain,
        "max_partitions": max_partitions,
        "slo_margin": slo_margin,
        "bake_seconds": bake_seconds,
        "advisory": advisory,
    }
    if backtest is None:
        _replan_now(parameters, as_json=as_json)
        return
    from flows.cli.backtesting import check_chart, draw, replay
    from flows.operations.replanning.backtest_run import BacktestOptions
    from flows.operations.replanning.forecast import ForecastOptions
    from flows.planning import PlanOptions

    if chart is not None:
        check_chart(chart)
    asked = BacktestOptions(
        table=backtest,
        interval_s=round(trace_interval or 60),
        series={model: column for column, model in options.pairs("--map", trace_names).items()},
        peak_rps=options.rates("--peak", peak),
        period_s=round(period_hours * 3600),
        warm_up_s=round(warm_up_hours * 3600),
        forecast=ForecastOptions(quantile=quantile, headroom=headroom),
        planning=PlanOptions(max_partitions=max_partitions, slo_margin=slo_margin),
        simulated_minutes=simulate_minutes,
    )
    with progress("backtesting") as report:
        done = replay(parameters, asked, report)
    document = done.to_dict()
    if chart is not None:
        draw(done, chart)
    if as_json:
        print_json(document | ({} if chart is None else {"chart": chart}))
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
    from flows.deployments.orchestration.server import start_prefect_server
    from flows.deployments.parameters import ReplanParameters
    from flows.deployments.replan import replan_flow

    note("replanning; the first step starts Prefect")
    start_prefect_server()
    found = replan_flow(ReplanParameters(**parameters))
    if as_json:
        print_json(found)
        return
    rates = ", ".join(f"{name} {rate:.1f} rps" for name, rate in found["forecast_rps"].items())
    show(f"forecast: {rates}; shares moved by {found['share_shift']:.1%}")
    verdict = "worth a rollout" if found["roll_out"] else "not worth a rollout"
    show(f"plan {found['plan_id']} is {verdict}: {found['reason']}")
    show(f"outcome: {found['outcome']}")
