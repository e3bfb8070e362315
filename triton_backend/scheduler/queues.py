"""Requests from arrival to their end: the queue of each model, and batches made of its head.

A queue is in the order of deadlines (ties: order of arrival), so its head is the most urgent. Where
all requests have the model's SLO that is the order of arrival; a request that comes back after its
vGPU died takes its old place again.

    request slot:   free --new_request--> new --enqueue--> queued --make_batch--> in a batch
                     ^                                      |   ^                  |      |
                     |                                    drop  +---- abort -------+      |
                     +---- free_request --------------------+                             |
                     +---- serve_batch -----------------------------------------------------+
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.reservations.shared_batches import leave_shared_batches
from triton_backend.scheduler.reservations.timeline import release
from triton_backend.scheduler.tables import (
    DEADLINE,
    DEADLY,
    DISPATCH,
    DROP,
    KINDS,
    MODEL_REMOVED,
    MOST_DEATHS,
    WORKER_LOST,
    Tables,
    add_decision,
    count_time,
    interval_of,
)
from triton_backend.scheduler.topology import LONGEST_GAP_US, RATE_SHIFT, first_low

MEMORY_REQUESTS = 200  # the measured rate is a mean over so many requests,
MEMORY_BUDGETS = 5  # or over so many budgets of the entry where that is longer


@inlined
def new_request(tables: Tables, queue: int, request_id: int, deadline_us: int, samples: int) -> int:
    """Take a free request slot (there must be one) and fill it; it is in no queue yet.

    It waits for others as if it had the budget of its queue, where its own deadline is later: that
    leaves it more time where vGPUs are busy, and makes it wait no longer where one is free.
    """
    counts = tables.counts[0]
    slot = counts["free_request"]
    request = tables.requests[slot]
    counts["free_request"] = request["next"]
    request["id"] = request_id
    request["queue"] = queue
    request["arrival_us"] = counts["now_us"]
    request["deadline_us"] = deadline_us
    budget_us = tables.topology.queues[queue]["budget_us"]
    request["gather_by_us"] = min(deadline_us, counts["now_us"] + budget_us)
    request["samples"] = samples
    request["sequence"] = counts["requests"]
    request["retried"] = request["deaths"] = 0
    request["batch"] = request["job"] = NONE
    counts["requests"] += 1
    return slot


@inlined
def free_request(tables: Tables, slot: int) -> None:
    """Give a request slot back."""
    counts = tables.counts[0]
    tables.requests[slot]["sequence"] = NONE
    tables.requests[slot]["next"] = counts["free_request"]
    counts["free_request"] = slot


@inlined
def enqueue(tables: Tables, slot: int) -> None:
    """Put a request into its model's queue."""
    requests = tables.requests
    queue = tables.queues[requests[slot]["queue"]]
    # from the end, where nearly all requests belong
    before = queue["last"]
    after = NONE
    while before != NONE and _precedes(tables, slot, before):
        after = before
        before = requests[before]["previous"]
    requests[slot]["previous"] = before
    requests[slot]["next"] = after
    requests[slot]["batch"] = NONE
    if before == NONE:
        queue["first"] = slot
    else:
        requests[before]["next"] = slot
    if after == NONE:
        queue["last"] = slot
    else:
        requests[after]["previous"] = slot
    queue["requests"] += 1
    queue["samples"] += requests[slot]["samples"]


@kernel
def measure_gap(tables: Tables, queue: int, samples: int) -> None:
    """A request came: correct the mean gap and size of requests.

    Both are exponential means, each request with weight 1 / max(`MEMORY_REQUESTS`, requests in
    `MEMORY_BUDGETS` budgets); they start at the planned rate and at one sample.
    """
    topology = tables.topology
    row = tables.queues[queue]
    now = tables.counts[0]["now_us"]
    if row["arrived_us"] != NONE:
        gap = min(now - row["arrived_us"], LONGEST_GAP_US) << RATE_SHIFT
        if row["gap"] == 0:
            row["gap"] = gap
        memory = (MEMORY_BUDGETS * topology.queues[queue]["budget_us"]) << RATE_SHIFT
        weight = max(MEMORY_REQUESTS, memory // max(row["gap"], 1))
        row["gap"] += (gap - row["gap"]) // weight
        row["size"] += ((samples << RATE_SHIFT) - row["size"]) // weight
    row["arrived_us"] = now


@inlined
def _precedes(tables: Tables, one: int, other: int) -> bool:
    a, b = tables.requests[one], tables.requests[other]
    if a["deadline_us"] != b["deadline_us"]:
        return a["deadline_us"] < b["deadline_us"]
    return a["sequence"] < b["sequence"]


@inlined
def remove(tables: Tables, slot: int) -> None:
    """Take a queued request out of its queue."""
    requests = tables.requests
    queue = tables.queues[requests[slot]["queue"]]
    before, after = requests[slot]["previous"], requests[slot]["next"]
    if before == NONE:
        queue["first"] = after
    else:
        requests[before]["next"] = after
    if after == NONE:
        queue["last"] = before
    else:
        requests[after]["previous"] = before
    queue["requests"] -= 1
    queue["samples"] -= requests[slot]["samples"]


@kernel
def drop(tables: Tables, slot: int, reason: int, finish_us: int) -> None:
    """Take a queued request out for a reason; its slot stays readable until `free_request`."""
    request = tables.requests[slot]
    if reason == DEADLINE and request["deaths"] >= MOST_DEATHS:
        reason = DEADLY
    elif reason == DEADLINE and request["retried"] == 1:
        reason = WORKER_LOST  # it would have ended in time had its vGPU not died
    if tables.topology.queues[tables.requests[slot]["queue"]]["model"] == NONE:
        reason = MODEL_REMOVED
    position = 0
    before = tables.requests[slot]["previous"]
    while before != NONE:
        position += 1
        before = tables.requests[before]["previous"]
    remove(tables, slot)
    tables.counts[0]["dropped"] += 1
    add_decision(tables, DROP, slot, reason, finish_us, position)


@kernel
def prefix(tables: Tables, number: int, samples: int) -> int:
    """Samples of the longest run of requests from the head that holds at most `samples`."""
    queue = tables.queues[number]
    return run_from(tables, number, queue["first"], queue["samples"], samples)


@kernel
def run_from(tables: Tables, number: int, slot: int, behind: int, samples: int) -> int:
    """The same of a run from any request of a queue, from which on it holds `behind` samples."""
    queue = tables.queues[number]
    if behind <= samples:
        return behind
    if queue["samples"] == queue["requests"]:  # single samples fill any size
        return samples
    total = 0
    while slot != NONE and total + tables.requests[slot]["samples"] <= samples:
        total += tables.requests[slot]["samples"]
        slot = tables.requests[slot]["next"]
    return total


@inlined
def make_batch(tables: Tables, first: int, pipeline: int) -> int:
    """Turn a queue from a request on into the batch that was quoted; returns its slot.

    Where the queue ends before the batch does, its low requests fill it, from their head on.
    """
    counts = tables.counts[0]
    slot = counts["free_batch"]
    batch = tables.batches[slot]
    counts["free_batch"] = batch["next_free"]
    batch["number"] = counts["batches"]
    counts["batches"] += 1
    counts["in_flight"] += 1
    batch["pipeline"] = pipeline
    batch["stages"] = tables.topology.pipelines[pipeline]["stages"]
    batch["samples"] = tables.quotes[pipeline]["samples"]
    batch["dispatch_us"] = counts["now_us"]
    batch["requests"] = 0
    batch["first"] = batch["last"] = NONE
    head = tables.requests[first]
    count_time(tables.queues[head["queue"]], counts["now_us"] - head["arrival_us"])
    left = batch["samples"]
    request = first
    while left > 0:
        following = tables.requests[request]["next"]
        remove(tables, request)
        left -= tables.requests[request]["samples"]
        tables.requests[request]["batch"] = slot
        tables.requests[request]["next"] = NONE
        if batch["first"] == NONE:
            batch["first"] = request
        else:
            tables.requests[batch["last"]]["next"] = request
        batch["last"] = request
        batch["requests"] += 1
        request = following
        if request == NONE and left > 0:  # low requests fill a batch of others
            request = tables.queues[head["queue"] + first_low(tables.topology)]["first"]
    add_decision(tables, DISPATCH, slot, 0, FAR, 0)
    return slot


@inlined
def free_batch(tables: Tables, slot: int) -> None:
    """Forget a batch and whatever it still reserves; its requests are the caller's concern."""
    counts = tables.counts[0]
    if counts["first_shared_batch"] != NONE:
        leave_shared_batches(tables, slot)
    first = interval_of(tables, slot, 0, 0)
    for i in range(first, first + tables.offers.shape[1] * KINDS):
        release(tables, i)
    tables.batches[slot]["number"] = NONE
    tables.batches[slot]["next_free"] = counts["free_batch"]
    counts["free_batch"] = slot
    counts["in_flight"] -= 1


@inlined
def serve_batch(tables: Tables, slot: int) -> None:
    """A batch left its last stage: its requests are served, all slots free."""
    request = tables.batches[slot]["first"]
    while request != NONE:
        following = tables.requests[request]["next"]
        free_request(tables, request)
        request = following
    tables.counts[0]["served"] += tables.batches[slot]["requests"]
    free_batch(tables, slot)
