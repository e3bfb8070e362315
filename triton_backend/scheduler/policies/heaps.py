"""Timers and ready candidates: binary heaps of items with keys, in `heaps`.

A heap is a run of rows; an item is a row too, and lies in one heap at a time:

    rows   0 .. pipelines            .. timers                     .. timers + pipelines
           | candidates by pipeline | pools |   ready candidates, pool behind pool    |
           '---- one heap of timers --------'   '--- a heap ---''--- a heap ---'

`item` [place] is the item at a place, `place` [item] where an item stands (NONE: nowhere),
`key` [item] what it is ordered by; ties: the lower item.
"""

from triton_backend.scheduler.compiled import NONE, Records, inlined, kernel
from triton_backend.scheduler.tables import Tables


@inlined
def timer_rows(tables: Tables) -> int:
    """Rows of the heap of timers, which come before those of ready candidates."""
    return len(tables.candidates) + len(tables.topology.pools)


@inlined
def ready_base(tables: Tables, pool: int) -> int:
    """The first place of a pool's heap of ready candidates."""
    return timer_rows(tables) + tables.topology.pools[pool]["first_candidate"]


@kernel
def join_ready(tables: Tables, pipeline: int) -> None:
    """Put a candidate into the heap of its pool."""
    pool = tables.topology.pipelines[pipeline]["pool"]
    item = timer_rows(tables) + pipeline
    tables.heaps[item]["key"] = tables.candidates[pipeline]["key"]
    tables.heaps[pool]["ready_count"] += 1
    _put(tables.heaps, ready_base(tables, pool), tables.heaps[pool]["ready_count"], item)


@kernel
def leave_ready(tables: Tables, pipeline: int) -> None:
    """Take a candidate out of the heap of its pool."""
    pool = tables.topology.pipelines[pipeline]["pool"]
    item = timer_rows(tables) + pipeline
    tables.heaps[pool]["ready_count"] -= 1
    _remove(tables.heaps, ready_base(tables, pool), tables.heaps[pool]["ready_count"], item)


@kernel
def arm(tables: Tables, item: int, due_us: int) -> None:
    """Set an item's timer, or move it."""
    if tables.heaps[item]["place"] == NONE:
        tables.counts[0]["timers"] += 1
    tables.heaps[item]["key"] = due_us
    _put(tables.heaps, 0, tables.counts[0]["timers"], item)


@kernel
def disarm(tables: Tables, item: int) -> None:
    """Take an item's timer away, where it has one."""
    if tables.heaps[item]["place"] != NONE:
        tables.counts[0]["timers"] -= 1
        _remove(tables.heaps, 0, tables.counts[0]["timers"], item)


@inlined
def _before(heaps: Records, one: int, other: int) -> bool:
    a, b = heaps[one]["key"], heaps[other]["key"]
    return a < b or (a == b and one < other)


@inlined
def _set(heaps: Records, place: int, item: int) -> None:
    heaps[place]["item"] = item
    heaps[item]["place"] = place


@kernel
def _put(heaps: Records, base: int, count: int, item: int) -> None:
    """Put an item into the heap whose first place is `base`, or move it there by its new key.

    `count` items are in the heap then.
    """
    place = heaps[item]["place"]
    if place == NONE:
        place = base + count - 1
    _put_at(heaps, base, count, place, item)


@kernel
def _remove(heaps: Records, base: int, count: int, item: int) -> None:
    """Take an item out of a heap, which has `count` left."""
    place = heaps[item]["place"]
    heaps[item]["place"] = NONE
    last = heaps[base + count]["item"]
    if last != item:
        _put_at(heaps, base, count, place, last)


@inlined
def _put_at(heaps: Records, base: int, count: int, place: int, item: int) -> None:
    """Put an item at a free place, or as far below or above it as it belongs."""
    child = base + 2 * (place - base) + 1
    while child < base + count:
        if child + 1 < base + count and _before(
            heaps, heaps[child + 1]["item"], heaps[child]["item"]
        ):
            child += 1
        below = heaps[child]["item"]
        if not _before(heaps, below, item):
            break
        _set(heaps, place, below)
        place = child
        child = base + 2 * (place - base) + 1
    while place > base:
        parent = base + (place - base - 1) // 2
        above = heaps[parent]["item"]
        if not _before(heaps, item, above):
            break
        _set(heaps, place, above)
        place = parent
    _set(heaps, place, item)
