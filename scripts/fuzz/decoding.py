"""A fuzzer of all that is read from others.

Frames, their bodies, requests, control requests, announced cuts.

    .venv/bin/python -m scripts.fuzz.decoding [--count 100000] [--seed 0] [--keep]

Every input is a name of a door and bytes. New ones are made from those of the corpus by small
changes; one that reaches a line after another line it never followed before is kept and changed
further. A door may refuse (`FrameError`, `InputError`); anything else that leaves it is a crash,
and is printed with the input. At the end the corpus is replayed under coverage.py: which branches
of the decoders it reached.

`corpus.txt` beside this file is what `--keep` found worth keeping: where the next run begins, and
what the tests replay. One line an input: door, bytes in hexadecimal.
"""

import argparse
import atexit
import contextlib
import json
import logging
import select
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, cast

import coverage
import numpy as np

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from tests.triton_backend.serving.small_plans import plan, tensor, two_stage
from triton_backend.contract.decisions import DropReason, Hop
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front import texts
from triton_backend.serving.front.requests import reading
from triton_backend.serving.gateway import offload, service
from triton_backend.serving.transport import authentication, connection, wire
from triton_backend.serving.transport.authentication import Challenge, Prover, transport_key
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.wire import FrameError, Header, Kind

CORPUS = Path(__file__).with_name("corpus.txt")
LEAST_COVERED = 0.95
MOST_KEPT_BYTES = 4096
Draws = np.random.Generator
# Decoders by file, with coverage.py's names.
DECODERS: Mapping[Any, tuple[str, ...]] = {
    wire: ("",),
    authentication: ("",),
    connection: (
        "Connection.receive",
        "Connection._read",
        "Connection._receive_challenge",
        "Connection._parse",
        "Connection._take_piece",
        "Connection._await_payload",
        "Connection._finish_payload",
        "_advance",
    ),
    reading: ("RequestReader.", "_parameter"),
    texts: ("packed",),
    service: ("_control_request",),
    offload: ("Offload.answer", "Offload._offer", "Offload._announce", "_offered"),
}
BODIES: Mapping[Kind, Callable[[bytes], object]] = {
    Kind.HELLO: wire.unpack_hello,
    Kind.HEARTBEAT: wire.unpack_heartbeat,
    Kind.PLAN: wire.unpack_plan,
    Kind.ARRIVAL: wire.unpack_arrival,
    Kind.CANCEL: wire.unpack_request,
    Kind.DISPATCH: wire.unpack_dispatch,
    Kind.DROP: wire.unpack_drop,
    Kind.BATCH: wire.unpack_batch,
    Kind.ANSWER: wire.unpack_answer,
    Kind.GATHER: wire.unpack_gather,
    Kind.JOB_DONE: wire.unpack_job_done,
    Kind.EMITTED: wire.unpack_rows,
    Kind.JOB_FAILED: wire.unpack_job_failed,
    Kind.BATCH_FAILED: wire.unpack_failure,
    Kind.STAGE_DONE: wire.unpack_times,
    Kind.RUN_STAGE: wire.unpack_run_stage,
    Kind.STAGE_RESULT: wire.unpack_stage_result,
    Kind.FETCH: wire.unpack_fetch,
    Kind.SHARED_BATCH: wire.unpack_shared_batch,
    Kind.SHARED_BATCH_DONE: wire.unpack_shared_batch_done,
}


class Taken:
    """Bytes taken piece by piece, as numbers; zeros where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """The next so many."""
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece.ljust(count, b"\0")

    def below(self, most: int) -> int:
        """A number from 0 on."""
        return int.from_bytes(self.take(1), "little") % most

    def rest(self) -> bytes:
        """All that is left."""
        piece, self._at = self._data[self._at :], len(self._data)
        return piece

    @property
    def left(self) -> int:
        """How many."""
        return max(0, len(self._data) - self._at)


# Doors


class Receiver:
    """Decodes the body of every frame, and takes payloads of up to 64 bytes, in two pieces."""

    def __init__(self) -> None:
        self._memory = bytearray(64)

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Decode."""
        del connection
        BODIES.get(header.kind, wire.unpack_times)(body)

    def on_close(self, connection: Connection, reason: Any) -> None:
        """Nothing to do."""

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Memory, or one byte too many or few."""
        del connection, body
        if header.payload_bytes > len(self._memory):
            raise FrameError("too large")
        count = min(header.payload_bytes + max(header.stage, 0), len(self._memory))
        view = memoryview(self._memory)[:count]
        return [view[: count // 2], view[count // 2 :]]


def frame_stream(data: bytes) -> bytes:
    """Frames with right checksums, then what is left as it is: bytes as `frames` reads them."""
    taken, made = Taken(data), b""
    kinds = list(Kind)
    for _ in range(taken.below(4)):
        kind = kinds[taken.below(len(kinds))]
        stage, payload_bytes = taken.below(4) - 2, taken.below(80)
        body = taken.take(int.from_bytes(taken.take(2), "little") % 300)
        made += wire.frame(kind, body, stage=stage, payload_bytes=payload_bytes)
        made += taken.take(payload_bytes)
    return made + taken.rest()


def through(family: int, stream: bytes, pieces: Iterator[int], **roles: Any) -> None:
    """A connection that is given the stream in pieces, until it refuses.

    Raises:
        FrameError: it does.
    """
    with contextlib.ExitStack() as stack:
        ours, theirs = _pair(family)
        stack.callback(theirs.close)
        epoll = stack.enter_context(select.epoll())
        one = Connection(ours, epoll, "fuzz", **roles)
        stack.callback(one.close)
        handler, at = Receiver(), 0
        theirs.setblocking(False)  # noqa: FBT003  # the library's signature
        one.receive(handler)  # nothing is there yet
        while at < len(stream):
            at += theirs.send(stream[at : at + next(pieces)])
            if not one.receive(handler):
                return
        theirs.shutdown(socket.SHUT_WR)
        while one.receive(handler):
            pass


def _pair(family: int) -> tuple[socket.socket, socket.socket]:
    if family == socket.AF_UNIX:
        return socket.socketpair()
    theirs = socket.socket()
    theirs.connect(_LISTENER.getsockname())
    return _LISTENER.accept()[0], theirs


def _pieces(taken: Taken) -> Iterator[int]:
    while True:
        yield 1 + taken.below(256) ** 2 // 8


_LISTENER = socket.create_server(("127.0.0.1", 0))
atexit.register(_LISTENER.close)


def frames(data: bytes) -> None:
    """A stream in pieces: over a Unix socket, over TCP with a proof, or before a proof."""
    taken = Taken(data)
    role, split = taken.below(4), Taken(taken.take(8))
    rest = taken.rest()
    stream = frame_stream(rest) if role else rest
    if role < 2:  # noqa: PLR2004  # half of them
        through(socket.AF_UNIX, stream, _pieces(split))
        return
    key = transport_key("token")
    if role == 2:  # noqa: PLR2004  # the listener
        challenge = Challenge(key, "here")
        proof = Prover(key, "here").answer(challenge.frame) if split.below(4) else b""
        through(socket.AF_INET, proof + stream, _pieces(split), challenge=challenge)
    else:
        challenge_frame = Challenge(key, "here").frame if split.below(2) else b""
        prover = Prover(key, "here")
        through(socket.AF_INET, challenge_frame + stream, _pieces(split), prover=prover)


def body(data: bytes) -> None:
    """The body of a kind of frame, which is named by the first byte."""
    kinds = list(BODIES)
    kind = kinds[data[0] % len(kinds) if data else 0]
    read = BODIES[kind](data[1:])
    if kind is Kind.EMITTED and read:
        rows = wire.unpack_rows(data[1:])
        assert wire.unpack_rows(wire.pack_rows(rows)) == rows


def frame_itself(data: bytes) -> None:
    """A header with a body that may not be its own."""
    header = wire.parse_header(data.ljust(wire.HEADER_BYTES, b"\0"))
    wire.check_body(header, data[wire.HEADER_BYTES :])
    wire.frame(Kind.PLAN, bytes(wire.MAX_BODY_BYTES + data[-1] % 2))


def proof(data: bytes) -> None:
    """A stranger's frames in place of a proof or a challenge."""
    key = transport_key("token")
    with contextlib.suppress(FrameError):
        Prover(key, "here").answer(data.ljust(wire.HEADER_BYTES, b"\0"))
    Challenge(key, "here").check(data)


@dataclass(frozen=True, slots=True)
class Tensor:
    """As Triton has it."""

    called: str
    array: Any

    def name(self) -> str:
        """Its name."""
        return self.called

    def as_numpy(self) -> Any:
        """Its content."""
        return self.array


class Incoming:
    """A request as Triton hands it over, made of bytes."""

    _DTYPES = (np.float32, np.uint8, np.int64, np.object_, np.float16)

    def __init__(self, data: bytes) -> None:
        taken = Taken(data)
        names = ("image", "mask", "other", "", "image.fp16")
        usual = [((3, 16), np.float32), ((4,), np.uint8)]
        self._tensors: list[Tensor] = []
        for number in range(taken.below(4)):
            right = taken.below(4) > 0
            dims, dtype = usual[number % 2]
            shape: tuple[int, ...] = (taken.below(10), *dims)
            if not right:
                shape = tuple(taken.below(5) for _ in range(taken.below(4)))
                dtype = self._DTYPES[taken.below(len(self._DTYPES))]
            name = names[number % 2 if right else taken.below(len(names))]
            self._tensors.append(Tensor(name, np.zeros(shape, dtype)))
        wide = taken.below(2)
        self._timeout = int.from_bytes(taken.take(9 if wide else 4), "little", signed=bool(wide))
        self._parameters = taken.rest().decode(errors="replace")

    def inputs(self) -> list[Tensor]:
        """Tensors."""
        return self._tensors

    def timeout(self) -> int:
        """Any 64 bits and more."""
        return self._timeout

    def request_id(self) -> str:
        """Any text."""
        return self._parameters[:100]

    def parameters(self) -> str:
        """Any text."""
        return self._parameters

    def is_cancelled(self) -> bool:
        """Never."""
        return False


class IncomingTexts(Incoming):
    """A request that brings texts, or what is none."""

    def __init__(self, data: bytes) -> None:
        taken = Taken(data)
        super().__init__(b"")
        brought = np.empty(taken.below(4), np.object_)
        brought[:] = [taken.take(taken.below(8)) if taken.below(8) else 0 for _ in brought]
        in_rows = taken.below(8) == 1
        self._tensors = [Tensor("text", brought.reshape(-1, 1) if in_rows else brought)]


_PLAN = plan(two_stage())
_SETTINGS = ServeSettings.begin(Path(), _PLAN, ServeOptions())
_ENTRIES = tuple(
    Entry(name=name, block=block, budget_us=budget_us, rate_rps=1.0, inputs=inputs)
    for name, block, budget_us, inputs in (
        ("whole", 0, 400_000, ()),
        ("urgent", 0, 200_000, ()),
        ("other", 0, 100_000, (tensor("other", 4, dtype="UINT8"),)),
    )
)


def _reader(model: ModelPlan) -> reading.RequestReader:
    return reading.RequestReader(Deployment(_SETTINGS, 1, replace(_PLAN, models=(model,))), model)


def _with_entries(model: ModelPlan) -> ModelPlan:
    (one,) = model.pipelines
    pipelines = tuple(replace(one, entry=entry.name) for entry in _ENTRIES)
    entries = tuple(replace(entry, inputs=entry.inputs or model.inputs) for entry in _ENTRIES)
    return replace(model, entries=entries, pipelines=pipelines, split="split")


def _with_shares(model: ModelPlan) -> ModelPlan:
    """A model with the first two entries alike, which share its requests."""
    made = _with_entries(model)
    entries = tuple(replace(entry, budget_us=400_000, share=0.5) for entry in made.entries[:2])
    return replace(made, entries=entries, pipelines=made.pipelines[:2], split=None)


_READERS = (_reader(_PLAN.models[0]), _reader(_with_entries(_PLAN.models[0])))
_OF_TEXTS, _SHARED = 2, 3  # first byte of a request of texts, or of entries that share requests
_SHARES_READER = _reader(_with_shares(_PLAN.models[0]))
_TEXT_READER = _reader(replace(_PLAN.models[0], inputs=(TensorSpec.of_bytes("text", 4),)))


def request(data: bytes) -> None:
    """A KServe request as a front reads it; what is accepted can be announced."""
    if data[:1] == bytes([_OF_TEXTS]):
        read = _TEXT_READER.read(IncomingTexts(data[1:]), 10**15, print)
    elif data[:1] == bytes([_SHARED]):
        read = _SHARES_READER.read(Incoming(data[1:]), 10**15, print)
    else:
        reader = _READERS[data[0] % 2 if data else 0]
        read = reader.read(Incoming(data[1:]), 10**15, print)
    read.number = 1
    body = wire.ArrivalBody(read.number, read.deadline_us, read.samples)
    assert wire.unpack_arrival(wire.pack_arrival(body)) == body


def control(data: bytes) -> None:
    """A control request."""
    service._control_request(data.decode(errors="replace"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


_OFFERED = replace(_PLAN, models=(_with_entries(_PLAN.models[0]),))


def announcement(data: bytes) -> None:
    """Requests and announcements of a client of entries."""
    table = offload.Offload(lambda: _OFFERED, lambda: 0)
    table.answer(data[1:].decode(errors="replace"), trusted=bool(data and data[0] % 2))


DOORS: Mapping[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (frames, body, frame_itself, proof, request, announcement, control)
}
SHARES = {
    "frames": 0.2,
    "body": 0.3,
    "frame_itself": 0.1,
    "proof": 0.05,
    "request": 0.25,
    "announcement": 0.05,
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """One good input of every kind, and ends of ranges."""
    kinds = list(Kind)
    for number, (kind, made) in enumerate(_bodies().items()):
        yield "body", bytes([number]) + made
        begin = bytes([1, kinds.index(kind), 2, 0]) + len(made).to_bytes(2, "little") + made
        for role in range(4):
            yield "frames", bytes([role, *range(9, 17)]) + begin
        payload = bytes([1, kinds.index(kind), 2, 9]) + len(made).to_bytes(2, "little") + made
        yield "frames", bytes([2, *range(255, 247, -1)]) + payload + bytes(9)
    yield "body", bytes([0]) + wire.pack_hello(wire.FrontHello("m"))
    yield "body", bytes([0]) + wire.pack_hello(wire.StandbyHello("s"))
    yield "body", bytes([0]) + b"[" * 5000
    beats = (b'{"now_us": 5, "lost": [2]}', b'{"now_us": 5, "lost": {"gpu-0": "2"}}')
    yield from (("body", bytes([list(BODIES).index(Kind.HEARTBEAT)]) + beat) for beat in beats)
    rows = wire.pack_rows([(1, 2), (0, 3)])
    yield "body", bytes([list(BODIES).index(Kind.EMITTED)]) + rows[:-4] + b"\xff\xff\xff\x7f"
    yield "frame_itself", wire.frame(Kind.CANCEL, wire.pack_request(1))
    yield "frame_itself", wire.frame(Kind.CANCEL, wire.pack_request(1 << 56))  # ends in an odd byte
    yield "frame_itself", wire.frame(Kind.CANCEL, payload_bytes=wire.MAX_PAYLOAD_BYTES + 1)
    yield "frame_itself", wire.frame(cast("Kind", 255))
    yield "proof", wire.frame(Kind.CHALLENGE, bytes(authentication.NONCE_BYTES))
    yield from _requests()
    name = _PLAN.models[0].name
    where = f'"client": "c", "model": "{name}", "cut": 0, "budget_ms": 40'
    for rate_rps in ("5.0", "0", "1" + "0" * 400):
        text = f'{{"command": "announce", {where}, "rate_rps": {rate_rps}}}'
        yield "announcement", b"\0" + text.encode()
    yield "announcement", f'0{{"command": "offer", "model": "{name}"}}'.encode()
    for trusted in b"01":
        yield "announcement", bytes([trusted]) + b'{"command": "announced"}'
    yield "announcement", b"0" + b"[" * (offload.MOST_BYTES + 1)
    yield "control", b'{"command": "prepare", "generation": 2}'
    yield "control", b'{"command": "status"}'


def _bodies() -> dict[Kind, bytes]:
    """A good body of every kind of frame."""
    hops = (Hop(0, 1, 2, 3, 4), Hop(1, 2, 3, 4, 5))
    piece = wire.RowSlice(0, 1, 0, 1, 0, 0, 1, 0, 2, 3)
    return {
        Kind.HELLO: wire.pack_hello(wire.WorkerHello(1, 2)),
        Kind.HEARTBEAT: wire.pack_heartbeat(wire.HeartbeatBody(5, {"gpu-0": 2})),
        Kind.PLAN: wire.pack_plan(wire.PlanBody(1, "plan", prepared=True)),
        Kind.ARRIVAL: wire.pack_arrival(wire.ArrivalBody(1, 2, 3)),
        Kind.CANCEL: wire.pack_request(1),
        Kind.DISPATCH: wire.pack_dispatch(0, 1, hops, (1, 2), (7, 8)),
        Kind.DROP: wire.pack_drop(wire.DropBody(1, DropReason.DEADLINE, 2, 3, 4)),
        Kind.BATCH: wire.pack_batch(wire.BatchBody(0, 0, 1, 2, 3, 4, 5, 6, hops, (1, 2))),
        Kind.ANSWER: wire.pack_answer(wire.AnswerBody(1, 2, 3)),
        Kind.GATHER: wire.pack_gather(
            wire.BatchBody(0, 0, 1, 2, 0, 4, 5, wire.RETAINED, hops, (1, 2)), [piece]
        ),
        Kind.JOB_DONE: wire.pack_job_done(wire.JobDoneBody(1, (piece,))),
        Kind.EMITTED: wire.pack_rows([(1, 2), (0, 3)]),
        Kind.JOB_FAILED: wire.pack_job_failed(wire.JobFailedBody(1, "x")),
        Kind.BATCH_FAILED: wire.pack_failure(wire.FailureBody("x", 1, 2)),
        Kind.STAGE_DONE: wire.pack_times(wire.TimesBody(1, 2, 3)),
        Kind.RUN_STAGE: wire.pack_run_stage(wire.RunStageBody(0, 0, 0, 1)),
        Kind.STAGE_RESULT: wire.pack_stage_result(""),
        Kind.FETCH: wire.pack_fetch(wire.FetchBody(piece, "a", ("x", "y"))),
        Kind.SHARED_BATCH: wire.pack_shared_batch(wire.SharedBatchBody(1, 2, (3, 4))),
        Kind.SHARED_BATCH_DONE: wire.pack_shared_batch_done(wire.TimesBody(1, 2, 3), (4, 5)),
    }


def _requests() -> Iterator[tuple[str, bytes]]:
    """Requests of clients: tensors, entries, parameters, texts."""
    good_request = bytes([2, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    traced = (b'{"traceparent": "00-1"}', b'["traceparent"]', b"traceparent" + b"[" * 5000)
    parameters = {reading.ENTRY_PARAMETER: ("whole", "none")}
    parameters |= {reading.PRIORITY_PARAMETER: ("1", "2", "high")}
    parameters |= {reading.CLIENT_PARAMETER: ("shop", "a..b", "a b")}
    named = (f'{{"{one}": "{value}"}}' for one, values in parameters.items() for value in values)
    for text in (*traced, *(name.encode() for name in named), b""):
        for entries in range(2):
            yield "request", bytes([entries]) + good_request + text
    yield "request", bytes([_SHARED]) + good_request
    # Only the third entry's tensor; only the tensors of the others, with a timeout.
    yield "request", bytes([1, 1, 0, 1, 1, 4, 1, 2, 0, 0, 0, 0, 0])
    yield "request", bytes([1, *good_request[:5], 0, 0x80, 0x1A, 6, 0])
    # The first tensor in half its bytes: alone, beside the whole one; an unknown split.
    half = bytes([0, 1, 1, 1, 4, 4])
    yield "request", bytes([1, 2, *half, 1, 1, 0, 0, 0, 0, 0])
    yield "request", bytes([1, 2, 1, 1, *half, 0, 0, 0, 0, 0])
    wrong = b'{"%b": "another"}' % reading.SPLIT_PARAMETER.encode()
    yield "request", bytes([1]) + good_request + wrong
    # Two texts; one that is too long, none that is one, and in rows.
    yield "request", bytes([_OF_TEXTS, 2, 1, 1, 7, 1, 2, 7, 7, 0])
    yield "request", bytes([_OF_TEXTS, 1, 1, 6, *b"longer", 0])
    yield "request", bytes([_OF_TEXTS, 1, 0, 0])
    yield "request", bytes([_OF_TEXTS, 1, 1, 1, 7, 1])


# Which lines follow which


@dataclass(slots=True)
class Arcs:
    """Pairs of lines of the decoders, one run after the other, that any input ever reached."""

    files: frozenset[str]
    seen: set[tuple[CodeType, int, int]] = field(default_factory=set[tuple[CodeType, int, int]])
    fresh: bool = False

    def call(self, door: Callable[[bytes], None], data: bytes) -> bool:
        """Run a door; whether it reached something new."""
        self.fresh = False
        former = sys.gettrace()
        sys.settrace(self._enter)
        try:
            door(data)
        finally:
            sys.settrace(former)
        return self.fresh

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        code = frame.f_code
        if code.co_filename not in self.files:
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            del event, argument
            arc = (code, last, frame.f_lineno)
            last = frame.f_lineno
            if arc not in self.seen:
                self.seen.add(arc)
                self.fresh = True
            return line

        return line


# New inputs from old ones

_NUMBERS = (-1, 0, 1, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 255, 1000)
_TEXTS = (b"{", b"[", b'"', b"null", b"1e999", b"\xff", b"NaN", b":", b"timeout", b"\\ud800", b"-")


def changed(data: bytes, draws: Draws) -> bytes:
    """One to four small changes."""
    made = bytearray(data)
    for _ in range(int(draws.integers(1, 5))):
        at = int(draws.integers(len(made) + 1))
        match int(draws.integers(7)):
            case 0:
                made[at : at + 1] = draws.bytes(1)
            case 1:
                del made[at : at + int(draws.integers(1, 16))]
            case 2:
                made[at:at] = draws.bytes(int(draws.integers(1, 16)))
            case 3:
                width = int(draws.choice([1, 2, 4, 8]))
                number = _NUMBERS[int(draws.integers(len(_NUMBERS)))] % (1 << 8 * width)
                made[at : at + width] = number.to_bytes(width, "little")
            case 4:
                made[at:at] = _TEXTS[int(draws.integers(len(_TEXTS)))]
            case 5:
                made[at:at] = bytes(made[at : at + 32]) * int(draws.integers(1, 4))
            case _:
                del made[at:]
    return bytes(made[:MOST_KEPT_BYTES])


def read_corpus(path: Path) -> list[tuple[str, bytes]]:
    """Inputs of a file; none where there is none."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines() if line]
    return [(words[0], bytes.fromhex(words[1] if len(words) > 1 else "")) for words in lines]


def write_corpus(path: Path, inputs: Iterable[tuple[str, bytes]]) -> None:
    """Inputs, in order."""
    path.write_text("".join(f"{door} {data.hex()}\n" for door, data in sorted(set(inputs))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzed:
    """Result of a run: inputs and refusals by door, crashes, and the final corpus."""

    tried: Mapping[str, int]
    refused: int
    crashes: tuple[tuple[str, bytes, str], ...]
    corpus: tuple[tuple[str, bytes], ...]


def fuzz(count: int, seed: int, corpus: Iterable[tuple[str, bytes]] = ()) -> Fuzzed:
    """Try so many inputs; the corpus first, then what is made of it."""
    draws = np.random.default_rng(seed)
    arcs = Arcs(frozenset(str(module.__file__) for module in DECODERS))
    kept: dict[str, list[bytes]] = {name: [] for name in DOORS}
    tried, refused, crashes = dict.fromkeys(DOORS, 0), 0, []
    begin = [*seeds(), *corpus]
    names = list(DOORS)
    shares = [SHARES.get(name, 1 - sum(SHARES.values())) for name in names]
    while sum(tried.values()) < count:
        if begin:
            name, data = begin.pop()
        else:
            name = names[int(draws.choice(len(names), p=shares))]
            data = changed(kept[name][int(draws.integers(len(kept[name])))], draws)
        tried[name] += 1
        try:
            fresh = arcs.call(DOORS[name], data)
        except (FrameError, InputError):
            refused += 1
            fresh = arcs.fresh
        except Exception as error:  # noqa: BLE001  # what is looked for
            crashes.append((name, data, repr(error)))
            fresh = True
        if fresh or not kept[name]:
            kept[name].append(data)
    inputs = tuple((name, data) for name, every in kept.items() for data in every)
    return Fuzzed(tried=tried, refused=refused, crashes=tuple(crashes), corpus=inputs)


def branches(inputs: Iterable[tuple[str, bytes]]) -> tuple[int, int, list[str]]:
    """Branches of the decoders that inputs reach, all there are, and the places of the others."""
    files = {str(module.__file__): names for module, names in DECODERS.items()}
    measured = coverage.Coverage(
        branch=True, data_file=None, config_file=False, include=list(files)
    )
    measured.start()
    try:
        for name, data in inputs:
            with contextlib.suppress(FrameError, InputError):
                DOORS[name](data)
    finally:
        measured.stop()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        with contextlib.redirect_stdout(None):
            measured.json_report(outfile=str(path))
        report: dict[str, Any] = json.loads(path.read_text())
    reached, every, missing = 0, 0, list[str]()
    for file, found in report["files"].items():
        wanted = next(names for path, names in files.items() if path.endswith(file))
        for name, function in found["functions"].items():
            if not name or not name.startswith(wanted):
                continue
            summary = function["summary"]
            reached += summary["covered_branches"]
            every += summary["num_branches"]
            missing += [f"{file}:{a}->{b} ({name})" for a, b in function["missing_branches"]]
    return reached, every, missing


def main() -> int:
    """Run, print; exit 1 where something gave way or too little was reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="write the corpus")
    add_destinations(parser)
    options = parser.parse_args()
    logging.disable()  # of every refusal
    watch = Stopwatch()
    found = fuzz(options.count, options.seed, read_corpus(CORPUS))
    reached, every, missing = branches(found.corpus)
    for name, data, error in found.crashes:
        print(f"crash: {name} {data.hex()}: {error}")
    print(*(f"not reached: {place}" for place in missing), sep="\n")
    if options.keep:
        write_corpus(CORPUS, found.corpus)
    inputs = ", ".join(f"{name} {count}" for name, count in found.tried.items())
    figures = [
        Figure(name="inputs", value=sum(found.tried.values()), note=inputs),
        Figure(name="  of them refused", value=found.refused),
        Figure(name="crashes", value=len(found.crashes), most=0),
        Figure(name="corpus", value=len(found.corpus)),
        Figure(name="branches of decoding reached", value=reached / every, least=LEAST_COVERED),
        Figure(name="seconds", value=watch.seconds(), unit="s"),
    ]
    return conclude(options, "fuzz-decoding", figures, {"missing": missing})


if __name__ == "__main__":
    sys.exit(main())
