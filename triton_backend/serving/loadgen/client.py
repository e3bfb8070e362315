"""The door both protocols go through.

Here: what a client of the KServe v2 protocol does for the load generator. Not here: how
(`client_grpc`, `client_http`), when, and what it means (`drive`).
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import BYTES, MOST_BYTES, TensorSpec
from triton_backend.serving.loadgen.payload import Arrays

MAX_PORT = 65_535
# How the gateway's refusals read; broken connections and dead workers read otherwise.
REFUSED_MARKS = (
    "deadline cannot be met",
    "is overloaded",
    "no more are taken",
    "after the deadline",
)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port`.

    Raises:
        InputError: it is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise InputError("--url", f"{address!r} is not host:port")
    return host, int(port)


def name_and_version(model: str) -> tuple[str, str]:
    """The parts of `NAME:VERSION`; an empty version where there is none."""
    name, _, version = model.partition(":")
    return name, version


class Status(IntEnum):
    """How a call ended, as far as the protocol tells."""

    OK = 0
    REFUSED = 1  # UNAVAILABLE from the gateway: the deadline cannot be met, or was not
    ERROR = 2


class Answer(NamedTuple):
    """One answer.

    Attributes:
        body: as it came; None on error.
        message: of an error.
        json_bytes: bytes of the body before its binary tensors (HTTP).
    """

    status: Status
    body: bytes | None = None
    message: str = ""
    json_bytes: int = 0


class Client(Protocol):
    """One endpoint. All calls from one event loop; any number of `send` at a time."""

    async def connect(self) -> None:
        """Wait until the endpoint answers.

        Raises:
            InputError: it does not within the connect time-out.
        """
        ...

    async def describe(self, model: str) -> tuple[TensorSpec, ...]:
        """Inputs of a model, from the server's metadata.

        Raises:
            InputError: the server does not know it, or a dimension but the first is open.
        """
        ...

    def encode(
        self,
        model: str,
        inputs: Arrays,
        *,
        deadline_us: int | None,
        priority: int = 0,
        client: str = "",
    ) -> bytes:
        """The request as bytes, made once and sent often.

        Args:
            model: served name; `NAME:2` is its version 2.
            inputs: tensors, sample first.
            deadline_us: the request's `timeout` parameter; None = the plan's SLO holds.
            priority: 2 and above: served with what others leave; 0 says nothing.
            client: name under which quotas hold; empty: none.
        """
        ...

    def send(self, request: bytes, *, give_up_s: float, done: Callable[[Answer], None]) -> None:
        """Send at once.

        `done` is called once, with an error where no answer comes in `give_up_s`.
        """
        ...

    def decode(self, answer: Answer) -> Arrays:
        """Output tensors of an answer.

        Raises:
            ValueError: the bytes of the body are not a KServe v2 answer.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def refused_or_error(*, unavailable: bool, message: str) -> Answer:
    """The answer of a call that failed."""
    if unavailable and any(mark in message for mark in REFUSED_MARKS):
        return Answer(Status.REFUSED, message=message)
    return Answer(Status.ERROR, message=message)


def spec_from_metadata(tensor: Mapping[str, object]) -> TensorSpec:
    """A tensor of a model's metadata (`name`, `datatype`, `shape`)."""
    shape = tensor["shape"]
    assert isinstance(shape, list)
    if tensor["datatype"] == BYTES:  # its longest text is not said
        return TensorSpec.of_bytes(str(tensor["name"]), MOST_BYTES)
    return TensorSpec(
        name=str(tensor["name"]),
        dtype=str(tensor["datatype"]),
        shape=tuple(int(dimension) for dimension in shape),
    )
