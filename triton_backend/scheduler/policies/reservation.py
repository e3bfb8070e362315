"""Policy `reservation`: resource-reservation-based adaptive batching (PPipe, Algorithm 1).

For the head of a queue, again and again until the queue is empty or waits:

1. Of the pipelines that can hold the head, take the one whose probe at its planned batch waits
   least (ties: plan order).
2. From its planned batch downwards, find the largest that finishes by the head's deadline.
3. None: drop the head. More than what is queued: wait until one more request would no longer fit,
   then dispatch what is there; never wait twice for the same head. Else dispatch.

A request of several samples counts as that many and is never split: where the queue holds a batch,
its size is the longest run of whole requests that fits.
"""

from triton_backend.scheduler.compiled import FAR, NONE, kernel
from triton_backend.scheduler.policies.head import (
    always_waits,
    head_first,
    never_wastes,
    quoted_size,
)
from triton_backend.scheduler.reservations.probe import BY_FINISH, probe
from triton_backend.scheduler.tables import Tables
from triton_backend.scheduler.topology import pipelines_of


@kernel
def _least_waiting(tables: Tables, number: int) -> int:
    """The pipeline whose offer for its planned batch waits least.

    NONE where none holds the head.
    """
    topology = tables.topology
    samples = tables.requests[tables.queues[number]["first"]]["samples"]
    best = NONE
    least = FAR
    for pipeline in pipelines_of(topology, number):
        planned = topology.pipelines[pipeline]["batch"]
        if planned < samples:
            continue
        planned = quoted_size(tables, number, pipeline)
        probe(tables, pipeline, planned, tables.counts[0]["now_us"], BY_FINISH)
        if tables.quotes[pipeline]["wait_us"] < least:
            least = tables.quotes[pipeline]["wait_us"]
            best = pipeline
    return best


POLICIES = {"reservation": head_first(_least_waiting, never_wastes, always_waits, BY_FINISH)}
