"""Workers of the simulated cluster: they run stages in the order in which they were reserved.

Of several batches whose input is there and whose reserved start has come, a vGPU takes the one
reserved first (ties: the lower number); nothing starts before its reserved start. With exact
latencies everything then happens exactly when it was reserved.
"""

from triton_backend.scheduler.compiled import NONE, inlined
from triton_backend.simulator.heap import STAGE_DONE, STAGE_START
from triton_backend.simulator.world import LATE, RESTING, RUNNING, SERVED, WAITING_VGPU, World, push

NOISE_ONE = 1 << 20  # a factor of one: factors are integers, so that every machine agrees


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
    if run["stage"] == 0:
        request = world.tables.batches[slot]["first"]
        while request != NONE:
            world.requests[world.tables.requests[request]["id"]]["dispatch_us"] = now_us
            request = world.tables.requests[request]["next"]
    push(world, now_us + latency, STAGE_DONE, slot, run["number"])


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
        use["vgpu"] = world.hops[slot, run["stage"]]["number"]
        use["batch_id"] = run["number"]
        use["start_us"] = run["since_us"]
        use["end_us"] = now_us
        use["samples"] = run["samples"]
        use["model"] = run["model"]
        use["plan"] = run["plan"]
        cursor["uses"] += 1


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
    """Record that a batch's requests are answered."""
    tables = world.tables
    request = tables.batches[slot]["first"]
    while request != NONE:
        record = world.requests[tables.requests[request]["id"]]
        record["finish_us"] = now_us
        record["outcome"] = SERVED if now_us <= record["deadline_us"] else LATE
        request = tables.requests[request]["next"]
