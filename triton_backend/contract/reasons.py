"""Why a request is not served: the one list of reasons, for kernels, wire, simulator and reports.

Kernels and frames carry the number, people and files (metrics, event logs, warehouse) read `text`.
A number is never given to another reason: event logs and frames of other processes hold it.
"""

from enum import IntEnum

from triton_backend.contract.errors import InputError


class DropReason(IntEnum):
    """Why a request will not be served."""

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
