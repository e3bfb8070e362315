"""How fast the link is, from a client's own past uploads only."""

from collections import deque

SAMPLES = 5
SHIFT = 1.5  # times faster or slower than the mean: another link than before
LEAST_BYTES = 64 * 1024  # smaller uploads say more of the round trip than of the bandwidth
SILENCE_US = 5_000_000
TICK_US = 500_000  # between two looks whether a probe is due
PROBE_US = 1_000_000  # after which a probe is given up


class Bandwidth:
    """The harmonic mean of the last five uploads of at least 64 KB.

    Bytes sent over time taken, equal weights. An upload that was more than half as fast again as
    their mean, or slower by as much, begins it again: mobile links change by steps. After five
    seconds without one a probe is due, and with it the mean begins again: what was measured before
    says nothing of now.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=SAMPLES)
        self._measured_us: int | None = None

    def note(self, now_us: int, size: int, took_us: int, sent: float | None = None) -> None:
        """An upload that ended now.

        Args:
            now_us: when.
            size: bytes that were to be sent; fewer than 64 KB are no measurement.
            took_us: since its first byte.
            sent: bytes that went, where it was given up before its end.
        """
        if size < LEAST_BYTES or took_us <= 0:
            return
        if self.probe_due(now_us - took_us):
            self._rates.clear()
        rate = 8 * (size if sent is None else sent) / took_us
        before = self.mbit_per_s
        if before is not None and not before / SHIFT <= rate <= SHIFT * before:
            self._rates.clear()
        self._rates.append(rate)
        self._measured_us = now_us

    def probe_due(self, now_us: int) -> bool:
        """True if nothing was measured for five seconds, or ever."""
        return self._measured_us is None or now_us - self._measured_us >= SILENCE_US

    @property
    def mbit_per_s(self) -> float | None:
        """The estimate.

        None before the first upload, 0 where one of the last got nothing through.
        """
        if not self._rates:
            return None
        if min(self._rates) <= 0:
            return 0.0
        return len(self._rates) / sum(1 / rate for rate in self._rates)
