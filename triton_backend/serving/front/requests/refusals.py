"""The texts that requests are refused with."""

import logging

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import us_to_ms
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.transport.wire import DropBody

_LOG = logging.getLogger(__name__)


def unreadable(model: str, error: Exception) -> Refusal:
    """The error of a request that cannot be read; what is no fault of its client's is logged.

    Triton hands texts on as clients send them, and its Python calls raise where one is no UTF-8.
    """
    if isinstance(error, InputError):
        return Refusal("INVALID_ARG", str(error))
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte 0x{error.object[error.start]:02x}"
        reason = f"its id, a parameter or a header is no UTF-8: {byte}"
        return Refusal("INVALID_ARG", f"model {model!r}: {reason}")
    _LOG.error("a request of model %s", model, exc_info=error)
    return Refusal("INTERNAL", f"model {model!r}: the request cannot be read")


def full(model: str, limit: int) -> Refusal:
    """The error if `limit` requests wait already."""
    return Refusal(
        "UNAVAILABLE", f"model {model!r}: {limit} requests are waiting, no more are taken"
    )


def over_quota(model: str, client: str) -> Refusal:
    """The error of a client that sends more than it may."""
    return Refusal("UNAVAILABLE", f"model {model!r}: client {client!r} is over its quota")


def dropped(model: str, request: Request, body: DropBody, module: str = "") -> Refusal:
    """The error of a dropped request."""
    reason, name = body.reason, f"model {model!r}"
    if module:
        name = f"application {model!r}, module {module!r}"
    if reason is DropReason.CANCELLED:
        return Refusal("CANCELLED", f"{name}: the client cancelled the request")
    if reason is DropReason.TOO_LARGE:
        return Refusal(
            "INVALID_ARG",
            f"{name}: {request.samples} samples in one request, more than any batch planned",
        )
    if reason is DropReason.MODEL_REMOVED:
        return Refusal("UNAVAILABLE", f"{name} is not in the plan being served")
    if reason is DropReason.DEADLY:
        return Refusal("INTERNAL", f"{name}: two workers died while they ran the request")
    slo_ms = us_to_ms(request.deadline_us - request.arrival_us)
    best, kept = "none", ""
    if body.best_finish_us:
        best = f"{us_to_ms(body.best_finish_us - request.arrival_us):.1f} ms"
        # The guard, which the front keeps back, makes a finish before the deadline too late, and so
        # does the time of a module's successors.
        if body.deadline_us < body.best_finish_us <= request.deadline_us:
            kept_ms = us_to_ms(request.deadline_us - body.deadline_us)
            what_for = "delays and modules that follow" if module else "delays"
            kept = f" {kept_ms:.1f} ms of it kept back for {what_for},"
    what = {
        DropReason.OVERLOAD: f"{name} is overloaded",
        DropReason.WORKER_LOST: f"{name}: its worker died",
    }.get(reason, f"{name}: the deadline cannot be met")
    return Refusal(
        "UNAVAILABLE",
        f"{what}: deadline {slo_ms:.1f} ms after arrival,{kept} best possible finish {best},"
        f" queue position {body.queue_position}",
    )


def expired(model: str, request: Request, now_us: int) -> Refusal:
    """The error of a request without an answer in time."""
    late_ms = us_to_ms(now_us - request.deadline_us)
    if late_ms < 0:
        why = f"no scheduler is there, and more than the {-late_ms:.1f} ms left are needed"
        return Refusal("UNAVAILABLE", f"model {model!r}: the deadline cannot be met: {why}")
    state = "in flight" if request.batch_id is not None else "in the queue"
    if request.express and request.batch_id is None:
        state = "in the queue or in flight"
    return Refusal(
        "UNAVAILABLE",
        f"model {model!r}: given up {late_ms:.0f} ms after the deadline, {state}",
    )
