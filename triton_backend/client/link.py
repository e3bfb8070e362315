"""An emulated link: a token bucket filled by a recorded trace, without root and without `tc`.

Bytes leave in the order in which they were handed over, at the rate of each instant: an upload ends
when the integral of the rate since its begin is its bits, not at the rate of its first second.
Units: Mbit/s is bits per microsecond.
"""

import csv
import gzip
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, isfinite
from pathlib import Path

from .errors import ClientError

LOOKS = 10  # at an upload while it lasts
HOPE = 0.8  # of its bytes that must be on the way to be sent in time
PACE_US = 20_000

COLUMNS = ("time_s", "mbit_per_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The outcome of one upload, in µs since the trace's begin.

    Attributes:
        start_us: when its first byte left; its end where none did.
        end_us: when its last byte left, or when it was given up.
        sent: bytes that left.
    """

    start_us: int
    end_us: int
    sent: float


class Trace:
    """A rate for every instant: each row's until the next one's time, the last row's for ever.

    Args:
        rows: (seconds, Mbit/s), times rising; the first row's time is the trace's begin.

    Raises:
        ClientError: no rows, times that do not rise, or a rate that is no number from 0 on.
    """

    def __init__(self, rows: Sequence[tuple[float, float]], where: str = "trace") -> None:
        if not rows:
            raise ClientError(where, "no rows")
        for number, row in enumerate(rows, 2):
            if not (all(map(isfinite, row)) and row[1] >= 0):
                raise ClientError(f"{where}, line {number}", f"{row} are no time and rate")
        self._times = [round((time - rows[0][0]) * 1e6) for time, _ in rows]
        for number, (before, after) in enumerate(pairwise(self._times), 3):
            if before >= after:
                raise ClientError(f"{where}, line {number}", "its time is not after the one before")
        self._rates = [rate for _, rate in rows]
        steps = (
            (after - before) * rate
            for (before, after), rate in zip(pairwise(self._times), self._rates, strict=False)
        )
        self._bits = list(accumulate(steps, initial=0.0))

    def bits(self, at_us: float) -> float:
        """Bits that can have passed by an instant."""
        row = bisect_right(self._times, at_us) - 1
        return self._bits[row] + (at_us - self._times[row]) * self._rates[row]

    def passed_us(self, bits: float) -> float:
        """The first instant by which so many bits can have passed; inf where they never can."""
        row = max(bisect_left(self._bits, bits) - 1, 0)
        missing = bits - self._bits[row]
        if missing <= 0:
            return self._times[row]
        return self._times[row] + missing / self._rates[row] if self._rates[row] else inf


class EmulatedLink:
    """One uplink; uploads are handed over in order of time.

    Args:
        trace: its rates.
        patient: what goes too slowly is not given up before its time is over.
    """

    def __init__(self, trace: Trace, *, patient: bool = False) -> None:
        self._trace, self._patient = trace, patient
        self._free_us = 0
        self._busy_since_us = 0
        self._handed: deque[tuple[Upload, int]] = deque()

    def waiting_bytes(self, now_us: int) -> float:
        """Of all that was handed over by now, what has neither left nor been given up."""
        while self._handed and self._handed[0][0].end_us <= now_us:
            self._handed.popleft()
        waiting = float(sum(size for _, size in self._handed))
        if self._handed and (start_us := self._handed[0][0].start_us) < now_us:
            waiting -= (self._trace.bits(now_us) - self._trace.bits(start_us)) / 8
        return waiting

    def pace(self, now_us: int) -> float | None:
        """Mbit/s at which uploads left in the last 20 ms.

        None where there was none all the time.
        """
        since_us = now_us - PACE_US
        if not self._busy_since_us <= since_us < now_us < self._free_us:
            return None
        return (self._trace.bits(now_us) - self._trace.bits(since_us)) / PACE_US

    def foreseen_us(self, now_us: int, size: int) -> float:
        """When so many bytes would have left, handed over then.

        Only a measurement with hindsight may ask. inf where they never would.
        """
        start_us = max(now_us, self._free_us)
        return self._trace.passed_us(self._trace.bits(start_us) + 8 * size)

    def upload(self, now_us: int, size: int, give_up_us: int) -> Upload:
        """Send so many bytes after all that were handed over before, or until an instant.

        At every tenth of the time that there is, an upload of which less than 80 % would be sent by
        then, as it went so far, is given up, so that it does not keep those behind it.
        """
        start_us = max(now_us, self._free_us)
        if start_us >= give_up_us:  # the link is not free by then, and what goes before goes on
            return Upload(start_us=give_up_us, end_us=give_up_us, sent=0)
        if start_us > self._free_us:
            self._busy_since_us = start_us
        before = self._trace.bits(start_us)
        end = self._trace.passed_us(before + 8 * size)
        given_up_us = self._given_up_us(start_us, size, give_up_us)
        if end > given_up_us:
            self._free_us = given_up_us
            sent = (self._trace.bits(given_up_us) - before) / 8
        else:
            self._free_us = round(end)
            sent = size
        found = Upload(start_us=start_us, end_us=self._free_us, sent=sent)
        self._handed.append((found, size))
        return found

    def _given_up_us(self, start_us: int, size: int, give_up_us: int) -> int:
        """When an upload that is not done by then is given up."""
        before = self._trace.bits(start_us)
        for look in range(1, 1 if self._patient else LOOKS):
            at_us = start_us + (give_up_us - start_us) * look // LOOKS
            sent = (self._trace.bits(at_us) - before) / 8
            if at_us > start_us and sent * LOOKS < HOPE * size * look:
                return at_us
        return give_up_us


def read_trace(path: Path) -> Trace:
    """A CSV file (or .csv.gz) with columns time_s and mbit_per_s.

    Raises:
        ClientError: it cannot be read as one.
    """
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as stream:
            table = csv.DictReader(stream)
            missing = set(COLUMNS) - set(table.fieldnames or ())
            if missing:
                raise ClientError(str(path), f"no column {', '.join(sorted(missing))}")
            rows = [(float(row[COLUMNS[0]]), float(row[COLUMNS[1]])) for row in table]
    except OSError as error:
        raise ClientError(str(path), f"cannot be read: {error.strerror or error}") from error
    except (EOFError, TypeError, ValueError, csv.Error, zlib.error) as error:
        raise ClientError(str(path), f"not a trace: {error}") from error
    return Trace(rows, str(path))
