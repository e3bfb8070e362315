"""Frames between fronts, scheduler, nodes and workers: their layout, packed and unpacked.

A frame is a fixed header, a body of at most `MAX_BODY_BYTES`, and, between hosts, the tensors
themselves. The header says which plan, batch and stage the frame speaks of, how long the body and
the tensors are, and the body's CRC-32. All numbers are little-endian. Whatever does not fit raises
`FrameError` before any memory is taken for it.

Here: kinds, header, JSON bodies. Not here: the other bodies (`wire_bodies`), sockets (`hub`), tensors
in memory (`memory`).
"""

import json
import struct
import zlib
from enum import IntEnum
from typing import Any, NamedTuple

from triton_backend.contract.errors import PoolPipeError

MAGIC = b"PPIP"
VERSION = 1
MAX_BODY_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 1 << 33

# magic, version, kind, stage, body bytes, body CRC-32, batch, plan tag, payload bytes
_HEADER = struct.Struct("<4sBBhIIqQQ")
HEADER_BYTES = _HEADER.size


class FrameError(PoolPipeError):
    """The peer sent something that is not a frame of this protocol; its connection is closed."""


class Kind(IntEnum):
    """What a frame says; the sender and receiver of each stand beside it."""

    HELLO = 1  # anyone -> scheduler: who I am (JSON)
    BEAT = 2  # scheduler -> anyone: I am alive, and how I see the world (JSON)
    PLAN = 3  # scheduler -> fronts: from now on this generation (JSON)
    ARRIVAL = 4  # front -> scheduler
    CANCEL = 5  # front -> scheduler
    DISPATCH = 6  # scheduler -> front
    DROP = 7  # scheduler -> front
    ABORT = 8  # scheduler -> front and workers of the path: forget this batch
    BATCH = 9  # front or worker -> worker: tensors are in your slot; scheduler -> worker: in its front's
    ANSWER = 10  # last worker -> front: outputs are in your slot
    FAILED = 11  # worker -> front and scheduler: a batch could not be run (JSON)
    TRANSFER_DONE = 12  # worker -> scheduler
    STAGE_DONE = 13  # worker -> scheduler
    RETIRE = 14  # scheduler -> worker: end your process, your node starts a new one
    TRY = 15  # node -> worker: run your stage once on what I wrote for you (JSON)
    TRIED = 16  # worker -> node: done, or the error (JSON)
    TRIAL = 17  # scheduler -> worker: run your stage once on nothing, and tell how long it took
    TRIAL_DONE = 18  # worker -> scheduler: when it began and ended


class Header(NamedTuple):
    """The fixed part of a frame."""

    kind: Kind
    stage: int
    body_bytes: int
    checksum: int
    batch_id: int
    plan_tag: int
    payload_bytes: int


def frame(
    kind: Kind,
    body: bytes = b"",
    *,
    batch_id: int = 0,
    stage: int = 0,
    plan_tag: int = 0,
    payload_bytes: int = 0,
) -> bytes:
    """Header and body as one piece; the payload, where there is one, follows it on the wire."""
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"body of {len(body)} bytes; at most {MAX_BODY_BYTES} are allowed")
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        kind,
        stage,
        len(body),
        zlib.crc32(body),
        batch_id,
        plan_tag,
        payload_bytes,
    )
    return header + body


_KINDS = {int(kind): kind for kind in Kind}


def parse_header(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """The header in the `HEADER_BYTES` of `data` from `at` on.

    Raises:
        FrameError: wrong magic, version, kind or a size above the limits.
    """
    magic, version, kind, stage, body_bytes, checksum, batch_id, tag, payload = _HEADER.unpack_from(
        data, at
    )
    if magic != MAGIC or version != VERSION:
        raise FrameError(f"starts with {magic!r} version {version}, not {MAGIC!r} {VERSION}")
    if body_bytes > MAX_BODY_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise FrameError(f"body of {body_bytes} and payload of {payload} bytes exceed the limits")
    known = _KINDS.get(kind)
    if known is None:
        raise FrameError(f"unknown kind {kind}")
    return Header(known, stage, body_bytes, checksum, batch_id, tag, payload)


def check_body(header: Header, body: bytes) -> None:
    """Compare length and checksum of a body with its header.

    Raises:
        FrameError: they differ.
    """
    if len(body) != header.body_bytes or zlib.crc32(body) != header.checksum:
        raise FrameError(f"body of {header.kind.name} does not match its checksum")


def pack_json(data: object) -> bytes:
    """Compact JSON, for the frames that are rare."""
    return json.dumps(data, separators=(",", ":")).encode()


def unpack_json(body: bytes) -> dict[str, Any]:
    """Inverse of `pack_json` for objects.

    Raises:
        FrameError: not a JSON object.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise FrameError("body is not a JSON object")
    return data
