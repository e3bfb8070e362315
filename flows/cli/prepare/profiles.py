"""`profiles import` and `profiles export`: tables of what was measured, in and out."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import note, notes, print_json, progress, show
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

family("profiles", "Tables of what was measured, in and out.")


@command("profiles import", "poolpipe profiles import tables/")
def import_tables(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder that holds block_latency_us.csv and any of the other tables.",
        ),
    ],
    *,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Take tables measured elsewhere into the warehouse.

    block_latency_us.csv and boundary_bytes.csv; block_memory.csv, utilisation.csv, pairs.csv and
    interference.csv where they are there. The last three may also come alone.
    """
    from flows.preparation.interference.stored_tables import import_tables as take
    from flows.preparation.interference.stored_tables import read_folder
    from warehouse.db import open_warehouse

    with progress(f"importing {folder}"):
        found = read_folder(folder)  # before there is a warehouse: wrong files leave nothing behind
        with open_warehouse(warehouse) as store:
            take(store, found, str(folder))
    notes(found.warnings)
    models = sorted({*found.profiles, *found.utilisation})
    if as_json:
        counts = {"pairs": len(found.pairs), "interference": sorted(found.interference)}
        print_json({"models": models, "warnings": found.warnings} | counts)
        return
    classes = sorted({gpu_class for p in found.profiles.values() for gpu_class in p.classes})
    if models:
        on = f" on {', '.join(classes)}" if classes else ""
        show(f"{len(models)} models{on} are in {warehouse}")
    if found.pairs:
        show(f"{len(found.pairs)} pairs are in {warehouse}")
    if found.interference:
        show(f"interference of {', '.join(found.interference)} is in {warehouse}")


@command("profiles export", "poolpipe profiles export tables/")
def export_tables(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Write the tables to this folder.")
    ],
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Export this model only; repeat it for several models."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write tables that `profiles import`, and other programs, can read."""
    from flows.preparation.interference.stored_tables import export_tables as write
    from flows.workspace import workspace

    with workspace(warehouse).open(read_only=True) as store:
        found, files, warnings = write(store, folder, model)
    notes(warnings)
    if as_json:
        print_json({"models": sorted(found), "files": files})
        return
    show(f"{len(found)} models in {', '.join(map(str, files))}")
    if not found:
        note(f"{warehouse} holds no model")
