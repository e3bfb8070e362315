"""Stages that are loaded on demand: what is there, and what is evicted for another.

Least recently used first, until what is asked for finds room. The order of runs decides alone, so
that it says what is there. The simulator compiles this; workers run it as written.
"""

from collections.abc import MutableSequence, Sequence

ABSENT = 0
"""The number of the last run of a stage that is not there."""


def admit(used: MutableSequence[int], sizes: Sequence[int], room: int, stage: int) -> bool:
    """Make a stage present, as it is about to run; answers whether it must be loaded.

    Args:
        used: [stages] number of the last run of each, from 1 on; `ABSENT` of those evicted.
        sizes: [stages] bytes.
        room: bytes for all that are present; no stage is larger.
        stage: which one runs.
    """
    held = 0
    latest = ABSENT
    for other in range(len(used)):
        if used[other] != ABSENT:
            held += sizes[other]
            latest = max(latest, used[other])
    absent = used[stage] == ABSENT
    if absent:
        held += sizes[stage]
    while held > room:
        oldest = -1
        for other in range(len(used)):
            if used[other] == ABSENT or other == stage:
                continue
            if oldest == -1 or used[other] < used[oldest]:
                oldest = other
        if oldest == -1:
            break
        held -= sizes[oldest]
        used[oldest] = ABSENT
    used[stage] = latest + 1
    return absent
