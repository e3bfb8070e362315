"""The thread that lets no client of a front wait for ever: deadlines and cancellations.

It needs neither the scheduler nor the front's polling thread, so a client is answered in time
whatever either of them is doing. While no request waits, it sleeps: the next one sets its timer.
"""

import logging
import select
import threading
from collections.abc import Callable

from triton_backend.runtimes.clock import Clock
from triton_backend.serving.front.counters import FrontCounters
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.timerfd import TimerFd

TICK_US = 15_000
# No client waits longer than its deadline and 100 ms. While Triton loads a model, and its process
# the code for it, an answer takes up to 70 ms to be sent, and a request as long to be taken.
GRACE_US = 15_000
# Asking Triton whether a request is cancelled takes 70 µs, so only a few of the oldest are asked.
_CANCEL_CHECKS_PER_TICK = 16
_LOG = logging.getLogger(__name__)


class DeadlineWatch:
    """Looks at a front's requests between `start` and `stop`.

    Args:
        cancel: called with the number of a request without a waiter.
        give_up_us: when a request without an answer is answered.
    """

    def __init__(
        self,
        pending: PendingRequests,
        clock: Clock,
        counters: FrontCounters,
        cancel: Callable[[int], None],
        give_up_us: Callable[[Request], int],
    ) -> None:
        self._pending = pending
        self._clock = clock
        self._counters = counters
        self._cancel = cancel
        self._give_up_us = give_up_us
        self._backoff = Backoff()
        self._looked_us = clock.now_us()
        self._asleep = True
        self._waking = threading.Lock()
        self._timer = TimerFd()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)

    @property
    def looked_us(self) -> int:
        """When it last looked at all of them; now, while there are none."""
        return self._clock.now_us() if self._asleep else self._looked_us

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; once."""
        self._over = True
        self._ring_at(self._clock.now_us())
        self._thread.join(timeout=5)

    def look_soon(self) -> None:
        """A request waits from now on: look within a tick; from any thread.

        It wakes no thread, which would take the processor from the request.
        """
        if not self._asleep:
            return
        with self._waking:
            if self._asleep and not self._over:
                self._looked_us = self._clock.now_us()
                self._asleep = False
                self._timer.set(self._looked_us + TICK_US)

    def _ring_at(self, at_us: int) -> None:
        with self._waking:
            self._timer.set(at_us)

    def _run(self) -> None:
        rings = select.poll()
        rings.register(self._timer.fileno(), select.POLLIN)
        while True:
            rings.poll()
            self._timer.acknowledge()
            if self._over:
                with self._waking:
                    self._timer.close()
                return
            now_us = self._clock.now_us()
            try:
                next_us = self._look(now_us)
            except Exception:  # noqa: BLE001  # one bad request must not end the watch over all
                self._counters.internal_errors += 1
                wait_us = max(round(self._backoff.failed() * 1e6), TICK_US)
                _LOG.exception("the watch over deadlines goes on in %d ms", wait_us // 1000)
                self._ring_at(now_us + wait_us)
            else:
                self._looked_us = now_us
                self._backoff.succeeded()
                self._wait_until(next_us)

    def _wait_until(self, next_us: int | None) -> None:
        """Have the timer ring then; at None not before a request comes."""
        if next_us is not None:
            self._ring_at(next_us)
            return
        self._asleep = True
        if not self._pending.is_empty:  # it came before that was seen
            self.look_soon()

    def _look(self, now_us: int) -> int | None:
        """Answer what is due; the instant when the next of those waiting is, None without any."""
        checks, next_us = _CANCEL_CHECKS_PER_TICK, now_us + TICK_US
        for request in self._pending.all():
            due_us = self._give_up_us(request)
            if now_us >= due_us:
                # Before the scheduler knows, whose answer could be the faster.
                self._pending.expire(request)
                self._cancel(request.number)
                continue
            next_us = min(next_us, due_us)
            asked = request.batch_id is None and not request.cancel_sent
            if asked and checks and now_us - request.arrival_us > TICK_US:
                checks -= 1
                if self._pending.is_cancelled(request):
                    request.cancel_sent = True
                    self._cancel(request.number)
        return None if self._pending.is_empty else next_us
