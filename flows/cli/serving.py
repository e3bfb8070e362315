"""`serve` behind its options: this host's serve folder rendered, and the server started."""

from dataclasses import replace
from pathlib import Path

from flows.cli.output import Report
from flows.release.server.admin import ServerPorts, start
from flows.release.server.exposure import LOOPBACK
from flows.release.server.running import ServerState
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import render_host, render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings


def begin(
    folder: Path,
    plan: Plan,
    asked: ServeOptions,
    ports: ServerPorts,
    joined: tuple[Path | None, str | None],
    report: Report,
) -> ServerState:
    """Start the gateway, or with (settings file, address of this host) the nodes of this host.

    Raises:
        InputError: something is being served from the folder, a port is in use, or files or
            addresses do not fit the plan.
        ServerError: the server or a worker does not come up.
    """
    # Rendering begins the folder anew, so nobody may be using it.
    if (folder / "state.json").exists():
        raise InputError(str(folder / "state.json"), "serving already; `poolpipe stop` first")
    settings, host = joined
    if (settings is None) != (host is None):
        raise InputError("serve", "--join and --host go together")
    if settings is not None and host is not None:
        given = ServeSettings.read(settings)
        _check_port(ports, given, settings)
        render_host(folder, given, plan, host, asked.artifacts)
        # A rollout loads the nodes of the next plan through this host's own Triton.
        reachable = replace(ports, address=host) if ports.address == LOOPBACK else ports
        return start(folder, reachable, report, wait_for_workers=False)
    elsewhere = other_hosts(plan, asked.gateway_host)
    render_repository(folder, plan, replace(asked, hosts=elsewhere))
    return start(folder, ports, report, wait_for_workers=not elsewhere)


def other_hosts(plan: Plan, gateway_host: str) -> dict[str, str]:
    """Nodes that the cluster places on another host than the gateway's, with it."""
    hosts: dict[str, str] = {}
    for number in range(plan.cluster.node_count):
        host = plan.cluster.node_group_of(number).host
        if host is not None and host != gateway_host:
            hosts[plan.cluster.node_name(number)] = host
    return hosts


def _check_port(ports: ServerPorts, settings: ServeSettings, path: Path) -> None:
    expected = settings.host_http_port
    if ports.http != expected:
        raise InputError(
            "serve --http-port",
            f"{ports.http}, but the gateway expects {expected} of its hosts ({path},"
            " from its --host-http-port)",
        )
