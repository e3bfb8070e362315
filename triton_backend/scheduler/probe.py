"""Quote and commit: the earliest path of a batch through a pipeline (PPipe, Algorithm 2).

`probe` finds, stage after stage, the vGPU that finishes first (ties: the lowest number), given all
reserved intervals and, between stages, the first gap free on the sender's uplink and the
receiver's downlink. It changes nothing but its own notes (`offers`, `quotes`); `commit` reserves
what the last probe of a pipeline found.
"""

from triton_backend.scheduler.compiled import FAR, NONE, Record, inlined, kernel
from triton_backend.scheduler.tables import DOWNLINK, UPLINK, VGPU, Tables, interval_of
from triton_backend.scheduler.timeline import earliest_move, earliest_start, reserve
from triton_backend.scheduler.topology import BLOCK


@kernel
def probe(tables: Tables, pipeline: int, samples: int, now_us: int) -> int:
    """Quote a batch; returns its finish (µs), FAR where a pool has no vGPU left."""
    topology = tables.topology
    quote = tables.quotes[pipeline]
    offers = tables.offers[pipeline]
    tables.counts[0]["probes"] += 1
    quote["samples"] = samples
    quote["wait_us"] = quote["finish_us"] = FAR
    first = topology.pipeline_stages[pipeline]
    last = topology.pipeline_stages[pipeline + 1]
    at = now_us
    work = 0
    sender = NONE
    for stage in range(first, last):
        hop = stage - first
        if not _best_vgpu(tables, offers[hop], stage, sender, samples, at):
            return FAR
        at = offers[hop]["end_us"]
        work += at - offers[hop]["start_us"]
        work += offers[hop]["move_end_us"] - offers[hop]["move_start_us"]
        sender = offers[hop]["vgpu"]
    hop = last - first
    answer = topology.answer_us[pipeline, topology.vgpu_up_rate[sender], samples]
    offers[hop]["uplink"] = NONE
    if answer > 0:
        offers[hop]["uplink"] = topology.vgpu_up[sender]
        at = earliest_start(tables, topology.vgpu_up[sender], at, answer)
        offers[hop]["move_start_us"] = at
        offers[hop]["move_end_us"] = at + answer
        at += answer
        work += answer
    quote["wait_us"] = at - now_us - work
    quote["finish_us"] = at
    return at


@kernel
def _best_vgpu(
    tables: Tables, offer: Record, stage: int, sender: int, samples: int, at_us: int
) -> bool:
    """Fill one hop of an offer; False where the pool has no vGPU left.

    No vGPU can start before `floor`, so the search ends where one does; the pool's index tells
    which blocks and vGPUs cannot start before the best so far.
    """
    topology = tables.topology
    fastest = topology.stage_down_rate[stage]
    uplink = NONE
    if sender != NONE:
        fastest = min(fastest, topology.vgpu_up_rate[sender])
        uplink = topology.vgpu_up[sender]
    least_move = topology.move_us[stage, fastest, samples]
    leave = at_us
    if least_move > 0 and uplink != NONE:
        leave = earliest_start(tables, uplink, at_us, least_move)
    floor = leave + least_move
    offer["key_us"] = FAR
    block = topology.stage_blocks[stage]
    first = topology.stage_vgpus[stage]
    end = topology.stage_vgpus[stage + 1]
    while first < end and offer["key_us"] > floor:
        if tables.block_from_us[block] < offer["key_us"]:
            for vgpu in range(first, min(first + BLOCK, end)):
                if tables.free_from_us[vgpu] < offer["key_us"]:
                    _offer_vgpu(tables, offer, vgpu, sender, samples, leave)
                    if offer["key_us"] <= floor:
                        break
        block += 1
        first += BLOCK
    return offer["key_us"] < FAR


@kernel
def _offer_vgpu(
    tables: Tables, offer: Record, vgpu: int, sender: int, samples: int, leave_us: int
) -> None:
    """Take a vGPU into the offer where it starts earlier than the one in it."""
    topology = tables.topology
    stage = topology.vgpu_stage[vgpu]
    rate = topology.vgpu_down_rate[vgpu]
    uplink = NONE
    downlink = NONE
    if sender != NONE:
        rate = min(rate, topology.vgpu_up_rate[sender])
    move = topology.move_us[stage, rate, samples]
    moved = leave_us
    if move > 0:
        downlink = topology.vgpu_down[vgpu]
        if sender != NONE:
            uplink = topology.vgpu_up[sender]
        moved = earliest_move(tables, uplink, downlink, leave_us, move)
    start = moved + move
    if start >= offer["key_us"]:
        return
    latency = topology.latency_us[stage, samples]
    start = earliest_start(tables, vgpu, start, latency)
    key = start
    if tables.counts[0]["ahead"] == 1:
        key = _leave(tables, vgpu, samples, start + latency) - latency
    if key < offer["key_us"] or (key == offer["key_us"] and start + latency < offer["end_us"]):
        offer["key_us"] = key
        offer["vgpu"] = vgpu
        offer["uplink"] = uplink
        offer["downlink"] = downlink
        offer["move_start_us"] = moved
        offer["move_end_us"] = moved + move
        offer["start_us"] = start
        offer["end_us"] = start + latency


@kernel
def _leave(tables: Tables, vgpu: int, samples: int, at_us: int) -> int:
    """First instant >= at_us at which the uplink can take the batch on; at_us on a last stage."""
    topology = tables.topology
    stage = topology.vgpu_stage[vgpu]
    if topology.stage_last[stage] == 1:
        return at_us
    rate = min(topology.vgpu_up_rate[vgpu], topology.stage_down_rate[stage + 1])
    move = topology.move_us[stage + 1, rate, samples]
    if move == 0:
        return at_us
    return earliest_start(tables, topology.vgpu_up[vgpu], at_us, move)


@inlined
def commit(tables: Tables, pipeline: int, batch: int) -> None:
    """Reserve what the last probe of a pipeline found, in the name of a batch slot."""
    offers = tables.offers[pipeline]
    stages = (
        tables.topology.pipeline_stages[pipeline + 1] - tables.topology.pipeline_stages[pipeline]
    )
    for hop in range(stages + 1):
        offer = offers[hop]
        tables.paths[batch, hop] = NONE
        if hop < stages:
            tables.paths[batch, hop] = offer["vgpu"]
            i = interval_of(tables, batch, hop, VGPU)
            reserve(tables, i, offer["vgpu"], offer["start_us"], offer["end_us"])
            if offer["downlink"] != NONE:
                i = interval_of(tables, batch, hop, DOWNLINK)
                reserve(tables, i, offer["downlink"], offer["move_start_us"], offer["move_end_us"])
        if offer["uplink"] != NONE:
            i = interval_of(tables, batch, hop, UPLINK)
            reserve(tables, i, offer["uplink"], offer["move_start_us"], offer["move_end_us"])
    tables.batches[batch]["finish_us"] = tables.quotes[pipeline]["finish_us"]
