"""The threads that send replies, because Triton's `send` blocks its caller."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from triton_backend.serving.front.requests import Refusal, Request
from triton_backend.serving.transport.shared_memory import Arrays

REPLY_THREADS = 6
# Called when the reply has been sent, from the thread that sent it.
Sent = Callable[[], None]
Reply = tuple[Request, Arrays | Refusal, Sent | None]
_LOG = logging.getLogger(__name__)


class Countdown:
    """Called once for each of `left` replies from one slot; calls `done` when all are sent."""

    def __init__(self, left: int, done: Sent) -> None:
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


class Replies:
    """A few threads between `start` and `stop`; `put` hands them a reply, from any thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._queue: SimpleQueue[Reply | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"reply-{i}", daemon=True)
            for i in range(REPLY_THREADS)
        ]

    def start(self) -> None:
        """Go."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send what is left and end."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def put(self, request: Request, result: Arrays | Refusal, sent: Sent | None = None) -> None:
        """Have a request answered."""
        self._queue.put((request, result, sent))

    def send(self, request: Request, result: Arrays | Refusal, sent: Sent | None = None) -> None:
        """Answer a request in the caller's own thread."""
        try:
            request.reply(result)
        except Exception:  # noqa: BLE001  # Triton's may be any; the thread goes on
            _LOG.exception("a reply of %s was not sent", self._model)
        if sent is not None:
            sent()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self.send(*item)
