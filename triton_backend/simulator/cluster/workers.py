"""Workers of the simulated cluster: they run stages in the order in which they were reserved.

Of several batches whose input is there and whose reserved start has come, a vGPU takes the one
reserved first (ties: the lower number); nothing starts before its reserved start. With exact
latencies everything then happens exactly when it was reserved.

What a batch lasts beside those on other vGPUs of its GPU (`cursor.interference`):

    planned   as reserved: the plan's factor counts whether neighbours run or not
    overlap   it has the work that it has alone, done at 1 / f, where f follows from the batches
              that run on the other vGPUs at this moment (`contract.profiles.InterferenceModel`)
    off       as if it were alone

A shared batch runs once for all its members, as soon as its start has come and no member is
missing.

A stage that is loaded on demand has its load in what is reserved. Where it is there already the run
is that much shorter; else others are evicted for it (`runtimes.residency`).

At every start and end on a GPU the batches that run there are timed again. Work is whole 1/1024 µs
and factors are whole 1/2**20, so that every machine agrees; ends are rounded to whole µs.
"""

from collections.abc import Sequence

import numpy as np

from triton_backend.contract.plan import Plan
from triton_backend.runtimes import residency
from triton_backend.scheduler.compiled import NONE, Integers, Records, inlined, kernel
from triton_backend.scheduler.plan_rows import pipelines_by_queue
from triton_backend.scheduler.reservations.shared_batches import batch_of
from triton_backend.scheduler.tables import (
    LIVE,
    TASK_EMITTED,
    TASK_MODULE,
    TASK_ROW,
    VGPU,
    interval_of,
    jobs_of,
)
from triton_backend.simulator.heap import STAGE_DONE, STAGE_START
from triton_backend.simulator.world import (
    ABOARD,
    LATE,
    LOADING,
    OVERLAP,
    PLANNED,
    RESTING,
    RUNNING,
    SEAT,
    SERVED,
    SHARED_BATCH_ENTRIES,
    SHARED_BATCH_SAMPLES,
    SHARED_BATCHES,
    WAITING_VGPU,
    World,
    jobs_in,
    push,
)

ONE = 1 << 20  # a factor of one
WORK = 1 << 10  # a µs of work

Gpu = tuple[str, int]  # node and number on it

_admit = kernel(residency.admit)


def seats_of(plan: Plan) -> Records:
    """[stage row] `SEAT`; stages of pools that state no interference suffer and press nothing."""
    rows = [
        (stage, plan.pools.index(plan.pool_of(stage)))
        for known in pipelines_by_queue(plan)
        for stage in known.pipeline.stages
    ]
    seats = np.zeros(len(rows), dtype=SEAT)
    seats["factor"] = seats["susceptibility"] = ONE
    for row, (stage, number) in zip(seats, rows, strict=True):
        stated = plan.pools[number].interference
        if stated is not None:
            places = [other is stage for other in plan.stages_of(number)]
            seat = stated.seats[places.index(True)]
            for name in SEAT.names or ():
                row[name] = round(getattr(seat, name) * ONE)
    return seats


def loading_of(plan: Plan) -> tuple[Records, Integers, Integers]:
    """[stage row] `LOADING`, [stage on demand] its bytes, [vGPU] bytes for all that are there."""
    stages = [stage for known in pipelines_by_queue(plan) for stage in known.pipeline.stages]
    rows = np.zeros(len(stages), dtype=LOADING)
    rows["place"] = NONE
    sizes: list[int] = []
    for row, stage in zip(rows, stages, strict=True):
        if stage.load_us is not None and stage.memory is not None:
            row["place"], row["load_us"] = len(sizes), stage.load_us
            sizes.append(stage.memory.static)
    pools = range(len(plan.pools)) if sizes else range(0)
    rooms = [plan.room_bytes(number) for number in pools]
    by_vgpu = np.repeat(rooms, [plan.pools[number].vgpus for number in pools])
    return rows, np.array(sizes, dtype=np.int64), by_vgpu


def gpus_of(plan: Plan) -> list[Gpu | None]:
    """The GPU of every vGPU."""
    return [(plan.cluster.node_name(v.slot.node), v.slot.gpu) for v in plan.vgpus()]


def beside(gpus: Sequence[Gpu | None]) -> Integers:
    """[resource, k] the other vGPUs of its GPU, from the GPU of every resource (None: a link)."""
    members: dict[Gpu, list[int]] = {}
    for resource, gpu in enumerate(gpus):
        if gpu is not None:
            members.setdefault(gpu, []).append(resource)
    most = max((len(own) for own in members.values()), default=1) - 1
    found = np.full((len(gpus), most), NONE, dtype=np.int64)
    for own in members.values():
        for resource in own:
            others = [other for other in own if other != resource]
            found[resource, : len(others)] = others
    return found


@inlined
def await_stage(world: World, slot: int, now_us: int) -> None:
    """A batch's input is there: it runs from its reserved start on, or with its shared batch."""
    run = world.runs[slot]
    if world.tables.counts[0]["first_shared_batch"] != NONE:
        seat = world.tables.intervals[interval_of(world.tables, slot, run["stage"], VGPU)]
        if seat["shared_batch"] != NONE:
            run["phase"] = ABOARD
            depart(world, seat["shared_batch"], now_us)
            return
    start = world.hops[slot, run["stage"]]["start_us"]
    if start <= now_us:
        try_stage(world, slot, now_us)
    else:
        run["phase"] = RESTING
        push(world, start, STAGE_START, slot, run["number"])


@kernel
def depart(world: World, shared_batch: int, now_us: int) -> None:
    """Run a shared batch whose start has come, with all members, or let it wait for its vGPU."""
    if world.runs[shared_batch]["number"] != world.tables.batches[shared_batch]["number"]:
        return  # opened at this instant: it is yet to be carried out
    if (
        world.runs[shared_batch]["phase"] != RESTING
        or world.tables.batches[shared_batch]["missing"] > 0
    ):
        return
    if world.hops[shared_batch, 0]["start_us"] <= now_us:
        try_stage(world, shared_batch, now_us)


@inlined
def start_stage(world: World, slot: int, now_us: int) -> None:
    """The reserved start of a batch or a shared batch has come."""
    if world.tables.batches[slot]["capacity"] > 0:
        depart(world, slot, now_us)
    else:
        try_stage(world, slot, now_us)


@inlined
def try_stage(world: World, slot: int, now_us: int) -> None:
    """Run a batch's stage, or let it wait for its vGPU."""
    run = world.runs[slot]
    vgpu = world.hops[slot, run["stage"]]["vgpu"]
    if world.running[vgpu] == NONE:
        _start_stage(world, slot, now_us)
        return
    run["phase"] = WAITING_VGPU
    before = NONE
    after = world.waiting[vgpu]
    while after != NONE and not _reserved_before(world, slot, after):
        before = after
        after = world.runs[after]["next"]
    run["next"] = after
    if before == NONE:
        world.waiting[vgpu] = slot
    else:
        world.runs[before]["next"] = slot


@inlined
def _reserved_before(world: World, one: int, other: int) -> bool:
    a = world.hops[one, world.runs[one]["stage"]]["start_us"]
    b = world.hops[other, world.runs[other]["stage"]]["start_us"]
    if a != b:
        return a < b
    return world.runs[one]["number"] < world.runs[other]["number"]


@inlined
def _start_stage(world: World, slot: int, now_us: int) -> None:
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    cursor = world.cursor[0]
    factor = world.factors[cursor["factor"]]
    cursor["factor"] = (cursor["factor"] + 1) % len(world.factors)
    lasts = hop["lasts_us"]
    if len(world.loading) > 0:
        lasts -= _already_there_us(world, slot)
    latency = max(1, lasts * factor // ONE)
    world.running[hop["vgpu"]] = slot
    if cursor["interference"] != PLANNED:
        begin(world, slot, latency, now_us)
    else:
        run["due_us"] = now_us + latency
        push(world, run["due_us"], STAGE_DONE, slot, run["number"])
    run["phase"] = RUNNING
    run["since_us"] = now_us
    if world.tables.batches[slot]["capacity"] > 0:
        _note_shared_batch(world, slot, now_us)
    elif run["stage"] == 0:
        _note_starts(world, slot, now_us)


@kernel
def _already_there_us(world: World, slot: int) -> int:
    """The part of its reserved time that a run does not need: the load of a stage that is there."""
    hop = world.hops[slot, world.runs[slot]["stage"]]
    if hop["place"] == NONE:
        return 0
    memory = world.memory[hop["vgpu"]]
    if _admit(world.used[hop["vgpu"]], world.sizes, memory["room"], hop["place"]):
        memory["loads"] += 1
        return 0
    return hop["load_us"]


@kernel
def _note_starts(world: World, slot: int, now_us: int) -> None:
    request = world.tables.batches[slot]["first"]
    while request != NONE:
        _note_start(world, request, now_us)
        request = world.tables.requests[request]["next"]


@kernel
def _note_shared_batch(world: World, slot: int, now_us: int) -> None:
    """A shared batch leaves: how full it is, for every queue that has requests in it."""
    tables = world.tables
    queues = 0
    for counting in (True, False):
        member = tables.batches[slot]["aboard"]
        while member != NONE:
            batch = batch_of(tables, member)
            queue = _queue_of(world, batch)
            if queue != NONE and _is_first(world, slot, member, queue):
                if counting:
                    queues += 1
                else:
                    world.queues[queue, SHARED_BATCHES] += 1
                    world.queues[queue, SHARED_BATCH_SAMPLES] += tables.batches[slot]["samples"]
                    world.queues[queue, SHARED_BATCH_ENTRIES] += queues
            if counting and world.runs[batch]["stage"] == 0:
                _note_starts(world, batch, now_us)
            member = tables.intervals[member]["next"]


@inlined
def _queue_of(world: World, batch: int) -> int:
    """The first plan's queue of a batch's requests; NONE of tasks."""
    request = world.tables.requests[world.tables.batches[batch]["first"]]
    return world.requests[request["id"]]["queue"] if request["job"] == NONE else NONE


@kernel
def _is_first(world: World, slot: int, member: int, queue: int) -> bool:
    """True if no later member of a shared batch is of its queue."""
    other = world.tables.batches[slot]["aboard"]
    while other != member:
        if _queue_of(world, batch_of(world.tables, other)) == queue:
            return False
        other = world.tables.intervals[other]["next"]
    return True


@inlined
def _note_start(world: World, request: int, now_us: int) -> None:
    """A request's batch begins to run; a job begins with the first of its tasks."""
    row = world.tables.requests[request]
    if row["job"] == NONE:
        world.requests[row["id"]]["dispatch_us"] = now_us
        return
    jobs = jobs_in(world)
    task = jobs.tasks[jobs.task_of[request]]
    task["dispatch_us"] = now_us
    if world.requests[task["request"]]["dispatch_us"] == NONE:
        world.requests[task["request"]]["dispatch_us"] = now_us


@inlined
def leave_vgpu(world: World, slot: int, now_us: int) -> None:
    """Free the vGPU a batch runs on and record the use."""
    run = world.runs[slot]
    vgpu = world.hops[slot, run["stage"]]["vgpu"]
    cursor = world.cursor[0]
    world.running[vgpu] = NONE
    if cursor["interference"] != PLANNED:
        time_again(world, vgpu, now_us)
    world.busy_us[vgpu] += now_us - run["since_us"]
    world.low_busy_us[vgpu] += (now_us - run["since_us"]) * run["low"]
    if cursor["keep_uses"] == 1:
        use = world.uses[cursor["uses"]]
        use["vgpu"] = world.hops[slot, run["stage"]]["number"]
        use["batch_id"] = run["number"]
        use["start_us"] = run["since_us"]
        use["end_us"] = now_us
        use["samples"] = run["samples"]
        use["model"] = run["model"]
        use["plan"] = run["plan"]
        cursor["uses"] += 1


@inlined
def note_run(world: World, slot: int, batch: int, samples: int, now_us: int) -> None:
    """Note how long a run of a batch, or of its shared batch, took on the vGPU of `slot`.

    Batches of an earlier plan are left out, and stages that may have been loaded first.
    """
    run, hop = world.runs[batch], world.hops[slot, world.runs[slot]["stage"]]
    pipeline = world.tables.batches[batch]["pipeline"]
    if run["plan"] != world.cursor[0]["plan"] or pipeline == NONE:
        return
    if len(world.loading) > 0 and hop["place"] != NONE:
        return
    ran = world.ran[world.cursor[0]["ran"] % len(world.ran)]
    ran["stage"] = world.tables.topology.pipelines[pipeline]["first_stage"] + run["stage"]
    ran["vgpu"] = hop["number"]
    ran["samples"] = samples
    ran["took_us"] = now_us - world.runs[slot]["since_us"]
    world.cursor[0]["ran"] += 1


@inlined
def next_on_vgpu(world: World, vgpu: int, now_us: int) -> None:
    """Start the first of the batches that wait for an idle vGPU."""
    slot = world.waiting[vgpu]
    if slot != NONE and world.running[vgpu] == NONE:
        world.waiting[vgpu] = world.runs[slot]["next"]
        _start_stage(world, slot, now_us)


@inlined
def leave_queue(world: World, slot: int, vgpu: int) -> None:
    """Take a batch out of those that wait for a vGPU."""
    following = world.runs[slot]["next"]
    if world.waiting[vgpu] == slot:
        world.waiting[vgpu] = following
        return
    at = world.waiting[vgpu]
    while world.runs[at]["next"] != slot:
        at = world.runs[at]["next"]
    world.runs[at]["next"] = following


@inlined
def answer(world: World, slot: int, now_us: int) -> None:
    """Record that a batch's requests are answered; its tasks say what they give to which child."""
    tables = world.tables
    own = False  # a batch may hold tasks alone
    request = tables.batches[slot]["first"]
    while request != NONE:
        if tables.requests[request]["job"] != NONE:
            emit(world, request)
            jobs = jobs_in(world)
            jobs.tasks[jobs.task_of[request]]["finish_us"] = now_us
            request = tables.requests[request]["next"]
            continue
        record = world.requests[tables.requests[request]["id"]]
        record["finish_us"] = now_us
        record["outcome"] = SERVED if now_us <= record["deadline_us"] else LATE
        own = True
        request = tables.requests[request]["next"]
    if own and len(world.overruns) > 0:
        _note_overrun(world, slot, now_us)


@kernel
def _note_overrun(world: World, slot: int, now_us: int) -> None:
    """Note how late a batch is answered that holds requests of its model's own clients."""
    run, cursor = world.runs[slot], world.cursor[0]
    if run["plan"] != cursor["plan"]:
        return
    last = world.hops[slot, run["stages"]]
    planned_us = world.hops[slot, run["stages"] - 1]["end_us"]
    if last["uplink"] != NONE:
        planned_us = last["move_end_us"]
    overrun = world.overruns[cursor["overruns"] % len(world.overruns)]
    overrun["model"], overrun["late_us"] = run["model"], max(0, now_us - planned_us)
    cursor["overruns"] += 1


@inlined
def begin(world: World, slot: int, latency_us: int, now_us: int) -> None:
    """A batch begins to run that would last so long as planned.

    Its work, and what it does to others.
    """
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    run["work"] = max(1, latency_us * ONE // hop["factor"]) * WORK
    run["paced_us"] = now_us
    run["pace"] = ONE
    run["due_us"] = NONE
    time_again(world, hop["vgpu"], now_us)


@inlined
def time_again(world: World, vgpu: int, now_us: int) -> None:
    """Retime all runs on a GPU after the set of its runs has changed."""
    _time(world, vgpu, now_us)
    if world.cursor[0]["interference"] != OVERLAP:
        return
    for k in range(world.beside.shape[1]):
        other = world.beside[vgpu, k]
        if other != NONE:
            _time(world, other, now_us)


@inlined
def _time(world: World, vgpu: int, now_us: int) -> None:
    slot = world.running[vgpu]
    if slot == NONE:
        return
    run = world.runs[slot]
    pace = _pace(world, vgpu, slot)
    if pace == run["pace"] and run["due_us"] != NONE:
        return
    done = (now_us - run["paced_us"]) * WORK * ONE // run["pace"]
    run["work"] = max(0, run["work"] - done)
    run["paced_us"] = now_us
    run["pace"] = pace
    run["due_us"] = now_us + (run["work"] * pace + WORK * ONE // 2) // (WORK * ONE)
    push(world, run["due_us"], STAGE_DONE, slot, run["number"])


@inlined
def _pace(world: World, vgpu: int, slot: int) -> int:
    """The factor of a batch beside those that run now."""
    if world.cursor[0]["interference"] != OVERLAP:
        return ONE
    pressed = 0
    alone = True
    for k in range(world.beside.shape[1]):
        other = world.beside[vgpu, k]
        if other != NONE and world.running[other] != NONE:
            neighbour = world.running[other]
            pressed += world.hops[neighbour, world.runs[neighbour]["stage"]]["pressure"]
            alone = False
    if alone:
        return ONE
    return max(ONE, world.hops[slot, world.runs[slot]["stage"]]["susceptibility"] + pressed)


@kernel
def emit(world: World, request: int) -> None:
    """A task says how many rows it gives over each edge.

    Of the n rows that its module runs, those before row r give R r // n of the R that go over an
    edge.
    """
    tables = world.tables
    known = jobs_of(tables)
    slot = tables.requests[request]["job"]
    if known.jobs[slot]["state"] != LIVE:
        return
    task = known.tasks[request]
    module = known.modules[known.jobs[slot]["first_module"] + task[TASK_MODULE]]
    of_rows = known.parts[slot, task[TASK_MODULE]]["rows"]
    end = task[TASK_ROW] + tables.requests[request]["samples"]
    for e in range(module["first_edge"], module["end_edge"]):
        rows = jobs_in(world).rows[known.jobs[slot]["id"], known.edges[e]["part"]]
        given = rows * end // of_rows - rows * task[TASK_ROW] // of_rows
        known.tasks[request, TASK_EMITTED + e - module["first_edge"]] = given
