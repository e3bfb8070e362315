"""Keeping a warehouse file in order: check, compact, export, snapshot, forget what is old.

Names of tables and paths are filled into statements here, because DuckDB takes neither as a
parameter; tables come from the catalogue, paths are quoted.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse, is_database, open_warehouse
from warehouse.profiles import stale_blocks

PRUNED = (
    "model_minutes",
    "vgpu_minutes",
    "drop_minutes",
    "neighbour_minutes",
    "module_minutes",
    "entry_minutes",
    "cells",
    # After minutes, which keep the plans that they name, and each before what it is judged by.
    "plans",
    "rollouts",
    "rollout_steps",
)
_READ_ONLY = 0o444


def check(warehouse: Warehouse) -> list[str]:
    """Inconsistencies, one line each; empty if there are none."""
    return [f"{row['place']}: {row['problem']}" for row in warehouse.query("check")]


def table_sizes(warehouse: Warehouse) -> dict[str, int]:
    """Rows per table, counted."""
    tables = [row["table_name"] for row in warehouse.query("tables")]
    # The catalogue's own sizes are estimates that deletions leave too high.
    return {
        table: warehouse.rows(f'SELECT count(*) AS n FROM "{table}"')[0]["n"]  # noqa: S608 - a name of the catalogue
        for table in tables
    }


def compact(path: Path) -> tuple[int, int]:
    """Write the file again without what was deleted; bytes before and after.

    The new file takes the old one's place in one step, so an interruption leaves the old one. A
    symbolic link to it stays one.

    Raises:
        InputError: as `open_warehouse`, or the disk has no room.
    """
    place = path.resolve()
    with open_warehouse(path) as warehouse, _scratch(place) as target:
        warehouse.rows("CHECKPOINT")
        before = path.stat().st_size
        _guarded(target, lambda: _copy(warehouse, target))
        target.chmod(path.stat().st_mode & 0o777)
        # Before the lock is given back, so that a process that waits opens the new file. Closing
        # removes no log, which would be the new file's: nothing was written since the checkpoint.
        target.replace(place)
    return before, path.stat().st_size


def snapshot(warehouse: Warehouse, target: Path) -> None:
    """A read-only copy for notebooks and BI tools, which then hold no lock on the warehouse.

    An older snapshot of that name, or that a link of that name leads to, is replaced in one step;
    its readers keep the old one.

    Raises:
        InputError: the target is the warehouse itself or another file that is no snapshot, or
            cannot be written.
    """
    if target.resolve() == warehouse.path.resolve():
        raise InputError(str(target), "is the warehouse itself")
    if target.is_dir():
        raise InputError(str(target), "is a folder")
    if target.exists() and not _is_snapshot(target):
        raise InputError(str(target), "is there already and is no snapshot")
    place = target.resolve()
    with _scratch(place) as unfinished:
        _guarded(target, lambda: _copy(warehouse, unfinished))
        unfinished.chmod(_READ_ONLY)
        unfinished.replace(place)


def _is_snapshot(path: Path) -> bool:
    """True of a read-only file of DuckDB, and of an empty file, as `mktemp` makes them."""
    if not path.is_file():  # a device, a pipe
        return False
    about = path.stat()
    if about.st_size == 0:
        return True
    return is_database(path) and not about.st_mode & 0o222


def export_parquet(warehouse: Warehouse, folder: Path) -> list[Path]:
    """Every table as `<folder>/<table>.parquet`.

    Raises:
        InputError: the folder cannot be written.
    """
    written: list[Path] = []

    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "is a file, not a folder")

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for table in table_sizes(warehouse):
            path = folder / f"{table}.parquet"
            warehouse.rows(f'COPY "{table}" TO {_quoted(path)} (FORMAT parquet)')
            written.append(path)

    _guarded(folder, write)
    return written


def prune(warehouse: Warehouse, before: datetime, served: str | None = None) -> dict[str, int]:
    """Forget minutes, columns of runs, replaced cells, rollouts and their plans; rows per kind.

    All that is older than an instant. Results of runs, figures, every newest cell, the newest
    rollouts and plans that are in force, named by what stays, or were never rolled out stay. So do
    all cells of a class with blocks of two builds, which the replaced ones tell apart. The file
    shrinks when it is compacted.

    Args:
        warehouse: open for writing.
        before: the instant.
        served: the plan in force, which a server may have begun with; None: nothing is served.
    """
    with warehouse.transaction():
        keys = [row["model_key"] for row in warehouse.rows("SELECT DISTINCT model_key FROM cells")]
        mixed = [[key, gpu_class] for key in keys for gpu_class in stale_blocks(warehouse, key)]
        parameters = {"plans": [before, served], "cells": [before, mixed]}
        return {
            kind: len(warehouse.query(f"prune_{kind}", parameters.get(kind, [before])))
            for kind in PRUNED
        }


def _copy(warehouse: Warehouse, target: Path) -> None:
    with warehouse.lock:
        name = warehouse.rows("SELECT current_database() AS name")[0]["name"]
        warehouse.rows(f"ATTACH {_quoted(target)} AS poolpipe_copy (READ_WRITE)")
        try:
            warehouse.rows(f'COPY FROM DATABASE "{name}" TO poolpipe_copy')
        finally:
            warehouse.rows("DETACH poolpipe_copy")


@contextmanager
def _scratch(target: Path) -> Generator[Path]:
    """Where a new `target` is made, on the same file system; nothing is left of it."""
    folder: list[TemporaryDirectory[str]] = []

    def make() -> None:
        folder.append(TemporaryDirectory(dir=target.parent, prefix=f".{target.name}."))

    _guarded(target, make)
    with folder[0] as name:
        yield Path(name) / target.name


def _guarded(target: Path, step: Callable[[], None]) -> None:
    try:
        step()
    except (duckdb.IOException, OSError) as error:
        words = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(str(target), f"cannot be written: {words}") from error


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
