"""Bringing a warehouse to the newest schema: numbered SQL files, in one transaction."""

import shutil
from pathlib import Path

import duckdb

from triton_backend.contract.errors import InputError

MIGRATION_FOLDER = Path(__file__).parent / "migrations"


class OlderSchemaError(InputError):
    """A file of an older schema that was only to be read; opening it for writing updates it."""


def migrations() -> list[Path]:
    """All migrations in order; number n is the nth."""
    return sorted(MIGRATION_FOLDER.glob("[0-9]*.sql"))


def schema_version(connection: duckdb.DuckDBPyConnection) -> int:
    """Migrations applied so far; 0 in a new file.

    Raises:
        InputError: a DuckDB file of another program.
    """
    try:
        # Not by way of the list of tables, which takes a quarter of the time that opening takes.
        row = connection.execute(
            "SELECT coalesce(max(number), 0) FROM schema_migrations"
        ).fetchone()
    except duckdb.CatalogException:
        tables = sorted(row[0] for row in connection.execute("SHOW TABLES").fetchall())
        if tables:
            raise InputError(
                "warehouse", f"holds foreign tables ({', '.join(tables[:3])})"
            ) from None
        return 0
    return int(row[0]) if row else 0


def migrate(
    connection: duckdb.DuckDBPyConnection, path: Path, *, existed: bool, read_only: bool
) -> None:
    """Apply what is missing; an existing file is copied to `<file>.before-<number>` first.

    Raises:
        InputError: the file is of a newer schema.
        OlderSchemaError: it is of an older one and opened read-only.
    """
    version, newest = schema_version(connection), len(migrations())
    if version > newest:
        raise InputError(
            str(path),
            f"has schema {version}, newer than this PoolPipe's {newest}; upgrade PoolPipe",
        )
    if version == newest:
        return
    if read_only:
        raise OlderSchemaError(
            str(path), f"has schema {version} of {newest}; open it once for writing"
        )
    if existed and version > 0:
        connection.execute("CHECKPOINT")
        shutil.copy2(path, path.with_name(f"{path.name}.before-{version + 1:04d}"))
    # The commit goes into the file itself, whole or not at all: DuckDB 1.5 cannot replay some of
    # these statements from the log that a process leaves if it is killed before a checkpoint.
    connection.execute("SET checkpoint_threshold = '0B'")
    connection.begin()
    try:
        if version == 0:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY,"
                " name VARCHAR NOT NULL, applied_at TIMESTAMPTZ NOT NULL)"
            )
        for number, file in enumerate(migrations()[version:], start=version + 1):
            connection.execute(file.read_text())
            connection.execute(
                "INSERT INTO schema_migrations VALUES (?, ?, now())", [number, file.stem]
            )
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    connection.execute("RESET checkpoint_threshold")
