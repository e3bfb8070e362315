"""A batch in the simulated cluster, from dispatch to answer.

    transfer into a stage   RESTING --> WAITING_LINK --> MOVING    (skipped if nothing is moved)
    the stage               RESTING --> WAITING_VGPU --> RUNNING   then the next stage or answer

It is RESTING until the reserved start of its next step, which is an event in the heap, and WAITING
while another batch has the resource. Where it sits in a shared batch it is ABOARD, and the shared
batch, which has a batch slot of its own, takes these steps for all. At most one event of a batch
lies ahead of it. The end of a stage or transfer is reported to the scheduler at once, with the true
instant. Not here: which batch goes first (`workers`, `links`).
"""

from triton_backend.scheduler.compiled import NONE, Record, inlined, kernel
from triton_backend.scheduler.feedback import shared_batch_done, stage_done, transfer_done
from triton_backend.scheduler.reservations.shared_batches import batch_of
from triton_backend.scheduler.tables import DOWNLINK, KINDS, UPLINK, VGPU, interval_of
from triton_backend.scheduler.topology import first_low
from triton_backend.simulator.cluster.links import leave_links, next_moves, try_move
from triton_backend.simulator.cluster.workers import (
    answer,
    await_stage,
    depart,
    leave_queue,
    leave_vgpu,
    next_on_vgpu,
    note_run,
)
from triton_backend.simulator.heap import STAGE_START, TRANSFER_START
from triton_backend.simulator.world import (
    MOVING,
    PLANNED,
    RESTING,
    RUNNING,
    WAITING_LINK,
    WAITING_VGPU,
    World,
    jobs_in,
    push,
)


@inlined
def launch(world: World, slot: int) -> None:
    """Take over a batch just dispatched."""
    tables = world.tables
    batch = tables.batches[slot]
    run = world.runs[slot]
    run["number"] = batch["number"]
    topology = tables.topology
    run["plan"] = world.cursor[0]["plan"]
    run["model"] = topology.queues[topology.pipelines[batch["pipeline"]]["queue"]]["model"]
    run["samples"] = batch["samples"]
    run["low"] = tables.requests[batch["first"]]["queue"] >= first_low(topology)
    run["stage"] = 0
    run["phase"] = RESTING
    run["stages"] = batch["stages"]
    for hop in range(run["stages"] + 1):
        _copy_hop(world, slot, hop)
    request = batch["first"]
    while request != NONE:
        if tables.requests[request]["job"] == NONE:
            record = world.requests[tables.requests[request]["id"]]
            record["batch_id"] = batch["number"]
            record["batch_samples"] = batch["samples"]
        else:
            jobs = jobs_in(world)
            task = jobs.tasks[jobs.task_of[request]]
            task["batch_id"] = batch["number"]
            task["batch_samples"] = batch["samples"]
        request = tables.requests[request]["next"]
    advance(world, slot, batch["dispatch_us"])


@inlined
def _copy_hop(world: World, slot: int, hop: int) -> None:
    intervals = world.tables.intervals
    to = world.hops[slot, hop]
    run = intervals[interval_of(world.tables, slot, hop, VGPU)]
    if run["shared_batch"] != NONE:
        run = intervals[interval_of(world.tables, run["shared_batch"], 0, VGPU)]
    to["vgpu"] = to["number"] = run["resource"]
    to["start_us"] = run["start_us"]
    to["end_us"] = run["end_us"]
    to["lasts_us"] = run["end_us"] - run["start_us"]
    if len(world.table_us) > 0 and hop < world.runs[slot]["stages"]:
        pipeline = world.tables.topology.pipelines[world.tables.batches[slot]["pipeline"]]
        stage = pipeline["first_stage"] + hop
        to["lasts_us"] = world.table_us[stage, world.runs[slot]["samples"]]
    to["move_start_us"] = to["move_end_us"] = 0
    if world.cursor[0]["interference"] != PLANNED and hop < world.runs[slot]["stages"]:
        pipeline = world.tables.topology.pipelines[world.tables.batches[slot]["pipeline"]]
        _copy_seat(world, to, pipeline["first_stage"] + hop)
    if len(world.loading) > 0 and hop < world.runs[slot]["stages"]:
        pipeline = world.tables.topology.pipelines[world.tables.batches[slot]["pipeline"]]
        loads = world.loading[pipeline["first_stage"] + hop]
        to["place"], to["load_us"] = loads["place"], loads["load_us"]
    down = intervals[interval_of(world.tables, slot, hop, DOWNLINK)]
    up = intervals[interval_of(world.tables, slot, hop, UPLINK)]
    to["downlink"] = down["resource"]
    to["uplink"] = up["resource"]
    if down["resource"] != NONE:
        to["move_start_us"] = down["start_us"]
        to["move_end_us"] = down["end_us"]
    elif up["resource"] != NONE:
        to["move_start_us"] = up["start_us"]
        to["move_end_us"] = up["end_us"]


@inlined
def _copy_seat(world: World, to: Record, stage: int) -> None:
    seat = world.seats[stage]
    to["factor"] = seat["factor"]
    to["susceptibility"] = seat["susceptibility"]
    to["pressure"] = seat["pressure"]


@kernel
def carry_shared_batch(world: World, slot: int, number: int, now_us: int) -> None:
    """A shared batch is opened, other than it was, or over without a run.

    `number` is the one that was noted.
    """
    tables, run = world.tables, world.runs[slot]
    if tables.batches[slot]["number"] != number:
        if run["number"] == number:
            forget(world, slot, now_us)
        return
    new = run["number"] != number
    hop = world.hops[slot, 0]
    if new:
        run["number"] = number
        run["plan"] = world.cursor[0]["plan"]
        run["stage"], run["stages"], run["phase"], run["low"] = 0, 1, RESTING, 0
        hop["vgpu"] = hop["number"] = tables.paths[slot, 0]
        hop["uplink"] = hop["downlink"] = world.hops[slot, 1]["uplink"] = NONE
        hop["move_start_us"] = hop["move_end_us"] = 0
        hop["place"] = NONE
    if run["phase"] != RESTING:
        return
    interval = tables.intervals[interval_of(tables, slot, 0, VGPU)]
    before, hop["start_us"] = hop["start_us"], interval["start_us"]
    run["samples"] = tables.batches[slot]["samples"]
    hop["end_us"] = hop["start_us"] + _shared_batch_lasts(world, slot)
    if interval["start_us"] <= now_us:
        depart(world, slot, now_us)
    elif new or interval["start_us"] != before:
        push(world, interval["start_us"], STAGE_START, slot, number)


@kernel
def _shared_batch_lasts(world: World, slot: int) -> int:
    """Run time of a shared batch up to its last row; as before where an earlier plan opened it."""
    tables, hop = world.tables, world.hops[slot, 0]
    rows = 0
    lasts = hop["end_us"] - hop["start_us"]
    member = tables.batches[slot]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        rows = max(rows, tables.intervals[member]["row"] + tables.batches[batch]["samples"])
        if tables.batches[batch]["pipeline"] != NONE:
            pipeline = tables.topology.pipelines[tables.batches[batch]["pipeline"]]
            stage = pipeline["first_stage"] + member // KINDS % tables.offers.shape[1]
            lasts = hop["lasts_us"] = tables.topology.latency_us[stage, rows]
            if len(world.table_us) > 0:
                hop["lasts_us"] = world.table_us[stage, rows]
            queue = tables.topology.queues[pipeline["queue"]]
            world.runs[slot]["model"] = queue["model"]
            if world.cursor[0]["interference"] != PLANNED:
                _copy_seat(world, hop, stage)
        member = tables.intervals[member]["next"]
    return lasts


@inlined
def advance(world: World, slot: int, now_us: int) -> None:
    """Set out for the next step of a batch: the move into its stage, or the stage where none."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    if world.tables.counts[0]["first_shared_batch"] != NONE:
        _move_as_reserved(world, slot)
    if hop["move_end_us"] == hop["move_start_us"]:
        await_stage(world, slot, now_us)
    elif hop["move_start_us"] <= now_us:
        try_move(world, slot, now_us)
    else:
        run["phase"] = RESTING
        push(world, hop["move_start_us"], TRANSFER_START, slot, run["number"])


@kernel
def _move_as_reserved(world: World, slot: int) -> None:
    """A batch whose shared batch left sooner than said at its dispatch is moved sooner."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    move = world.tables.intervals[interval_of(world.tables, slot, run["stage"], DOWNLINK)]
    known = world.tables.batches[slot]["number"] == run["number"] and move["resource"] != NONE
    if known and move["start_us"] < hop["move_start_us"]:
        hop["move_end_us"] -= hop["move_start_us"] - move["start_us"]
        hop["move_start_us"] = move["start_us"]


@inlined
def end_stage(world: World, slot: int, now_us: int) -> bool:
    """A stage is over; True where not at the reserved instant, so that queues are settled again."""
    run = world.runs[slot]
    stage = run["stage"]
    vgpu = world.hops[slot, stage]["vgpu"]
    leave_vgpu(world, slot, now_us)
    if world.tables.batches[slot]["capacity"] > 0:
        deviates = _end_shared_batch(world, slot, now_us)
        next_on_vgpu(world, vgpu, now_us)
        return deviates
    if len(world.ran) > 0:
        note_run(world, slot, slot, run["samples"], now_us)
    last = _answers(world, slot)
    if last:
        answer(world, slot, now_us)
    deviates = stage_done(world.tables, slot, stage, now_us)
    if last:
        run["number"] = NONE
    elif world.tables.batches[slot]["number"] == run["number"]:
        run["stage"] += 1
        advance(world, slot, now_us)
    else:  # too late for its shared batch
        run["phase"] = RESTING
    next_on_vgpu(world, vgpu, now_us)
    return deviates


@kernel
def _end_shared_batch(world: World, slot: int, now_us: int) -> bool:
    """A stage of all members of a shared batch is over; True where not at the reserved instant."""
    tables = world.tables
    aboard = tables.batches[slot]["aboard"]
    if aboard != NONE and len(world.ran) > 0:
        note_run(world, slot, batch_of(tables, aboard), world.runs[slot]["samples"], now_us)
    member = aboard
    while member != NONE:
        batch = batch_of(tables, member)
        run = world.runs[batch]
        run["phase"] = RESTING
        if _answers(world, batch):
            answer(world, batch, now_us)
        member = tables.intervals[member]["next"]
    deviates = shared_batch_done(tables, slot, now_us)
    world.runs[slot]["number"] = NONE
    while aboard != NONE:  # the chain stays as it was until something is dispatched
        batch = batch_of(tables, aboard)
        run = world.runs[batch]
        aboard = tables.intervals[aboard]["next"]
        if _answers(world, batch):
            run["number"] = NONE
        elif tables.batches[batch]["number"] == run["number"]:
            run["stage"] += 1
            advance(world, batch, now_us)
    return deviates


@inlined
def _answers(world: World, slot: int) -> bool:
    """True if a batch is answered at the end of its present stage."""
    run = world.runs[slot]
    last = run["stage"] == run["stages"] - 1
    return last and world.hops[slot, run["stage"] + 1]["uplink"] == NONE


@inlined
def end_move(world: World, slot: int, now_us: int) -> bool:
    """A transfer is over; True where not at the reserved instant."""
    run = world.runs[slot]
    stage = run["stage"]
    leave_links(world, slot, now_us)
    last = stage == run["stages"]
    if last:
        answer(world, slot, now_us)
    deviates = transfer_done(world.tables, slot, stage, now_us)
    if last:
        run["number"] = NONE
    else:
        run["phase"] = RESTING
        if (
            world.tables.batches[slot]["number"] == run["number"]
        ):  # it is in time for its shared batch
            await_stage(world, slot, now_us)
    if world.cursor[0]["moves_waiting"] > 0:
        next_moves(world, now_us)
    return deviates


@kernel
def forget(world: World, slot: int, now_us: int) -> None:
    """A batch was aborted: whatever it used or waited for is free."""
    run = world.runs[slot]
    phase = run["phase"]
    vgpu = world.hops[slot, run["stage"]]["vgpu"]
    if phase == RUNNING:
        leave_vgpu(world, slot, now_us)
        next_on_vgpu(world, vgpu, now_us)
    elif phase == WAITING_VGPU:
        leave_queue(world, slot, vgpu)
    elif phase == MOVING:
        leave_links(world, slot, now_us)
        next_moves(world, now_us)
    elif phase == WAITING_LINK:
        cursor = world.cursor[0]
        for k in range(cursor["moves_waiting"]):
            if world.moves[k] == slot:
                cursor["moves_waiting"] -= 1
                world.moves[k] = world.moves[cursor["moves_waiting"]]
                break
    run["number"] = NONE
