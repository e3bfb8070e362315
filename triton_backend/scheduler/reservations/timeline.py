"""Reserved intervals [start, end) of every vGPU and link: find a gap, reserve, release, delay.

Invariant: the intervals of a resource do not overlap, and its chain is in the order of starts:

    .first -> [ 10, 20 ) <-next, previous-> [ 25, 40 ) <-> [ 60, 70 ) <- .last

    earliest_start(at 0, length 5)  = 0      earliest_start(at 12, length 5)  = 20
    earliest_start(at 0, length 11) = 40     earliest_start(at 12, length 21) = 70

What a vGPU does that is not reserved here, work of another scheduler, ends at
`resources[r].idle_us`.

The index (`free_from_us`, `block_from_us`) is a lower bound that every change keeps true: a search
skips by it what cannot win, so it may be early, never late.
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.tables import DOWNLINK, KINDS, UPLINK, VGPU, Tables
from triton_backend.scheduler.topology import BLOCK


@kernel
def earliest_start(tables: Tables, resource: int, at_us: int, length_us: int) -> int:
    """First instant >= at_us from which the resource is free for length_us."""
    intervals = tables.intervals
    start = max(at_us, tables.resources[resource]["idle_us"])
    i = tables.resources[resource]["first"]
    while i != NONE:
        if intervals[i]["start_us"] >= start + length_us:
            break
        start = max(start, intervals[i]["end_us"])
        i = intervals[i]["next"]
    return start


@kernel
def earliest_move(tables: Tables, uplink: int, downlink: int, at_us: int, length_us: int) -> int:
    """First instant >= at_us from which both links are free for length_us; a link may be NONE."""
    start = at_us
    while True:
        first = start
        if uplink != NONE:
            first = earliest_start(tables, uplink, start, length_us)
        start = first
        if downlink != NONE:
            start = earliest_start(tables, downlink, first, length_us)
        if start == first:
            return start


@inlined
def reserve(tables: Tables, i: int, resource: int, start_us: int, end_us: int) -> None:
    """Put interval number i into the chain of a resource; the time must be free."""
    intervals = tables.intervals
    # from the end: most reservations lie behind all others
    before = tables.resources[resource]["last"]
    after = NONE
    while before != NONE and intervals[before]["start_us"] > start_us:
        after = before
        before = intervals[before]["previous"]
    intervals[i]["start_us"] = start_us
    intervals[i]["end_us"] = end_us
    intervals[i]["resource"] = resource
    _join(tables, resource, before, i)
    _join(tables, resource, i, after)
    refresh(tables, resource)


@inlined
def release(tables: Tables, i: int) -> None:
    """Take interval number i out of its chain, where it is in one."""
    intervals = tables.intervals
    resource = intervals[i]["resource"]
    if resource == NONE:
        return
    _join(tables, resource, intervals[i]["previous"], intervals[i]["next"])
    intervals[i]["resource"] = NONE
    refresh(tables, resource)


@inlined
def _join(tables: Tables, resource: int, before: int, after: int) -> None:
    if before == NONE:
        tables.resources[resource]["first"] = after
    else:
        tables.intervals[before]["next"] = after
    if after == NONE:
        tables.resources[resource]["last"] = before
    else:
        tables.intervals[after]["previous"] = before


@kernel
def refresh(tables: Tables, resource: int) -> None:
    """Make the index true for one vGPU again; links have none."""
    topology = tables.topology
    if resource >= len(topology.vgpus):
        return
    pool = topology.pools[topology.vgpus[resource]["pool"]]
    # No batch dispatched from now on is at this pool sooner than in `ahead_us`, and none runs
    # shorter than `least_us`: what such a job would find is a bound for every real one.
    free_from = FAR
    if tables.resources[resource]["lost"] == 0:
        at = tables.counts[0]["now_us"] + pool["ahead_us"]
        free_from = earliest_start(tables, resource, at, pool["least_us"])
    old = tables.free_from_us[resource]
    tables.free_from_us[resource] = free_from
    first = pool["first_vgpu"]
    block = pool["first_block"] + (resource - first) // BLOCK
    if free_from <= tables.block_from_us[block]:
        tables.block_from_us[block] = free_from
    elif old == tables.block_from_us[block]:  # it may have been the least of its block
        begin = first + (resource - first) // BLOCK * BLOCK
        end = min(begin + BLOCK, pool["end_vgpu"])
        least = FAR
        for vgpu in range(begin, end):
            least = min(least, tables.free_from_us[vgpu])
        tables.block_from_us[block] = least


@kernel
def delay(tables: Tables, i: int, not_before_us: int) -> None:
    """Start interval i no earlier than not_before_us; what must follow it moves too, in order.

    What follows: the next interval of the same resource, the same transfer on the other link, and
    the next step of the same batch. `Tables.pending` is the list of intervals whose followers are
    yet to be looked at; an interval stands in it once (`pending` of its row), so it cannot
    overflow. Starts only grow and every follower lies later, so this ends. A shared batch does not
    follow
    its members: a late one is `shared_batches`' matter.
    """
    intervals = tables.intervals
    hops = tables.offers.shape[1]
    count = _postpone(tables, i, not_before_us, 0)
    while count > 0:
        count -= 1
        i = tables.pending[count]
        intervals[i]["pending"] = 0
        start, end = intervals[i]["start_us"], intervals[i]["end_us"]
        kind = i % KINDS
        base = i - kind
        if intervals[i]["next"] != NONE:
            count = _postpone(tables, intervals[i]["next"], end, count)
        if kind != VGPU:
            twin = DOWNLINK if kind == UPLINK else UPLINK
            count = _postpone(tables, base + twin, start, count)
            count = _postpone(tables, base + VGPU, end, count)  # the run that the move leads to
        elif tables.batches[i // (KINDS * hops)]["capacity"] > 0:
            member = tables.batches[i // (KINDS * hops)]["aboard"]
            while member != NONE:  # they go on when the shared batch ends
                for following in range(KINDS):
                    count = _postpone(tables, member + KINDS - VGPU + following, end, count)
                member = intervals[member]["next"]
        elif (i // KINDS) % hops < hops - 1:
            for following in range(KINDS):  # the next hop: its move, and its run where none moves
                count = _postpone(tables, base + KINDS + following, end, count)


@kernel
def _postpone(tables: Tables, i: int, not_before_us: int, count: int) -> int:
    """Shift one interval, where it is reserved and too early, and put it on the work list."""
    interval = tables.intervals[i]
    if interval["resource"] == NONE or interval["start_us"] >= not_before_us:
        return count
    interval["end_us"] += not_before_us - interval["start_us"]
    interval["start_us"] = not_before_us
    refresh(tables, interval["resource"])
    if interval["pending"] == 0:
        interval["pending"] = 1
        tables.pending[count] = i
        count += 1
    return count
