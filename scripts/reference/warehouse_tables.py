"""The page of the warehouse's tables, from the comments that DuckDB keeps."""

from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.reference.markdown import page, table
from warehouse.db import Warehouse, open_warehouse

RECORD = "schema_migrations"  # the warehouse's own


def warehouse_page() -> dict[str, str]:
    """Text of the page by its path below `docs/reference/`."""
    with TemporaryDirectory() as folder, open_warehouse(Path(folder) / "w.duckdb") as warehouse:
        tables = _comments(warehouse)
    parts: list[str] = []
    for kind, heading in (("table", "Tables"), ("view", "Views")):
        parts.append(f"## {heading}")
        parts += [
            f"### `{name}`\n\n{about}\n\n{table(('column', 'type', 'meaning'), columns)}"
            for (name, found), (about, columns) in tables.items()
            if found == kind
        ]
    about = (
        "One DuckDB file, `poolpipe.duckdb` in the project's folder (or `--warehouse FILE`,"
        " `POOLPIPE_WAREHOUSE`). The comments below are in the file itself: `SELECT * FROM"
        " duckdb_columns()`. One process may write at a time; notebooks read a snapshot"
        " (`poolpipe warehouse snapshot`)."
    )
    return {"warehouse.md": page("Warehouse tables", about, *parts)}


def _comments(warehouse: Warehouse) -> dict[tuple[str, str], tuple[str, list[tuple[str, ...]]]]:
    """Comment and columns of every table and view, by name and kind."""
    found: dict[tuple[str, str], tuple[str, list[tuple[str, ...]]]] = {
        (row["name"], row["kind"]): (row["comment"] or "", [])
        for row in warehouse.rows(
            "SELECT table_name AS name, 'table' AS kind, comment FROM duckdb_tables()"
            " WHERE NOT internal UNION ALL"
            " SELECT view_name, 'view', comment FROM duckdb_views() WHERE NOT internal"
            " ORDER BY name"
        )
        if row["name"] != RECORD
    }
    kinds = dict(list(found))
    for row in warehouse.rows(
        "SELECT table_name AS name, column_name, data_type, comment FROM duckdb_columns()"
        " WHERE NOT internal ORDER BY table_name, column_index"
    ):
        if row["name"] != RECORD:
            line = (f"`{row['column_name']}`", row["data_type"], row["comment"] or "")
            found[row["name"], kinds[row["name"]]][1].append(line)
    return found
