"""Policy `reservation`: resource-reservation-based adaptive batching (PPipe, Algorithm 1).

For the head of a model's line, again and again until the line is empty or waits:

1. Of the pipelines that can hold the head, take the one whose probe at its planned batch waits
   least (ties: plan order).
2. From its planned batch downwards, find the largest that finishes by the head's deadline.
3. None: drop the head. More than what is queued: wait until one more request would no longer fit,
   then dispatch what is there; never wait twice for the same head. Else dispatch.

A request of several samples counts as that many and is never split: where the line holds a batch,
its size is the longest run of whole requests that fits.
"""

from triton_backend.scheduler.compiled import FAR, NONE, kernel
from triton_backend.scheduler.policies.head import (
    give_up,
    largest_in_time,
    out_of_room,
    send,
    waits,
)
from triton_backend.scheduler.probe import probe
from triton_backend.scheduler.tables import MORE, SETTLED, Tables


@kernel
def decide(tables: Tables, model: int) -> int:
    """Dispatch, drop or wait for one model's line at `now_us`; `SETTLED` or `MORE`."""
    queue = tables.queues[model]
    queue["timer_us"] = FAR
    while queue["first"] != NONE:
        if out_of_room(tables):
            return MORE
        pipeline = _least_waiting(tables, model)
        size = largest_in_time(tables, model, pipeline)
        if size == 0:
            give_up(tables, model, pipeline)
        elif waits(tables, model, pipeline, size):
            return SETTLED
        else:
            send(tables, model, pipeline, size)
    return SETTLED


@kernel
def _least_waiting(tables: Tables, model: int) -> int:
    """The pipeline whose offer for its planned batch waits least; NONE where none holds the head."""
    topology = tables.topology
    samples = tables.requests[tables.queues[model]["first"]]["samples"]
    best = NONE
    least = FAR
    for pipeline in range(topology.model_pipelines[model], topology.model_pipelines[model + 1]):
        planned = topology.pipeline_batch[pipeline]
        if planned < samples:
            continue
        probe(tables, pipeline, planned, tables.counts[0]["now_us"])
        if tables.quotes[pipeline]["wait_us"] < least:
            least = tables.quotes[pipeline]["wait_us"]
            best = pipeline
    return best
