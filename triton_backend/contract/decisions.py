"""What the scheduler answers: things for a shell to do, none of them done yet.

`message` makes the classes of decisions and of events (`events`): a request costs several of them,
so making one must cost little.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar, dataclass_transform

from triton_backend.contract.errors import InputError

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(kind: type[Kind]) -> type[Kind]:
    """A dataclass by keywords that nobody changes.

    The type checker sees to that. Checking at run time (`frozen=True`) makes the construction of a
    decision take three times as long.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)


class DropReason(IntEnum):
    """Why a request is not served: the one list, for kernels, wire, simulator and reports.

    Kernels and frames carry the number, people and files (metrics, event logs, warehouse) read
    `text`. A number is never given to another reason: event logs and frames of other processes
    hold it.
    """

    DEADLINE = 0  # no batch, not even of this request alone, ends by its deadline
    TOO_LARGE = 1  # more samples than any pipeline's batch
    CANCELLED = 2  # the client gave up
    WORKER_LOST = 3  # its vGPU died and a retry would be late
    MODEL_REMOVED = 4  # the plan being served does not have the model
    OVERLOAD = 5  # refused at admission: the work before it already fills its time
    QUEUE_FULL = 6  # the front keeps as many requests as it may

    @property
    def text(self) -> str:
        """The reason as metrics, logs and reports print it."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> "DropReason":
        """The reason that prints as `text`.

        Raises:
            InputError: none does.
        """
        for reason in cls:
            if reason.text == text:
                return reason
        known = ", ".join(reason.text for reason in cls)
        raise InputError("drop reason", f"{text!r} is none of {known}")


class Hop(NamedTuple):
    """One stage of a batch's path with its reserved intervals [start, end).

    The same from the kernels' answer over the wire to the worker: five integers, in this order.

    The transfer is the move *into* this stage; for stage 0 both its instants equal the instant of
    dispatch (unless the input's transfer is counted too).
    """

    vgpu: int
    transfer_start_us: int
    transfer_end_us: int
    start_us: int
    end_us: int


@message
class Dispatch:
    """Run these requests as one batch along this path; resources execute in reserved order."""

    batch_id: int
    model: int
    pipeline: int
    request_ids: tuple[int, ...]
    samples: int
    hops: tuple[Hop, ...]


@message
class Drop:
    """Answer this request at once that it will not be served."""

    request_id: int
    model: int
    reason: DropReason
    deadline_us: int
    best_finish_us: int | None = None  # earliest end that was possible, where it was probed
    queue_position: int = 0


@message
class Abort:
    """Forget this batch: a vGPU on its path died. Its requests were queued again or dropped."""

    batch_id: int


@message
class SetTimer:
    """Send the scheduler a `Timer` at this instant; replaces the timer set before."""

    at_us: int


Decision = Dispatch | Drop | Abort | SetTimer
