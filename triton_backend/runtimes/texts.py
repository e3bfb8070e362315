"""Texts (BYTES) as rows of numbers: the length as UINT32, little-endian, and the bytes behind it.

Rows may be wider than any text in them, and what lies behind a text is not cleared: a reader goes
by the length, which is checked.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InvariantError
from triton_backend.contract.tensors import LENGTH_BYTES


def pack_texts(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Texts as rows [texts, LENGTH_BYTES + longest]; the memory they take is theirs and no more."""
    width = LENGTH_BYTES + max(map(len, texts), default=0)
    rows = np.zeros((len(texts), width), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        put_text(row, text)
    return rows


def put_text(row: NDArray[np.uint8], text: bytes) -> None:
    """Write one text into a row that has room for it.

    Raises:
        InvariantError: it has not.
    """
    end = LENGTH_BYTES + len(text)
    if end > len(row):
        raise InvariantError(f"{len(text)} bytes, {len(row) - LENGTH_BYTES} fit")
    row[:LENGTH_BYTES] = np.frombuffer(len(text).to_bytes(LENGTH_BYTES, "little"), np.uint8)
    if text:
        row[LENGTH_BYTES:end] = np.frombuffer(text, np.uint8)


def unpack_texts(rows: NDArray[Any]) -> list[bytes]:
    """The texts of rows [texts, room].

    Raises:
        InvariantError: a length is beyond its row.
    """
    room = rows.shape[1] - LENGTH_BYTES
    found: list[bytes] = []
    for row in rows:
        length = int.from_bytes(row[:LENGTH_BYTES].tobytes(), "little")
        if length > room:
            raise InvariantError(f"a text of {length} bytes in a row of {room}")
        found.append(row[LENGTH_BYTES : LENGTH_BYTES + length].tobytes())
    return found


def put_tensor(into: NDArray[np.generic], rows: NDArray[np.generic]) -> None:
    """Write a tensor into memory of its shape.

    Packed texts [texts, width] into rows that are as wide or wider.
    """
    if rows.ndim > 1 and rows.shape[-1] != into.shape[-1]:
        into[..., : rows.shape[-1]] = rows
    else:
        into[...] = rows
