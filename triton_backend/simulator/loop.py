"""The event loop: one total order of arrivals, ends, starts, failures and timers.

It calls the scheduler's own steps (`kernel_api`, `feedback`) and the cluster; it decides
nothing. It returns to Python only when the run is over, stopped, or an array is full, and where
requests have variants and a worker is lost or back.
"""

from triton_backend.runtimes.residency import ABSENT
from triton_backend.scheduler.admission import admits, admits_job
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Record, entry, inlined, kernel
from triton_backend.scheduler.feedback import worker_back, worker_lost
from triton_backend.scheduler.jobs import new_job
from triton_backend.scheduler.kernel_api import (
    arrive,
    next_timer,
    settle_after_deviation,
    settle_all,
    settle_due,
    settle_jobs,
    settle_one,
)
from triton_backend.scheduler.policies.variants import choose
from triton_backend.scheduler.queues import free_request
from triton_backend.scheduler.tables import (
    ABORT,
    DISPATCH,
    DROP,
    JOB_DONE,
    JOB_DROPPED,
    MODEL_REMOVED,
    NEEDS_ROOM,
    OUT_ROWS,
    OVERLOAD,
    SETTLED,
    SHARED_BATCH,
    SLOT_BITS,
    TASK_MODULE,
    TASK_READY,
    jobs_of,
    lacks_batches,
    lacks_slots,
)
from triton_backend.scheduler.topology import first_low
from triton_backend.simulator.cluster.batches import (
    carry_shared_batch,
    end_move,
    end_stage,
    forget,
    launch,
)
from triton_backend.simulator.cluster.links import try_move
from triton_backend.simulator.cluster.workers import start_stage
from triton_backend.simulator.heap import (
    ARRIVAL,
    STAGE_DONE,
    STAGE_START,
    TIMER,
    TRANSFER_DONE,
    TRANSFER_START,
    WORKER_BACK,
    WORKER_LOST,
    remove_first,
)
from triton_backend.simulator.ticks import cycles
from triton_backend.simulator.world import (
    DROPPED,
    LATE,
    NOW,
    RUNNING,
    SERVED,
    World,
    jobs_in,
    world_at,
)

OVER = 0
STOPPED = 1  # everything before `stop_us` is done
# Make room (`world.fit`, `tables.with_room`), or tell `variants` of the workers, and call again.
FULL = 2


@entry
def run(memory: Integers) -> int:
    """Let events happen until the run is over, stopped or out of room.

    Args:
        memory: where the world is (`world.addresses`).
    """
    world = world_at(memory)
    cursor = world.cursor[0]
    counts = world.tables.counts[0]
    timer = next_timer(world.tables)
    if cursor["again"] == 1:
        cursor["again"] = 0
        if not _finish(world, settle_all(world.tables)):
            return FULL
        timer = next_timer(world.tables)
    while _has_room(world):
        kind, at = _next(world, timer)
        if at >= cursor["stop_us"] or (cursor["draining"] == 1 and counts["in_flight"] == 0):
            return STOPPED
        if at == FAR:
            return OVER
        counts["now_us"] = at
        cursor["steps"] += 1
        if kind == ARRIVAL:
            status = _arrive(world)
        elif kind == TIMER:
            before = cycles()
            status = settle_due(world.tables)
            _count(world, before)
        else:
            status = _process_event(world, at)
            if status == NOTHING:
                continue
        if not _finish(world, status):
            return FULL
        timer = next_timer(world.tables)
    return FULL


NOTHING = 2  # answer of `_process_event`: what ends as reserved settles no queue


@inlined
def _has_room(world: World) -> bool:
    cursor = world.cursor[0]
    if lacks_batches(world.tables) or lacks_slots(world.tables):
        return False
    if cursor["workers"] == 1 and len(world.variants) > 0:
        return False
    jobs = len(world.job_memory) > 0  # not the tables': a later plan may be the first with some
    if jobs and cursor["tasks"] + OUT_ROWS > len(jobs_in(world).tasks):
        return False
    if cursor["events"] + cursor["room"] > len(world.heap):
        return False
    return cursor["keep_uses"] == 0 or cursor["uses"] + OUT_ROWS <= len(world.uses)


@inlined
def _next(world: World, timer_us: int) -> tuple[int, int]:
    """Kind and instant of the next event: of the heap, a timer, or an arrival.

    A timer that was set for an instant that has passed comes now.
    """
    cursor = world.cursor[0]
    kind, at = TIMER, max(timer_us, world.tables.counts[0]["now_us"])
    if cursor["arrival"] < len(world.requests):
        arrival = world.requests[cursor["arrival"]]["arrival_us"]
        if arrival < at:
            kind, at = ARRIVAL, arrival
    if cursor["events"] > 0 and world.heap[0]["at_us"] <= at:
        kind, at = world.heap[0]["kind"], world.heap[0]["at_us"]
    return kind, at


@inlined
def _arrive(world: World) -> int:
    cursor = world.cursor[0]
    number = cursor["arrival"]
    request = world.requests[number]
    cursor["arrival"] += 1
    if request["application"] != NONE:
        return _arrive_job(world, number)
    queue = world.queues[request["queue"], NOW]
    if queue == NONE:
        return _refuse(request, MODEL_REMOVED)
    before = cycles()
    if len(world.variants) > 0:
        queue = _choose_variant(world, request, queue)
    samples, deadline = request["samples"], _announced_us(world, request, queue)
    if request["low"] == 1:
        queue += first_low(world.tables.topology)
    elif len(world.admission) > 0 and not admits(
        world.admission,
        queue,
        samples,
        deadline,
        request["arrival_us"],
    ):
        return _refuse(request, OVERLOAD)
    slot = arrive(world.tables, queue, number, deadline, samples)
    status = settle_one(world.tables, world.tables.requests[slot]["queue"])
    _count(world, before)
    return status


@kernel
def _choose_variant(world: World, request: Record, queue: int) -> int:
    """The queue of the variant that takes a request, which is counted as that one's from then on.

    Where the first plan does not have that one it is counted as its name's.
    """
    low = request["low"] == 1
    chosen = choose(world.variants, queue, request["samples"], request["arrival_us"], low)
    if chosen != queue:
        for number in range(len(world.queues)):
            if world.queues[number, NOW] == chosen:
                request["queue"] = number
    return chosen


@kernel
def _arrive_job(world: World, number: int) -> int:
    request = world.requests[number]
    first = jobs_in(world).first_modules[request["application"]]
    if first == NONE:
        return _refuse(request, MODEL_REMOVED)
    before = cycles()
    application = jobs_in(world).work[first]["application"]
    guard = len(world.guards_us) - 1 - application
    samples, deadline = request["samples"], _announced_us(world, request, guard)
    if len(world.admission) > 0 and not admits_job(
        world.admission, jobs_in(world).work, first, samples, deadline, request["arrival_us"]
    ):
        return _refuse(request, OVERLOAD)
    new_job(world.tables, number, first, deadline, samples)
    status = settle_jobs(world.tables)
    _count(world, before)
    return status


@inlined
def _announced_us(world: World, request: Record, guard: int) -> int:
    """The deadline that the scheduler sees; `guard` is a row of `World.guards_us`."""
    deadline_us = request["deadline_us"]
    if len(world.guards_us) == 0:
        return deadline_us
    allowed_us = deadline_us - request["arrival_us"]
    return deadline_us - min(world.guards_us[guard], allowed_us // 2)


@inlined
def _refuse(request: Record, reason: int) -> int:
    """Drop a request that never reaches the scheduler."""
    request["outcome"] = DROPPED
    request["reason"] = reason
    request["finish_us"] = request["arrival_us"]
    return SETTLED


@inlined
def _count(world: World, before: int) -> None:
    """One more decision.

    How long it took, where there is room to note it, and whether it sent a batch.
    """
    cursor = world.cursor[0]
    if cursor["decisions"] < len(world.ticks):
        batches = world.tables.counts[0]["batches"]
        sent = 1 if batches > cursor["batches"] else 0
        world.ticks[cursor["decisions"]] = 2 * (cycles() - before) + sent
        cursor["batches"] = batches
    cursor["decisions"] += 1


@inlined
def _process_event(world: World, now_us: int) -> int:
    """The first event of the heap happens."""
    cursor = world.cursor[0]
    kind = world.heap[0]["kind"]
    slot = world.heap[0]["subject"]
    number = world.heap[0]["number"]
    remove_first(world.heap, cursor["events"])
    cursor["events"] -= 1
    if kind == WORKER_LOST:
        return _lose(world, slot)
    if kind == WORKER_BACK:
        return _have_back(world, slot)
    if world.runs[slot]["number"] != number:
        return NOTHING
    deviates = False
    if kind == STAGE_DONE:
        if world.runs[slot]["due_us"] != now_us or world.runs[slot]["phase"] != RUNNING:
            return NOTHING
        deviates = end_stage(world, slot, now_us)
    elif kind == TRANSFER_DONE:
        deviates = end_move(world, slot, now_us)
    elif kind == TRANSFER_START:
        try_move(world, slot, now_us)
    elif kind == STAGE_START:
        start_stage(world, slot, now_us)
    if not deviates and world.tables.counts[0]["unsettled"] == 0:
        return NOTHING
    before = cycles()
    status = _settle_ended(world, deviates)
    _count(world, before)
    return status


@inlined
def _settle_ended(world: World, deviates: bool) -> int:  # noqa: FBT001 - a kernel
    status = SETTLED
    if deviates:
        status = settle_after_deviation(world.tables)
    if status == SETTLED and world.tables.counts[0]["unsettled"] > 0:
        status = settle_jobs(world.tables)
    return status


@inlined
def _have_back(world: World, vgpu: int) -> int:
    world.cursor[0]["workers"] = 1
    worker_back(world.tables, vgpu, 0)
    return settle_all(world.tables)


@kernel
def _lose(world: World, vgpu: int) -> int:
    world.cursor[0]["workers"] = 1
    for place in range(world.used.shape[1]):  # nothing that was loaded on demand is left
        world.used[vgpu, place] = ABSENT
    before = cycles()
    while worker_lost(world.tables, vgpu) == NEEDS_ROOM:
        carry_out(world)
    carry_out(world)
    status = settle_all(world.tables)
    _count(world, before)
    return status


@inlined
def _finish(world: World, status: int) -> bool:
    """Carry out what was decided, deciding on where it broke off; False when out of room."""
    if world.tables.counts[0]["out"] > 0:
        carry_out(world)
    while status != SETTLED or world.tables.counts[0]["unsettled"] > 0:
        if not _has_room(world):
            world.cursor[0]["again"] = 1
            return False
        if status != SETTLED:
            status = settle_all(world.tables)
            carry_out(world)
            continue
        before = world.tables.counts[0]["unsettled"]
        status = settle_jobs(world.tables)
        carry_out(world)
        if status == SETTLED and world.tables.counts[0]["unsettled"] >= before:
            return True  # nothing is listed or touched, whatever is counted
    return True


@kernel
def carry_out(world: World) -> None:  # noqa: C901 - a branch per decision
    """Do what the scheduler decided, and empty `out`."""
    tables = world.tables
    now = tables.counts[0]["now_us"]
    for row in range(tables.counts[0]["out"]):
        kind, slot = tables.out[row, 0], tables.out[row, 1]
        if kind == DISPATCH:
            launch(world, slot)
        elif kind == SHARED_BATCH:
            carry_shared_batch(world, slot, tables.out[row, 2], now)
        elif kind == ABORT:
            forget(world, tables.out[row, 2], now)
        elif kind == DROP:
            job = tables.requests[slot]["job"]
            if job == NONE:
                _note_drop(world, tables.requests[slot]["id"], tables.out[row, 2], now)
            else:
                known = jobs_of(tables)
                module = known.jobs[job]["first_module"] + known.tasks[slot, TASK_MODULE]
                if known.modules[module]["optional"] == 0:
                    _note_drop(world, known.jobs[job]["id"], tables.out[row, 2], now)
            free_request(tables, slot)
        elif kind == TASK_READY:
            _note_task(world, row)
        elif kind == JOB_DONE:
            record = world.requests[slot]
            record["finish_us"] = now
            record["outcome"] = SERVED if now <= record["deadline_us"] else LATE
        elif kind == JOB_DROPPED:
            _note_drop(world, jobs_of(tables).jobs[slot]["id"], tables.out[row, 2], now)
    tables.counts[0]["out"] = 0


@inlined
def _note_drop(world: World, number: int, reason: int, now_us: int) -> None:
    """A request or a job is not served."""
    record = world.requests[number]
    record["outcome"] = DROPPED
    record["reason"] = reason
    record["dispatch_us"] = record["batch_id"] = NONE
    record["batch_samples"] = 0
    record["finish_us"] = now_us


@kernel
def _note_task(world: World, row: int) -> None:
    """A task was released."""
    tables, cursor = world.tables, world.cursor[0]
    out = tables.out[row]
    known, jobs = jobs_of(tables), jobs_in(world)
    width = known.parts.shape[1]
    jobs.task_of[out[1] & ((1 << SLOT_BITS) - 1)] = cursor["tasks"]
    task = jobs.tasks[cursor["tasks"]]
    cursor["tasks"] += 1
    task["request"] = known.jobs[out[2] // width]["id"]
    task["module"] = out[2] % width
    task["plan"] = cursor["plan"]
    task["rows"] = out[4]
    task["ready_us"] = tables.counts[0]["now_us"]
    task["dispatch_us"] = task["finish_us"] = task["batch_id"] = NONE
    task["batch_samples"] = 0
