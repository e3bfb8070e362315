"""The clock of everything that waits or measures: workers, profiling, emulated classes.

Here: the `Clock` door and the one adapter that reads the real clock. Not here: what is waited for.
Runtimes are handed a clock, so that tests hand them a virtual one and never sleep.
"""

import time
from collections import deque
from typing import Protocol

NS_PER_US = 1_000
# A thread that sleeps is woken 20 to 100 µs late, even one that asked for exact timers. It sleeps
# until so long before the instant, less what the promptest of its last wake-ups was late, and spins
# for the rest; longer would take the core from threads that have work for it.
SPIN_US = 30
WAKE_UPS = 16
LATE_AT_MOST_US = 150  # by more it is the machine that is busy, which may be over


class Clock(Protocol):
    """Instants on one monotonic scale, the same for all processes of a host."""

    def now_us(self) -> int:
        """The instant, in microseconds."""
        ...

    def wall_us(self) -> int:
        """The same instant as people count it: microseconds since 1970 in UTC. It may jump."""
        ...

    def thread_cpu_us(self) -> int:
        """CPU time the calling thread has had so far, in microseconds."""
        ...

    def sleep_until_us(self, instant_us: int) -> None:
        """Return at `instant_us`, or at once where it has passed."""
        ...


class SystemClock:
    """`CLOCK_MONOTONIC` of the host, and waits precise to a few microseconds."""

    def __init__(self) -> None:
        self._late_us = deque[int]([0], maxlen=WAKE_UPS)  # wake-ups, of whichever thread

    def now_us(self) -> int:
        """The instant, in microseconds since the host started."""
        return time.monotonic_ns() // NS_PER_US

    def wall_us(self) -> int:
        """Microseconds since 1970 in UTC."""
        return time.time_ns() // NS_PER_US

    def thread_cpu_us(self) -> int:
        """CPU time of the calling thread, in microseconds."""
        return time.thread_time_ns() // NS_PER_US

    def sleep_until_us(self, instant_us: int) -> None:
        """Sleep to shortly before `instant_us`, then spin until it is reached."""
        wake_us = instant_us - SPIN_US - min(self._late_us)
        ahead_us = wake_us - self.now_us()
        if ahead_us > 0:
            time.sleep(ahead_us / 1e6)
            self._late_us.append(min(self.now_us() - wake_us, LATE_AT_MOST_US))
        while self.now_us() < instant_us:
            pass
