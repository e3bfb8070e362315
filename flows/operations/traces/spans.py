"""A request as a tree of spans.

```text
infer MODEL                 front took it ................................ client is answered
├─ front                    taken, until the scheduler has it
├─ wait                     in the queue, until its batch is formed
├─ gather                   the batch's inputs are written, until its first vGPU begins
├─ vgpu 0                   a stage
├─ link 1                   its outputs move to the vGPU of stage 1
├─ wait                     there, until that vGPU begins
├─ vgpu 1
└─ answer                   the last stage's end, until the front has answered
```

Instants are those of the event files; spans follow each other without a gap where no two of them
overlap. Of a job of an application, each module is a span around those of its pieces.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flows.operations.traces.history import FAILED, LOST, SERVED, Batch, Queued, Request
from triton_backend.serve_folder.traceparent import TraceParent

Value = str | int | bool
LATE = "late"
ANSWERED = (SERVED, LATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span, in µs of the host's monotonic clock."""

    name: str
    start_us: int
    end_us: int
    attributes: Mapping[str, Value]
    children: tuple["Span", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The spans of one request.

    Attributes:
        parent: the client's span; None: the trace is the request's own.
        boot_wall_us: the wall clock at instant 0 of the host's monotonic clock.
        error: why the client got no outputs.
    """

    root: Span
    trace_id: str
    parent: TraceParent | None
    boot_wall_us: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLine:
    """A request as a line of a request log has it, as `front/requests/log.RequestLog` writes it."""

    model: str
    number: int
    client_id: str
    traceparent: str
    samples: int
    arrival_us: int
    answered_us: int
    boot_wall_us: int
    outcome: str
    message: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "FrontLine":
        """The parsed line.

        Raises:
            KeyError, TypeError, ValueError: it is no line of a request log.
        """
        answered_us = int(data["answered_us"])
        return cls(
            model=str(data["model"]),
            number=int(data["request"]),
            client_id=str(data["request_id"]),
            traceparent=str(data["traceparent"]),
            samples=int(data["samples"]),
            arrival_us=int(data["arrival_us"]),
            answered_us=answered_us,
            boot_wall_us=int(data["wall_us"]) - answered_us,
            outcome=str(data["outcome"]),
            message=str(data["message"]),
        )


def trace_of_line(line: FrontLine, found: Sequence[Request]) -> Trace:
    """The trace of a request that its front has a line of.

    Args:
        line: says when it came and was answered, and the client's span if there is one.
        found: what the event files know of it; nothing where they have rolled away, or the
            scheduler never saw it. `poolpipe.events` says which spans there can be.
    """
    work = sorted(found, key=attrgetter("arrival_us"))
    spans: list[Span] = []
    if work:
        first_us, last_us = work[0].arrival_us, max(request.end_us for request in work)
        spans.append(_span("front", line.arrival_us, first_us))
        spans += (span for request in work for span in _work(request))
        ends_us = [span.end_us for span in spans]
        if line.outcome in ANSWERED and last_us:
            spans.append(_span("answer", max(last_us, *ends_us), line.answered_us))
    parent = TraceParent.parse(line.traceparent)
    more: dict[str, Value] = {"poolpipe.events": bool(work)}
    if line.client_id:
        more["poolpipe.request_id"] = line.client_id
    if work:
        more["poolpipe.plan_id"] = work[0].header.plan_id
    root = _root(
        (line.model, line.number),
        (line.arrival_us, line.answered_us),
        {"poolpipe.outcome": line.outcome, "poolpipe.samples": line.samples, **more},
        spans,
    )
    return Trace(
        root=root,
        trace_id=parent.trace_id if parent else own_id(root, line.boot_wall_us),
        parent=parent,
        boot_wall_us=line.boot_wall_us,
        error="" if line.outcome in ANSWERED else line.message or line.outcome,
    )


def trace_of_request(request: Request) -> Trace:
    """The trace of a request that only the event files know: from scheduler to last stage."""
    late = request.outcome == SERVED and request.end_us > request.deadline_us
    outcome = LATE if late else request.outcome
    root = _root(
        request.key,
        (request.arrival_us, request.end_us),
        {
            "poolpipe.outcome": outcome,
            "poolpipe.samples": request.samples,
            "poolpipe.events": True,
            "poolpipe.plan_id": request.header.plan_id,
        },
        list(_work(request)),
    )
    return Trace(
        root=root,
        trace_id=own_id(root, request.header.boot_wall_us),
        parent=None,
        boot_wall_us=request.header.boot_wall_us,
        error="" if outcome in ANSWERED else outcome,
    )


def own_id(root: Span, boot_wall_us: int) -> str:
    """A trace id, the same whenever the same files are read."""
    number = root.attributes["poolpipe.request"]
    text = f"{root.name}/{number}/{boot_wall_us + root.start_us}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def share_of(model: str, number: int) -> float:
    """A number in [0, 1) of a request, by which a share of all is chosen."""
    digest = hashlib.blake2b(f"{model}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _root(
    key: tuple[str, int],
    between_us: tuple[int, int],
    attributes: Mapping[str, Value],
    children: Sequence[Span],
) -> Span:
    model, number = key
    start_us, end_us = between_us
    return Span(
        name=f"infer {model}",
        start_us=start_us,
        end_us=max(start_us, end_us),
        attributes={"poolpipe.model": model, "poolpipe.request": number, **attributes},
        children=tuple(children),
    )


def _work(request: Request) -> Iterator[Span]:
    """The work of scheduler and workers for a request."""
    for module, pieces in request.work.items():
        spans = [span for piece in pieces for span in _piece(request, piece)]
        if not module:
            yield from spans
            continue
        start_us = min(piece.arrival_us for piece in pieces)
        end_us = max([start_us, *(span.end_us for span in spans)])
        rows = sum(piece.samples for piece in pieces)
        yield _span(f"module {module}", start_us, end_us, {"poolpipe.rows": rows}, spans)
    for module, (at_us, reason) in request.skipped.items():
        yield _span(f"module {module}", at_us, at_us, {"poolpipe.skipped": reason})


def _piece(request: Request, piece: Queued) -> Iterator[Span]:
    """From a place in the queue on; again for each batch that was given up."""
    at_us = piece.arrival_us
    for batch in piece.batches:
        yield _span("wait", at_us, batch.dispatched_us)
        at_us = max(at_us, batch.dispatched_us)
        for span in _batch(batch, at_us):
            yield span
            at_us = max(at_us, span.end_us)
        if batch.aborted_us is not None:
            at_us = max(at_us, batch.aborted_us)
    queued = not piece.batches or piece.batches[-1].aborted_us is not None
    if queued and request.outcome not in {SERVED, FAILED, LOST}:
        yield _span("wait", at_us, request.end_us)  # until it was dropped


def _batch(batch: Batch, at_us: int) -> Iterator[Span]:
    """Stages of a batch and the links between them, with what lies before each."""
    common: dict[str, Value] = {"poolpipe.batch": batch.number}
    if batch.aborted_us is not None:
        common["poolpipe.aborted"] = True
    for stage, place in enumerate(batch.places):
        if stage in batch.links:
            start_us, end_us = batch.links[stage]
            if start_us > at_us:
                yield _span("wait", at_us, start_us, common)
            yield _span(f"link {stage}", start_us, end_us, common)
            at_us = max(at_us, end_us)
        if stage not in batch.stages:
            continue
        start_us, end_us, shared_batch = batch.stages[stage]
        if start_us > at_us:
            yield _span("wait" if stage else "gather", at_us, start_us, common)
        about: dict[str, Value] = {
            **common,
            "poolpipe.model": batch.model,
            "poolpipe.pipeline": batch.pipeline,
            "poolpipe.stage": stage,
            "poolpipe.batch_samples": batch.samples,
            "poolpipe.pool": place.pool,
            "poolpipe.gpu_class": place.gpu_class,
            "poolpipe.node": place.node,
            "poolpipe.gpu": place.gpu,
            "poolpipe.slot": place.slot,
        }
        if shared_batch is not None:
            about["poolpipe.shared_batch"] = shared_batch
        yield _span(f"vgpu {stage}", start_us, end_us, about)
        at_us = max(at_us, end_us)


def _span(
    name: str,
    start_us: int,
    end_us: int,
    attributes: Mapping[str, Value] | None = None,
    children: Sequence[Span] = (),
) -> Span:
    """A span; one that would end before it began lasts no time."""
    return Span(
        name=name,
        start_us=start_us,
        end_us=max(start_us, end_us),
        attributes=attributes or {},
        children=tuple(children),
    )
