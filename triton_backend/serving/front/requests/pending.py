"""The requests a front has taken and not answered: each leaves exactly once, with its answer.

The thread that takes a request out answers it, counts it and logs it; from any thread. Triton frees
a request with its answer, and asking it whether one that is freed was cancelled ends the server
(2.51): an answer that comes while its request is being asked is sent when the asking is over.

Here: which requests are left, how one is announced, and how each leaves. Not here: how they are
read (`reading`), the texts they are refused with (`refusals`), batches (`batches`), the threads
that send answers (`replies`), when a request is asked or has waited too long (`deadlines`).
"""

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from triton_backend.contract.decisions import DropReason
from triton_backend.runtimes.clock import Clock
from triton_backend.scheduler.measured.guard import Guard
from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.front.replies import (
    Countdown,
    Refusal,
    Reply,
    ReplyThreads,
    Result,
)
from triton_backend.serving.front.requests.log import RequestLog, is_traced
from triton_backend.serving.front.requests.refusals import dropped, expired, full
from triton_backend.serving.front.requests.request import ExpressTicket, Request
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
    from triton_backend.serving.front.texts import SeenOutputs

# Numbers begin at the host's monotonic time, one for every 64 µs: requests of a front that
# died may still be in flight, and those of its successor must not be taken for them.
NUMBER_SHIFT = 6
_LOG = logging.getLogger(__name__)


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
        if late or is_traced(request):
            self._log.note(request, "late" if late else "served")
