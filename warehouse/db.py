"""Opening the warehouse file: one writer, migrations applied, every refusal in one clear line.

Here: the connection and nothing about what is stored. DuckDB is imported in this folder only.
"""

import errno
import json
import math
import os
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from triton_backend.contract.errors import InputError
from warehouse.schema import migrate, schema_version

QUERY_FOLDER = Path(__file__).parent / "queries"
# DuckDB names no holder that is of another container, or gone by the time it looks.
_LOCKED = re.compile(r"Conflicting lock is held in (?:(.+?) \(PID (\d+)\))?")
_MAGIC_AT, _MAGIC = 8, b"DUCK"  # of a database file
_FOREIGN = "is not a warehouse (not a DuckDB file)"


# Only extensions compiled into DuckDB's wheel are used; none is fetched.
OFFLINE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


# DuckDB names a disk without room by the system's words for the error.
_WITHOUT_ROOM = {os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}

# How a column's value travels inside JSON, where that is not its own type.
_JSON_TYPES = {"JSON": "VARCHAR", "TIMESTAMP WITH TIME ZONE": "VARCHAR"}


class WarehouseInUseError(InputError):
    """Another process writes to it, or reads what should be written; trying again helps."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """An open warehouse. Use it as a context manager, or call `close`.

    Several threads may use it; their statements and transactions take turns.
    """

    path: Path
    connection: duckdb.DuckDBPyConnection
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write out what is pending and give the file back."""
        with _naming_room(self.path):
            self.connection.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of a query as dictionaries."""
        with self.lock, _naming_room(self.path), interruptible(self.connection):
            cursor = self.connection.execute(sql, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def query(self, name: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of the query in `queries/<name>.sql`, which states its parameters and columns."""
        return self.rows((QUERY_FOLDER / f"{name}.sql").read_text(), parameters)

    def insert(self, table: str, rows: Sequence[dict[str, Any]], *, replace: bool = False) -> None:
        """Add rows that all have the same columns; `replace` overwrites equal primary keys."""
        if not rows:
            return
        types = {
            row["column_name"]: row["data_type"] for row in self.query("column_types", [table])
        }
        columns = list(rows[0])
        form = {column: _JSON_TYPES.get(types[column], types[column]) for column in columns}
        casts = ", ".join(f'item."{column}"::{types[column]}' for column in columns)
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        # All rows travel as one JSON text: for a list of values DuckDB looks for pandas once per
        # value, which is a hundred times slower. Names come from the catalogue or this package.
        names = ", ".join(f'"{column}"' for column in columns)
        items = "(SELECT unnest(from_json(?, ?)) AS item)"
        sql = f"{verb} INTO {table} ({names}) SELECT {casts} FROM {items}"  # noqa: S608 - see above
        text = json.dumps([{c: _plain(row[c]) for c in columns} for row in rows])
        with self.lock, _naming_room(self.path), interruptible(self.connection):
            self.connection.execute(sql, [text, json.dumps([form])])

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All or nothing."""
        with self.lock:
            try:
                with interruptible(self.connection):
                    self.connection.begin()
                yield
            except BaseException:
                with suppress(duckdb.TransactionException):  # an interrupt came before it began
                    self.connection.rollback()
                raise
            with _naming_room(self.path), interruptible(self.connection):
                self.connection.commit()


def open_warehouse(path: Path | str, *, read_only: bool = False) -> Warehouse:
    """Open (and unless `read_only`, create or bring up to date) a warehouse.

    Raises:
        InputError: not writable, no warehouse, or of a newer schema.
        OSError: the disk has no room, as of all that writes later.
        WarehouseInUseError: locked by another process.
    """
    path = Path(path)
    where = text_of(path)
    if path.is_dir():
        raise InputError(where, "is a folder, not a warehouse file")
    if read_only and not path.exists():
        raise InputError(where, "no such warehouse")
    if not path.parent.is_dir():
        raise InputError(where, f"the folder {path.parent} does not exist")
    existed = path.exists()
    # Root may write anything; a read-only file was made so on purpose all the same.
    if existed and not read_only and not path.stat().st_mode & 0o222:
        raise InputError(where, "cannot be written (the file is read-only)")
    if path.is_file() and path.stat().st_size and not is_database(path):
        raise InputError(where, _FOREIGN)  # DuckDB takes tables such as *.csv for databases
    try:
        connection = duckdb.connect(where, read_only=read_only, config=OFFLINE)
    except duckdb.Error as error:
        kind = WarehouseInUseError if _LOCKED.search(str(error)) else InputError
        raise kind(where, _reason(error)) from error
    made = False
    try:
        with _naming_room(path), interruptible(connection):
            connection.execute("SET TimeZone = 'UTC'")
            made = not existed and schema_version(connection) == 0  # by no other process meanwhile
            migrate(connection, path, existed=existed, read_only=read_only)
    except BaseException:
        connection.close()
        if made:  # half a schema holds nothing
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
        raise
    return Warehouse(path, connection)


def is_database(path: Path) -> bool:
    """True of a DuckDB file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC) + _MAGIC_AT)[_MAGIC_AT:] == _MAGIC


@contextmanager
def _naming_room(path: Path) -> Generator[None]:
    """Turn DuckDB's error about a disk without room into the system's, which names the file."""
    try:
        yield
    except duckdb.Error as error:
        words = next((words for words in _WITHOUT_ROOM if words in str(error)), None)
        if words is None:
            raise
        raise OSError(_WITHOUT_ROOM[words], words, str(path)) from error


@contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection) -> Generator[None]:
    """End a statement that is interrupted; DuckDB raises an error of its own and goes on."""
    try:
        yield
    except RuntimeError as error:
        interrupt = error.__cause__
        if interrupt is None or isinstance(interrupt, Exception):
            raise
        connection.interrupt()
        raise interrupt from None


def text_of(path: Path) -> str:
    """A path as DuckDB takes it.

    Raises:
        InputError: its name is not UTF-8, which DuckDB cannot open.
    """
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(text, "its name is not UTF-8") from error
    return text


def _reason(error: duckdb.Error) -> str:
    text = str(error)
    locked = _LOCKED.search(text)
    if locked:
        name, number = locked.groups()
        holder = "another process that has no name here, as one of another container"
        if name is not None:
            holder = f"process {number} ({name})"
        return f"is in use by {holder}; one process writes at a time"
    if "Permission denied" in text or "Read-only file system" in text or "read-only" in text:
        return "cannot be written (permission denied)"
    if "not a valid DuckDB database file" in text:
        return _FOREIGN
    return text.strip().splitlines()[0]


def _plain(value: object) -> object:
    """A value as JSON has it; a number that is not finite is not known."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
