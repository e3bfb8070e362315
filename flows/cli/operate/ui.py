"""`ui`: a small page over the running system."""

from typing import Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, WarehouseFile


@command("ui", "poolpipe ui --port 8080")
def ui(
    *,
    address: shared_options.Address = "127.0.0.1",
    port: shared_options.HttpPort = 8080,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Accept requests for this host name too; repeat for more."
        ),
    ] = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a small page over the running system."""
    from flows.reporting.ui.server import run_page
    from flows.state import project_state

    run_page(
        project_state().serve / "state.json",
        address=address,
        port=port,
        hosts=host_name or (),
        warehouse=warehouse if warehouse.exists() else None,
        on_ready=lambda url: show(f"{url} until Ctrl-C"),
    )
