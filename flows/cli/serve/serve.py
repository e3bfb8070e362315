"""`serve`: a plan on Triton, in the background; its gateway, or the nodes of another host."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import Report, notes, print_json, progress, show
from flows.cli.registry import command
from flows.cli.serve.options import (
    ClientQuotas,
    EmulatedHardware,
    EndpointOptions,
    LateBinding,
    OtherHosts,
)
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.release.beside import Chosen
    from flows.release.server.running import ServerState
    from triton_backend.contract.plan import Plan
    from triton_backend.serve_folder.endpoints import Endpoints
    from triton_backend.serve_folder.settings import ServeOptions, ServeSettings


@command(
    "serve",
    "poolpipe serve plan.json --http-port 8000",
    "poolpipe serve plan.json --beside models",
)
def serve(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    endpoints: EndpointOptions,
    clients: ClientQuotas,
    policy: shared_options.PolicyOfAll = None,
    late: LateBinding,
    guard: shared_options.Guard = None,
    emulated: EmulatedHardware,
    hosts: OtherHosts,
    beside: shared_options.BesideModels = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby/--no-standby",
            help="Keep a second scheduler that takes over when the first one fails.",
        ),
    ] = True,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a plan on Triton, in the background.

    Until `poolpipe stop`. Nodes whose `host` in the cluster is another one are served there:
    `poolpipe serve PLAN --join settings.json --host ADDRESS`, with a copy of the gateway's file.
    Models of a Triton repository that are not planned go on in the same server with `--beside`.
    """
    from flows.cli.project import the_plan
    from flows.release.server.admin import starting
    from flows.state import project_state
    from triton_backend.runtimes.stage_tensors import asked_as, served_models
    from triton_backend.serve_folder.settings import ServeOptions

    state, found = project_state(), the_plan(plan, plan_option, warehouse)
    ports = endpoints.endpoints()
    chosen = _beside(beside, found, hosts)
    asked = ServeOptions(
        artifacts=state.artifacts if _needs_artifacts(found) else None,
        policy=policy,
        **late.chosen(),
        guard_fraction=guard,
        **asdict(emulated),
        **clients.chosen(),
        gateway_host=hosts.gateway_host,
        host_http_port=hosts.host_http_port,
        standby=standby,
        gateways=endpoints.gateways,
        cut_models=endpoints.cut_models,
        beside=None if chosen is None else chosen.beside,
    )
    with starting(state.serve), progress("starting the server") as report:
        running = _start(state.serve, found, asked, ports, (hosts.join, hosts.host), report)
    notes((*ports.cautions(), *(() if chosen is None else chosen.notes)))
    addresses = {
        "http": running.http_url,
        "grpc": running.grpc_url,
        "metrics": running.metrics_url,
        **dict(zip(("second_metrics",), running.metrics_urls[1:], strict=False)),
        "state_file": state.serve / "state.json",
    }
    others = [] if chosen is None else [*chosen.beside.folders]
    if as_json:
        print_json({"plan_id": found.plan_id, "beside": others} | addresses)
        return
    names = dict.fromkeys(asked_as(found, model.name) for model in served_models(found))
    show(f"serving {found.plan_id}: {', '.join(names)}")
    if others:
        show(f"beside it: {', '.join(others)}")
    for name, place in addresses.items():
        show(f"  {name.replace('_', ' ')}: {place}")


def _beside(given: "list[Path] | None", plan: "Plan", hosts: OtherHosts) -> "Chosen | None":
    """The models of `--beside`; None where it is not given.

    Raises:
        InputError: they cannot be served beside the plan.
    """
    from flows.release.beside import backends_here, models_beside

    if not given:
        return None
    if hosts.join is not None:
        raise InputError("--beside", "goes with the gateway's server, not with --join")
    return models_beside(given, plan, backends_here())


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
    from triton_backend.contract.fields import is_ipv4
    from triton_backend.serve_folder.endpoints import LOOPBACK, check_reached_at
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
        if ports.address == LOOPBACK and not is_ipv4(host):
            reason = "is no address to listen on; give this host's IPv4 address by --address, too"
            raise InputError(f"--host {host}", reason)
        # A rollout loads the nodes of the next plan through this host's own Triton.
        reachable = replace(ports, address=host) if ports.address == LOOPBACK else ports
        # Rendering begins the folder again, so no process may use it.
        check_can_start(folder, reachable)
        stop(folder)
        render_host(folder, given, plan, host, asked.artifacts)
        return start(folder, reachable, report, wait_for_workers=False)
    elsewhere = other_hosts(plan, asked.gateway_host)
    check_reached_at(asked.gateway_host, elsewhere)
    check_can_start(folder, ports, asked.gateways)
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
