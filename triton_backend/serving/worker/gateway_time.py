"""The gateway's time on another host, told from the scheduler's beats.

Hosts do not share CLOCK_MONOTONIC. A beat carries the instant at which it was sent, so (now - told)
is the difference of the clocks plus the beat's way; the least of the last beats comes within the
network's fastest one-way delay of the truth, and following a window keeps up with drift.
"""

from collections import deque

from triton_backend.runtimes.clock import Clock

WINDOW_BEATS = 20
ENOUGH_BEATS = 3


class GatewayTime:
    """Instants of the gateway, from a clock of this host; equal until a beat was heard.

    `ahead_us`: by how much the clock of this host is ahead.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: deque[int] = deque(maxlen=WINDOW_BEATS)
        self.ahead_us = 0

    @property
    def known(self) -> bool:
        """Whether enough beats were heard."""
        return len(self._heard) >= ENOUGH_BEATS

    def hear(self, told_us: int) -> None:
        """A beat said that it is `told_us` at the gateway."""
        self._heard.append(self._clock.now_us() - told_us)
        self.ahead_us = min(self._heard)

    def forget(self) -> None:
        """Another scheduler, on a host that may have restarted, comes next."""
        self._heard.clear()

    def now_us(self) -> int:
        """The instant, as the gateway counts."""
        return self._clock.now_us() - self.ahead_us

    def local_us(self, gateway_us: int) -> int:
        """An instant of the gateway as this host counts."""
        return gateway_us + self.ahead_us
