"""What is expected of the server at a cut, from past answers; pure, also of the simulator's clients."""

from collections import deque
from dataclasses import replace
from statistics import median

from .decide import Cut, Link

ANSWERS = 5  # whose median tells how much of the spare time the server uses
LOOK_US = 5_000_000  # between two looks at open cuts and the round trip
REST_US = 1_000_000  # in which a cut that was refused is not tried


class SpareTime:
    """Which part of the time beyond its least tail the server uses, to wait for company or for its turn.

    A server that fills batches waits the longer the more time it is given, so what one answer took says
    little of another cut; this part does. After five seconds without an answer nothing is known.
    """

    def __init__(self) -> None:
        self._parts: deque[float] = deque(maxlen=ANSWERS)
        self._answered_us = 0

    def note(self, now_us: int, tail_us: int, least_us: int, budget_us: int) -> None:
        """An answer that came now and took so long."""
        self._forget(now_us)
        self._answered_us = now_us
        self._parts.append(max(tail_us - least_us, 0) / max(budget_us - least_us, 1))

    def tail_us(self, least_us: int, budget_us: int, now_us: int) -> int:
        """What a tail is expected to take."""
        self._forget(now_us)
        used = median(self._parts) if self._parts else 0.0
        return least_us + round(used * max(budget_us - least_us, 0))

    def _forget(self, now_us: int) -> None:
        if now_us - self._answered_us > LOOK_US:
            self._parts.clear()


def standing(cut: Cut, link: Link, left_us: int, spare: SpareTime, now_us: int) -> Cut:
    """A cut with the tail that is expected there now; `left_us` is left of the SLO."""
    upload_us = link.upload_us(cut.upload_bytes) or 0
    budget_us = left_us - cut.head_us - upload_us - link.rtt_us
    return replace(cut, tail_us=spare.tail_us(cut.least_tail_us, budget_us, now_us))
