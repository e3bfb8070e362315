"""The requests a front has taken and not answered: each leaves exactly once, with its answer.

Whoever takes a request out answers it, counts it and logs it; from any thread. Triton frees a
request with its answer, and asking it whether one that is freed was cancelled ends the server
(2.51): an answer that comes while its request is being asked is sent when the asking is over.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from triton_backend.contract.reasons import DropReason
from triton_backend.runtimes.clock import Clock
from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.front.generation import Batch
from triton_backend.serving.front.replies import Countdown, Replies, Reply, Sent
from triton_backend.serving.front.requests import (
    Refusal,
    Request,
    RequestLog,
    dropped,
    expired,
    full,
)
from triton_backend.serving.transport.bodies import LOCALS, DropBody
from triton_backend.serving.transport.shared_memory import Arrays

# A larger answer takes long to send, and who sends it does not poll.
SENT_AT_ONCE_BYTES = 1 << 16

# Numbers begin at the host's monotonic time, one for every 64 µs: requests of a front that
# died may still be in flight, and those of its successor must not be taken for them.
NUMBER_SHIFT = 6


class Ledger:
    """Requests of one model by number, oldest first."""

    def __init__(self, model: str, logs: Path, clock: Clock, counters: FrontCounters) -> None:
        self._model = model
        self._clock = clock
        self._counters = counters
        self._requests: dict[int, Request] = {}
        self._next_number = (clock.now_us() >> NUMBER_SHIFT) % LOCALS
        self._log = RequestLog(logs, model, clock)
        self._replies = Replies(model)
        self._asking = threading.Lock()
        self._asked: Request | None = None
        self._put_off: tuple[Refusal | Arrays, Sent | None] | None = None

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

    # What is known

    def get(self, number: int) -> Request | None:
        """A request that is not answered yet."""
        return self._requests.get(number)

    def all(self) -> list[Request]:
        """All that are not answered yet, oldest first."""
        return list(self._requests.copy().values())  # a copy, because other threads change it

    def is_cancelled(self, request: Request) -> bool:
        """Whether the client of a request that is not answered yet gave up; from one thread only."""
        with self._asking:
            if request.number not in self._requests:
                return False
            self._asked = request
        cancelled = False
        try:
            cancelled = request.is_cancelled()
        finally:
            with self._asking:
                self._asked, put_off, self._put_off = None, self._put_off, None
            if put_off is not None:
                self._replies.put(request, *put_off)
        return cancelled

    def _reply(
        self,
        request: Request,
        result: Refusal | Arrays,
        sent: Sent | None = None,
        take: Callable[[Reply], bool] | None = None,
    ) -> None:
        """Have a request answered that was taken out: by who takes the reply, or a reply thread."""
        with self._asking:
            if request is self._asked:
                self._put_off = result, sent
                return
        if take is None or not take((request, result, sent)):
            self._replies.put(request, result, sent)

    def send(self, reply: Reply) -> None:
        """Send a reply that was taken in `answer`, from the calling thread."""
        self._replies.send(*reply)

    # What happens

    def enter(self, request: Request, limit: int) -> bool:
        """Number a request and keep it; refused, and False, where `limit` are kept already."""
        self._counters.offered += 1
        if len(self._requests) >= limit:
            self._counters.dropped[DropReason.QUEUE_FULL.text] += 1
            self._log.note(request, DropReason.QUEUE_FULL.text)
            self._reply(request, full(self._model, limit))
            return False
        self._next_number = (self._next_number + 1) % LOCALS
        request.number = self._next_number
        self._requests[request.number] = request
        return True

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Answer with an error of ours."""
        request = self._requests.pop(number, None)
        if request is not None:
            self._counters.failed += 1
            self._log.note(request, "failed", refusal.message)
            self._reply(request, refusal)

    def expire(self, request: Request) -> None:
        """Answer a request that nobody else has answered in time."""
        self.refuse(request.number, expired(self._model, request, self._clock.now_us()))

    def drop(self, body: DropBody) -> None:
        """Answer a request as the scheduler decided."""
        request = self._requests.pop(body.request, None)
        if request is None:
            return
        self._counters.dropped[body.reason.text] += 1
        self._log.note(request, body.reason.text)
        self._reply(request, dropped(self._model, request, body))

    def answer(self, batch: Batch, take: Callable[[Reply], bool], sent: Sent) -> None:
        """Answer the requests of a batch with its outputs.

        Args:
            batch: its outputs are in its slot.
            take: offered a small reply to the only request; True where the caller will `send` it.
            sent: called when the last reply has left the slot; from any thread.
        """
        now_us = self._clock.now_us()
        if len(batch.requests) == 1 and batch.payload_bytes <= SENT_AT_ONCE_BYTES:
            (request,) = batch.requests
            if self._requests.pop(request.number, None) is None:
                sent()
            else:
                self._served(request, now_us)
                self._reply(request, batch.views(), sent, take)
            return
        live = [
            (request, outputs)
            for request, outputs in batch.outputs()
            if self._requests.pop(request.number, None) is not None
        ]
        if not live:
            sent()
            return
        one_sent = Countdown(len(live), sent)
        for request, outputs in live:
            self._served(request, now_us)
            self._reply(request, outputs, one_sent)

    def _served(self, request: Request, now_us: int) -> None:
        """Count and log a request that is answered with outputs."""
        late = now_us > request.deadline_us
        self._counters.answered(now_us - request.arrival_us, late)
        if late or request.trace:
            self._log.note(request, "late" if late else "served")
