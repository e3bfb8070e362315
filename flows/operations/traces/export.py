"""Traces from reader to receiver: once, or as they come."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from flows.operations.traces.otlp import ReceiverError, RefusedError
from flows.operations.traces.reading import TraceReader
from flows.operations.traces.spans import Trace

AT_ONCE = 200  # traces
MOST_WAITING = 10_000  # traces, while the receiver is away


class Sink(Protocol):
    """A taker of traces (`otlp.Receiver`)."""

    def send(self, traces: list[Trace]) -> None:
        """Send them.

        Raises:
            RefusedError: it refuses some of them.
            ReceiverError: it did not take all of them in time.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Sent:
    """Counts of traces: sent, and left out: refused, or the receiver was away for too long."""

    traces: int = 0
    left_out: int = 0


def export(reader: TraceReader, sink: Sink) -> Sent:
    """Send what the files hold.

    Raises:
        ReceiverError: the receiver did not take all of them.
    """
    sent, found = Sent(), reader.read(everything=True)
    while some := list(islice(found, AT_ONCE)):
        sink.send(some)
        sent.traces += len(some)
    return sent


class Follower:
    """Sends traces as requests end, keeps some while the receiver is away, and says that it is."""

    def __init__(self, reader: TraceReader, sink: Sink, say: Callable[[str], None]) -> None:
        self._reader, self._sink, self._say = reader, sink, say
        self._waiting: deque[Trace] = deque()
        self._away = False
        self.sent = Sent()

    def look(self, *, everything: bool = False) -> None:
        """Send what ended since the last look; with `everything` what is under way, too."""
        for trace in self._reader.read(everything=everything):
            if len(self._waiting) == MOST_WAITING:
                self._waiting.popleft()
                self.sent.left_out += 1
            self._waiting.append(trace)
        try:
            self._send()
        except ReceiverError as error:
            if not self._away:
                self._say(f"{error}; tried again")
            self._away = True

    def _send(self) -> None:
        """Send what waits. A trace that is refused alone while others are taken is left out.

        While none is taken the reason may be the receiver's (a wrong header): all wait, and the
        next look begins with another trace.
        """
        at_once, taken = AT_ONCE, False
        while self._waiting:
            some = list(islice(self._waiting, at_once))
            try:
                self._sink.send(some)
            except RefusedError:
                if len(some) > 1:
                    at_once = len(some) // 2
                    continue
                if not taken:
                    self._waiting.rotate(-1)
                    raise
                self.sent.left_out += 1
            else:
                taken, at_once = True, min(2 * at_once, AT_ONCE)
                self.sent.traces += len(some)
            for _ in some:
                self._waiting.popleft()
            if self._away:
                self._say(f"received again; {self.sent.left_out} traces were left out")
            self._away = False
