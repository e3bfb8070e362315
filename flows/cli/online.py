"""Commands about the running system: serve, status, stop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import options
from flows.cli.options import WAREHOUSE, AsJson, WarehouseFile, example
from flows.cli.output import cell, notes, print_json, progress, show
from triton_backend.scheduler.policies import SERVING_POLICY

if TYPE_CHECKING:
    from triton_backend.contract.plan import Plan


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(epilog=example("poolpipe serve plan.json --http-port 8000"))(serve)
    app.command(epilog=example("poolpipe status"))(status)
    app.command(epilog=example("poolpipe stop"))(stop)


def serve(
    plan: Annotated[str, typer.Argument(help="A plan.json, or the id of a stored plan.")],
    *,
    address: options.Address = "127.0.0.1",
    http_port: options.Port = 8000,
    grpc_port: options.Port = 8001,
    metrics_port: options.Port = 8002,
    metrics_address: options.Address = "127.0.0.1",
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="PEM", help="gRPC over TLS, with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Let in clients with certificates of this authority."),
    ] = None,
    policy: options.Policy = SERVING_POLICY,
    nic: options.Nic = "shared",
    noise: Annotated[
        float,
        typer.Option(
            metavar="X", min=0.0, max=10.0, help="Of emulated stages: coefficient of variation."
        ),
    ] = 0.0,
    time_stretch: Annotated[
        float,
        typer.Option(metavar="X", min=0.001, max=1e6, help="Emulated time runs so much slower."),
    ] = 1.0,
    seed: options.Seed = 0,
    gateway_host: Annotated[
        str,
        typer.Option(metavar="HOST", help="This host, as nodes on other hosts reach it."),
    ] = "127.0.0.1",
    host_http_port: Annotated[
        int,
        typer.Option(metavar="PORT", min=1, max=65535, help="--http-port of the other hosts."),
    ] = 8000,
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run this host's nodes for the gateway with this settings.json."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="With --join: this host's address.")
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a plan on Triton, in the background.

    Until `poolpipe stop`. Nodes whose `host` in the cluster is another one are served there:
    `poolpipe serve PLAN --join settings.json --host ADDRESS`, with a copy of the gateway's file.
    """
    from flows.cli.serving import begin
    from flows.cli.stored import find_plan
    from flows.release.server.admin import ServerPorts
    from flows.release.server.exposure import Tls, cautions
    from flows.state import project_state
    from triton_backend.serve_folder.settings import ServeOptions

    state, found = project_state(), find_plan(plan, warehouse)
    ports = ServerPorts(
        http=http_port,
        grpc=grpc_port,
        metrics=metrics_port,
        address=address,
        metrics_address=metrics_address,
        tls=Tls.from_files(tls_cert, tls_key, tls_client_ca),
    )
    asked = ServeOptions(
        artifacts=state.artifacts if _needs_artifacts(found) else None,
        policy=policy,
        nic=nic,
        noise=noise,
        seed=seed,
        time_stretch=time_stretch,
        gateway_host=gateway_host,
        host_http_port=host_http_port,
    )
    with progress("starting the server") as report:
        running = begin(state.serve, found, asked, ports, (join, host), report)
    notes(cautions(address, metrics_address, ports.tls))
    addresses = {
        "http": running.http_url,
        "grpc": running.grpc_url,
        "metrics": running.metrics_url,
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


def status(*, as_json: AsJson = False) -> None:
    """What is being served, where, and how it does."""
    from flows.release.server import running
    from flows.state import project_state

    found = running.status(project_state().serve)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        show(f"{name}: {_in_words(value)}")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "-"
    return cell(value)


def stop(*, as_json: AsJson = False) -> None:
    """End what is being served, and whatever is left of it."""
    from flows.release.server import admin
    from flows.state import project_state

    with progress("stopping"):
        stopped = admin.stop(project_state().serve)
    if as_json:
        print_json({"stopped": stopped})
        return
    show("stopped" if stopped else "nothing was being served")
