"""Requests that a model of Triton hands on to another one, each of which a thread waits for.

    take --> waiting --> asked --> answered
      |         |
      +---------+--> refused    too many wait, its time is over, its client gave up, the model is
                                unloaded, or the model asked died: Triton never answers requests
                                of a killed process

Every request is answered once, whatever happens. One whose model died is refused when others wait
for its thread.

Here: which request is asked when. Not here: Triton's API (`triton_models`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from triton_backend.runtimes.clock import Clock
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.reading import MAX_TIMEOUT_US
from triton_backend.serving.front.requests.refusals import full, unreadable
from triton_backend.serving.liveness.limits import DEAD_BY_NOW_US

AT_ONCE = 64  # requests of one model that are asked at a time; others wait
_LOOK_SECONDS = 0.2
_LOG = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A request of Triton's, how it is answered, and when it came."""

    request: Any
    reply: Callable[[Any], None]
    arrival_us: int


class Forwarding:
    """Asks another model for the answers to requests, until stopped.

    Args:
        model: that takes the requests, for messages.
        limit: requests that wait at most.
        slo_us: how long a request without a `timeout` waits at most.
        ask: gives the answer to a request, given how long it has waited, in microseconds; may raise
            anything.
    """

    def __init__(
        self,
        model: str,
        limit: int,
        slo_us: int,
        clock: Clock,
        ask: Callable[[Any, int], Any],
    ) -> None:
        self._model = model
        self._limit = limit
        self._slo_us = slo_us
        self._clock = clock
        self._ask = ask
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = [self._thread() for _ in range(AT_ONCE)]
        self._asked: dict[threading.Thread, _Waiting] = {}  # by the thread that asks

    def start(self) -> None:
        """Ask from now on."""
        for thread in self._threads:
            thread.start()

    def take(self, request: Any, reply: Callable[[Any], None]) -> None:
        """Take a request, or refuse it; whatever it holds, nothing is raised.

        Args:
            request: with `timeout()` in microseconds, 0 where there is none, and `is_cancelled()`.
            reply: takes the answer or a `Refusal`, once, in this thread or another one.
        """
        if self._waiting:
            self._give_up_overdue()
        with self._changed:
            if self._stopping:
                refusal = self._leaving()
            elif len(self._waiting) >= self._limit:
                refusal = full(self._model, self._limit)
            else:
                self._waiting.append(_Waiting(request, reply, self._clock.now_us()))
                self._changed.notify()
                return
        self._reply(reply, refusal)

    def stop(self) -> None:
        """Refuse what waits, let what was asked be answered, end the threads."""
        with self._changed:
            self._stopping = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for one in left:
            self._reply(one.reply, self._leaving())
        while living := [thread for thread in self._threads if thread.is_alive()]:
            living[0].join(_LOOK_SECONDS)
            self._give_up_overdue()

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="forward", daemon=True)

    def _give_up_overdue(self) -> None:
        """Refuse what a live model would have answered long ago.

        New threads take the place of those that ask.
        """
        now_us = self._clock.now_us()
        with self._changed:
            over = [thread for thread, one in self._asked.items() if self._is_overdue(one, now_us)]
            lost = [self._asked.pop(thread) for thread in over]
            new = [] if self._stopping else [self._thread() for _ in over]
            self._threads = [thread for thread in self._threads if thread not in over] + new
        for thread in new:
            thread.start()
        for one in lost:
            refusal = Refusal("UNAVAILABLE", f"model {self._model!r}: no answer came")
            self._reply(one.reply, refusal)

    def _is_overdue(self, one: _Waiting, now_us: int) -> bool:
        allowed_us = min(max(one.request.timeout(), 0) or self._slo_us, MAX_TIMEOUT_US)
        return now_us > one.arrival_us + allowed_us + DEAD_BY_NOW_US

    def _leaving(self) -> Refusal:
        return Refusal("UNAVAILABLE", f"model {self._model!r} is being unloaded")

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if not self._waiting:
                    return
                one = self._asked[thread] = self._waiting.popleft()
            answer = self._answer(one)
            with self._changed:
                if self._asked.pop(thread, None) is None:
                    return  # it was given up, and another thread is in this one's place
            self._reply(one.reply, answer)
            del one, answer  # a thread that waits holds no tensors in memory

    def _answer(self, one: _Waiting) -> Any:
        """The answer to a request, or why there is none."""
        try:
            waited_us = self._clock.now_us() - one.arrival_us
            allowed_us = one.request.timeout() or self._slo_us
            if one.request.is_cancelled():
                return Refusal(
                    "CANCELLED", f"model {self._model!r}: the client cancelled the request"
                )
            if 0 < allowed_us <= waited_us:  # the other model refuses what makes no sense
                reason = f"waited {waited_us / 1e3:.1f} ms of the {allowed_us / 1e3:.1f} ms allowed"
                return Refusal("UNAVAILABLE", f"model {self._model!r}: the request {reason}")
            return self._ask(one.request, waited_us)
        except UnicodeDecodeError as error:
            return unreadable(self._model, error)
        except Exception as error:  # noqa: BLE001  # the request would never be answered
            _LOG.exception("a request of model %s", self._model)
            return Refusal("INTERNAL", f"model {self._model!r}: {error}")

    def _reply(self, reply: Callable[[Any], None], answer: Any) -> None:
        try:
            reply(answer)
        except Exception:  # noqa: BLE001  # Triton's may be any; the thread goes on
            _LOG.exception("an answer of model %s was not sent", self._model)
