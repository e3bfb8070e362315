"""Columns as a Parquet file, without a warehouse: for records too many to keep in one.

DuckDB writes it, which is why it is here.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import duckdb
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from warehouse.db import OFFLINE, interruptible, text_of
from warehouse.whole import unfinished

NOTHING = -1  # the value for None in an optional column


def write_columns(
    path: Path, columns: Mapping[str, NDArray[Any]], optional: Collection[str] = ()
) -> None:
    """Write columns of equal length, whole or not at all; an older file is replaced.

    Args:
        path: where to.
        columns: numbers, or texts as objects, by name.
        optional: columns of whole numbers in which `NOTHING`, and of texts in which an empty one is
            to become NULL.

    Raises:
        InputError: the file cannot be written.
    """
    chosen = ", ".join(
        f'nullif("{name}", {_nothing(column)}) AS "{name}"' if name in optional else f'"{name}"'
        for name, column in columns.items()
    )
    text_of(path)  # a name that is no text is refused as it was given
    with duckdb.connect(":memory:", config=OFFLINE) as connection:
        # DuckDB looks for pandas again at every element of an array of objects: 20 times as slow.
        given = {name: c.astype(str) if c.dtype == object else c for name, c in columns.items()}
        connection.register("given", given)
        try:
            with unfinished(path) as place, interruptible(connection):
                connection.view("given").project(chosen).write_parquet(text_of(place))
        except (duckdb.IOException, OSError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise InputError(str(path), f"cannot be written: {reason}") from error


def _nothing(column: NDArray[Any]) -> str:
    return "''" if column.dtype == object else str(NOTHING)
