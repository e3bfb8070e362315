"""One step per event: what the scheduler and the simulator both call.

A step changes the tables and leaves what was decided in `Tables.out`. Steps that decide answer
`MORE` when they ran out of batch slots or rows: read `out`, make room, call `settle` again.
"""

from triton_backend.scheduler.compiled import FAR, entry, inlined, kernel
from triton_backend.scheduler.policies import reservation
from triton_backend.scheduler.policies import reservation_ahead as ahead
from triton_backend.scheduler.queues import drop, enqueue, new_request
from triton_backend.scheduler.tables import (
    CANCELLED,
    MORE,
    RESERVATION_AHEAD,
    SETTLED,
    TOO_LARGE,
    Tables,
)


@kernel
def settle(tables: Tables, model: int) -> int:
    """Decide for one model's line."""
    if tables.counts[0]["paused"] == 1:
        tables.queues[model]["timer_us"] = FAR
        return SETTLED
    if tables.counts[0]["policy"] == RESERVATION_AHEAD:
        return ahead.decide(tables, model)
    return reservation.decide(tables, model)


@entry
def settle_all(tables: Tables) -> int:
    """Decide for every line, in the order of models."""
    for model in range(len(tables.queues)):
        if settle(tables, model) == MORE:
            return MORE
    return SETTLED


@inlined
def arrive(tables: Tables, model: int, request_id: int, deadline_us: int, samples: int) -> int:
    """A request came; a request slot must be free. Returns its slot; decides nothing yet."""
    topology = tables.topology
    slot = new_request(tables, model, request_id, deadline_us, samples)
    enqueue(tables, slot)
    largest = 0
    for pipeline in range(topology.model_pipelines[model], topology.model_pipelines[model + 1]):
        largest = max(largest, topology.pipeline_batch[pipeline])
    if samples > largest:
        drop(tables, slot, TOO_LARGE, FAR)
    return slot


@kernel
def expire(tables: Tables) -> int:
    """A timer fired: lines whose time has come wait no longer."""
    now = tables.counts[0]["now_us"]
    for model in range(len(tables.queues)):
        queue = tables.queues[model]
        if queue["timer_us"] <= now:
            queue["expired"] = tables.requests[queue["first"]]["sequence"]
            if settle(tables, model) == MORE:
                return MORE
    return SETTLED


@inlined
def next_timer(tables: Tables) -> int:
    """Earliest timer of all lines, FAR where none is set."""
    earliest = FAR
    for model in range(len(tables.queues)):
        earliest = min(earliest, tables.queues[model]["timer_us"])
    return earliest


@inlined
def cancel(tables: Tables, slot: int) -> None:
    """Drop a queued request whose client gave up."""
    drop(tables, slot, CANCELLED, FAR)
