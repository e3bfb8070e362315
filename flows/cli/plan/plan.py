"""`plan`: which GPUs serve which blocks of which model, stored and shown."""

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli import shared_options
from flows.cli.console import notes, print_json, progress, show
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

if TYPE_CHECKING:
    from flows.planning import PlanOptions
    from flows.planning.watch import Watch
    from flows.workspace import Workspace
    from triton_backend.contract.cluster import Cluster
    from triton_backend.contract.plan import Plan
    from triton_backend.contract.workload import Workload

AUTO = "auto"


@command(
    "plan",
    "poolpipe plan --cluster cluster.yaml --workload workload.yaml -o plan.json",
    takes_more=True,
)
def plan(
    context: typer.Context,
    *,
    cluster: ClusterFile,
    workload: WorkloadFile,
    planner: shared_options.Planner = "pool",
    objective: shared_options.Objective = "throughput",
    max_partitions: shared_options.MaxPartitions = 2,
    slo_margin: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|auto",
            rich_help_panel="Planning",
            help="Share of every SLO to keep free for waiting. A smaller one raises the planned "
            "rate and lowers the reserve; `auto` chooses one per model by simulation. By "
            "default the planner's own (`poolpipe planners`), 0.4 for `pool`.",
        ),
    ] = None,
    solver: shared_options.Solver = "highs",
    time_limit: shared_options.TimeLimit = None,
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            rich_help_panel="Constraints",
            help="The plan in force: of equally good plans, the one that moves fewer GPUs is "
            "taken.",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=CLASS,CLASS",
            rich_help_panel="Constraints",
            help="Let this model use these GPU classes only.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=CLASS,CLASS",
            rich_help_panel="Constraints",
            help="Keep this model (or `*`, every model) off these GPU classes.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=RPS",
            rich_help_panel="Constraints",
            help="Guarantee this model at least this rate.",
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            rich_help_panel="Constraints",
            help="Keep the pools that this model has in the --previous plan.",
        ),
    ] = None,
    gap: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=0.99,
            rich_help_panel="Planning",
            help="Stop once the plan is proven within this relative gap.",
        ),
    ] = 1e-4,
    show_progress: Annotated[
        Literal["json"] | None,
        typer.Option(
            "--progress",
            metavar="json",
            rich_help_panel="Planning",
            help="Write a JSON line (seconds, value, bound, gap) to stderr at every improvement.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan to this file."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Decide which GPUs serve which blocks of which model.

    The plan is verified, stored and shown. By default `pool` keeps two fifths of every SLO free for waits
    that a plan does not see (--slo-margin 0.4): a model with an SLO of 100 ms is planned to run in 60.
    Ctrl-C and --time-limit end the search with the best plan so far and its gap.
    Options of the planner itself, as --overflow of `pool`, are listed by `poolpipe planners`.
    """
    from flows.cli.plan.planners import own_options
    from flows.cli.plan.watching import watched
    from flows.files import check_writable, read_cluster, read_workload, write_plan
    from flows.planning import PlanOptions
    from flows.planning.stored_plans import check_given_shapes
    from flows.workspace import find_plan, workspace

    work = workspace(warehouse)
    asked = PlanOptions(
        planner=planner,
        objective=objective,
        max_partitions=max_partitions,
        slo_margin=_margin(None if slo_margin == AUTO else slo_margin),
        solver=solver,
        time_limit_s=time_limit,
        gap=gap,
        allowed_classes=_classes("--allow", allow),
        excluded_classes=_classes("--exclude", exclude),
        minimum_rps=rates("--keep", keep),
        previous=None if previous is None else find_plan(work, previous),
        pinned_models=tuple(pin or ()),
        own=own_options(planner, context.args),
    )
    check_writable(output)
    files = (cluster, workload)
    contents = (read_cluster(cluster), read_workload(workload))
    check_given_shapes(work, workload)
    if slo_margin == AUTO:
        with progress("planning"):
            made = _plan(work, files, contents, asked, None)
    else:
        with watched(time_limit, gap, as_json=show_progress is not None) as watch:
            made = _plan(work, files, contents, asked, watch)
    if output is not None:
        write_plan(output, made)
    if as_json:
        print_json(made.to_dict())
        return
    from flows.reporting.terminal import render_plan

    show(render_plan(made))
    show(f"stored in {warehouse}" + (f", written to {output}" if output else ""))


def _margin(text: str | None) -> float:
    """NaN where none is given: then it is the planner's own."""
    from triton_backend.contract.errors import InputError

    if text is None:
        return nan
    try:
        return float(text)
    except ValueError as error:
        raise InputError("--slo-margin", f"{text!r} is neither a number nor {AUTO}") from error


def _classes(option: str, texts: list[str] | None) -> dict[str, tuple[str, ...]]:
    return {model: tuple(names.split(",")) for model, names in pairs(option, texts).items()}


def _plan(
    work: "Workspace",
    files: tuple[Path, Path],
    contents: "tuple[Cluster, Workload]",
    asked: "PlanOptions",
    watch: "Watch | None",
) -> "Plan":
    """The stored plan, with artifacts where the classes of the cluster run here.

    Without a watch, margins are chosen by simulation.
    """
    from flows.cli.project import check_known, naming
    from flows.files import read_device_classes
    from flows.planning.stored_plans import plan_step
    from flows.release.artifacts import attach_artifacts

    check_known(work, files, contents)
    with naming(*files):
        planned = plan_step(work, *contents, asked, robust=watch is None, watch=watch)
    notes(planned.warnings)
    notes(planned.plan.certificate.get("notes", ()))
    devices = read_device_classes(files[0])
    used = [name for name, count in planned.plan.gpus_used.items() if count]
    if used and all(name in devices for name in used):
        return attach_artifacts(work, planned.plan, devices)
    return planned.plan
