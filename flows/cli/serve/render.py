"""`render`: a plan as files for stock Triton containers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli import shared_options
from flows.cli.console import notes, print_json, show
from flows.cli.registry import command
from flows.cli.serve.options import ClientQuotas, LateBinding
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
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Containers",
            help="First part of the names of containers and services.",
        ),
    ] = "poolpipe",
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            rich_help_panel="Containers",
            help="Name of the image that the bundle builds.",
        ),
    ] = None,
    triton_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            rich_help_panel="Containers",
            help="Stock Triton image that the Dockerfile starts from.",
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Kubernetes",
            help="Namespace of the Kubernetes objects.",
        ),
    ] = "poolpipe",
    class_label: Annotated[
        str,
        typer.Option(
            metavar="LABEL",
            rich_help_panel="Kubernetes",
            help="Node label whose value is the GPU class.",
        ),
    ] = "poolpipe/gpu-class",
    class_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=VALUE",
            rich_help_panel="Kubernetes",
            help="Value of that label for a class; by default the class's name.",
        ),
    ] = None,
    tls: Annotated[
        Literal["off", "server", "mutual"],
        typer.Option(
            metavar="off|server|mutual",
            rich_help_panel="Endpoints",
            help="TLS of the gateway's gRPC endpoint: none, of the server, or of both sides.",
        ),
    ] = "off",
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Endpoints",
            help="Address on which every container serves Prometheus metrics.",
        ),
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=HOST",
            rich_help_panel="Containers",
            help="Address of a node; by default the node's own name.",
        ),
    ] = None,
    gateway_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Containers",
            help="Address of the gateway; by default the gateway's own name.",
        ),
    ] = None,
    gateways: shared_options.Gateways = 1,
    cut_models: shared_options.CutModels = False,
    clients: ClientQuotas,
    beside: shared_options.BesideModels = None,
    beside_gpus: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=64,
            rich_help_panel="Containers",
            help="GPUs of the gateway's container, for the models of --beside.",
        ),
    ] = 0,
    request_gpus: Annotated[
        bool,
        typer.Option(
            rich_help_panel="Kubernetes",
            help="Request GPUs from Kubernetes, except for emulated stages.",
        ),
    ] = True,
    gpu_claims: Annotated[
        bool,
        typer.Option(
            "--gpu-claims",
            rich_help_panel="Kubernetes",
            help="Request GPUs by claims (DRA, from Kubernetes 1.34 on) rather than as resources"
            " of the device plugin.",
        ),
    ] = False,
    mig_strategy: Annotated[
        Literal["mixed", "single"],
        typer.Option(
            metavar="mixed|single",
            rich_help_panel="Kubernetes",
            help="MIG strategy of the device plugin: slices are resources named after their"
            " profile, or all are nvidia.com/gpu.",
        ),
    ] = "mixed",
    kserve: Annotated[
        bool,
        typer.Option(
            "--kserve",
            rich_help_panel="Kubernetes",
            help="Write the gateway as an InferenceService of KServe rather than a StatefulSet.",
        ),
    ] = False,
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
    from flows.release.container import TRITON_IMAGE, ContainerOptions, render_container
    from flows.state import project_state
    from triton_backend.serve_folder.settings import THIS_HOST, ServeOptions

    found = the_plan(plan, plan_option, warehouse)
    chosen = models_beside(beside, found) if beside else None
    asked = ContainerOptions(
        serve=ServeOptions(
            artifacts=project_state().artifacts,
            hosts=pairs("--host", host),
            gateway_host=gateway_host or THIS_HOST,
            policy=policy,
            **late.chosen(),
            guard_fraction=guard,
            nic=nic,
            gateways=gateways,
            cut_models=cut_models,
            **clients.chosen(),
            beside=None if chosen is None else chosen.beside,
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
        gpu_claims=gpu_claims,
        mig_strategy=mig_strategy,
        kserve=kserve,
        beside_gpus=beside_gpus,
    )
    bundle = render_container(found, output, asked)
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
