"""Commands around the running system and its runs: report, ingest, ui, devices."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli import options
from flows.cli.options import WAREHOUSE, AsJson, WarehouseFile, example
from flows.cli.output import print_json, progress, show, table


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(epilog=example("poolpipe report simulate-1f2e3d4c -o report.html"))(report)
    app.command(epilog=example("poolpipe ingest"))(ingest)
    app.command(epilog=example("poolpipe ui --port 8080"))(ui)
    app.command(epilog=example("poolpipe devices --cluster-file cluster.yaml"))(devices)


def report(
    run_id: Annotated[str, typer.Argument(help="As `simulate`, `load` or `quickstart` said.")],
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page.")] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write one self-contained page about a run."""
    from flows.cli.pages import page_of
    from flows.workspace import workspace

    with progress("drawing"):
        page = page_of(workspace(warehouse), run_id, output)
    if as_json:
        print_json({"run_id": run_id, "report": page.resolve()})
        return
    show(str(page))


def ingest(
    *,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A serve folder; this project's own.")
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Take the gateway's logs into the warehouse.

    What came since last time.
    """
    from flows.operations.ingest.reader import ingest as take
    from flows.workspace import workspace

    with progress("reading event files"):
        found = take(workspace(warehouse), folder)
    if as_json:
        names = ("bytes_read", "minutes", "skipped")
        print_json({name: getattr(found, name) for name in names})
        return
    show(f"{found.bytes_read:,} bytes read, {found.minutes} minutes, {found.skipped} lines skipped")


def ui(
    *,
    address: options.Address = "127.0.0.1",
    port: options.Port = 8080,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a small page over the running system."""
    from flows.reporting.ui.server import run_page
    from flows.state import project_state

    run_page(
        project_state().serve / "state.json",
        address=address,
        port=port,
        warehouse=warehouse if warehouse.exists() else None,
        on_ready=lambda url: show(f"{url} until Ctrl-C"),
    )


def devices(
    *,
    cluster_file: Annotated[
        Path | None, typer.Option(help="Write the cluster.yaml that they suggest here.")
    ] = None,
    nic_gbps: Annotated[
        float | None,
        typer.Option(metavar="N", min=0.001, max=1e6, help="Rate of this node's link, in it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List this machine's GPUs and propose a cluster.yaml."""
    import yaml

    from flows.files import write_text
    from flows.preparation.profiling.devices import list_devices, propose_cluster

    found = list_devices()
    proposal = propose_cluster(found, nic_gbps=nic_gbps)
    if cluster_file is not None:
        write_text(cluster_file, yaml.safe_dump(proposal, sort_keys=False))
    if as_json:
        print_json({"devices": [device.to_dict() for device in found], "cluster": proposal})
        return
    names = ("name", "uuid", "compute_capability", "memory_mib", "driver", "mps", "mig")
    show(table(names, [[getattr(device, name) for name in names] for device in found]))
    show(
        f"written to {cluster_file}" if cluster_file else yaml.safe_dump(proposal, sort_keys=False)
    )
