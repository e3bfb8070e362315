"""`serve` behind its options: this host's serve folder rendered, and the server started."""

import json
from dataclasses import replace
from pathlib import Path

from flows.commands.output import Report
from flows.release.admin import ServerPorts, ServerState, start
from flows.release.render import ServeOptions, render_host, render_repository, used_nodes
from triton_backend.core.errors import InputError
from triton_backend.core.plan import Plan


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
        render_host(folder, _settings(settings), plan, host, asked.artifacts)
        return start(folder, ports, report, wait_for_workers=False)
    elsewhere = other_hosts(plan, asked.gateway_host)
    render_repository(folder, plan, replace(asked, hosts=elsewhere))
    return start(folder, ports, report, wait_for_workers=not elsewhere)


def other_hosts(plan: Plan, gateway_host: str) -> dict[str, str]:
    """Nodes of the plan that the cluster places on another host than the gateway's, with it."""
    hosts: dict[str, str] = {}
    for node in used_nodes(plan):
        host = plan.cluster.node_group_of(plan.cluster.node_index(node)).host
        if host is not None and host != gateway_host:
            hosts[node] = host
    return hosts


def _settings(path: Path) -> dict[str, object]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"not the settings of a gateway: {error}") from error
