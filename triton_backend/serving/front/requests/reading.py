"""Requests of Triton's, read and checked for a model of the plan.

Here: tensors, the entry that they open, time, priority, client. Not here: the texts of other
refusals (`refusals`), what a quota lets in (`quotas`).
"""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from triton_backend.contract.entries import ShareTurns, covering, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_name
from triton_backend.contract.plan import ModelPlan
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.stage_tensors import half_tensors
from triton_backend.serve_folder.names import CLIENT_PARAMETER, PRIORITY_PARAMETER
from triton_backend.serve_folder.traceparent import TraceParent
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.replies import Respond
from triton_backend.serving.front.requests.log import MOST_SHOWN_CHARACTERS
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.texts import packed
from triton_backend.serving.transport.shared_memory import Arrays

# A longer `timeout` is a client's mistake; instants that far away would not fit a frame.
MAX_TIMEOUT_US = 24 * 3_600 * 1_000_000
TRACE_HEADER = "traceparent"
NO_PARAMETERS = "{}"  # as Triton says of a request without any
HIGH_PRIORITY, PRIORITY_DIGITS = 1, 19
ENTRY_PARAMETER, CUT_PARAMETER, SPLIT_PARAMETER = "entry", "cut", "split"


class IncomingRequest(Protocol):
    """A request as Triton hands it over; names, types and ranks are those of its configuration."""

    def inputs(self) -> Sequence[Any]:
        """Tensors with `name()` and `as_numpy()`."""
        ...

    def timeout(self) -> int:
        """The parameter of that name, in microseconds; 0 where there is none."""
        ...

    def request_id(self) -> str:
        """The client's own name for it."""
        ...

    def parameters(self) -> str:
        """Other parameters and forwarded headers, as a JSON object."""
        ...

    def is_cancelled(self) -> bool:
        """True if its client gave up; not to be asked once it is answered."""
        ...


class RequestReader:
    """Reads requests for a model of the plan.

    Attributes:
        all_usual: no request of it is low, whatever it says.
    """

    def __init__(self, deployment: Deployment, model: ModelPlan) -> None:
        self._where = f"model {model.name!r}"
        self._split = model.split
        self._tag = deployment.tag if model.entries else 0
        self.all_usual = deployment.boards or model.name in deployment.applications.numbers
        shares = shares_of(model.entries)
        self._turns = ShareTurns(shares) if shares else None
        self._choosing = threading.Lock()
        self._halved = {half.name: full for half, full in half_tensors(model).items()}
        self._entries = [
            _EntryTensors(
                name=entry.name,
                block=entry.block,
                budget_us=entry.budget_us,
                largest=deployment.largest_request(model, entry),
                tensors={
                    spec.name: (np.dtype(NUMPY_DTYPES[spec.dtype]), spec.shape[1:])
                    for spec in (entry.inputs or model.inputs)
                },
                most_bytes={
                    spec.name: spec.max_bytes
                    for spec in (entry.inputs or model.inputs)
                    if spec.max_bytes is not None
                },
            )
            for entry in model.queues
        ]

    def read(self, incoming: IncomingRequest, arrival_us: int, reply: Respond) -> Request:
        """A request, checked; without a `timeout` its deadline is its entry's budget (the SLO).

        Raises:
            InputError: what of it makes no sense, and why.
        """
        brought = {tensor.name(): tensor.as_numpy() for tensor in incoming.inputs()}
        tensors = self._widened(brought)
        parameters, timeout_us = incoming.parameters(), self._timeout_us(incoming.timeout())
        number = self._entry_of(tensors, parameters, timeout_us)
        entry = self._entries[number]
        samples = self._samples(tensors, entry)
        for name, most in entry.most_bytes.items():
            tensors[name] = packed(f"{self._where}, input {name!r}", tensors[name], most)
        return Request(
            tensors=tensors,
            samples=samples,
            arrival_us=arrival_us,
            deadline_us=arrival_us + (timeout_us or entry.budget_us),
            reply=reply,
            is_cancelled=incoming.is_cancelled,
            client_id=incoming.request_id(),
            trace=_valid_trace(parameters),
            low=self._is_low(parameters),
            client=self._client_of(parameters),
            entry=number,
            shared_by=entry.name if self._turns else "",
            plan_tag=self._tag,
        )

    def _is_low(self, parameters: str) -> bool:
        """True if a request names a priority of 2 or more; 0 and 1 are the usual one.

        Applications, and plans of shared batches, have that alone.
        """
        return is_low(self._where, parameters) and not self.all_usual

    def _client_of(self, parameters: str) -> str:
        """The name that a request's client says; empty where it says none."""
        named = _header(parameters, CLIENT_PARAMETER)
        if named:
            check_name(f"{self._where}, parameter '{CLIENT_PARAMETER}'", named)
        return named

    def _widened(self, brought: Arrays) -> Arrays:
        """The tensors under their own names; those that came in half the bytes are FP32 again."""
        if self._halved.keys().isdisjoint(brought):
            return brought
        tensors: Arrays = {}
        for name, array in brought.items():
            full = self._halved.get(name, name)
            if full != name and full in brought:
                raise InputError(self._where, f"inputs {full!r} and {name!r} are one tensor")
            tensors[full] = array if full == name else array.astype(np.float32)
        return tensors

    def _entry_of(self, tensors: Arrays, parameters: str, timeout_us: int) -> int:
        """Number of the entry that a request names, or whose tensors it brings.

        Of several at one cut it is the one with the largest budget that the time allowed covers, or
        the one whose turn it is.
        """
        fit = [i for i, entry in enumerate(self._entries) if tensors.keys() == entry.tensors.keys()]
        if parameters == NO_PARAMETERS and len(fit) == 1:
            return fit[0]
        split = _parameter(parameters, SPLIT_PARAMETER)
        if split and self._split and split != self._split:
            reason = f"{split!r}, but blocks of {self._split!r} are served"
            raise InputError(f"{self._where}, parameter '{SPLIT_PARAMETER}'", reason)
        for parameter, values in (
            (ENTRY_PARAMETER, [entry.name for entry in self._entries]),
            (CUT_PARAMETER, [str(entry.block) for entry in self._entries]),
        ):
            named = _parameter(parameters, parameter)
            if named and named not in values:
                listed = ", ".join(dict.fromkeys(values))
                reason = f"{named!r} is none of {listed}"
                raise InputError(f"{self._where}, parameter '{parameter}'", reason)
            fit = [i for i in fit if named in ("", values[i])]
        if len(fit) == 1:
            return fit[0]
        if not fit and len(self._entries) == 1:
            (only,) = self._entries
            raise InputError(self._where, f"inputs {sorted(tensors)}, not {sorted(only.tensors)}")
        if not fit:
            cuts = "; ".join(f"{entry.name}: {sorted(entry.tensors)}" for entry in self._entries)
            raise InputError(self._where, f"inputs {sorted(tensors)} open no entry ({cuts})")
        if self._turns is not None:
            samples = max(len(array) if array.ndim else 0 for array in tensors.values())
            able = [i for i in fit if samples <= self._entries[i].largest]
            with self._choosing:
                return self._turns.choose(able or fit)
        return covering({i: self._entries[i].budget_us for i in fit}, timeout_us)

    def _samples(self, tensors: Arrays, entry: "_EntryTensors") -> int:
        """The number of samples, the same in all tensors."""
        first, samples = "", 0
        for name, array in tensors.items():
            where = f"{self._where}, input {name!r}"
            dtype, shape = entry.tensors[name]
            if name in entry.most_bytes:
                dtype, shape = np.dtype(np.object_), ()
            if array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
                wanted = ", ".join(["samples", *map(str, shape)])
                raise InputError(
                    where, f"{array.dtype} of shape {array.shape}, not {dtype} of ({wanted})"
                )
            if not len(array):
                raise InputError(where, "0 samples: the tensor or the request's body is empty")
            if first and len(array) != samples:
                raise InputError(where, f"{len(array)} samples, but {first!r} has {samples}")
            first, samples = name, len(array)
            if samples > entry.largest:
                raise InputError(
                    where,
                    f"{samples} samples, at most {entry.largest} fit one request"
                    " (the plan's largest batch)",
                )
        return samples

    def _timeout_us(self, timeout_us: int) -> int:
        """How long a request may take, where it says so; else 0."""
        if not 0 <= timeout_us <= MAX_TIMEOUT_US:
            raise InputError(
                f"{self._where}, parameter 'timeout'",
                f"{timeout_us} microseconds, 0 (the SLO) to {MAX_TIMEOUT_US} are allowed",
            )
        return timeout_us


@dataclass(frozen=True, slots=True, kw_only=True)
class _EntryTensors:
    """The tensors of a request of one entry: type and shape of a sample, by name.

    Bytes of a text.
    """

    name: str
    block: int
    budget_us: int
    largest: int
    tensors: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    most_bytes: dict[str, int]


def is_low(where: str, parameters: str) -> bool:
    """True if a request's parameters name a priority of 2 or more.

    Raises:
        InputError: they name one that is no number.
    """
    named = _header(parameters, PRIORITY_PARAMETER)
    if not named:
        return False
    if not named.isascii() or not named.isdigit() or len(named) > PRIORITY_DIGITS:
        reason = f"{named[:MOST_SHOWN_CHARACTERS]!r} is no whole number (2 and above: low)"
        raise InputError(f"{where}, parameter '{PRIORITY_PARAMETER}'", reason)
    return int(named) > HIGH_PRIORITY


def _parameter(parameters: str, name: str) -> str:
    """A parameter of a request, or a header that Triton forwards (a W3C trace context)."""
    if name not in parameters:
        return ""
    try:
        return str(json.loads(parameters).get(name, ""))
    except (ValueError, AttributeError, RecursionError):
        return ""


def _valid_trace(parameters: str) -> str:
    """The client's `traceparent`; a malformed one is as none.

    HTTP clients spell headers as they like: Go's send `Traceparent`.
    """
    trace = _header(parameters, TRACE_HEADER)
    return trace if trace and TraceParent.parse(trace) else ""


def _header(parameters: str, header: str) -> str:
    """A parameter that may come as a header too, which is spelled with any case; else empty."""
    if parameters == NO_PARAMETERS or header not in parameters.lower():
        return ""
    try:
        named = {name.lower(): value for name, value in json.loads(parameters).items()}
    except (ValueError, AttributeError, RecursionError):
        return ""
    return str(named.get(header, ""))
