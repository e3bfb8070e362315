"""State of a `reactive` run: lines, vGPUs and links, and how requests move between them."""

from typing import NamedTuple

import numpy as np

from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import NONE, Integers, Records, kernel
from triton_backend.scheduler.topology import Topology, resource_count
from triton_backend.simulator.heap import EVENT
from triton_backend.simulator.world import DROPPED, LATE, SERVED, USE_RECORD

VGPU = np.dtype(
    [
        (name, np.int64)
        for name in (
            "first",  # requests of the batch that runs, chained
            "size",
            "start_us",
            "end_us",
            "number",
            "next_first",  # the batch that was sent ahead; NONE where there is none
            "next_size",
            "next_ready_us",
            "next_number",
        )
    ]
)
LINE = np.dtype([(name, np.int64) for name in ("first", "last", "requests", "later_us")])
STATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_us",
            "arrival",
            "events",
            "sequence",
            "batches",
            "uses",
            "factor",
            "steps",
        )
    ]
)


class Pools(NamedTuple):
    """State of a reactive run.

    Attributes:
        lines: per stage row the requests that wait, and what later stages are planned to take.
        links: [resource] instant from which a link is free.
        assigned: per pipeline, requests sent to it so far.
        shares: per pipeline, its share of the model's planned throughput in millionths.
        next, place: per request its successor in a chain, and the vGPU that holds its tensors.
    """

    topology: Topology
    requests: Records
    heap: Records
    lines: Records
    vgpus: Records
    links: Integers
    assigned: Integers
    shares: Integers
    next: Integers
    place: Integers
    busy_us: Integers
    uses: Records
    factors: Integers
    state: Records


def new_pools(plan: Plan, topology: Topology, requests: Records, factors: Integers) -> Pools:
    """Idle pools before the first arrival."""
    vgpus = np.zeros(len(topology.vgpus), dtype=VGPU)
    for name in ("first", "next_first"):
        vgpus[name] = NONE
    lines = np.zeros(len(topology.stages), dtype=LINE)
    lines["first"] = lines["last"] = NONE
    shares: list[int] = []
    for model in plan.models:
        total = sum(pipeline.throughput_rps for pipeline in model.pipelines)
        shares += [max(1, round(1e6 * p.throughput_rps / total)) for p in model.pipelines]
    row = 0
    for model in plan.models:
        for pipeline in model.pipelines:
            stages = pipeline.stages
            for number in range(len(stages)):
                later = stages[number + 1 :]
                into = stages[number:-1]
                lines[row]["later_us"] = sum(s.latency_us for s in later) + sum(
                    s.transfer_us for s in into
                )
                row += 1
    resources = resource_count(topology)
    hops = int(topology.pipelines["stages"].max(initial=1))
    return Pools(
        topology=topology,
        requests=requests,
        heap=np.zeros(len(vgpus) + 2, dtype=EVENT),
        lines=lines,
        vgpus=vgpus,
        links=np.zeros(resources, dtype=np.int64),
        assigned=np.zeros(len(shares), dtype=np.int64),
        shares=np.asarray(shares, dtype=np.int64),
        next=np.full(len(requests), NONE, dtype=np.int64),
        place=np.full(len(requests), NONE, dtype=np.int64),
        busy_us=np.zeros(resources, dtype=np.int64),
        uses=np.zeros(hops * len(requests) + 1, dtype=USE_RECORD),
        factors=factors,
        state=np.zeros(1, dtype=STATE),
    )


@kernel
def join(pools: Pools, stage: int, request: int) -> None:
    """Put a request into a line, in the order of deadlines (ties: arrival)."""
    line = pools.lines[stage]
    deadline = pools.requests[request]["deadline_us"]
    line["requests"] += 1
    last = line["last"]
    if last == NONE or pools.requests[last]["deadline_us"] <= deadline:
        pools.next[request] = NONE
        if last == NONE:
            line["first"] = request
        else:
            pools.next[last] = request
        line["last"] = request
        return
    before = NONE
    after = line["first"]
    while pools.requests[after]["deadline_us"] <= deadline:
        before = after
        after = pools.next[after]
    pools.next[request] = after
    if before == NONE:
        line["first"] = request
    else:
        pools.next[before] = request


@kernel
def leave(pools: Pools, stage: int) -> int:
    """Take the head out of a line."""
    line = pools.lines[stage]
    head = line["first"]
    line["first"] = pools.next[head]
    if line["first"] == NONE:
        line["last"] = NONE
    line["requests"] -= 1
    return head


@kernel
def drop(pools: Pools, request: int) -> None:
    """Give a request up."""
    record = pools.requests[request]
    record["outcome"] = DROPPED
    record["finish_us"] = pools.state[0]["now_us"]
    record["dispatch_us"] = record["batch_id"] = NONE
    record["batch_samples"] = 0


@kernel
def move(pools: Pools, stage: int, sender: int, receiver: int, samples: int) -> int:
    """Carry tensors over both links, first come, first served; returns when they are there."""
    topology = pools.topology
    now = pools.state[0]["now_us"]
    if sender == NONE:
        length = topology.move_us[stage, topology.vgpus[receiver]["down_rate"], samples]
        if length == 0:
            return now
        down = topology.vgpus[receiver]["downlink"]
        end = max(now, pools.links[down]) + length
        pools.links[down] = end
        pools.busy_us[down] += length
        return end
    rate = min(topology.vgpus[sender]["up_rate"], topology.vgpus[receiver]["down_rate"])
    length = topology.move_us[stage, rate, samples]
    if length == 0:
        return now
    up, down = topology.vgpus[sender]["uplink"], topology.vgpus[receiver]["downlink"]
    end = max(now, pools.links[up], pools.links[down]) + length
    pools.links[up] = pools.links[down] = end
    pools.busy_us[up] += length
    pools.busy_us[down] += length
    return end


@kernel
def answer(pools: Pools, vgpu: int, request: int) -> None:
    """A request's answer leaves the last stage."""
    topology = pools.topology
    now = pools.state[0]["now_us"]
    pipeline = topology.stages[topology.vgpus[vgpu]["stage"]]["pipeline"]
    length = topology.answer_us[pipeline, topology.vgpus[vgpu]["up_rate"], 1]
    if length > 0:
        up = topology.vgpus[vgpu]["uplink"]
        now = max(now, pools.links[up]) + length
        pools.links[up] = now
        pools.busy_us[up] += length
    record = pools.requests[request]
    record["finish_us"] = now
    record["outcome"] = SERVED if now <= record["deadline_us"] else LATE
