"""Corrections: what really happened enters the tables, and what must follow moves.

Batch A, reserved to end at d, ends late at e; B is next on the same vGPU. Order never changes,
starts do:

                              d  e
    reserved   vGPU    [ A run )[ B run )
               uplink           [ A move )
    corrected  vGPU               [ B run )       A's run is released; what began before e and must
               uplink             [ A move )      follow it begins at e, and so on (`delay`)

An early end moves nothing forward: workers hold the reserved starts. It frees the rest of the
interval for batches to come.

Here: the ends of stages and transfers, lost and returned vGPUs. Not here: what is decided then.
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.jobs import end_tasks, queue_again
from triton_backend.scheduler.queues import enqueue, free_batch, serve_batch
from triton_backend.scheduler.tables import (
    ABORT,
    DOWNLINK,
    KINDS,
    NEEDS_ROOM,
    SETTLED,
    UPLINK,
    VGPU,
    Tables,
    add_decision,
    interval_of,
)
from triton_backend.scheduler.timeline import delay, refresh, release


@inlined
def stage_done(tables: Tables, batch: int, stage: int, end_us: int) -> bool:
    """A batch left a stage at end_us; True where that was not the reserved instant."""
    i = interval_of(tables, batch, stage, VGPU)
    deviates = _correct(tables, i, end_us)
    stages = tables.batches[batch]["stages"]
    # The three intervals of the next hop are neighbours; the batch cannot be there before it left.
    for kind in range(KINDS):
        delay(tables, i + KINDS - VGPU + kind, end_us)
    if stage == stages - 1:
        # Where the answer's transfer is reserved, its `transfer_done` is the batch's last report.
        answer = interval_of(tables, batch, stages, UPLINK)
        if tables.intervals[answer]["resource"] == NONE:
            _end(tables, batch)
    return deviates


@inlined
def transfer_done(tables: Tables, batch: int, stage: int, end_us: int) -> bool:
    """A batch's tensors arrived at a stage; True where that was not the reserved instant.

    One past the last stage it is the answer that arrived.
    """
    deviates = False
    for kind in (UPLINK, DOWNLINK):
        i = interval_of(tables, batch, stage, kind)
        if tables.intervals[i]["resource"] != NONE:
            deviates = _correct(tables, i, end_us)
    delay(tables, interval_of(tables, batch, stage, VGPU), end_us)
    if stage == tables.batches[batch]["stages"]:
        _end(tables, batch)
    return deviates


@inlined
def _end(tables: Tables, batch: int) -> None:
    """The last report of a batch came."""
    if len(tables.job_memory) > 0:
        end_tasks(tables, batch)
    serve_batch(tables, batch)


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

    Returns `NEEDS_ROOM` where `out` has no row for all of them; empty it and call again then.
    """
    tables.resources[vgpu]["lost"] = 1
    refresh(tables, vgpu)
    for batch in range(len(tables.batches)):
        if tables.batches[batch]["number"] == NONE or not _needs(tables, batch, vgpu):
            continue
        if tables.counts[0]["out"] == len(tables.out):
            return NEEDS_ROOM
        abort(tables, batch)
    return SETTLED


@kernel
def _needs(tables: Tables, batch: int, vgpu: int) -> bool:
    """Whether a batch has yet to run on a vGPU, or its output there has yet to leave.

    Both are over when the interval is released: the run at `stage_done`, the transfer out of it
    (the next hop's uplink) at `transfer_done`.
    """
    for hop in range(tables.offers.shape[1] - 1):
        if tables.paths[batch, hop] == vgpu:
            run = tables.intervals[interval_of(tables, batch, hop, VGPU)]["resource"]
            leave = tables.intervals[interval_of(tables, batch, hop + 1, UPLINK)]["resource"]
            return run != NONE or leave != NONE
    return False


@kernel
def abort(tables: Tables, batch: int) -> None:
    """Forget a batch, queue its requests again at their old place; not the tasks of dropped jobs."""
    request = tables.batches[batch]["first"]
    while request != NONE:
        following = tables.requests[request]["next"]
        tables.requests[request]["retried"] = 1
        if tables.requests[request]["job"] == NONE or queue_again(tables, request):
            enqueue(tables, request)
        request = following
    add_decision(tables, ABORT, tables.batches[batch]["number"], batch, FAR, 0)
    free_batch(tables, batch)


@kernel
def worker_back(tables: Tables, vgpu: int) -> None:
    """A lost vGPU may be reserved again."""
    tables.resources[vgpu]["lost"] = 0
    refresh(tables, vgpu)
