"""Low requests: they are served with what others leave, and delay none of them.

They wait in queues of their own and reserve nothing ahead: a batch of them is sent only when its
first vGPU is free at once, and the path behind it nearly so. Beside the queues of early binding,
requests that wait in the queue of the same model go with it, before the low ones, which fill the
batch up. It is sent only where, behind it, all others still end in time: those that wait, and those
that may come until it ends

    now                         its end
     |=========== low batch =======|
     *  *    *      *        *          others to come: m samples within m = r t + BURST sqrt(r t)
                                        r: their measured rate, which begins as planned

Each of these is probed and reserved for a moment, like a batch of its own, in the order of a burst
that begins now; the last of them must end `GUARD` of its budget before its deadline. Only queues
that share a pool with the batch are looked at, `MOST_OTHERS` batches of them in all.

A queue waits for a whole batch for half of its head's spare time. A head that not even a whole
batch could end in time for is dropped, so that overload never makes batches small. Where a low
batch cannot go it is tried again when its path is free, or when the one that would be late no
longer would.
"""

from math import sqrt

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.jobs import drop_request
from triton_backend.scheduler.policies.head import out_of_room
from triton_backend.scheduler.queues import make_batch, run_from
from triton_backend.scheduler.reservations.probe import BY_UPLINK, commit, probe
from triton_backend.scheduler.reservations.timeline import release
from triton_backend.scheduler.tables import (
    DEADLINE,
    KINDS,
    NEEDS_ROOM,
    SETTLED,
    Tables,
    interval_of,
)
from triton_backend.scheduler.topology import RATE_SHIFT, first_low, pipelines_of

SENT = 3  # an answer beside `SETTLED` and `NEEDS_ROOM`
BURST = 2.0  # standard deviations of requests to come, where they come at random
GUARD = 64  # the part of a budget that others keep
MOST_OTHERS = 24
STEPS = 16  # a batch that others keep from going is tried again after its length by this, at least
KEPT = 4  # a low batch ends before its deadline by a part of its path or its spare time
BEHIND = 4  # the part of its path that it may wait behind its first stage
QUIET = 8  # a rate is less than one request in the time since the last by this


@kernel
def send_low(tables: Tables, number: int) -> int:
    """Send one batch of a queue of low requests.

    `SENT`, `NEEDS_ROOM`, or `SETTLED` where none goes; its timer says when to try again.
    """
    queue = tables.queues[number]
    queue["timer_us"] = FAR
    if tables.counts[0]["paused"] == 1:
        return SETTLED
    while queue["first"] != NONE:
        if out_of_room(tables):
            return NEEDS_ROOM
        again = FAR
        finish = FAR
        for pipeline in pipelines_of(tables.topology, number):
            moment = _look(tables, number, pipeline)
            if moment in (_NOW, _NO_SLOT):
                return SENT if moment == _NOW else NEEDS_ROOM
            again = min(again, moment)
            samples = min(
                tables.requests[queue["first"]]["samples"],
                tables.topology.pipelines[pipeline]["largest"],
            )
            least = tables.topology.path_us[pipeline, samples]
            finish = min(finish, tables.counts[0]["now_us"] + least)
        if again < FAR:
            queue["timer_us"] = again
            return SETTLED
        drop_request(tables, queue["first"], DEADLINE, finish)
    return SETTLED


_NOW = 0
_NO_SLOT = -1


@kernel
def _look(tables: Tables, number: int, pipeline: int) -> int:
    """Send a batch by a pipeline: `_NOW`, or when to try again; FAR where it keeps no head."""
    behind = 0
    high = number - first_low(tables.topology)
    if tables.topology.queues[high]["late"] == 0:
        behind = tables.queues[high]["samples"]
    again = FAR
    if behind > 0:
        again = _try(tables, number, pipeline, behind)
        if again in (_NOW, _NO_SLOT):
            return again
    return min(again, _try(tables, number, pipeline, 0))


@kernel
def _try(tables: Tables, number: int, pipeline: int, before: int) -> int:
    """Send a batch of `before` samples of the others that wait, and of low ones; as `_look`."""
    now = tables.counts[0]["now_us"]
    high = number - first_low(tables.topology)
    size = _samples(tables, number, pipeline, before)
    first = tables.queues[number]["first"]
    deadline = _ends_by(tables, first, tables.topology.path_us[pipeline, size])
    if before > 0:
        first = tables.queues[high]["first"]
        deadline = min(deadline, tables.requests[first]["deadline_us"])
    latest = deadline - tables.topology.path_us[pipeline, size]
    if size == 0 or latest < now:
        return FAR
    ready = _waits_until(tables, number, pipeline, before, latest)
    if now < ready:
        return ready
    start = now + _lead_us(tables, high, size)
    probe(tables, pipeline, size, start, BY_UPLINK)
    blocked_us = _blocked_us(tables, pipeline, size, start)
    if blocked_us > 0:
        return min(now + blocked_us, latest + 1)
    late_by = latest + 1 - now
    if tables.quotes[pipeline]["finish_us"] <= deadline:
        late_by = _delays_others(tables, pipeline, high if before > 0 else NONE)
    if late_by != 0:
        step = tables.topology.path_us[pipeline, size] // STEPS + 1
        again = min(now + max(late_by, step), latest + 1)
        return _NO_SLOT if late_by == _NO_SLOT else again
    probe(tables, pipeline, size, start, BY_UPLINK)
    commit(tables, pipeline, make_batch(tables, first, pipeline))
    if before > 0:
        tables.queues[high]["timer_us"] = FAR  # none of them waits any longer
    return _NOW


@inlined
def _ends_by(tables: Tables, request: int, path_us: int) -> int:
    """When a batch with a low request is to end: before its deadline, because runs may be late."""
    row = tables.requests[request]
    spare = row["deadline_us"] - row["arrival_us"] - path_us
    return row["deadline_us"] - min(max(spare, 0), path_us) // KEPT


@inlined
def _blocked_us(tables: Tables, pipeline: int, size: int, start_us: int) -> int:
    """How long until the path just probed is free: the first stage, and nearly all behind it.

    A split pipeline whose stages are equally busy would lose time if all had to be free at once.
    """
    quote, offer = tables.quotes[pipeline], tables.offers[pipeline, 0]
    if quote["finish_us"] >= FAR:
        return FAR
    moved = offer["move_end_us"] - offer["move_start_us"]
    behind = quote["wait_us"] - tables.topology.path_us[pipeline, size] // BEHIND
    return max(offer["start_us"] - start_us - moved, behind)


@inlined
def _samples(tables: Tables, number: int, pipeline: int, before: int) -> int:
    """Samples of a batch that low requests fill up from the head on; 0 where none fits."""
    queue = tables.queues[number]
    row = tables.topology.pipelines[pipeline]
    head = tables.requests[queue["first"]]["samples"]
    batch = row["batch"]
    if before == 0:
        batch = min(max(batch, head), row["largest"])
    if head > batch - before:
        return 0
    return before + run_from(tables, number, queue["first"], queue["samples"], batch - before)


@inlined
def _waits_until(tables: Tables, number: int, pipeline: int, before: int, latest_us: int) -> int:
    """Until when a queue that does not fill a batch waits for more: half of its head's time."""
    queue = tables.queues[number]
    head = tables.requests[queue["first"]]
    arrival = head["arrival_us"]
    if before + queue["samples"] >= tables.topology.pipelines[pipeline]["batch"]:
        return arrival
    latest_us -= head["deadline_us"] - head["gather_by_us"]
    return arrival + max(latest_us - arrival, 0) // 2


@inlined
def _lead_us(tables: Tables, high: int, samples: int) -> int:
    """How long before its start a batch is sent beside a queue of late binding."""
    counts = tables.counts[0]
    if tables.topology.queues[high]["late"] == 0:
        return 0
    return counts["lead_us"] + samples * counts["lead_us_per_sample"]


@kernel
def _delays_others(tables: Tables, pipeline: int, aboard: int) -> int:
    """By how much others would be late behind a batch that was just probed; 0: none is.

    Or `_NO_SLOT`. `aboard` is the queue whose waiting requests go with it. Reserves the batch and
    what follows in free slots, and releases all of it again.
    """
    topology = tables.topology
    sharing = 0
    for queue in range(first_low(topology)):
        if _shares(tables, queue, pipeline):
            sharing += 1
    most = max(1, MOST_OTHERS // max(1, sharing))
    until = tables.quotes[pipeline]["finish_us"]
    first = tables.counts[0]["free_batch"]
    commit(tables, pipeline, first)
    slot = tables.batches[first]["next_free"]
    late_by = 0
    for queue in range(first_low(topology)):
        if late_by == 0 and _shares(tables, queue, pipeline):
            waiting = 0 if queue == aboard else tables.queues[queue]["samples"]
            late_by, slot = _late_behind(tables, queue, waiting, until, most, slot)
    while first != slot:
        i = interval_of(tables, first, 0, 0)
        for k in range(i, i + tables.offers.shape[1] * KINDS):
            release(tables, k)
        first = tables.batches[first]["next_free"]
    return late_by


@kernel
def _shares(tables: Tables, queue: int, pipeline: int) -> bool:
    """True if a pipeline of a queue has a stage on a pool of another pipeline."""
    topology = tables.topology
    own = topology.pipelines[pipeline]
    for other in pipelines_of(topology, queue):
        if other == pipeline:
            return True
        row = topology.pipelines[other]
        for s in range(row["first_stage"], row["first_stage"] + row["stages"]):
            for t in range(own["first_stage"], own["first_stage"] + own["stages"]):
                if topology.stages[s]["pool"] == topology.stages[t]["pool"]:
                    return True
    return False


@kernel
def _late_behind(
    tables: Tables, queue: int, waiting: int, until_us: int, most: int, slot: int
) -> tuple[int, int]:
    """By how much batches of a queue would be late, and the next free slot.

    Those that wait, and those that may come until an instant; `most` of them at most.
    """
    now = tables.counts[0]["now_us"]
    plan = tables.topology.queues[queue]
    per_sample_us = _per_sample_us(tables, queue)
    size = _gathered(tables, queue, per_sample_us)
    keep_us = plan["budget_us"] - plan["budget_us"] // GUARD
    count = 0
    ready, deadline = now, now + keep_us
    if waiting > 0:
        deadline = tables.requests[tables.queues[queue]["first"]]["deadline_us"]
    to_come = 0  # samples that come before the head of the next batch
    while count < most and ready < until_us:
        if slot == NONE:
            tables.counts[0]["short"] = 1
            return _NO_SLOT, slot
        late_by = _late_by(tables, queue, size, ready, deadline, slot)
        if late_by != 0:
            return late_by, slot
        slot = tables.batches[slot]["next_free"]
        count += 1
        if waiting > size:
            waiting -= size
            continue
        to_come += size - waiting
        waiting = 0
        if per_sample_us <= 0.0:
            break
        root = (sqrt(BURST * BURST + 4.0 * to_come) - BURST) / 2.0
        ready = now + int(root * root * per_sample_us)
        deadline = ready + keep_us
    return 0, slot


@inlined
def _per_sample_us(tables: Tables, queue: int) -> float:
    """Mean time between samples of a queue; 0 where it is not known."""
    row = tables.queues[queue]
    gap = row["gap"] / (1 << RATE_SHIFT)
    if row["arrived_us"] != NONE:
        gap = max(gap, (tables.counts[0]["now_us"] - row["arrived_us"]) / QUIET)
    return gap / max(row["size"] / (1 << RATE_SHIFT), 1.0)


@inlined
def _gathered(tables: Tables, queue: int, per_sample_us: float) -> int:
    """Samples that a batch of a queue has: as planned or, late, as many as come in its spare time.

    A policy of early binding may drop a head whose planned batch does not end in time behind
    others, though a smaller one would (`reservation_ahead.wastes_capacity`).
    """
    topology = tables.topology
    size = 1
    late = topology.queues[queue]["late"] == 1
    for pipeline in pipelines_of(topology, queue):
        batch = topology.pipelines[pipeline]["batch"]
        spare = topology.queues[queue]["budget_us"] - topology.path_us[pipeline, batch]
        if late and per_sample_us > 0.0:
            batch = min(batch, 1 + int(max(spare, 0) / per_sample_us))
        size = max(size, batch)
    return size


@kernel
def _late_by(
    tables: Tables, queue: int, samples: int, ready_us: int, deadline_us: int, slot: int
) -> int:
    """Reserve a batch of a queue in a free slot, or say by how much it would be late."""
    least = FAR
    for pipeline in pipelines_of(tables.topology, queue):
        size = min(samples, tables.topology.pipelines[pipeline]["batch"])
        finish = probe(tables, pipeline, size, ready_us, BY_UPLINK)
        if finish <= deadline_us:
            commit(tables, pipeline, slot)
            return 0
        least = min(least, finish - deadline_us)
    return least
