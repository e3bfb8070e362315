"""`warehouse check`, `compact`, `export`, `snapshot`, `prune`, `plans`, `runs`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, progress, show, table
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

family("warehouse", "Keep the warehouse file in order, and list what it holds.")


@command("warehouse check", "poolpipe warehouse check")
def check(*, as_json: AsJson = False, warehouse: WarehouseFile = WAREHOUSE) -> None:
    """Report rows that do not fit together; exit with 1 if there are any."""
    from flows.workspace import workspace
    from warehouse import maintenance as steps

    with workspace(warehouse).open(read_only=True) as store:
        problems, sizes = steps.check(store), steps.table_sizes(store)
    if as_json:
        print_json({"problems": problems, "rows": sizes})
    else:
        show(table(("table", "rows"), sizes.items()))
        show("\n".join(problems) or "sound")
    if problems:
        raise typer.Exit(1)


@command("warehouse compact", "poolpipe warehouse compact")
def compact(*, as_json: AsJson = False, warehouse: WarehouseFile = WAREHOUSE) -> None:
    """Rewrite the file without the space of deleted rows."""
    from flows.cli.project import require
    from warehouse.maintenance import compact

    with progress("compacting"):
        before, after = compact(require(warehouse))
    if as_json:
        print_json({"bytes_before": before, "bytes_after": after})
        return
    show(f"{warehouse}: {before:,} bytes before, {after:,} bytes now")


@command("warehouse export", "poolpipe warehouse export parquet/")
def export(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Write one Parquet file per table to this folder."),
    ],
    *,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write every table as a Parquet file."""
    from flows.workspace import workspace
    from warehouse.maintenance import export_parquet

    with workspace(warehouse).open(read_only=True) as store, progress("exporting"):
        files = export_parquet(store, folder)
    if as_json:
        print_json({"files": files})
        return
    show(f"{len(files)} tables in {folder}")


@command("warehouse snapshot", "poolpipe warehouse snapshot notebook.duckdb")
def snapshot(
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="Write the read-only copy to this file.")
    ],
    *,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Copy the warehouse for notebooks and BI tools.

    The copy is read-only, and reading it holds no lock on the warehouse.
    """
    from flows.workspace import workspace
    from warehouse import maintenance as steps

    with workspace(warehouse).open(read_only=True) as store, progress("copying"):
        steps.snapshot(store, target)
    if as_json:
        print_json({"snapshot": target})
        return
    show(f"{target} is a read-only copy of {warehouse}")


@command("warehouse prune", "poolpipe warehouse prune --days 90")
def prune(
    *,
    days: Annotated[
        int,
        typer.Option(
            metavar="DAYS",
            min=1,
            max=100_000,
            help="Keep rows that are younger than this many days.",
        ),
    ],
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Delete old minutes, replaced measurements, old rollouts and their plans.

    Results of runs, figures, plans that were never rolled out and the plan in force stay.
    """
    from datetime import timedelta

    from flows.cli.project import require
    from flows.clock import now_utc
    from flows.release.server.running import noted_plan_id
    from flows.state import project_state
    from warehouse import maintenance as steps
    from warehouse.db import open_warehouse

    path, served = require(warehouse), noted_plan_id(project_state().serve)
    with open_warehouse(path) as store, progress("pruning"):
        rows = steps.prune(store, now_utc() - timedelta(days=days), served)
    if as_json:
        print_json({"rows": rows})
        return
    show(table(("forgotten", "rows"), rows.items()))


@command("warehouse plans", "poolpipe warehouse plans")
def plans(*, as_json: AsJson = False, warehouse: WarehouseFile = WAREHOUSE) -> None:
    """List the newest plans."""
    from flows.workspace import workspace
    from warehouse.plans import list_plans

    with workspace(warehouse).open(read_only=True) as store:
        rows = list_plans(store)
    if as_json:
        print_json({"plans": rows})
        return
    names = ("plan_id", "planner", "objective", "value", "gap", "gpus", "added_at")
    show(table(names, [[row[name] for name in names] for row in rows]))


@command("warehouse runs", "poolpipe warehouse runs")
def runs(*, as_json: AsJson = False, warehouse: WarehouseFile = WAREHOUSE) -> None:
    """List the newest runs: simulations, loads, quickstarts."""
    from flows.workspace import workspace
    from warehouse.runs import list_runs

    with workspace(warehouse).open(read_only=True) as store:
        rows = list_runs(store)
    if as_json:
        print_json({"runs": rows})
        return
    names = ("run_id", "kind", "plan_id", "report", "added_at")
    show(table(names, [[row[name] for name in names] for row in rows]))
