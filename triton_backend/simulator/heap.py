"""Future events as a binary heap in a flat array, in the total order (time, priority, sequence).

The heap's rows are `EVENT` records; how many are in use is the caller's to keep.
"""

import numpy as np

from triton_backend.scheduler.compiled import Record, Records, inlined

# Kinds, which are priorities too: at one instant ends come first, so that what they free is there.
STAGE_DONE = 0
TRANSFER_DONE = 1
WORKER_BACK = 2
WORKER_LOST = 3
TRANSFER_START = 4
STAGE_START = 5
TIMER = 6
ARRIVAL = 7

EVENT = np.dtype([(name, np.int64) for name in ("at_us", "kind", "sequence", "subject", "number")])


@inlined
def precedes(a: Record, b: Record) -> bool:
    """True if event a comes before event b."""
    if a["at_us"] != b["at_us"]:
        return a["at_us"] < b["at_us"]
    if a["kind"] != b["kind"]:
        return a["kind"] < b["kind"]
    return a["sequence"] < b["sequence"]


@inlined
def _copy(heap: Records, to: int, source: int) -> None:
    heap[to]["at_us"] = heap[source]["at_us"]
    heap[to]["kind"] = heap[source]["kind"]
    heap[to]["sequence"] = heap[source]["sequence"]
    heap[to]["subject"] = heap[source]["subject"]
    heap[to]["number"] = heap[source]["number"]


@inlined
def sift_up(heap: Records, length: int) -> None:
    """Bring row length - 1 to its place; row `length` is scratch."""
    at = length - 1
    _copy(heap, length, at)
    while at > 0:
        parent = (at - 1) // 2
        if not precedes(heap[length], heap[parent]):
            break
        _copy(heap, at, parent)
        at = parent
    _copy(heap, at, length)


@inlined
def remove_first(heap: Records, length: int) -> None:
    """Take row 0 out of a heap of `length` rows."""
    last = length - 1
    at = 0
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and precedes(heap[child + 1], heap[child]):
            child += 1
        if not precedes(heap[child], heap[last]):
            break
        _copy(heap, at, child)
        at = child
    _copy(heap, at, last)
