"""`serve`: a plan on Triton, in the background; its gateway, or the nodes of another host."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import Report, notes, print_json, progress, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.release.server.running import ServerState
    from triton_backend.contract.plan import Plan
    from triton_backend.serve_folder.endpoints import Endpoints
    from triton_backend.serve_folder.settings import ServeOptions, ServeSettings


@command("serve", "poolpipe serve plan.json --http-port 8000")
def serve(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    address: shared_options.Address = "127.0.0.1",
    http_port: shared_options.HttpPort = 8000,
    grpc_port: shared_options.GrpcPort = 8001,
    metrics_port: shared_options.MetricsPort = 8002,
    metrics_address: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Endpoints",
            help="Serve metrics on this address; loopback by default.",
        ),
    ] = "127.0.0.1",
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Endpoints",
            help="Serve gRPC over TLS with the certificate in this PEM file.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel="Endpoints", help="PEM file with the key of --tls-cert."
        ),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Endpoints",
            help="Accept only clients with a certificate of the authority in this PEM file.",
        ),
    ] = None,
    opened: Annotated[
        list[str] | None,
        typer.Option(
            "--open",
            metavar="NAME",
            rich_help_panel="Endpoints",
            help="Answer without the access token: model-config, statistics or shared-memory.",
        ),
    ] = None,
    accept_old_server: shared_options.AcceptOldServer = False,
    policy: shared_options.PolicyOfAll = None,
    nic: shared_options.Nic = "shared",
    noise: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.0,
            max=10.0,
            rich_help_panel="Emulated hardware",
            help="Coefficient of variation of an emulated stage's run time.",
        ),
    ] = 0.0,
    time_stretch: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.001,
            max=1e6,
            rich_help_panel="Emulated hardware",
            help="Run emulated stages this many times slower than planned.",
        ),
    ] = 1.0,
    interference: Annotated[
        str,
        typer.Option(
            metavar="planned|overlap",
            rich_help_panel="Emulated hardware",
            help="Slow-down of emulated stages on shared GPUs: the planned factor, or computed "
            "from the actual overlap.",
        ),
    ] = "planned",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            rich_help_panel="Emulated hardware",
            help="Seed of the run times of emulated stages.",
        ),
    ] = 0,
    gateway_host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Other hosts",
            help="Address of this host, as nodes on other hosts reach it.",
        ),
    ] = "127.0.0.1",
    host_http_port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            rich_help_panel="Other hosts",
            help="The --http-port that the other hosts use.",
        ),
    ] = 8000,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby/--no-standby",
            help="Keep a second scheduler that takes over when the first one fails.",
        ),
    ] = True,
    gateways: shared_options.Gateways = 1,
    cut_models: shared_options.CutModels = False,
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Other hosts",
            help="Run this host's nodes for the gateway that wrote this settings.json.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            rich_help_panel="Other hosts",
            help="With --join: the address of this host.",
        ),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a plan on Triton, in the background.

    Until `poolpipe stop`. Nodes whose `host` in the cluster is another one are served there:
    `poolpipe serve PLAN --join settings.json --host ADDRESS`, with a copy of the gateway's file.
    """
    from flows.cli.project import the_plan
    from flows.release.server.admin import starting
    from flows.state import project_state
    from triton_backend.serve_folder.endpoints import Endpoints, Tls
    from triton_backend.serve_folder.settings import ServeOptions

    state, found = project_state(), the_plan(plan, plan_option, warehouse)
    ports = Endpoints(
        http=http_port,
        grpc=grpc_port,
        metrics=metrics_port,
        address=address,
        metrics_address=metrics_address,
        tls=Tls.from_files(tls_cert, tls_key, tls_client_ca),
        opened=tuple(opened or ()),
        accept_old_server=accept_old_server,
    )
    asked = ServeOptions(
        artifacts=state.artifacts if _needs_artifacts(found) else None,
        policy=policy,
        nic=nic,
        noise=noise,
        seed=seed,
        time_stretch=time_stretch,
        interference=interference,
        gateway_host=gateway_host,
        host_http_port=host_http_port,
        standby=standby,
        gateways=gateways,
        cut_models=cut_models,
    )
    with starting(state.serve), progress("starting the server") as report:
        running = _start(state.serve, found, asked, ports, (join, host), report)
    notes(ports.cautions())
    addresses = {
        "http": running.http_url,
        "grpc": running.grpc_url,
        "metrics": running.metrics_url,
        **dict(zip(("second_metrics",), running.metrics_urls[1:], strict=False)),
        "state_file": state.serve / "state.json",
    }
    if as_json:
        print_json({"plan_id": found.plan_id} | addresses)
        return
    show(f"serving {found.plan_id}: {', '.join(model.name for model in found.models)}")
    for name, place in addresses.items():
        show(f"  {name.replace('_', ' ')}: {place}")


def _needs_artifacts(plan: "Plan") -> bool:
    stages = (s for m in plan.models for p in m.pipelines for s in p.stages)
    return any(stage.artifact is not None for stage in stages)


def _start(
    folder: Path,
    plan: "Plan",
    asked: "ServeOptions",
    ports: "Endpoints",
    joined: tuple[Path | None, str | None],
    report: Report,
) -> "ServerState":
    """Start the gateway, or with (settings file, address of this host) the nodes of this host.

    Raises:
        InputError: something is being served from the folder, a port is in use, or files or
            addresses do not fit the plan.
        ServerError: the server or a worker does not come up.
    """
    from flows.release.server.admin import check_can_start, start, stop, take_over
    from flows.release.server.running import served_without_keeper
    from triton_backend.serve_folder.endpoints import LOOPBACK
    from triton_backend.serve_folder.repository import render_host, render_repository
    from triton_backend.serve_folder.settings import ServeSettings

    if served_without_keeper(folder) == plan.plan_id:
        return take_over(folder, report)
    settings, host = joined
    if (settings is None) != (host is None):
        raise InputError("serve", "--join and --host go together")
    if settings is not None and host is not None:
        given = ServeSettings.read(settings)
        _check_port(ports, given, settings)
        # A rollout loads the nodes of the next plan through this host's own Triton.
        reachable = replace(ports, address=host) if ports.address == LOOPBACK else ports
        # Rendering begins the folder anew, so nobody may be using it.
        check_can_start(folder, reachable)
        stop(folder)
        render_host(folder, given, plan, host, asked.artifacts)
        return start(folder, reachable, report, wait_for_workers=False)
    check_can_start(folder, ports, asked.gateways)
    elsewhere = other_hosts(plan, asked.gateway_host)
    options = replace(asked, hosts=elsewhere)
    stop(folder)
    render_repository(folder, plan, options)
    return start(folder, ports, report, wait_for_workers=not elsewhere)


def other_hosts(plan: "Plan", gateway_host: str) -> dict[str, str]:
    """Nodes that the cluster places on another host than the gateway's, with it."""
    hosts: dict[str, str] = {}
    for number in range(plan.cluster.node_count):
        host = plan.cluster.node_group_of(number).host
        if host is not None and host != gateway_host:
            hosts[plan.cluster.node_name(number)] = host
    return hosts


def _check_port(ports: "Endpoints", settings: "ServeSettings", path: Path) -> None:
    expected = settings.host_http_port
    if ports.http != expected:
        raise InputError(
            "serve --http-port",
            f"{ports.http}, but the gateway expects {expected} of its hosts ({path},"
            " from its --host-http-port)",
        )
