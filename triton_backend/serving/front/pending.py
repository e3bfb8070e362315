"""The requests a front has taken and not answered: each leaves exactly once, with its answer.

The thread that takes a request out answers it, counts it and logs it; from any thread. Triton frees
a request with its answer, and asking it whether one that is freed was cancelled ends the server
(2.51): an answer that comes while its request is being asked is sent when the asking is over.

Here: a request, how it is read and checked, the texts it is refused with, its log line. Not here:
batches (`batches`), the threads that send answers (`replies`), when a request is asked or has
waited too long (`deadlines`).
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.entries import ShareTurns, covering, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_name
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.units import us_to_ms
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.stage_tensors import half_tensors
from triton_backend.scheduler.measured.guard import Guard
from triton_backend.serve_folder.names import CLIENT_PARAMETER, PRIORITY_PARAMETER, short_name
from triton_backend.serve_folder.traceparent import TraceParent
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.front.replies import (
    Countdown,
    Refusal,
    Reply,
    ReplyThreads,
    Respond,
    Result,
)
from triton_backend.serving.front.texts import SeenOutputs, packed
from triton_backend.serving.transport.rolling_files import RollingLines
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import (
    LOCALS,
    NONE,
    ArrivalBody,
    DropBody,
    Kind,
    frame,
    pack_arrival,
)

if TYPE_CHECKING:
    from triton_backend.serving.front.mirror import Mirror

# A longer `timeout` is a client's mistake; instants that far away would not fit a frame.
MAX_TIMEOUT_US = 24 * 3_600 * 1_000_000
# Numbers begin at the host's monotonic time, one for every 64 µs: requests of a front that
# died may still be in flight, and those of its successor must not be taken for them.
NUMBER_SHIFT = 6
TRACE_HEADER = "traceparent"
NO_PARAMETERS = "{}"  # as Triton says of a request without any
HIGH_PRIORITY, PRIORITY_DIGITS = 1, 19
MOST_LOGGED_CHARACTERS = 256  # of what a client chose: a traceparent has 55
ENTRY_PARAMETER, CUT_PARAMETER, SPLIT_PARAMETER = "entry", "cut", "split"
_LOG = logging.getLogger(__name__)


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
        self.all_usual = deployment.boards or model.name in deployment.application_numbers
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
        reason = f"{named[:MOST_LOGGED_CHARACTERS]!r} is no whole number (2 and above: low)"
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


def arrival_frame(request: Request, guard: Guard, ticket: ExpressTicket | None = None) -> bytes:
    """ARRIVAL: what the scheduler needs to know of a request."""
    guard_us = guard.guard_us(request.deadline_us - request.arrival_us)
    slot, checksum, tag = ticket or (NONE, 0, request.plan_tag)
    body = ArrivalBody(
        request.number,
        request.deadline_us - guard_us,
        request.samples,
        request.entry,
        slot,
        checksum,
        guard_us,
        int(request.low),
    )
    return frame(Kind.ARRIVAL, pack_arrival(body), plan_tag=tag)


class PendingRequests:
    """Requests of one model by number, oldest first.

    Attributes:
        outputs: what clients see of outputs, as the plan in force says; None: all of them as they
            are.
        mirror: what copies of requests and answers are kept in, where they are asked for.
    """

    def __init__(self, model: str, logs: Path, clock: Clock, counters: FrontCounters) -> None:
        self.outputs: SeenOutputs | None = None
        self.mirror: Mirror | None = None
        self._model = model
        self._clock = clock
        self.counters = counters
        self._requests: dict[int, Request] = {}
        self._next_number = (clock.now_us() >> NUMBER_SHIFT) % LOCALS
        self._log = RequestLog(logs, model, clock)
        self._replies = ReplyThreads(model, self._count_error)
        self._asking = threading.Lock()
        self._asked: Request | None = None
        self._put_off: Reply | None = None
        self._pause = threading.Event()  # never set

    def start(self) -> None:
        """Replies are sent from now on."""
        self._replies.start()

    def stop(self) -> None:
        """Send what is left to send and end."""
        self._replies.stop()
        self._log.close()

    def flush_log(self) -> None:
        """Write what is buffered."""
        self._log.flush()

    def _count_error(self) -> None:
        self.counters.internal_errors += 1

    # Queries

    def get(self, number: int) -> Request | None:
        """A request that is not answered yet."""
        return self._requests.get(number)

    @property
    def any(self) -> bool:
        """True if one is not answered yet."""
        return bool(self._requests)

    def all(self) -> list[Request]:
        """All that are not answered yet, oldest first."""
        return list(self._requests.copy().values())  # a copy, because other threads change it

    @property
    def is_empty(self) -> bool:
        """True if all are answered."""
        return not self._requests

    def is_cancelled(self, request: Request) -> bool:
        """True if the client of a request that is not answered yet gave up.

        From one thread only.
        """
        with self._asking:
            if request.number not in self._requests:
                return False
            self._asked = request
        try:
            return request.is_cancelled()
        except Exception:  # noqa: BLE001  # Triton's may be any
            _LOG.exception("request %d of %s cannot be asked", request.number, self._model)
            request.cancel_sent = True  # not asked again, and it is served all the same
            return False
        finally:
            with self._asking:
                self._asked, put_off, self._put_off = None, self._put_off, None
            if put_off is not None:
                self._replies.put(put_off)

    def _reply(
        self, request: Request, reply: Reply, take: Callable[[Reply], bool] | None = None
    ) -> None:
        """Answer a request that was taken out, by the calling thread or a reply thread."""
        with self._asking:
            if request is self._asked:
                self._put_off = reply
                return
        if take is None or not take(reply):
            self._replies.put(reply)

    def send(self, reply: Reply, ready: Callable[[], None] | None = None) -> None:
        """Send a reply from the calling thread, as `ReplyThreads.send`.

        One that was taken in `answer_one`, or a refusal.
        """
        self._replies.send(reply, ready)

    # Events

    def counted(self, request: Request) -> tuple[FrontCounters, ...]:
        """The counters of a request: its priority's; its entry's too, of one that shares."""
        if request.low:
            return (self.counters.low,)
        if request.shared_by:
            return (self.counters, self.counters.of_share(request.shared_by))
        return (self.counters,)

    def admit(self, request: Request, limit: int) -> bool:
        """Number a request and keep it; refused, and False, where `limit` are kept already.

        Low ones, whose time may be long, leave half of it to others.
        """
        if request.low:
            limit //= 2
        if len(self._requests) >= limit:
            self.turn_away(request, DropReason.QUEUE_FULL, full(self._model, limit))
            return False
        for counters in self.counted(request):
            counters.offered += 1
        self._next_number = (self._next_number + 1) % LOCALS
        request.number = self._next_number
        self._requests[request.number] = request
        return True

    def turn_away(self, request: Request, reason: DropReason, refusal: Refusal) -> None:
        """Answer a request that is not taken."""
        own, *shares = self.counted(request)
        # A quota says nothing of the entry that would have taken the request.
        for counters in (own, *(() if reason is DropReason.QUOTA else shares)):
            counters.offered += 1
            counters.dropped[reason.text] += 1
        self._log.note(request, reason.text)
        self._reply(request, Reply(request.reply, refusal))

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Answer with an error of ours."""
        request = self._requests.pop(number, None)
        if request is not None:
            for counters in self.counted(request):
                counters.failed += 1
            self._log.note(request, "failed", refusal.message)
            self._reply(request, Reply(request.reply, refusal))

    def expire(self, request: Request) -> None:
        """Answer a request without an answer in time."""
        if self._requests.pop(request.number, None) is None:
            return
        refusal = expired(self._model, request, self._clock.now_us())
        for counters in self.counted(request):
            counters.dropped[DropReason.EXPIRED.text] += 1
        self._log.note(request, DropReason.EXPIRED.text, refusal.message)
        self._reply(request, Reply(request.reply, refusal))

    def drop(self, body: DropBody, module: str = "") -> None:
        """Answer a request as the scheduler decided, of an application for this module's sake."""
        request = self._requests.pop(body.request, None)
        if request is None:
            return
        for counters in self.counted(request):
            counters.dropped[body.reason.text] += 1
        self._log.note(request, body.reason.text)
        self._reply(request, Reply(request.reply, dropped(self._model, request, body, module)))

    def take_out(self, request: Request) -> bool:
        """Take out a request that another front will answer; False where it is answered already.

        Returns once nothing asks for its cancellation, which takes less than a millisecond.
        """
        if self._requests.pop(request.number, None) is None:
            return False
        for counters in self.counted(request):
            counters.dropped[DropReason.MODEL_REMOVED.text] += 1
        self._log.note(request, DropReason.MODEL_REMOVED.text, "another front takes it over")
        while request is self._asked:
            self._pause.wait(1e-4)
        return True

    def answer_one(
        self,
        request: Request,
        outputs: Arrays,
        take: Callable[[Reply], bool] | None,
        sent: Callable[[], None],
    ) -> None:
        """Answer the only request of a batch.

        Args:
            request: has been gathered alone.
            outputs: in the batch's slot.
            take: offered the reply; True where the caller will `send` it.
            sent: called when the reply has left the slot; from any thread.
        """
        if self._requests.pop(request.number, None) is None:
            sent()
        else:
            result = self._result(request, outputs, self._clock.now_us())
            self._reply(request, Reply(request.reply, result, sent), take)

    def answer_all(
        self, answers: Iterable[tuple[Request, Arrays]], sent: Callable[[], None]
    ) -> None:
        """Answer the requests of a batch, each with its part of the outputs.

        `sent` is called when the last reply has left the slot; from any thread.
        """
        now_us = self._clock.now_us()
        live = [
            (request, outputs)
            for request, outputs in answers
            if self._requests.pop(request.number, None) is not None
        ]
        if not live:
            sent()
            return
        one_sent = Countdown(len(live), sent)
        for request, outputs in live:
            result = self._result(request, outputs, now_us)
            self._reply(request, Reply(request.reply, result, one_sent))

    def _result(self, request: Request, outputs: Arrays, now_us: int) -> Result:
        """The reply with these outputs; counted and logged."""
        result = self._seen(request, outputs)
        if not isinstance(result, Refusal):
            self._served(request, now_us)
            return result
        for counters in self.counted(request):
            if result.status == "INVALID_ARG":
                counters.refused += 1
            else:
                counters.failed += 1
        self._log.note(request, "failed", result.message)
        return result

    def _seen(self, request: Request, outputs: Arrays) -> Result:
        """Outputs as its client sees them; a refusal where they cannot be read."""
        try:
            result = outputs if self.outputs is None else self.outputs.seen(outputs)
            if self.mirror is not None and self.mirror.wanted and not isinstance(result, Refusal):
                self.mirror.copy(request.tensors, outputs)
        except Exception:  # noqa: BLE001  # the request was taken out and must be answered
            self._count_error()
            _LOG.exception("outputs of request %d of %s", request.number, self._model)
            return Refusal("INTERNAL", f"model {self._model!r}: the outputs cannot be read")
        return result

    def _served(self, request: Request, now_us: int) -> None:
        """Count and log a request that is answered with outputs."""
        late = now_us > request.deadline_us
        for counters in self.counted(request):
            counters.answered(now_us - request.arrival_us, late)
        if late or (request.trace and _is_sampled(request.trace)):
            self._log.note(request, "late" if late else "served")


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


def _is_sampled(trace: str) -> bool:
    parent = TraceParent.parse(trace)
    return parent is not None and parent.sampled


class RequestLog:
    """The lines `requests-*.jsonl`: requests not served in time, and those their clients trace.

    A client traces a request if its `traceparent` is valid and says `sampled`.
    """

    def __init__(self, folder: Path, model: str, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._lines = RollingLines(folder, f"requests-{short_name(model)}", clock.wall_us())

    def note(self, request: Request, outcome: str, message: str = "") -> None:
        """One line for one request."""
        self._lines.write(
            json.dumps(
                {
                    "wall_us": self._clock.wall_us(),
                    "model": self._model,
                    "request": request.number,
                    "client": request.client,
                    "request_id": request.client_id[:MOST_LOGGED_CHARACTERS],
                    "traceparent": request.trace[:MOST_LOGGED_CHARACTERS],
                    "batch": request.batch_id,
                    "samples": request.samples,
                    "arrival_us": request.arrival_us,
                    "deadline_us": request.deadline_us,
                    "answered_us": self._clock.now_us(),
                    "outcome": outcome,
                    "message": message,
                    "priority": "low" if request.low else "high",
                }
            )
        )

    def flush(self) -> None:
        """Write what is buffered."""
        self._lines.flush()

    def close(self) -> None:
        """Flush and close."""
        self._lines.close()
