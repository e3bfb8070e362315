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

A shared batch's end is that of its members' stage. A batch that comes too late for its shared
batch, and for all batches that would have to wait, is aborted.

Here: the ends of stages, transfers and shared batches, lost and returned vGPUs. Not here: what is
decided then.
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.jobs import end_tasks, queue_again, touch
from triton_backend.scheduler.queues import enqueue, free_batch, serve_batch
from triton_backend.scheduler.reservations.shared_batches import (
    arrived,
    batch_of,
    bring_forward,
    close,
    emit_update,
    members_follow,
    overdue_member,
)
from triton_backend.scheduler.reservations.timeline import delay, refresh, release
from triton_backend.scheduler.tables import (
    ABORT,
    BATCH_DONE,
    DOWNLINK,
    KINDS,
    MOST_DEATHS,
    NEEDS_ROOM,
    SETTLED,
    TASK_LIMIT,
    UPLINK,
    VGPU,
    Tables,
    add_decision,
    interval_of,
    jobs_of,
)
from triton_backend.scheduler.topology import MOST_SEATS


@inlined
def stage_done(tables: Tables, batch: int, stage: int, end_us: int) -> bool:
    """A batch left a stage at end_us; True where that was not the reserved instant."""
    i = interval_of(tables, batch, stage, VGPU)
    deviates = _correct(tables, i, end_us)
    if tables.counts[0]["first_shared_batch"] != NONE and not arrived(
        tables, batch, stage + 1, end_us
    ):
        abort(tables, batch)
        return True
    _leave_stage(tables, batch, stage, end_us)
    return deviates


@inlined
def _leave_stage(tables: Tables, batch: int, stage: int, end_us: int) -> None:
    """A batch goes on to its next stage, or ends."""
    i = interval_of(tables, batch, stage, VGPU)
    stages = tables.batches[batch]["stages"]
    # The three intervals of the next hop are neighbours; the batch cannot be there before it left.
    for kind in range(KINDS):
        delay(tables, i + KINDS - VGPU + kind, end_us)
    if stage == stages - 1:
        # Where the answer's transfer is reserved, its `transfer_done` is the batch's last report.
        answer = interval_of(tables, batch, stages, UPLINK)
        if tables.intervals[answer]["resource"] == NONE:
            _end(tables, batch)


@kernel
def shared_batch_done(tables: Tables, shared_batch: int, end_us: int) -> bool:
    """All members of a shared batch left its stage at end_us; True where reserved otherwise.

    Leaves a row of `BATCH_DONE` for every batch that ended with it.
    """
    i = interval_of(tables, shared_batch, 0, VGPU)
    following = tables.intervals[i]["next"]
    deviates = _correct(tables, i, end_us)
    hops = tables.offers.shape[1]
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        behind = tables.intervals[member]["next"]
        tables.intervals[member]["shared_batch"] = NONE
        batch = batch_of(tables, member)
        number, hop = tables.batches[batch]["number"], member // KINDS % hops
        # Where the answer is full they go on, and the next shared batch leaves without them.
        full = tables.counts[0]["out"] + hops + MOST_SEATS > len(tables.out)
        if arrived(tables, batch, hop + 1, end_us) or full:
            _leave_stage(tables, batch, hop, end_us)
            if tables.batches[batch]["number"] == NONE:
                add_decision(tables, BATCH_DONE, number, 0, FAR, 0)
        else:
            abort(tables, batch)
        member = behind
    close(tables, shared_batch)
    if following != NONE and deviates:  # it may leave sooner where it only waited for this one
        other = batch_of(tables, following)
        if tables.batches[other]["capacity"] > 0 and bring_forward(tables, other):
            emit_update(tables, other)
            members_follow(tables, other)
    return deviates


@kernel
def leave_behind(tables: Tables) -> bool:
    """Shared batches start without members that they can no longer wait for.

    True where a member was left.
    """
    left = False
    while tables.counts[0]["out"] + tables.offers.shape[1] < len(tables.out):
        batch = overdue_member(tables)
        if batch == NONE:
            return left
        abort(tables, batch)
        left = True
    return left


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
    if tables.counts[0]["first_shared_batch"] != NONE and not arrived(tables, batch, stage, end_us):
        abort(tables, batch)
        return True
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
    tables.resources[vgpu]["idle_us"] = 0
    refresh(tables, vgpu)
    for batch in range(len(tables.batches)):
        if tables.batches[batch]["number"] == NONE or not _needs(tables, batch, vgpu):
            continue
        if tables.counts[0]["out"] + tables.offers.shape[1] > len(tables.out):
            return NEEDS_ROOM
        if _runs(tables, batch, vgpu):
            _count_death(tables, batch)
        abort(tables, batch)
    return SETTLED


@kernel
def _runs(tables: Tables, batch: int, vgpu: int) -> bool:
    """True if a batch runs on a vGPU now, as far as reported, alone or in a shared batch."""
    now = tables.counts[0]["now_us"]
    for hop in range(tables.batches[batch]["stages"]):
        if tables.paths[batch, hop] == vgpu:
            i = interval_of(tables, batch, hop, VGPU)
            if tables.intervals[i]["shared_batch"] != NONE:
                i = interval_of(tables, tables.intervals[i]["shared_batch"], 0, VGPU)
            return (
                tables.intervals[i]["resource"] != NONE and tables.intervals[i]["start_us"] <= now
            )
    return False


@kernel
def _count_death(tables: Tables, batch: int) -> None:
    """A vGPU died while it ran a batch, whose requests get no third one to run on.

    One of them may end every vGPU that runs it. At the second death their deadline is now, and
    their policy drops them.
    """
    now = tables.counts[0]["now_us"]
    request = tables.batches[batch]["first"]
    while request != NONE:
        row = tables.requests[request]
        row["deaths"] += 1
        if row["deaths"] >= MOST_DEATHS:
            row["deadline_us"] = min(row["deadline_us"], now)
            if row["job"] != NONE:
                jobs_of(tables).tasks[request, TASK_LIMIT] = row["deadline_us"]
        request = row["next"]


@kernel
def _needs(tables: Tables, batch: int, vgpu: int) -> bool:
    """True if a batch has yet to run on a vGPU, or its output there has yet to leave.

    Both are over when the interval is released: the run at `stage_done`, the transfer out of it
    (the next hop's uplink) at `transfer_done`. A place is given back when the shared batch is over;
    a shared batch is over when no batch sits in it any more.
    """
    if tables.batches[batch]["capacity"] > 0:
        return False
    for hop in range(tables.offers.shape[1] - 1):
        if tables.paths[batch, hop] == vgpu:
            run = tables.intervals[interval_of(tables, batch, hop, VGPU)]
            leave = tables.intervals[interval_of(tables, batch, hop + 1, UPLINK)]["resource"]
            return run["resource"] != NONE or run["shared_batch"] != NONE or leave != NONE
    return False


@kernel
def abort(tables: Tables, batch: int) -> None:
    """Forget a batch, queue its requests again at their old place.

    Not the tasks of dropped jobs.
    """
    request = tables.batches[batch]["first"]
    while request != NONE:
        following = tables.requests[request]["next"]
        row = tables.requests[request]
        row["retried"] = 1
        if row["job"] == NONE or queue_again(tables, request):
            enqueue(tables, request)
            if tables.topology.queues[row["queue"]]["late"] == 1:  # its candidates count it not
                touch(tables, row["queue"])
        request = following
    add_decision(tables, ABORT, tables.batches[batch]["number"], batch, FAR, 0)
    free_batch(tables, batch)


@kernel
def lose(tables: Tables, batch: int) -> int:
    """A batch, or all that sit in a shared batch, got lost between two processes.

    Returns `NEEDS_ROOM` where `out` has no row for all of them; empty it and call again then.
    """
    if tables.batches[batch]["capacity"] == 0:
        abort(tables, batch)
        return SETTLED
    number = tables.batches[batch]["number"]
    while tables.batches[batch]["number"] == number:
        if tables.counts[0]["out"] + tables.offers.shape[1] > len(tables.out):
            return NEEDS_ROOM
        abort(tables, batch_of(tables, tables.batches[batch]["aboard"]))
    return SETTLED


@kernel
def worker_back(tables: Tables, vgpu: int, idle_us: int) -> None:
    """A lost vGPU may be reserved again, from an instant on."""
    tables.resources[vgpu]["lost"] = 0
    tables.resources[vgpu]["idle_us"] = idle_us
    refresh(tables, vgpu)
