"""`profiles import` and `profiles export`: tables of latencies and boundaries, in and out."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import note, notes, print_json, progress, show
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

family("profiles", "Tables of latencies and boundaries, in and out.")


@command("profiles import", "poolpipe profiles import tables/")
def import_tables(
    folder: Annotated[Path, typer.Argument(help="Holds block_latency_us.csv, boundary_bytes.csv.")],
    *,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Take tables measured elsewhere into the warehouse."""
    from flows.clock import now_utc
    from flows.preparation.profiling.csv_tables import read_tables
    from warehouse.db import open_warehouse
    from warehouse.profiles import import_profile

    found, warnings = read_tables(folder)
    notes(warnings)
    with open_warehouse(warehouse) as store, progress("importing") as report:
        for name, imported in found.items():
            report(f"importing {name}")
            import_profile(store, imported, str(folder), now_utc())
    if as_json:
        print_json({"models": sorted(found), "warnings": warnings})
        return
    classes = sorted({gpu_class for p in found.values() for gpu_class, _ in p.latency_us})
    show(f"{len(found)} models on {', '.join(classes)} are in {warehouse}")


@command("profiles export", "poolpipe profiles export tables/")
def export_tables(
    folder: Annotated[Path, typer.Argument(help="Where the files are written.")],
    *,
    model: shared_options.Models = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write tables that `profiles import`, and other programs, can read."""
    from flows.preparation.profiling.csv_tables import write_tables
    from flows.workspace import workspace
    from warehouse.profiles import model_names, read_profiles

    with workspace(warehouse).open(read_only=True) as store:
        found, warnings = read_profiles(store, model or model_names(store))
    notes(warnings)
    files = write_tables(folder, found)
    if as_json:
        print_json({"models": sorted(found), "files": files})
        return
    show(f"{len(found)} models in {', '.join(map(str, files))}")
    if not found:
        note(f"{warehouse} holds no model")
