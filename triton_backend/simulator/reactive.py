"""Policy `reactive`: adaptive batching per pool without reservations (PPipe, section 7.4).

The baseline of the ablation, for simulation only. Every pool has a line of its own, in the order of
deadlines. It takes the vGPU that is free first (ties: the lowest number) and the largest batch <=
planned whose latency and transfer fit into: deadline of the head - planned latencies and transfers
of later stages - time until that vGPU is free. While a vGPU is busy one batch may be sent ahead to
it, but only as large as fits; a free vGPU takes what there is. Heads that no longer fit are
dropped. Batches are formed anew at every stage; links are first come, first served, and nobody looks
at them beforehand, so accepted requests can end late.

Requests go to the pipelines of their model in proportion to the planned throughputs.
"""

from triton_backend.scheduler.compiled import FAR, NONE, entry, kernel
from triton_backend.scheduler.topology import pipelines_of, vgpus_of
from triton_backend.simulator.heap import STAGE_END, remove_first, sift_up
from triton_backend.simulator.pools import Pools, answer, drop, join, leave, move
from triton_backend.simulator.workers import NOISE_ONE


@entry
def run_pools(pools: Pools) -> None:
    """Let everything happen."""
    state = pools.state[0]
    while True:
        arrival = FAR
        if state["arrival"] < len(pools.requests):
            arrival = pools.requests[state["arrival"]]["arrival_us"]
        if state["events"] > 0 and pools.heap[0]["at_us"] <= arrival:
            state["now_us"] = pools.heap[0]["at_us"]
            vgpu = pools.heap[0]["subject"]
            remove_first(pools.heap, state["events"])
            state["events"] -= 1
            _end_stage(pools, vgpu)
        elif arrival < FAR:
            state["now_us"] = arrival
            request = state["arrival"]
            state["arrival"] += 1
            pipeline = _least_served(pools, pools.requests[request]["model"])
            if pipeline == NONE:
                drop(pools, request)
            else:
                pools.assigned[pipeline] += 1
                stage = pools.topology.pipelines[pipeline]["first_stage"]
                join(pools, stage, request)
                _dispatch(pools, stage, pipeline)
        else:
            return
        state["steps"] += 1


@kernel
def _least_served(pools: Pools, model: int) -> int:
    """The pipeline furthest behind its share; ties: plan order."""
    best = NONE
    for p in pipelines_of(pools.topology, model):
        if (
            best == NONE
            or (pools.assigned[p] + 1) * pools.shares[best]
            < (pools.assigned[best] + 1) * pools.shares[p]
        ):
            best = p
    return best


@kernel
def _dispatch(pools: Pools, stage: int, pipeline: int) -> None:
    """Form batches of a line while some vGPU takes them."""
    now = pools.state[0]["now_us"]
    line = pools.lines[stage]
    while line["first"] != NONE:
        vgpu = _free_first(pools, stage)
        if vgpu == NONE:
            return
        wait = max(0, pools.vgpus[vgpu]["end_us"] - now)
        deadline = pools.requests[line["first"]]["deadline_us"]
        budget = deadline - now - wait - line["later_us"]
        size = pools.topology.pipelines[pipeline]["batch"]
        while size > 0 and _takes(pools, vgpu, size) > budget:
            size -= 1
        if size == 0:
            drop(pools, leave(pools, stage))
        elif wait > 0 and line["requests"] < size:
            return
        else:
            _send(pools, stage, vgpu, min(size, line["requests"]))


@kernel
def _free_first(pools: Pools, stage: int) -> int:
    """The vGPU that is free first, of those to which nothing was sent ahead."""
    best = NONE
    for vgpu in vgpus_of(pools.topology, stage):
        row = pools.vgpus[vgpu]
        if row["next_first"] != NONE:
            continue
        if best == NONE or row["end_us"] < pools.vgpus[best]["end_us"]:
            best = vgpu
        if row["first"] == NONE:
            return vgpu
    return best


@kernel
def _takes(pools: Pools, vgpu: int, size: int) -> int:
    """Latency and transfer of a batch, the links being free."""
    topology = pools.topology
    stage = topology.vgpus[vgpu]["stage"]
    move = topology.move_us[stage, topology.vgpus[vgpu]["down_rate"], size]
    return topology.latency_us[stage, size] + move


@kernel
def _send(pools: Pools, stage: int, vgpu: int, size: int) -> None:
    """Send the first requests of a line to a vGPU, one transfer per run of equal senders."""
    state = pools.state[0]
    ready = state["now_us"]
    first = pools.lines[stage]["first"]
    sender = pools.place[first]
    together = 0
    last = NONE
    for _ in range(size):
        request = leave(pools, stage)
        record = pools.requests[request]
        if record["dispatch_us"] == NONE:
            record["dispatch_us"] = state["now_us"]
        record["batch_id"] = state["batches"]
        record["batch_samples"] = size
        if pools.place[request] != sender:
            ready = max(ready, move(pools, stage, sender, vgpu, together))
            sender = pools.place[request]
            together = 0
        together += 1
        last = request
    pools.next[last] = NONE
    ready = max(ready, move(pools, stage, sender, vgpu, together))
    row = pools.vgpus[vgpu]
    row["next_first"] = first
    row["next_size"] = size
    row["next_ready_us"] = ready
    row["next_number"] = state["batches"]
    state["batches"] += 1
    if row["first"] == NONE:
        _start_stage(pools, vgpu)


@kernel
def _start_stage(pools: Pools, vgpu: int) -> None:
    """Run the batch that was sent to a vGPU which is free now."""
    state = pools.state[0]
    row = pools.vgpus[vgpu]
    stage = pools.topology.vgpus[vgpu]["stage"]
    factor = pools.factors[state["factor"]]
    state["factor"] = (state["factor"] + 1) % len(pools.factors)
    latency = pools.topology.latency_us[stage, row["next_size"]]
    row["first"] = row["next_first"]
    row["size"] = row["next_size"]
    row["number"] = row["next_number"]
    row["start_us"] = max(state["now_us"], row["next_ready_us"])
    row["end_us"] = row["start_us"] + max(1, latency * factor // NOISE_ONE)
    row["next_first"] = NONE
    event = pools.heap[state["events"]]
    event["at_us"] = row["end_us"]
    event["kind"] = STAGE_END
    event["sequence"] = state["sequence"]
    event["subject"] = vgpu
    state["sequence"] += 1
    state["events"] += 1
    sift_up(pools.heap, state["events"])


@kernel
def _end_stage(pools: Pools, vgpu: int) -> None:
    """A batch left a vGPU: its requests are answered, or wait for the next pool."""
    topology = pools.topology
    state = pools.state[0]
    row = pools.vgpus[vgpu]
    stage = topology.vgpus[vgpu]["stage"]
    use = pools.uses[state["uses"]]
    use["vgpu"] = vgpu
    use["batch_id"] = row["number"]
    use["start_us"] = row["start_us"]
    use["end_us"] = row["end_us"]
    use["samples"] = row["size"]
    state["uses"] += 1
    pools.busy_us[vgpu] += row["end_us"] - row["start_us"]
    pipeline = topology.stages[stage]["pipeline"]
    request = row["first"]
    row["first"] = NONE
    while request != NONE:
        following = pools.next[request]
        if topology.stages[stage]["last"] == 1:
            answer(pools, vgpu, request)
        else:
            pools.place[request] = vgpu
            join(pools, stage + 1, request)
        request = following
    if row["next_first"] != NONE:
        _start_stage(pools, vgpu)
    if topology.stages[stage]["last"] == 0:
        _dispatch(pools, stage + 1, pipeline)
    _dispatch(pools, stage, pipeline)
