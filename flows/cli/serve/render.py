"""`render`: a plan as files for stock Triton containers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli import shared_options
from flows.cli.console import notes, print_json, show
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    PlanArgument,
    PlanOption,
    WarehouseFile,
    pairs,
)


@command("render", "poolpipe render plan.json --target container -o bundle/")
def render(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
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
    triton_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Stock image of the example Dockerfile.")
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
    metrics_address: Annotated[
        str, typer.Option(metavar="HOST", help="Of Prometheus' endpoint, in every container.")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE=ADDRESS", help="Where a node runs, if not under its own name."),
    ] = None,
    gateway_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="The gateway's address, likewise.")
    ] = None,
    gateways: shared_options.Gateways = 1,
    cut_models: shared_options.CutModels = False,
    request_gpus: Annotated[
        bool, typer.Option(help="Ask Kubernetes for GPUs; not for emulated stages.")
    ] = True,
    policy: shared_options.PolicyOfAll = None,
    nic: shared_options.Nic = "shared",
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write a plan as files for stock Triton containers.

    Model repositories, artifacts, a start script, compose and Kubernetes examples.
    """
    from flows.cli.project import the_plan
    from flows.release.container import TRITON_IMAGE, ContainerOptions, render_container
    from flows.state import project_state
    from triton_backend.serve_folder.settings import THIS_HOST, ServeOptions

    asked = ContainerOptions(
        serve=ServeOptions(
            artifacts=project_state().artifacts,
            hosts=pairs("--host", host),
            gateway_host=gateway_host or THIS_HOST,
            policy=policy,
            nic=nic,
            gateways=gateways,
            cut_models=cut_models,
        ),
        name=name,
        image=image,
        triton_image=triton_image or TRITON_IMAGE,
        namespace=namespace,
        class_label=class_label,
        class_values=pairs("--class-value", class_value),
        tls=tls,
        metrics_address=metrics_address,
        request_gpus=request_gpus,
    )
    bundle = render_container(the_plan(plan, plan_option, warehouse), output, asked)
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
