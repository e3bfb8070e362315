"""Corrections: what really happened enters the tables, and what must follow moves.

Here: the ends of stages and transfers, lost and returned vGPUs. Not here: what is decided then.
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.queues import enqueue, free_batch, serve_batch
from triton_backend.scheduler.tables import (
    ABORTED,
    DOWNLINK,
    KINDS,
    MORE,
    SETTLED,
    UPLINK,
    VGPU,
    Tables,
    interval_of,
    tell,
)
from triton_backend.scheduler.timeline import delay, refresh, release


@inlined
def stage_done(tables: Tables, batch: int, stage: int, end_us: int) -> bool:
    """A batch left a stage at end_us; True where that was not the reserved instant."""
    i = interval_of(tables, batch, stage, VGPU)
    deviates = _correct(tables, i, end_us)
    pipeline = tables.batches[batch]["pipeline"]
    stages = (
        tables.topology.pipeline_stages[pipeline + 1] - tables.topology.pipeline_stages[pipeline]
    )
    for kind in range(KINDS):
        delay(tables, i + KINDS - VGPU + kind, end_us)
    if stage == stages - 1:
        answer = interval_of(tables, batch, stages, UPLINK)
        if tables.intervals[answer]["resource"] == NONE:
            serve_batch(tables, batch)
    return deviates


@inlined
def transfer_done(tables: Tables, batch: int, stage: int, end_us: int) -> bool:
    """A batch's tensors arrived at a stage; True where that was not the reserved instant."""
    deviates = False
    for kind in (UPLINK, DOWNLINK):
        i = interval_of(tables, batch, stage, kind)
        if tables.intervals[i]["resource"] != NONE:
            deviates = _correct(tables, i, end_us)
    delay(tables, interval_of(tables, batch, stage, VGPU), end_us)
    pipeline = tables.batches[batch]["pipeline"]
    first = tables.topology.pipeline_stages[pipeline]
    if stage == tables.topology.pipeline_stages[pipeline + 1] - first:
        serve_batch(tables, batch)
    return deviates


@inlined
def _correct(tables: Tables, i: int, end_us: int) -> bool:
    """Release an interval that is over; what follows on its resource starts no earlier."""
    interval = tables.intervals[i]
    if interval["resource"] == NONE:
        return False
    deviates = interval["end_us"] != end_us
    following = interval["next"]
    release(tables, i)
    if following != NONE:
        delay(tables, following, end_us)
    return deviates


@kernel
def worker_lost(tables: Tables, vgpu: int) -> int:
    """Abort every batch that still needs a vGPU or its memory; their requests are queued again.

    Returns `MORE` where there was no room to tell of all of them; call again then.
    """
    tables.resources[vgpu]["lost"] = 1
    refresh(tables, vgpu)
    for batch in range(len(tables.batches)):
        if tables.batches[batch]["number"] == NONE or not _needs(tables, batch, vgpu):
            continue
        if tables.counts[0]["out"] == len(tables.out):
            return MORE
        abort(tables, batch)
    return SETTLED


@kernel
def _needs(tables: Tables, batch: int, vgpu: int) -> bool:
    """Whether a batch has yet to run on a vGPU, or what it made there has yet to leave."""
    for hop in range(tables.offers.shape[1] - 1):
        if tables.paths[batch, hop] == vgpu:
            run = tables.intervals[interval_of(tables, batch, hop, VGPU)]["resource"]
            leave = tables.intervals[interval_of(tables, batch, hop + 1, UPLINK)]["resource"]
            return run != NONE or leave != NONE
    return False


@kernel
def abort(tables: Tables, batch: int) -> None:
    """Forget a batch, queue its requests again at their old place."""
    request = tables.batches[batch]["first"]
    while request != NONE:
        following = tables.requests[request]["next"]
        tables.requests[request]["retried"] = 1
        enqueue(tables, request)
        request = following
    tell(tables, ABORTED, tables.batches[batch]["number"], batch, FAR, 0)
    free_batch(tables, batch)


@kernel
def worker_back(tables: Tables, vgpu: int) -> None:
    """A lost vGPU may be reserved again."""
    tables.resources[vgpu]["lost"] = 0
    refresh(tables, vgpu)
