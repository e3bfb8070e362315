"""A request as the front holds it, what it is refused with, and what is logged of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from triton_backend.contract.errors import InputError
from triton_backend.contract.reasons import DropReason
from triton_backend.contract.units import us_to_ms
from triton_backend.runtimes.clock import Clock
from triton_backend.serving.settings import ServeSettings, short_name
from triton_backend.serving.transport.bodies import (
    NONE,
    ArrivalBody,
    DropBody,
    pack_arrival,
)
from triton_backend.serving.transport.rolling_files import RollingLines
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import Kind, frame

# A longer `timeout` is a client's mistake; instants that far away would not fit a frame.
MAX_TIMEOUT_US = 24 * 3_600 * 1_000_000


def allowed_us(model: str, timeout_us: int, slo_us: int) -> int:
    """How long a request may take: its own `timeout`, or the SLO where it names none (0).

    Raises:
        InputError: nobody waits that long.
    """
    if not 0 <= timeout_us <= MAX_TIMEOUT_US:
        raise InputError(
            f"model {model!r}, parameter 'timeout'",
            f"{timeout_us} microseconds, 0 (the SLO) to {MAX_TIMEOUT_US} are allowed",
        )
    return timeout_us or slo_us


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is answered with an error: Triton's status name and the text."""

    status: str
    message: str


class Ticket(NamedTuple):
    """The express slot that holds a request's tensors, their checksum, and the slot's plan."""

    slot: int
    payload_checksum: int
    tag: int


@dataclass(slots=True, eq=False)
class Request:
    """One request as the front holds it; `reply` is called once, from a reply thread.

    Attributes:
        batch_id: that it is in flight with; of an express request, only once it is answered.
        express: whether it may be in flight without the front's having heard of it.
        cancel_told: whether the scheduler has been told that nobody waits for it.
    """

    tensors: Arrays
    samples: int
    arrival_us: int
    deadline_us: int
    reply: Callable[[Arrays | Refusal], None]
    is_cancelled: Callable[[], bool]
    client_id: str = ""
    trace: str = ""  # W3C traceparent
    number: int = 0
    batch_id: int | None = None
    express: bool = False
    cancel_told: bool = False


def arrival_frame(request: Request, settings: ServeSettings, ticket: Ticket | None = None) -> bytes:
    """ARRIVAL: what the scheduler is told of a request."""
    # The scheduler fills batches to the last moment; the guard is our own time on the way.
    allowed_us = request.deadline_us - request.arrival_us
    deadline_us = request.deadline_us - settings.guard_us(allowed_us)
    slot, checksum, tag = ticket or (NONE, 0, 0)
    body = ArrivalBody(request.number, deadline_us, request.samples, slot, checksum)
    return frame(Kind.ARRIVAL, pack_arrival(body), plan_tag=tag)


def full(model: str, limit: int) -> Refusal:
    """What a client is told when `limit` requests wait already."""
    return Refusal(
        "UNAVAILABLE", f"model {model!r}: {limit} requests are waiting, no more are taken"
    )


def dropped(model: str, request: Request, body: DropBody) -> Refusal:
    """What the client of a dropped request is told."""
    reason, name = body.reason, f"model {model!r}"
    if reason is DropReason.CANCELLED:
        return Refusal("CANCELLED", f"{name}: the client cancelled the request")
    if reason is DropReason.TOO_LARGE:
        return Refusal(
            "INVALID_ARG",
            f"{name}: {request.samples} samples in one request, more than any batch planned",
        )
    if reason is DropReason.MODEL_REMOVED:
        return Refusal("UNAVAILABLE", f"{name} is not in the plan being served")
    slo_ms = us_to_ms(request.deadline_us - request.arrival_us)
    best = "none"
    if body.best_finish_us:
        best = f"{us_to_ms(body.best_finish_us - request.arrival_us):.1f} ms"
    what = {
        DropReason.OVERLOAD: f"{name} is overloaded",
        DropReason.WORKER_LOST: f"{name}: its worker died",
    }.get(reason, f"{name}: the deadline cannot be met")
    return Refusal(
        "UNAVAILABLE",
        f"{what}: deadline {slo_ms:.1f} ms after arrival, best possible finish {best},"
        f" queue position {body.queue_position}",
    )


def expired(model: str, request: Request, now_us: int) -> Refusal:
    """What the client of a request is told that nobody has answered in time."""
    late_ms = us_to_ms(now_us - request.deadline_us)
    state = "in flight" if request.batch_id is not None else "waiting"
    if request.express and request.batch_id is None:
        state = "waiting or in flight"
    return Refusal(
        "UNAVAILABLE",
        f"model {model!r}: no answer {late_ms:.0f} ms after the deadline,"
        f" the request is still {state}",
    )


class RequestLog:
    """The lines `requests-*.jsonl`: requests not served in time, and those their clients trace."""

    def __init__(self, folder: Path, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._lines = RollingLines(folder, f"requests-{short_name(model)}", clock.now_us())

    def note(self, request: Request, outcome: str, message: str = "") -> None:
        """One line for one request."""
        self._lines.write(
            json.dumps(
                {
                    "wall_us": self._clock.wall_us(),
                    "model": self._model,
                    "request": request.number,
                    "request_id": request.client_id,
                    "traceparent": request.trace,
                    "batch": request.batch_id,
                    "samples": request.samples,
                    "arrival_us": request.arrival_us,
                    "deadline_us": request.deadline_us,
                    "answered_us": self._clock.now_us(),
                    "outcome": outcome,
                    "message": message,
                }
            )
        )

    def flush(self) -> None:
        """Write what is buffered."""
        self._lines.flush()

    def close(self) -> None:
        """Flush and close."""
        self._lines.close()
