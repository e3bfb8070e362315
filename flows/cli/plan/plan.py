"""`plan`: which GPUs serve which blocks of which model, stored and shown."""

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.console import notes, print_json, progress, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, ClusterFile, WarehouseFile, WorkloadFile
from flows.options import asked
from flows.planning.options import CommonOptions

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
    asked_for: Annotated[dict[str, Any], asked(CommonOptions)],
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
    previous: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            rich_help_panel="Constraints",
            help="The plan in force: of equally good plans, the one that moves fewer GPUs is "
            "taken.",
        ),
    ] = None,
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

    The plan is verified, stored and shown. By default `pool` keeps two fifths of every SLO free for
    waits that a plan does not see (--slo-margin 0.4): a model with an SLO of 100 ms is planned to
    run in 60. Ctrl-C and --time-limit end the search with the best plan so far and its gap. Options
    of the planner itself, as --overflow of `pool`, are listed by `poolpipe planners`.
    """
    from flows.cli.plan.planners import own_options
    from flows.cli.plan.watching import watched
    from flows.files import check_writable, read_cluster, read_workload, write_plan
    from flows.planning import PlanOptions
    from flows.planning.stored_plans import check_given_shapes
    from flows.workspace import find_plan, workspace

    work = workspace(warehouse)
    options = PlanOptions(
        slo_margin=_margin(None if slo_margin == AUTO else slo_margin),
        previous=None if previous is None else find_plan(work, previous),
        own=own_options(asked_for["planner"], context.args),
        **asked_for,
    )
    check_writable(output)
    files = (cluster, workload)
    contents = (read_cluster(cluster), read_workload(workload))
    check_given_shapes(work, workload)
    if slo_margin == AUTO:
        with progress("planning"):
            made = _plan(work, files, contents, options, None)
    else:
        with watched(options.time_limit_s, options.gap, as_json=show_progress is not None) as watch:
            made = _plan(work, files, contents, options, watch)
    if output is not None:
        write_plan(output, made)
    if as_json:
        print_json(made.to_dict())
        return
    _show(made)
    show(f"stored in {warehouse}" + (f", written to {output}" if output else ""))


def _show(made: "Plan") -> None:
    """The plan, and its headroom where a larger one is advised."""
    from flows.planning.promises.headroom import advice
    from flows.reporting.terminal import render_plan

    show(render_plan(made))
    if (said := advice(made)) is not None:
        show(f"note: {said}")


def _margin(text: str | None) -> float:
    """NaN where none is given: then it is the planner's own."""
    from triton_backend.contract.errors import InputError
    from triton_backend.contract.fields import check_finite

    if text is None:
        return nan
    try:
        margin = float(text)
    except ValueError as error:
        reason = f"{text!r} is neither a number nor {AUTO}"
        raise InputError("--slo-margin", reason) from error
    check_finite("--slo-margin", margin)
    return margin


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
    from flows.release.artifacts import attach_artifacts, attach_steps

    check_known(work, files, contents)
    with naming(*files):
        planned = plan_step(work, *contents, asked, robust=watch is None, watch=watch)
    notes(planned.warnings)
    notes(planned.plan.certificate.get("notes", ()))
    devices = read_device_classes(files[0])
    used = [name for name, count in planned.plan.gpus_used.items() if count]
    if used and all(name in devices for name in used):
        return attach_artifacts(work, planned.plan, devices)
    if planned.plan.workload.steps and devices:
        return attach_steps(work, planned.plan, devices)
    return planned.plan
