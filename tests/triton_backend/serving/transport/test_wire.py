import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_backend.contract.decisions import DropReason, Hop
from triton_backend.serving.transport import wire
from triton_backend.serving.transport.wire import FrameError, Kind

I32 = st.integers(-(2**31), 2**31 - 1)
U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PATHS = st.lists(st.tuples(st.builds(Hop, I32, I64, I64, I64, I64), I32), max_size=5)
COUNTS = st.integers(0, 2**31 - 1)
ARRIVALS = st.builds(
    wire.ArrivalBody,
    I64,
    I64,
    st.integers(1, 2**31 - 1),
    COUNTS,
    I32,
    U32,
    I64,
    st.integers(0, 1),
)
DROPS = st.builds(wire.DropBody, I64, st.sampled_from(DropReason), I64, I64, I32, I32)


@st.composite
def dispatches(draw: st.DrawFn) -> wire.DispatchBody:
    path = draw(PATHS)
    hops, slots = tuple(hop for hop, _ in path), tuple(slot for _, slot in path)
    requests = tuple(draw(st.lists(I64, max_size=9)))
    return wire.DispatchBody(draw(I32), draw(I32), hops, slots, requests)


@st.composite
def batches(draw: st.DrawFn) -> wire.BatchBody:
    path = draw(PATHS)
    hops, slots = tuple(hop for hop, _ in path), tuple(slot for _, slot in path)
    fields = [*(draw(I32) for _ in range(4)), draw(U32), *(draw(I64) for _ in range(3))]
    return wire.BatchBody._make([*fields, hops, slots])


ANSWERS = st.builds(wire.AnswerBody, I32, I32, U32, I64, I64)
PIECES = st.lists(
    st.builds(wire.RowSlice, COUNTS, st.integers(1, 2**31 - 1), *[I32] * 6, COUNTS, COUNTS),
    max_size=4,
).map(tuple)
UNPACK = (
    wire.unpack_gather,
    wire.unpack_job_done,
    wire.unpack_rows,
    wire.unpack_job_failed,
    wire.unpack_hello,
    wire.unpack_plan,
    wire.unpack_heartbeat,
    wire.unpack_failure,
    wire.unpack_run_stage,
    wire.unpack_stage_result,
    wire.unpack_arrival,
    wire.unpack_request,
    wire.unpack_drop,
    wire.unpack_dispatch,
    wire.unpack_batch,
    wire.unpack_answer,
    wire.unpack_times,
    wire.unpack_shared_batch,
    wire.unpack_shared_batch_done,
)


@given(ARRIVALS, DROPS, dispatches(), batches(), ANSWERS)
def test_every_body_comes_back_as_it_was_packed(
    arrival: wire.ArrivalBody,
    drop: wire.DropBody,
    dispatch: wire.DispatchBody,
    batch: wire.BatchBody,
    answer: wire.AnswerBody,
) -> None:
    assert wire.unpack_arrival(wire.pack_arrival(arrival)) == arrival
    assert wire.unpack_drop(wire.pack_drop(drop)) == drop
    assert wire.unpack_dispatch(wire.pack_dispatch(*dispatch)) == dispatch
    assert wire.unpack_batch(wire.pack_batch(batch)) == batch
    assert wire.unpack_answer(wire.pack_answer(answer)) == answer


@given(I64, st.dictionaries(st.text(max_size=9), I64, max_size=3))
def test_heartbeats_come_back_and_one_that_loses_no_numbers_is_refused(
    now_us: int, lost: dict[str, int]
) -> None:
    beat = wire.HeartbeatBody(now_us, lost)
    assert wire.unpack_heartbeat(wire.pack_heartbeat(beat)) == beat
    assert wire.unpack_heartbeat(b'{"now_us": 5}') == wire.HeartbeatBody(5, {})
    for broken in (b'{"now_us": 5, "lost": [2]}', b'{"now_us": 5, "lost": {"gpu-0": "2"}}'):
        with pytest.raises(FrameError, match="not an"):
            wire.unpack_heartbeat(broken)


@given(I64, I64, st.lists(I64, max_size=9).map(tuple))
def test_shared_batches_come_back_and_no_other_number_of_batches_fits(
    start_us: int, end_us: int, batches: tuple[int, ...]
) -> None:
    shared_batch = wire.SharedBatchBody(start_us, end_us, batches)
    assert wire.unpack_shared_batch(wire.pack_shared_batch(shared_batch)) == shared_batch
    times = wire.TimesBody(3, min(start_us, end_us), max(start_us, end_us))
    packed = wire.pack_shared_batch_done(times, batches)
    assert wire.unpack_shared_batch_done(packed) == (times, batches)
    for broken in (
        wire.pack_shared_batch(shared_batch) + bytes(8),
        wire.pack_shared_batch(shared_batch)[:-1],
    ):
        with pytest.raises(FrameError, match="are needed"):
            wire.unpack_shared_batch(broken)
    for broken in (packed + b"x", packed[:19]):
        with pytest.raises(FrameError, match="no times and batches"):
            wire.unpack_shared_batch_done(broken)


@given(batches(), PIECES, I64)
def test_pieces_come_back_and_those_that_are_no_rows_are_refused(
    batch: wire.BatchBody, pieces: tuple[wire.RowSlice, ...], request: int
) -> None:
    assert wire.unpack_gather(wire.pack_gather(batch, pieces)) == (batch, pieces)
    done = wire.JobDoneBody(request, pieces)
    assert wire.unpack_job_done(wire.pack_job_done(done)) == done
    good = wire.RowSlice(0, 1, 0, 0, 0, 0, 1, 0, 0, 0)
    for wrong in ({"rows": 0}, {"at": -1}, {"row": -1}, {"slot": -2}):
        with pytest.raises(FrameError, match="no rows"):
            wire.unpack_gather(wire.pack_gather(batch, [good._replace(**wrong)]))
    with pytest.raises(FrameError, match="no pieces of"):
        wire.unpack_job_done(wire.pack_job_done(done) + b"x")


@pytest.mark.parametrize("number", [-1, len(DropReason)])
def test_a_drop_for_a_reason_that_does_not_exist_is_refused(number: int) -> None:
    good = bytearray(wire.pack_drop(wire.DropBody(1, DropReason.DEADLINE, 2, 3, 4)))
    good[8:12] = number.to_bytes(4, "little", signed=True)
    with pytest.raises(FrameError, match=f"no drop reason has the number {number}"):
        wire.unpack_drop(bytes(good))


@given(st.sampled_from(Kind), st.binary(max_size=200), I64, st.integers(0, 2**15 - 1))
def test_header_comes_back_and_its_checksum_guards_the_body(
    kind: Kind, body: bytes, batch_id: int, stage: int
) -> None:
    data = wire.frame(kind, body, batch_id=batch_id, stage=stage, plan_tag=2**64 - 1)
    header = wire.parse_header(data)
    wire.check_body(header, body)
    assert (header.kind, header.batch_id, header.stage) == (kind, batch_id, stage)
    with pytest.raises(FrameError):
        wire.check_body(header, body + b"x")


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_as_frames_and_never_anything_else(data: bytes) -> None:
    for unpack in UNPACK:
        try:
            unpack(data)
        except FrameError:
            continue
    padded = data.ljust(wire.HEADER_BYTES, b"\0")
    with pytest.raises(FrameError):
        wire.parse_header(padded)


def test_sizes_are_checked_before_memory_is_taken() -> None:
    good = wire.frame(Kind.BATCH, b"body")
    too_large = bytearray(good)
    too_large[8:12] = (wire.MAX_BODY_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(FrameError, match="exceed the limits"):
        wire.parse_header(too_large)
    with pytest.raises(FrameError, match="at most"):
        wire.frame(Kind.HELLO, bytes(wire.MAX_BODY_BYTES + 1))


def test_a_stage_cannot_end_before_it_began() -> None:
    body = wire.pack_times(wire.TimesBody(vgpu=0, start_us=5, end_us=4))
    with pytest.raises(FrameError, match="before it began"):
        wire.unpack_times(body)
