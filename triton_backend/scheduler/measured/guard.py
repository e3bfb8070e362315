"""The guard: what is kept back of requests' time from the deadlines that the scheduler sees.

The scheduler fills batches to the last moment, so a batch may be planned to end just at the
deadline. What then comes late (its start, its run, the way of its answer) must fit into the guard.
How much that is is measured: every ANSWER says when its batch was to end. Where stages run slower
than profiled most batches end late, and then the guard makes up for that too, so that requests
start earlier, or are refused while another answer would still help their clients.

One rule for the fronts and the simulator. Not here: the times that the scheduler expects, which
follow stages that take half as long again (`paces`).

    arrival                               planned end      answer here
       |------- queue, stages, transfers -------|--- overrun ---|- reply -|
       |<-------------- announced ------------->|<-------- guard -------->| deadline of the client
"""

import numpy as np

MIN_GUARD_US = 3_000  # for the reply
USUAL_SHARE = 0.1  # of a request's time, until more is known
KEPT = 4096  # overruns, the last of them
FEWEST = 512  # with fewer nothing is known of one in a thousand
SHARE_COVERED = 0.999  # of the batches kept
COUNTED_EVERY = 64  # answers, of which the median tells a slow stage from a late batch


def kept_back_us(share: float | None, allowed_us: int) -> int:
    """A share (None: `USUAL_SHARE`) of a time that is allowed; a half of it at most."""
    part = USUAL_SHARE if share is None else share
    return min(max(round(part * allowed_us), MIN_GUARD_US), allowed_us // 2)


class Guard:
    """The guard of one model's requests.

    Until enough batches were answered it is a share of each request's time (`kept_back_us`);
    afterwards what all but one in a thousand of the last batches overran by, and `MIN_GUARD_US` for
    the reply, never more than that share. It is more only where half of the last `COUNTED_EVERY`
    batches overran by more: then as much. In either case a request that finds its vGPUs free is
    left the time that it needs.

    Args:
        share: of a request's time, given by the operator, which then stays; None: `USUAL_SHARE`,
            and what is measured.

    Attributes:
        least_us: least time of a request by the profiles, without waits.
        measured: False where the plan's shared batches wait for their members out of the guard:
            then it is that share.
    """

    def __init__(self, share: float | None = None) -> None:
        self.least_us = 0
        self.measured = True
        self._share = share
        self._overruns_us = np.zeros(KEPT, np.int64)  # a ring
        self._count = 0
        self._needed_us: int | None = None
        self._typical_us = 0
        self._most = 0, kept_back_us(share, 0)  # of the time that was asked for last

    def guard_us(self, allowed_us: int) -> int:
        """The guard of a request that allows `allowed_us`; from any thread."""
        (known_us, most_us), needed_us = self._most, self._needed_us
        if known_us != allowed_us:
            most_us = kept_back_us(self._share, allowed_us)
            self._most = allowed_us, most_us
        if not self.measured or self._share is not None:
            return most_us
        usual_us = most_us if needed_us is None else min(most_us, needed_us)
        # A guard that leaves no request any chance is never measured again.
        room_us = allowed_us - self.least_us - MIN_GUARD_US
        return min(max(usual_us, self._typical_us), room_us) if room_us > 0 else usual_us

    def answered(self, planned_end_us: int, now_us: int) -> None:
        """A batch was answered that was to end at `planned_end_us`; from one thread at a time."""
        if self._share is not None:
            return
        self._overruns_us[self._count % KEPT] = max(0, now_us - planned_end_us)
        self._count += 1
        if self._count % COUNTED_EVERY:
            return
        last = (self._count - 1) % KEPT + 1  # `KEPT` is a multiple of `COUNTED_EVERY`
        recent_us = self._overruns_us[last - COUNTED_EVERY : last]
        self._typical_us = MIN_GUARD_US + int(np.median(recent_us))
        if self._count >= FEWEST:
            kept = self._overruns_us[: self._count]
            overrun_us = np.quantile(kept, SHARE_COVERED, method="higher")
            self._needed_us = MIN_GUARD_US + int(overrun_us)
