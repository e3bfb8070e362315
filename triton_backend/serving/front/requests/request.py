"""A request as the front holds it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from triton_backend.serving.front.replies import Respond
from triton_backend.serving.transport.shared_memory import Arrays


class ExpressTicket(NamedTuple):
    """The express slot that holds a request's tensors, their checksum, and the slot's plan."""

    slot: int
    payload_checksum: int
    tag: int


@dataclass(slots=True, eq=False)
class Request:
    """One request as the front holds it; `reply` is called once, from a reply thread.

    Attributes:
        client_id: the client's own id of it.
        client: under which its sender has quotas; empty: none.
        batch_id: that it is in flight with; of an express request, only once it is answered.
        entry: number of its model's entry by which it comes in, in the plan of `plan_tag`.
        shared_by: name of that entry, where entries share the model's requests.
        announced: whether a scheduler may know of it.
        express: whether it may then be in flight without the front's knowing.
        cancel_sent: whether the scheduler knows that it is not waited for.
    """

    tensors: Arrays
    samples: int
    arrival_us: int
    deadline_us: int
    reply: Respond
    is_cancelled: Callable[[], bool]
    client_id: str = ""
    trace: str = ""  # W3C traceparent, valid
    low: bool = False
    client: str = ""
    number: int = 0
    entry: int = 0
    shared_by: str = ""
    plan_tag: int = 0
    batch_id: int | None = None
    announced: bool = False
    express: bool = False
    cancel_sent: bool = False
