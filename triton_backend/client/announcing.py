"""Announcements of a client and their instants; pure, shared with the simulator.

It announces its last cut, the least budget there and the rate there of the last two seconds: at
once where the cut is another one, every half second where rate or budget are others by more than a
tenth, and else before its lease ends. A client that moves to another cut takes along the rate of
all that it sends. A client that sends nothing any more gives its lease back.
"""

from collections import deque
from typing import NamedTuple

WINDOW_US = 2_000_000  # a client announces the least budget and the rate of this long,
SOON_US = 500_000  # or since it began, but of so long at least,
PERIODS = 3  # or of so many requests, where that is longer
AGAIN_US = 500_000  # between two announcements of one cut
TOLERANCE = 0.1  # of rate and budget
RENEWED = 0.5  # of a lease, after which it is renewed
FAILED_US = 1_000_000  # after an announcement that was not taken


class Announcement(NamedTuple):
    """Where a client cuts, what it leaves the server at least, how often.

    A rate of 0 gives its lease back.
    """

    block: int
    budget_us: int
    rate_rps: float


class Announcing:
    """One client's demand and announcements; `rps`: of all its requests."""

    def __init__(self, rps: float) -> None:
        self._rps = rps
        self._decided: deque[tuple[int, int, int]] = deque()  # when, cut, budget
        self._said: Announcement | None = None
        self._said_us = 0
        self._renewed_us = 0
        self._rests_until_us = 0

    def decided(self, now_us: int, block: int, budget_us: int) -> None:
        """A request is to be sent from there."""
        self._decided.append((now_us, block, budget_us))

    def sends(self, now_us: int) -> Announcement | None:
        """Its last cut, the least budget and the rate there of the last seconds.

        None: it sends nothing. A client that has begun to send says so at once, by the rate since
            then. At
        its last cut that is the part of all requests that has gone there since the first of them
        did. One that has just moved is counted whole, so that one plan follows the move, and not
        one for its first request and then another for its rate.
        """
        us_per_s = 1_000_000
        long_us = max(WINDOW_US, PERIODS * us_per_s / self._rps)
        while self._decided and self._decided[0][0] < now_us - long_us:
            self._decided.popleft()
        if not self._decided:
            return None
        block = self._decided[-1][1]
        budgets = [budget for _, at, budget in self._decided if at == block]
        span_us = min(max(now_us - self._decided[0][0], SOON_US), long_us)
        if self._rps * span_us < PERIODS * us_per_s:
            span_us = long_us
        rate_rps = min(len(self._decided) * us_per_s / span_us, self._rps)
        before = next(n for n, (_, at, _) in enumerate(self._decided) if at == block)
        part = len(budgets) / (len(self._decided) - before)
        return Announcement(block, min(budgets), part * rate_rps)

    def due(self, now_us: int) -> Announcement | None:
        """The announcement due now, if any."""
        sends, said = self.sends(now_us), self._said
        if now_us < self._rests_until_us:
            return None
        if sends is None or said is None:
            return sends if said is None else said._replace(rate_rps=0.0)
        if sends.block != said.block or now_us >= self._renewed_us:
            return sends
        moved = any(
            abs(is_now - was) > TOLERANCE * was
            for is_now, was in (
                (sends.budget_us, said.budget_us),
                (sends.rate_rps, said.rate_rps),
            )
        )
        return sends if moved and now_us - self._said_us >= AGAIN_US else None

    @property
    def said(self) -> Announcement | None:
        """The last announcement that the server took and that still holds, if any."""
        return self._said

    def announced(self, now_us: int, said: Announcement, lease_us: int) -> None:
        """The server took it, for so long."""
        self._said = said if said.rate_rps else None
        self._said_us, self._renewed_us = now_us, now_us + round(RENEWED * lease_us)

    def failed(self, now_us: int) -> None:
        """It was not taken; the one before may still hold, or not."""
        self._said = None
        self._rests_until_us = now_us + FAILED_US
