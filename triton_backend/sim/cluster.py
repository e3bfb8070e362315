"""Workers and links of the simulated cluster: they carry out what was dispatched.

Of several batches whose input is there and whose reserved start has come, a vGPU (or link) takes
the one reserved first; nothing starts before its reserved start. With exact latencies everything
then happens exactly when it was reserved. What ends is told to the scheduler at once.
"""

from triton_backend.core.compiled import NONE, inlined, kernel
from triton_backend.core.feedback import stage_done, transfer_done
from triton_backend.core.tables import DOWNLINK, UPLINK, VGPU, interval_of
from triton_backend.sim.heap import MOVE_END, MOVE_START, STAGE_END, STAGE_START
from triton_backend.sim.world import (
    LATE,
    MOVING,
    RESTING,
    RUNNING,
    SERVED,
    WAITING_LINK,
    WAITING_VGPU,
    World,
    push,
)

NOISE_ONE = 1 << 20  # a factor of one: factors are integers, so that every machine agrees


@inlined
def launch(world: World, slot: int) -> None:
    """Take over a batch just dispatched."""
    tables = world.tables
    batch = tables.batches[slot]
    run = world.runs[slot]
    run["number"] = batch["number"]
    run["pipeline"] = batch["pipeline"]
    run["samples"] = batch["samples"]
    run["stage"] = 0
    run["phase"] = RESTING
    first = tables.topology.pipeline_stages[batch["pipeline"]]
    run["stages"] = tables.topology.pipeline_stages[batch["pipeline"] + 1] - first
    for hop in range(run["stages"] + 1):
        _copy_hop(world, slot, hop)
    request = batch["first"]
    while request != NONE:
        record = world.requests[tables.requests[request]["id"]]
        record["dispatch_us"] = batch["dispatch_us"]
        record["batch_id"] = batch["number"]
        record["batch_samples"] = batch["samples"]
        request = tables.requests[request]["next"]
    advance(world, slot, batch["dispatch_us"])


@inlined
def _copy_hop(world: World, slot: int, hop: int) -> None:
    intervals = world.tables.intervals
    to = world.hops[slot, hop]
    run = intervals[interval_of(world.tables, slot, hop, VGPU)]
    to["vgpu"] = run["resource"]
    to["start_us"] = run["start_us"]
    to["end_us"] = run["end_us"]
    to["move_start_us"] = to["move_end_us"] = 0
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
def advance(world: World, slot: int, now_us: int) -> None:
    """Set out for the next step of a batch: the move into its stage, or the stage where none."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    if hop["move_end_us"] == hop["move_start_us"]:
        await_stage(world, slot, now_us)
    elif hop["move_start_us"] <= now_us:
        try_move(world, slot, now_us)
    else:
        run["phase"] = RESTING
        push(world, hop["move_start_us"], MOVE_START, slot, run["number"])


@inlined
def await_stage(world: World, slot: int, now_us: int) -> None:
    """A batch's input is there: it runs from its reserved start on."""
    run = world.runs[slot]
    start = world.hops[slot, run["stage"]]["start_us"]
    if start <= now_us:
        try_stage(world, slot, now_us)
    else:
        run["phase"] = RESTING
        push(world, start, STAGE_START, slot, run["number"])


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
    latency = max(1, (hop["end_us"] - hop["start_us"]) * factor // NOISE_ONE)
    world.running[hop["vgpu"]] = slot
    run["phase"] = RUNNING
    run["since_us"] = now_us
    push(world, now_us + latency, STAGE_END, slot, run["number"])


@inlined
def end_stage(world: World, slot: int, now_us: int) -> bool:
    """A stage is over; True where not at the reserved instant, so that lines should look again."""
    run = world.runs[slot]
    stage = run["stage"]
    vgpu = world.hops[slot, stage]["vgpu"]
    leave_vgpu(world, slot, now_us)
    last = stage == run["stages"] - 1 and world.hops[slot, stage + 1]["uplink"] == NONE
    if last:
        answer(world, slot, now_us)
    deviates = stage_done(world.tables, slot, stage, now_us)
    if last:
        run["number"] = NONE
    else:
        run["stage"] += 1
        advance(world, slot, now_us)
    next_on_vgpu(world, vgpu, now_us)
    return deviates


@inlined
def leave_vgpu(world: World, slot: int, now_us: int) -> None:
    """Free the vGPU a batch runs on and record the use."""
    run = world.runs[slot]
    vgpu = world.hops[slot, run["stage"]]["vgpu"]
    cursor = world.cursor[0]
    world.running[vgpu] = NONE
    world.busy_us[vgpu] += now_us - run["since_us"]
    if cursor["keep_uses"] == 1:
        use = world.uses[cursor["uses"]]
        use["vgpu"] = vgpu
        use["batch_id"] = run["number"]
        use["start_us"] = run["since_us"]
        use["end_us"] = now_us
        use["samples"] = run["samples"]
        use["plan"] = cursor["plan"]
        cursor["uses"] += 1


@inlined
def next_on_vgpu(world: World, vgpu: int, now_us: int) -> None:
    """Start the first of the batches that wait for an idle vGPU."""
    slot = world.waiting[vgpu]
    if slot != NONE and world.running[vgpu] == NONE:
        world.waiting[vgpu] = world.runs[slot]["next"]
        _start_stage(world, slot, now_us)


@inlined
def answer(world: World, slot: int, now_us: int) -> None:
    """Record that a batch's requests are answered."""
    tables = world.tables
    request = tables.batches[slot]["first"]
    while request != NONE:
        record = world.requests[tables.requests[request]["id"]]
        record["finish_us"] = now_us
        record["outcome"] = SERVED if now_us <= record["deadline_us"] else LATE
        request = tables.requests[request]["next"]


@inlined
def try_move(world: World, slot: int, now_us: int) -> bool:
    """Start a batch's transfer where both links are free; else it waits."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    free = hop["uplink"] == NONE or world.carrying[hop["uplink"]] == NONE
    if free and (hop["downlink"] == NONE or world.carrying[hop["downlink"]] == NONE):
        if hop["uplink"] != NONE:
            world.carrying[hop["uplink"]] = slot
        if hop["downlink"] != NONE:
            world.carrying[hop["downlink"]] = slot
        run["phase"] = MOVING
        run["since_us"] = now_us
        length = hop["move_end_us"] - hop["move_start_us"]
        push(world, now_us + length, MOVE_END, slot, run["number"])
        return True
    if run["phase"] != WAITING_LINK:
        run["phase"] = WAITING_LINK
        world.moves[world.cursor[0]["moves_waiting"]] = slot
        world.cursor[0]["moves_waiting"] += 1
    return False


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
        await_stage(world, slot, now_us)
    if world.cursor[0]["moves_waiting"] > 0:
        next_moves(world, now_us)
    return deviates


@inlined
def leave_links(world: World, slot: int, now_us: int) -> None:
    """Free the links that carry a batch."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    for link in (hop["uplink"], hop["downlink"]):
        if link != NONE:
            world.carrying[link] = NONE
            world.busy_us[link] += now_us - run["since_us"]


@kernel
def next_moves(world: World, now_us: int) -> None:
    """Start every waiting transfer that can, those reserved first before others."""
    cursor = world.cursor[0]
    tried_start, tried_number = NONE, NONE
    for _ in range(cursor["moves_waiting"]):
        best = NONE
        best_start, best_number = 0, 0
        for k in range(cursor["moves_waiting"]):
            run = world.runs[world.moves[k]]
            start = world.hops[world.moves[k], run["stage"]]["move_start_us"]
            number = run["number"]
            later = start > tried_start or (start == tried_start and number > tried_number)
            sooner = start < best_start or (start == best_start and number < best_number)
            if later and (best == NONE or sooner):
                best, best_start, best_number = k, start, number
        if best == NONE:
            return
        tried_start, tried_number = best_start, best_number
        if try_move(world, world.moves[best], now_us):
            cursor["moves_waiting"] -= 1
            world.moves[best] = world.moves[cursor["moves_waiting"]]


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
        _leave_line(world, slot, vgpu)
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


@inlined
def _leave_line(world: World, slot: int, vgpu: int) -> None:
    following = world.runs[slot]["next"]
    if world.waiting[vgpu] == slot:
        world.waiting[vgpu] = following
        return
    at = world.waiting[vgpu]
    while world.runs[at]["next"] != slot:
        at = world.runs[at]["next"]
    world.runs[at]["next"] = following
