"""Frames between fronts, scheduler, nodes and workers: their layout, packed and unpacked.

A frame is a fixed header, a body of at most `MAX_BODY_BYTES`, and, between hosts, the tensors
themselves. The header says which plan, batch and stage the frame speaks of, how long the body and
the tensors are, and the body's CRC-32. All numbers are little-endian. Whatever does not fit raises
`FrameError` before any memory is taken for it.

Here: kinds, header, bodies. Not here: sockets (`connection`), tensors in memory (`shared_memory`).
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from itertools import chain, starmap
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from triton_backend.contract.decisions import DropReason, Hop
from triton_backend.contract.errors import PoolPipeError

MAGIC = b"PPIP"
VERSION = 5
MAX_BODY_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 1 << 33
MAX_REASON = 1000  # characters of what went wrong; the log has all of it

MAX_ROWS = 1 << 31  # of a sample, fewer

NONE = -1  # no such slot, no such request
RETAINED = -2  # in place of an express request: the last worker retains the outputs

# A front numbers its requests in so many bits; the core's number has the front's own above them.
LOCAL_BITS = 40
LOCALS = 1 << LOCAL_BITS
# A batch's number has that of the scheduler's life above so many bits.
BATCH_BITS = 32

# magic, version, kind, stage, body bytes, body CRC-32, batch, plan tag, payload bytes
_HEADER = struct.Struct("<4sBBhIIqQQ")
HEADER_BYTES = _HEADER.size


class FrameError(PoolPipeError):
    """The peer sent something that is not a frame of this protocol; its connection is closed."""


class Kind(IntEnum):
    """Kinds of frames; sender and receiver stand beside each."""

    HELLO = 1  # front, worker or standby -> scheduler: the sender (JSON)
    HEARTBEAT = 2  # scheduler -> anyone: I am alive, the time here, what is lost (JSON)
    PLAN = 3  # scheduler -> fronts and standby: from now on this generation (JSON)
    ARRIVAL = 4  # front -> scheduler
    CANCEL = 5  # front -> scheduler
    DISPATCH = 6  # scheduler -> front
    DROP = 7  # scheduler -> front
    ABORT = 8  # scheduler -> front and workers of the path: forget this batch
    # front or worker -> worker: tensors are in your slot; scheduler -> worker: in its front's
    BATCH = 9
    ANSWER = 10  # last worker -> front: outputs are in your slot
    BATCH_FAILED = 11  # worker -> front and scheduler, front -> scheduler: it was not run (JSON)
    TRANSFER_DONE = 12  # worker -> scheduler
    STAGE_DONE = 13  # worker -> scheduler
    RETIRE = 14  # scheduler -> worker: end your process, your node starts a new one
    RUN_STAGE = 15  # node -> worker: run your stage once on what I wrote for you (JSON)
    STAGE_RESULT = 16  # worker -> node: done, or the error (JSON)
    PACE_PROBE = 17  # scheduler -> worker: run your stage once on zeros and report how long it took
    PACE_RESULT = 18  # worker -> scheduler: when it began and ended
    BATCH_LOST = 19  # front or worker -> scheduler: this stage's worker cannot be reached (JSON)
    CHALLENGE = 20  # TCP listener -> TCP client: prove for this nonce that you have the key
    ADOPT = 22  # scheduler -> worker: serve this generation too, under its numbers (JSON)
    GATHER = 23  # scheduler -> worker: BATCH of modules' rows, to be copied from where they lie
    JOB_DONE = 24  # scheduler -> front of an application: where the outputs of a job lie
    JOB_READ = 25  # front -> scheduler: they are read, and their slots are free
    JOB_FAILED = 26  # scheduler -> front: a module of a job could not be run (JSON)
    EMITTED = 27  # last worker -> scheduler, before STAGE_DONE: rows that each sample gave
    SHARED_BATCH = 28  # scheduler -> worker: these batches run together, from now on
    SHARED_BATCH_DONE = 29  # worker -> scheduler: they did, or those of them that were there
    PROOF = 21  # TCP client -> TCP listener: the proof (`authentication`)
    FETCH = 30  # reader of jobs' rows -> a process of the host where they lie
    FETCHED = 31  # the answer, the rows behind it; with a body, that is why there are none
    LET_GO = 32  # front or worker -> scheduler: it has forgotten a batch that was aborted


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


def life_of(batch_id: int) -> int:
    """The life of the scheduler that gave a batch its number."""
    return batch_id >> BATCH_BITS


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


# Bodies of frames that are rare: JSON objects


class FrontHello(NamedTuple):
    """HELLO of the front of a model in one of the gateways."""

    model: str
    gateway: int = 0


class WorkerHello(NamedTuple):
    """HELLO of the worker of a vGPU of a generation.

    `idle_us`: when batches of another life of the scheduler will have run here, as planned
    (gateway's time); 0 where there are none. A worker that has some says HELLO again when it is
    idle.
    """

    generation: int
    vgpu: int
    idle_us: int = 0


class StandbyHello(NamedTuple):
    """HELLO of a scheduler that would take over, by the name of its Triton model.

    `generation`: the one it would serve; said again when that changes.
    """

    standby: str
    generation: int = 0


Hello = FrontHello | WorkerHello | StandbyHello


class PlanBody(NamedTuple):
    """PLAN: the generation served from now on, or one that is prepared beside it."""

    generation: int
    plan_id: str
    prepared: bool


class HeartbeatBody(NamedTuple):
    """HEARTBEAT: the gateway's time when it was sent; vGPUs without a worker, by pool.

    Pools are stated only where requests have variants.
    """

    now_us: int
    lost: Mapping[str, int] = MappingProxyType({})


class AdoptBody(NamedTuple):
    """ADOPT: a generation that a worker serves too; those before `oldest` and after it are over."""

    generation: int
    oldest: int


class FailureBody(NamedTuple):
    """BATCH_FAILED: why; an express request and the front's slot that it lay in, else NONE."""

    reason: str
    express: int
    slot: int


class JobFailedBody(NamedTuple):
    """JOB_FAILED: a front's request, and which module failed how."""

    request: int
    reason: str


class RunStageBody(NamedTuple):
    """RUN_STAGE: which stage of which pipeline of which model of the plan, on how many samples."""

    model: int
    pipeline: int
    stage: int
    samples: int


def pack_hello(hello: Hello) -> bytes:
    """Body of HELLO."""
    return _pack_json(hello._asdict())


def unpack_hello(body: bytes) -> Hello:
    """Inverse of `pack_hello`."""
    data = _unpack_json(body)
    if "model" in data:
        return FrontHello(_text(data, "model"), _integer(data, "gateway"))
    if "standby" in data:
        return StandbyHello(_text(data, "standby"), _integer(data, "generation"))
    return WorkerHello(*(_integer(data, name) for name in WorkerHello._fields))


def pack_plan(message: PlanBody) -> bytes:
    """Body of PLAN."""
    return _pack_json(message._asdict())


def unpack_plan(body: bytes) -> PlanBody:
    """Inverse of `pack_plan`."""
    data = _unpack_json(body)
    prepared = data.get("prepared") is True
    return PlanBody(_integer(data, "generation"), _text(data, "plan_id"), prepared)


def pack_adopt(message: AdoptBody) -> bytes:
    """Body of ADOPT."""
    return _pack_json(message._asdict())


def unpack_adopt(body: bytes) -> AdoptBody:
    """Inverse of `pack_adopt`."""
    data = _unpack_json(body)
    return AdoptBody(_integer(data, "generation"), _integer(data, "oldest"))


def pack_heartbeat(message: HeartbeatBody) -> bytes:
    """Body of HEARTBEAT."""
    return _pack_json({"now_us": message.now_us, "lost": dict(message.lost)})


def unpack_heartbeat(body: bytes) -> HeartbeatBody:
    """Inverse of `pack_heartbeat`."""
    data = _unpack_json(body)
    lost = data.get("lost", {})
    if not isinstance(lost, dict):
        raise FrameError(f"lost is {lost!r:.80}, not an object")
    counts = cast("dict[str, object]", lost)
    return HeartbeatBody(
        _integer(data, "now_us"), {pool: _integer(counts, pool) for pool in counts}
    )


def pack_failure(message: FailureBody) -> bytes:
    """Body of BATCH_FAILED and BATCH_LOST; a long reason is cut."""
    return _pack_json(message._replace(reason=message.reason[:MAX_REASON])._asdict())


def unpack_failure(body: bytes) -> FailureBody:
    """Inverse of `pack_failure`."""
    data = _unpack_json(body)
    return FailureBody(_text(data, "reason"), _integer(data, "express"), _integer(data, "slot"))


def pack_job_failed(message: JobFailedBody) -> bytes:
    """Body of JOB_FAILED; a long reason is cut."""
    return _pack_json(message._replace(reason=message.reason[:MAX_REASON])._asdict())


def unpack_job_failed(body: bytes) -> JobFailedBody:
    """Inverse of `pack_job_failed`."""
    data = _unpack_json(body)
    return JobFailedBody(_integer(data, "request"), _text(data, "reason"))


def pack_run_stage(message: RunStageBody) -> bytes:
    """Body of RUN_STAGE."""
    return _pack_json(message._asdict())


def unpack_run_stage(body: bytes) -> RunStageBody:
    """Inverse of `pack_run_stage`."""
    data = _unpack_json(body)
    return RunStageBody._make(_integer(data, name) for name in RunStageBody._fields)


def pack_stage_result(error: str) -> bytes:
    """Body of STAGE_RESULT: what went wrong, cut where it is long, or nothing."""
    return _pack_json({"error": error[:MAX_REASON]})


def unpack_stage_result(body: bytes) -> str:
    """Inverse of `pack_stage_result`."""
    return _text(_unpack_json(body), "error")


def _pack_json(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def _unpack_json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise FrameError("body is not a JSON object")
    return data


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise FrameError(f"{name} is {value!r:.80}, not a text")
    return value


def _integer(data: Mapping[str, object], name: str) -> int:
    value = data.get(name)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise FrameError(f"{name} is {value!r:.80}, not an integer of 64 bits")
    return value


# Bodies that every request pays for: tuples, packed and unpacked


class ArrivalBody(NamedTuple):
    """A request as the front numbered it, and the express slot its tensors lie in, if any.

    `entry`: by which of its model's entries it comes in. `guard_us`: by how much the deadline is
    earlier than the client's. `low`: 1 where it is served with what others leave.
    """

    request: int
    deadline_us: int
    samples: int
    entry: int = 0
    express_slot: int = NONE
    payload_checksum: int = 0
    guard_us: int = 0
    low: int = 0


class DropBody(NamedTuple):
    """Why a request is not served; `best_finish_us` is 0 where nothing was probed.

    `module`: of an application, the one that was dropped.
    """

    request: int
    reason: DropReason
    deadline_us: int
    best_finish_us: int
    queue_position: int
    module: int = NONE


class DispatchBody(NamedTuple):
    """Gather these requests and send them along these hops, into the slots granted there."""

    pipeline: int
    samples: int
    hops: tuple[Hop, ...]
    slots: tuple[int, ...]
    requests: tuple[int, ...]


class BatchBody(NamedTuple):
    """A batch on its way: `payload_checksum` 0 means not computed.

    `express`: the only request, whose tensors lie in the front's express slot `answer_slot`; or
    RETAINED, and `answer_slot` is one of the last worker's retained outputs.
    """

    model: int
    pipeline: int
    samples: int
    answer_slot: int
    payload_checksum: int
    transfer_start_us: int
    available_us: int
    express: int
    hops: tuple[Hop, ...]
    slots: tuple[int, ...]


class AnswerBody(NamedTuple):
    """Outputs of a batch in the front's own slot; `express` as in its BATCH.

    `planned_end_us`: when its last stage was to end, as it was dispatched; of the gateway's clock.
    """

    answer_slot: int
    samples: int
    payload_checksum: int
    express: int = NONE
    planned_end_us: int = 0


class RowSlice(NamedTuple):
    """Gathered rows [at, at + rows) lie in rows [row, row + rows) of a generation's slot.

    `group`: which of the producer's outputs, those with one row per sample (0) or those of one
    count.

    They are read by a module of an application, by their numbers in the deployment. The slot is one
    of the retained outputs of `vgpu`, which holds outputs of the module `producer`; where that is
    NONE, it is one of a front's, in the gateway of the number `vgpu`, and holds a request. Slot
    NONE: there are no such rows, zeros do.
    """

    at: int
    rows: int
    application: int
    module: int
    producer: int
    group: int
    generation: int
    vgpu: int
    slot: int
    row: int


class FetchBody(NamedTuple):
    """FETCH: the rows of a piece of an application, of these tensors in this order."""

    piece: RowSlice
    application: str
    tensors: tuple[str, ...]


class JobDoneBody(NamedTuple):
    """JOB_DONE: the outputs of a front's request; a module without pieces had no rows.

    Of every piece `module` is NONE, and `at` counts the rows of `producer`. A piece of slot NONE
    says that the optional module `producer` was dropped.
    """

    request: int
    pieces: tuple[RowSlice, ...]


class SharedBatchBody(NamedTuple):
    """SHARED_BATCH: batches that run together, as soon as all are there and `start_us` has come.

    It replaces what was said of the shared batch before; without batches it is over. From
    `leave_us` on
    it starts without the missing ones: the members to wait for are not known any more.
    """

    start_us: int
    leave_us: int
    batches: tuple[int, ...]


class TimesBody(NamedTuple):
    """When a stage or a transfer on a vGPU really began and ended (µs)."""

    vgpu: int
    start_us: int
    end_us: int


_ARRIVAL = struct.Struct("<qqiiiIqB")
_REQUEST = struct.Struct("<q")
_DROP = struct.Struct("<qiqqii")
_DISPATCH = struct.Struct("<iiHH")
_BATCH = struct.Struct("<iiiiIqqqH")
_HOP = struct.Struct("<iqqqq")
_HOP_FIELDS = _HOP.format[1:]  # without the byte order
_HOP_AND_SLOT_BYTES = _HOP.size + 4
_ANSWER = struct.Struct("<iiIqq")
_TIMES = struct.Struct("<iqq")
_SHARED_BATCH = struct.Struct("<qqH")
_PIECE = struct.Struct("<10i")
_ROWS = struct.Struct("<HI")


def pack_arrival(message: ArrivalBody) -> bytes:
    """Body of ARRIVAL."""
    return _ARRIVAL.pack(*message)


def unpack_arrival(body: bytes) -> ArrivalBody:
    """Inverse of `pack_arrival`."""
    arrival = ArrivalBody(*_unpack(_ARRIVAL, body))
    if arrival.samples < 1 or arrival.entry < 0 or arrival.low > 1:
        raise FrameError(f"a request of {arrival.samples} samples by entry {arrival.entry}")
    return arrival


def pack_request(request: int) -> bytes:
    """Body of CANCEL and JOB_READ."""
    return _REQUEST.pack(request)


def unpack_request(body: bytes) -> int:
    """Inverse of `pack_request`."""
    return int(_unpack(_REQUEST, body)[0])


def pack_drop(message: DropBody) -> bytes:
    """Body of DROP."""
    return _DROP.pack(*message)


def unpack_drop(body: bytes) -> DropBody:
    """Inverse of `pack_drop`."""
    request, number, *rest = _unpack(_DROP, body)
    try:
        reason = DropReason(number)
    except ValueError as error:
        raise FrameError(f"no drop reason has the number {number}") from error
    return DropBody(request, reason, *rest)


def pack_dispatch(
    pipeline: int,
    samples: int,
    hops: tuple[Hop, ...],
    slots: Sequence[int],
    requests: Sequence[int],
) -> bytes:
    """Body of DISPATCH, from the fields of a `DispatchBody`."""
    layout = _dispatch_layout(len(hops), len(requests))
    return layout.pack(
        pipeline, samples, len(hops), len(requests), *chain.from_iterable(hops), *slots, *requests
    )


@cache
def _dispatch_layout(hops: int, requests: int) -> struct.Struct:
    return struct.Struct(f"{_DISPATCH.format}{hops * _HOP_FIELDS}{hops}i{requests}q")


def unpack_dispatch(body: bytes) -> DispatchBody:
    """Inverse of `pack_dispatch`."""
    pipeline, samples, hops, requests = _unpack_start(_DISPATCH, body)
    at = _DISPATCH.size
    _need(body, at + hops * _HOP_AND_SLOT_BYTES + 8 * requests)
    numbers = struct.unpack_from(f"<{requests}q", body, at + hops * _HOP_AND_SLOT_BYTES)
    return DispatchBody(pipeline, samples, *_path(body, at, hops), numbers)


def pack_batch(message: BatchBody) -> bytes:
    """Body of BATCH."""
    *start, hops, slots = message
    return _batch_layout(len(hops)).pack(*start, len(hops), *chain.from_iterable(hops), *slots)


@cache
def _batch_layout(hops: int) -> struct.Struct:
    return struct.Struct(f"{_BATCH.format}{hops * _HOP_FIELDS}{hops}i")


def unpack_batch(body: bytes) -> BatchBody:
    """Inverse of `pack_batch`."""
    *fields, hops = _unpack_start(_BATCH, body)
    _need(body, _BATCH.size + hops * _HOP_AND_SLOT_BYTES)
    return BatchBody._make([*fields, *_path(body, _BATCH.size, hops)])


def pack_gather(batch: BatchBody, pieces: Sequence[RowSlice]) -> bytes:
    """Body of GATHER."""
    return pack_batch(batch) + _pack_pieces(pieces)


def unpack_gather(body: bytes) -> tuple[BatchBody, tuple[RowSlice, ...]]:
    """Inverse of `pack_gather`."""
    *_, hops = _unpack_start(_BATCH, body)
    end = _BATCH.size + hops * _HOP_AND_SLOT_BYTES
    return unpack_batch(body[:end]), _unpack_pieces(body[end:])


def pack_rows(groups: Sequence[Sequence[int]]) -> bytes:
    """Body of EMITTED: for every count of a model, the rows of each sample.

    Raises:
        FrameError: one of them is no number of rows.
    """
    samples = len(groups[0])
    for count in chain.from_iterable(groups):
        if not 0 <= count < MAX_ROWS:
            raise FrameError(f"a sample of {count} rows")
    return _ROWS.pack(len(groups), samples) + struct.pack(
        f"<{len(groups) * samples}i", *chain.from_iterable(groups)
    )


def unpack_rows(body: bytes) -> tuple[tuple[int, ...], ...]:
    """Inverse of `pack_rows`."""
    groups, samples = _unpack_start(_ROWS, body)
    _need(body, _ROWS.size + 4 * groups * samples)
    rows = struct.unpack_from(f"<{groups * samples}i", body, _ROWS.size)
    if any(count < 0 for count in rows):
        raise FrameError(f"rows {min(rows)}")
    return tuple(rows[at : at + samples] for at in range(0, len(rows), samples or 1))


def pack_job_done(message: JobDoneBody) -> bytes:
    """Body of JOB_DONE."""
    return _REQUEST.pack(message.request) + _pack_pieces(message.pieces)


def unpack_job_done(body: bytes) -> JobDoneBody:
    """Inverse of `pack_job_done`."""
    (request,) = _unpack_start(_REQUEST, body)
    return JobDoneBody(request, _unpack_pieces(body[_REQUEST.size :]))


def pack_fetch(message: FetchBody) -> bytes:
    """Body of FETCH."""
    names = "\0".join((message.application, *message.tensors))
    return _PIECE.pack(*message.piece) + names.encode()


def unpack_fetch(body: bytes) -> FetchBody:
    """Inverse of `pack_fetch`."""
    piece = RowSlice(*_unpack_start(_PIECE, body))
    if piece.rows < 1 or piece.row < 0 or piece.slot < 0:
        raise FrameError(f"no rows: {piece}")
    try:
        application, *tensors = body[_PIECE.size :].decode().split("\0")
    except UnicodeDecodeError as error:
        raise FrameError(f"names that are no text: {error}") from error
    return FetchBody(piece, application, tuple(tensors))


def _pack_pieces(pieces: Sequence[RowSlice]) -> bytes:
    return b"".join(starmap(_PIECE.pack, pieces))


def _unpack_pieces(body: bytes) -> tuple[RowSlice, ...]:
    if len(body) % _PIECE.size:
        raise FrameError(f"{len(body)} bytes are no pieces of {_PIECE.size}")
    pieces = tuple(starmap(RowSlice, _PIECE.iter_unpack(body)))
    for piece in pieces:
        if piece.at < 0 or piece.rows < 1 or piece.row < 0 or piece.slot < NONE:
            raise FrameError(f"no rows: {piece}")
    return pieces


def pack_answer(message: AnswerBody) -> bytes:
    """Body of ANSWER."""
    return _ANSWER.pack(*message)


def unpack_answer(body: bytes) -> AnswerBody:
    """Inverse of `pack_answer`."""
    return AnswerBody(*_unpack(_ANSWER, body))


def pack_shared_batch(message: SharedBatchBody) -> bytes:
    """Body of SHARED_BATCH."""
    return _SHARED_BATCH.pack(
        message.start_us, message.leave_us, len(message.batches)
    ) + _pack_numbers(message.batches)


def unpack_shared_batch(body: bytes) -> SharedBatchBody:
    """Inverse of `pack_shared_batch`."""
    start_us, leave_us, count = _unpack_start(_SHARED_BATCH, body)
    return SharedBatchBody(start_us, leave_us, _unpack_numbers(body, _SHARED_BATCH.size, count))


def pack_shared_batch_done(times: TimesBody, batches: Sequence[int]) -> bytes:
    """Body of SHARED_BATCH_DONE: when it ran, and its members then."""
    return _TIMES.pack(*times) + _pack_numbers(batches)


def unpack_shared_batch_done(body: bytes) -> tuple[TimesBody, tuple[int, ...]]:
    """Inverse of `pack_shared_batch_done`."""
    count, rest = divmod(len(body) - _TIMES.size, _REQUEST.size)
    if count < 0 or rest:
        raise FrameError(f"{len(body)} bytes are no times and batches")
    return unpack_times(body[: _TIMES.size]), _unpack_numbers(body, _TIMES.size, count)


def _pack_numbers(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _unpack_numbers(body: bytes, at: int, count: int) -> tuple[int, ...]:
    """So many numbers, with which a body ends."""
    _need(body, at + count * _REQUEST.size)
    return struct.unpack_from(f"<{count}q", body, at)


def pack_times(message: TimesBody) -> bytes:
    """Body of TRANSFER_DONE, STAGE_DONE and PACE_RESULT."""
    return _TIMES.pack(*message)


def unpack_times(body: bytes) -> TimesBody:
    """Inverse of `pack_times`."""
    times = TimesBody(*_unpack(_TIMES, body))
    if times.end_us < times.start_us:
        raise FrameError(f"ended at {times.end_us} before it began at {times.start_us}")
    return times


def _path(body: bytes, at: int, count: int) -> tuple[tuple[Hop, ...], tuple[int, ...]]:
    """The hops that begin at `at`, and the slots that follow them."""
    end = at + count * _HOP.size
    hops = tuple(starmap(Hop, _HOP.iter_unpack(body[at:end])))
    return hops, struct.unpack_from(f"<{count}i", body, end)


def _unpack(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    _need(body, layout.size)
    return layout.unpack(body)


def _unpack_start(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise FrameError(f"body of {len(body)} bytes; at least {layout.size} are needed")
    return layout.unpack_from(body)


def _need(body: bytes, size: int) -> None:
    if len(body) != size:
        raise FrameError(f"body of {len(body)} bytes; {size} are needed")
