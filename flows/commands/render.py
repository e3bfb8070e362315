"""The command `render`: a plan as files for stock Triton containers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.commands import options
from flows.commands.options import WAREHOUSE, AsJson, WarehouseFile, example, pairs
from flows.commands.output import notes, print_json, show


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(epilog=example("poolpipe render plan.json --target container -o bundle/"))(render)


def render(
    plan: Annotated[str, typer.Argument(help="A plan.json, or the id of a stored plan.")],
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the bundle is written.")
    ],
    target: Annotated[
        Literal["container"], typer.Option(help="Stock Triton, with compose and Kubernetes files.")
    ] = "container",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Begins names of containers and services.")
    ] = "poolpipe",
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="What the image built is called.")
    ] = None,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="In Kubernetes.")] = "poolpipe",
    class_label: Annotated[
        str, typer.Option(metavar="LABEL", help="Node label whose value is the GPU class.")
    ] = "poolpipe/gpu-class",
    class_value: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=VALUE", help="Its value, where it is not the class's name."),
    ] = None,
    tls: Annotated[
        Literal["off", "server", "mutual"], typer.Option(help="Of the gateway's gRPC.")
    ] = "off",
    request_gpus: Annotated[
        bool, typer.Option(help="Ask Kubernetes for GPUs; not for emulated stages.")
    ] = True,
    policy: options.Policy = "reservation",
    nic: options.Nic = "shared",
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write a plan as files for stock Triton containers.

    Model repositories, artifacts, a start script, compose and Kubernetes examples.
    """
    from flows.commands.stored import find_plan
    from flows.release.container import ContainerOptions, render_container
    from flows.state import project_state

    asked = ContainerOptions(
        artifacts=project_state().artifacts,
        name=name,
        image=image,
        namespace=namespace,
        class_label=class_label,
        class_values=pairs("--class-value", class_value),
        tls=tls,
        request_gpus=request_gpus,
        policy=policy,
        nic=nic,
    )
    bundle = render_container(find_plan(plan, warehouse), output, asked)
    notes(bundle.notes)
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
