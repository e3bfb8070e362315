"""The one place where the offline half reads a clock outside profiling."""

import time
from datetime import UTC, datetime


class Stopwatch:
    """Seconds since it was made or last restarted."""

    def __init__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def seconds(self) -> float:
        """Seconds so far."""
        return (time.perf_counter_ns() - self._start_ns) / 1e9

    def restart(self) -> float:
        """Seconds so far, and restart."""
        seconds = self.seconds()
        self._start_ns = time.perf_counter_ns()
        return seconds


def now_utc() -> datetime:
    """The instant, in UTC."""
    return datetime.now(UTC)


def boot_wall_us() -> int:
    """Wall clock at instant 0 of this host's monotonic clock, in µs since 1970."""
    return (time.time_ns() - time.monotonic_ns()) // 1000
