"""`render`: a plan as files for stock Triton containers."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flows.cli import shared_options
from flows.cli.console import notes, print_json, show
from flows.cli.registry import command
from flows.cli.serve.options import ClientQuotas, LateBinding, NodeAddresses
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile
from flows.options import asked
from flows.release.container.options import ContainerChoices


@command("render", "poolpipe render plan.json --target container -o bundle/")
def render(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="Write the bundle to this folder."),
    ],
    target: Annotated[
        Literal["container"],
        typer.Option(
            metavar="container",
            help="Kind of bundle: stock Triton with compose and Kubernetes files.",
        ),
    ] = "container",
    containers: Annotated[dict[str, Any], asked(ContainerChoices)],
    addresses: NodeAddresses,
    gateways: shared_options.Gateways = 1,
    cut_models: shared_options.CutModels = False,
    clients: ClientQuotas,
    beside: shared_options.BesideModels = None,
    policy: shared_options.PolicyOfAll = None,
    late: LateBinding,
    guard: shared_options.Guard = None,
    nic: shared_options.Nic = "shared",
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write a plan as files for stock Triton containers.

    Model repositories, artifacts, a start script, compose and Kubernetes examples.
    """
    from flows.cli.project import the_plan
    from flows.release.beside import models_beside
    from flows.release.container.bundle import ContainerOptions, render_container
    from flows.state import project_state
    from triton_backend.serve_folder.settings import ServeOptions

    found = the_plan(plan, plan_option, warehouse)
    chosen = models_beside(beside, found) if beside else None
    serve = ServeOptions(
        artifacts=project_state().artifacts,
        **addresses.chosen(),
        policy=policy,
        **late.chosen(),
        guard_fraction=guard,
        nic=nic,
        gateways=gateways,
        cut_models=cut_models,
        **clients.chosen(),
        beside=None if chosen is None else chosen.beside,
    )
    bundle = render_container(found, output, ContainerOptions(serve=serve, **containers))
    notes((*bundle.notes, *(() if chosen is None else chosen.notes)))
    if as_json:
        print_json(
            {
                "target": target,
                "folder": bundle.folder,
                "containers": list(bundle.containers),
                "stage_models": list(bundle.stage_models),
                "notes": list(bundle.notes),
            }
        )
        return
    show(f"{len(bundle.containers)} containers in {bundle.folder}: {', '.join(bundle.containers)}")
