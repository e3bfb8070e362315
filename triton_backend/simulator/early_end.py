"""When a run may end early: some model or application surely attains less than is asked.

A request that was late or dropped stays so, hence attainment is at most the share of those that
were not. A run that ended here has served no more than that of it, so its verdict is that of the
whole run.
"""

from collections.abc import Iterator

import numpy as np

from triton_backend.contract.units import s_to_us
from triton_backend.scheduler.compiled import NONE, Records
from triton_backend.simulator.world import (
    DROPPED,
    LATE,
)

LOOKS = 20  # of a run, at whether it may end early


def looks_us(duration_s: float, least: float | None) -> Iterator[int]:
    """Instants at which a run looks whether it may end; none where nothing is asked."""
    if least is not None:
        duration_us = s_to_us(duration_s)
        yield from (duration_us * look // LOOKS for look in range(1, LOOKS))


def surely_below(requests: Records, least: float | None) -> bool:
    """True if what has failed by now keeps a model or an application below.

    Args:
        requests: `world.REQUEST_RECORD` rows of a whole run, with the outcomes so far; low requests
            do not count.
        least: attainment that is asked of each; None: nothing is.
    """
    counted = requests[requests["low"] == 0]
    failed = (counted["outcome"] == LATE) | (counted["outcome"] == DROPPED)
    for column in ("model", "application"):
        known = counted[column] != NONE
        offered = np.bincount(counted[column][known])
        lost = np.bincount(counted[column][known & failed], minlength=len(offered))
        some = offered > 0
        if least is not None and bool(((offered - lost)[some] / offered[some] < least).any()):
            return True
    return False
