"""`ingest`: the gateway's logs into the warehouse."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, progress, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile


@command("ingest", "poolpipe ingest")
def ingest(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The serve folder to read; by default this project's own."
        ),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Read the gateway's new log entries into the warehouse."""
    from flows.operations.ingest.reader import check_folder
    from flows.operations.ingest.reader import ingest as take
    from flows.workspace import workspace

    if folder is not None:
        check_folder(folder)
    with progress("reading event files"):
        found = take(workspace(warehouse), folder)
    if as_json:
        names = ("bytes_read", "minutes", "skipped")
        print_json({name: getattr(found, name) for name in names})
        return
    minutes = f"{found.minutes} minute{'s' * (found.minutes != 1)}"
    lines = f"{found.skipped} line{'s' * (found.skipped != 1)} skipped"
    show(f"{found.bytes_read:,} bytes read, {minutes}, {lines}")
