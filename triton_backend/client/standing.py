"""The expected time of the server at a cut, from past answers.

Pure, also of the simulator's clients.
"""

from collections import deque
from statistics import median

from .decide import Cut, Decision, Link

ANSWERS = 5  # whose median tells how much of the spare time the server uses
LOOK_US = 5_000_000  # between two looks at open cuts and the round trip
FRESH_US = 1_000_000  # for which an offer is good enough to move a cut
REST_US, MOST_REST_US = 50_000, 1_000_000  # in which a cut that was refused is not tried


class SpareTime:
    """The part of the time beyond its least tail that the server uses for waits.

    A server that fills batches waits the longer the more time it is given, so what one answer took
    says little of another cut; this part does. After five seconds without an answer nothing is
    known.
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
        """The expected time of a tail."""
        self._forget(now_us)
        used = median(self._parts) if self._parts else 0.0
        return least_us + round(used * max(budget_us - least_us, 0))

    def _forget(self, now_us: int) -> None:
        if now_us - self._answered_us > LOOK_US:
            self._parts.clear()


class Rests:
    """Cuts that the server refused, and until when they are not tried.

    Each time in a row twice as long.
    """

    def __init__(self) -> None:
        self._until_us: dict[int, int] = {}
        self._lasts_us: dict[int, int] = {}

    def refused(self, now_us: int, block: int, *, closed: bool) -> None:
        """A refusal; `closed`: of the cut itself, until the next look."""
        lasts_us = LOOK_US if closed else self._lasts_us.get(block, REST_US)
        self._lasts_us[block] = min(2 * lasts_us, MOST_REST_US)
        self._until_us[block] = now_us + lasts_us

    def answered(self, block: int) -> None:
        """The server serves the cut."""
        self._lasts_us.pop(block, None)

    def over(self, now_us: int, block: int) -> bool:
        """True if a cut may be tried."""
        return self._until_us.get(block, 0) <= now_us


def moves(found: Decision, last: Decision | None, whole: int, age_us: int) -> bool:
    """True if an offer is asked for first.

    The cut is to be another one on the server, and the last offer is old.
    """
    sent = found.feasible and found.block < whole
    return sent and (last is None or found.block != last.block) and age_us >= FRESH_US


def standing(cut: Cut, link: Link, left_us: int, spare: SpareTime, now_us: int) -> Cut:
    """A cut with the tail that is expected there now; `left_us` is left of the SLO."""
    upload_us = link.upload_us(cut.upload_bytes) or 0
    budget_us = left_us - cut.head_us - upload_us - link.rtt_us
    return (
        Cut(  # `replace` takes ten times as long, and this is done for every cut of every request
            block=cut.block,
            upload_bytes=cut.upload_bytes,
            head_us=cut.head_us,
            tail_us=spare.tail_us(cut.least_tail_us, budget_us, now_us),
            least_tail_us=cut.least_tail_us,
        )
    )
