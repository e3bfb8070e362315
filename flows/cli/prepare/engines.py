"""`engines`: TensorRT engines for the stages of a plan."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.console import print_json, progress, show
from flows.cli.prepare.selection import EngineBuilder
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    PlanArgument,
    PlanOption,
    PolicyOfAll,
    WarehouseFile,
)


@command("engines", "poolpipe engines plan.json -o served.json")
def engines(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the plan with its engines to this file."
        ),
    ] = Path("plan.json"),
    precision: Annotated[
        Literal["fp32", "fp16"] | None,
        typer.Option(
            metavar="fp32|fp16",
            rich_help_panel="TensorRT",
            help="Precision of the stages; by default the precision of each class's profile, or "
            "else fp32.",
        ),
    ] = None,
    policy: PolicyOfAll = None,
    builder: EngineBuilder,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Build TensorRT engines for a plan's stages.

    So that GPUs serve it. Without them a plan for GPU classes is served by emulated workers. An
    engine holds the largest batch that the policy may send.
    """
    from flows.cli.project import the_plan
    from flows.files import check_writable, write_plan
    from flows.release.artifacts import attach_engines
    from flows.workspace import workspace

    check_writable(output)
    settings = builder.settings()
    with progress("building engines"):
        found = the_plan(plan, plan_option, warehouse)
        attached = attach_engines(workspace(warehouse), found, settings, precision, policy)
    write_plan(output, attached)
    if as_json:
        print_json(attached.to_dict())
        return
    show(f"plan {attached.plan_id} with an engine for every stage is in {output}")
