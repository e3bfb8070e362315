"""Answers to clients, and the threads that send them: Triton's `send` blocks its caller."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from triton_backend.serving.transport.shared_memory import Arrays

REPLY_THREADS = 6
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is answered with an error: Triton's status name and the text."""

    status: str
    message: str


Result = Arrays | Refusal
Respond = Callable[[Result], Callable[[], object] | None]
"""Makes a response of a result and returns what sends it; None: it is sent."""


class Reply(NamedTuple):
    """A result on its way to its client.

    Attributes:
        respond: hands the result to Triton; called once, and once more with a refusal where that
            fails.
        sent: called when that is done, from the thread that did it: `result` may be overwritten.
    """

    respond: Respond
    result: Result
    sent: Callable[[], None] | None = None


class Countdown:
    """Called once for each of `left` replies from one slot; calls `done` when all are sent."""

    def __init__(self, left: int, done: Callable[[], None]) -> None:
        self._left = left
        self._done = done
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Another reply has been sent; from any thread."""
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._done()


class ReplyThreads:
    """A few threads between `start` and `stop`; `put` hands them a reply, from any thread.

    `failed`: called for every reply that cannot be sent; from any thread.
    """

    def __init__(self, model: str, failed: Callable[[], None]) -> None:
        self._model = model
        self._failed = failed
        self._queue: SimpleQueue[Reply | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"reply-{i}", daemon=True)
            for i in range(REPLY_THREADS)
        ]

    def start(self) -> None:
        """Send replies from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send what is left and end."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def put(self, reply: Reply) -> None:
        """Have a reply sent."""
        self._queue.put(reply)

    def send(self, reply: Reply, ready: Callable[[], None] | None = None) -> None:
        """Send a reply in the caller's own thread, or a refusal where that fails.

        `ready` is called before it blocks: from then on other threads may have the interpreter.
        """
        if not self._is_sent(reply.respond, reply.result, ready):
            self._failed()
            message = f"model {self._model!r}: the answer cannot be sent"
            self._is_sent(reply.respond, Refusal("INTERNAL", message))
        if reply.sent is not None:
            reply.sent()

    def _is_sent(
        self, respond: Respond, result: Result, ready: Callable[[], None] | None = None
    ) -> bool:
        """Send a result; False, and logged, where that fails."""
        try:
            send = respond(result)
            if ready is not None:
                ready()
            if send is not None:
                send()
        except Exception:  # noqa: BLE001  # Triton's may be any; the thread goes on
            _LOG.exception("a reply of %s was not sent", self._model)
            return False
        return True

    def _run(self) -> None:
        while (reply := self._queue.get()) is not None:
            self.send(reply)
            del reply  # a thread that waits holds no batch in memory, nor the plan of one
