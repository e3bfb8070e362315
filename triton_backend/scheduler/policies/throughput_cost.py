"""Policy `throughput-cost`.

The cheapest pipeline that fills takes the head (Piccolo, section III-B). Plans of sets of machines
count a batch's gathering at the rate that machines ranked better leave over (theorem 1). This
serves them so:

1. Pipelines of a queue stand in the order of their cost per sample (`PIPELINE.ranked`; ties: plan
   order).
2. The head goes to the first whose offer for its planned batch ends by the head's deadline and
   waits for vGPUs no longer than the batch still needs to fill at the queue's planned rate. So
   better ranks fill first and the others get what is left over, batch by batch in between. vGPUs of
   one pool alternate: the one that is free first takes the next batch.
3. Where there is none: as `reservation-ahead`, which also says when a head is dropped.

A queue shorter than the batch waits as `reservation-ahead` lets it, until it is full or the head
could wait no longer: a request that a plan pads batches with (a dummy) is never sent, its batch is
closed by the timer and runs with fewer samples.
"""

from triton_backend.scheduler.compiled import kernel
from triton_backend.scheduler.policies.head import head_first, quoted_size
from triton_backend.scheduler.policies.reservation_ahead import (
    choose,
    lacks_company,
    wastes_capacity,
)
from triton_backend.scheduler.reservations.probe import BY_UPLINK, probe
from triton_backend.scheduler.tables import Tables
from triton_backend.scheduler.topology import RATE_SHIFT, pipelines_of


@kernel
def _choose(tables: Tables, number: int) -> int:
    """The pipeline for the head; NONE where none can hold it."""
    topology = tables.topology
    queue = tables.queues[number]
    head = tables.requests[queue["first"]]
    gap = topology.queues[number]["gap"]
    for place in pipelines_of(topology, number):
        pipeline = topology.pipelines[place]["ranked"]
        planned = topology.pipelines[pipeline]["batch"]
        if planned < head["samples"]:
            continue
        planned = quoted_size(tables, number, pipeline)
        probe(tables, pipeline, planned, tables.counts[0]["now_us"], BY_UPLINK)
        quote = tables.quotes[pipeline]
        fills_us = max(planned - queue["samples"], 0) * gap >> RATE_SHIFT
        if quote["finish_us"] <= head["deadline_us"] and quote["wait_us"] <= fills_us:
            return pipeline
    return choose(tables, number)


POLICIES = {
    "throughput-cost": head_first(_choose, wastes_capacity, lacks_company, BY_UPLINK),
}
