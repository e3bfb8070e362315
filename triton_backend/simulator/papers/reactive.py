"""Policy `reactive`: adaptive batching per pool without reservations (PPipe, section 7.4).

The baseline of the ablation, for simulation only. Every pool has a queue of its own, in the order
of deadlines. It takes the vGPU that is free first (ties: the lowest number) and the largest batch
<= planned whose latency and transfer fit into: deadline of the head - planned latencies and
transfers of later stages - time until that vGPU is free. While a vGPU is busy one batch may be sent
ahead to it, but only as large as fits; a free vGPU takes what there is. Heads that no longer fit
are dropped. Batches are formed again at every stage; links are first come, first served, and none
looks at them beforehand, so accepted requests can end late.

Requests go to the pipelines of their model in proportion to the planned throughputs.
"""

from typing import NamedTuple

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Records, entry, kernel
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.policies.registry import REACTIVE
from triton_backend.scheduler.topology import Topology, pipelines_of, resource_count, vgpus_of
from triton_backend.simulator.cluster.workers import ONE
from triton_backend.simulator.heap import EVENT, STAGE_DONE, remove_first, sift_up
from triton_backend.simulator.papers.unreserved import Clock, refuse, result_of
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.scenario import SimOptions
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
QUEUE = np.dtype([(name, np.int64) for name in ("first", "last", "requests", "later_us")])
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
        requests: [request] `world.REQUEST_RECORD`, by arrival.
        heap: [vGPU + 2] ends of stages, one at most per vGPU.
        queues: [stage row] the requests that wait, and what later stages are planned to take.
        vgpus: [vGPU] the batch that runs and the one sent ahead.
        links: [resource] instant (µs) from which a link is free.
        assigned: [pipeline] requests sent to it so far.
        shares: [pipeline] its share of the model's planned throughput in millionths.
        next: [request] its successor in a queue or batch.
        place: [request] the vGPU that holds its tensors.
        busy_us: [resource] time in use so far.
        uses: [stage run] `world.USE_RECORD`, by end.
        factors: what table latencies are multiplied with, in turn, in 1 / `ONE`.
        state: [1] all that there is one of.
    """

    topology: Topology
    requests: Records
    heap: Records
    queues: Records
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


def _new_pools(plan: Plan, topology: Topology, requests: Records, factors: Integers) -> Pools:
    """Idle pools before the first arrival."""
    vgpus = np.zeros(len(topology.vgpus), dtype=VGPU)
    for name in ("first", "next_first"):
        vgpus[name] = NONE
    queues = np.zeros(len(topology.stages), dtype=QUEUE)
    queues["first"] = queues["last"] = NONE
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
                queues[row]["later_us"] = sum(s.latency_us for s in later) + sum(
                    s.transfer_us for s in into
                )
                row += 1
    resources = resource_count(topology)
    hops = int(topology.pipelines["stages"].max(initial=1))
    return Pools(
        topology=topology,
        requests=requests,
        heap=np.zeros(len(vgpus) + 2, dtype=EVENT),
        queues=queues,
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


def simulate(
    plan: Plan,
    options: SimOptions,
    requests: Records,
    factors: Integers,
    clock_ns: Clock,
) -> SimResult:
    """A run of the policy.

    Args:
        plan: what serves.
        options: what is offered and how.
        requests: `world.REQUEST_RECORD` rows by arrival; their outcomes are filled in.
        factors: what table latencies are multiplied with, in turn, in 1 / `ONE`.
        clock_ns: where the wall time is wanted.

    Raises:
        InputError: an option that needs reservations.
    """
    refuse(plan, options)
    for number, pool in enumerate(plan.pools):  # vGPUs run one stage each, numbered as their pool
        if len(plan.stages_of(number)) > 1:
            raise InputError(f"pool {pool.name!r}", f"{REACTIVE!r} knows no shared pools")
    topology = build_topology(plan, options.nic, count_io=options.count_io)
    _run(_new_pools(plan, topology, requests[:0], factors))  # compiled before anything is timed
    pools = _new_pools(plan, topology, requests, factors)
    start_ns = clock_ns() if clock_ns else 0
    _run(pools)
    wall_seconds = (clock_ns() - start_ns) / 1e9 if clock_ns else None
    state = pools.state[0]
    return result_of(
        plan,
        options,
        requests,
        pools.uses[: int(state["uses"])],
        pools.busy_us,
        now_us=int(state["now_us"]),
        steps=int(state["steps"]),
        wall_seconds=wall_seconds,
    )


@entry
def _run(pools: Pools) -> None:
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
                _drop(pools, request)
            else:
                pools.assigned[pipeline] += 1
                stage = pools.topology.pipelines[pipeline]["first_stage"]
                _enqueue(pools, stage, request)
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
    """Form batches of a queue while some vGPU takes them."""
    now = pools.state[0]["now_us"]
    queue = pools.queues[stage]
    while queue["first"] != NONE:
        vgpu = _free_first(pools, stage)
        if vgpu == NONE:
            return
        wait = max(0, pools.vgpus[vgpu]["end_us"] - now)
        deadline = pools.requests[queue["first"]]["deadline_us"]
        budget = deadline - now - wait - queue["later_us"]
        size = pools.topology.pipelines[pipeline]["batch"]
        while size > 0 and _takes(pools, vgpu, size) > budget:
            size -= 1
        if size == 0:
            _drop(pools, _dequeue(pools, stage))
        elif wait > 0 and queue["requests"] < size:
            return
        else:
            _send(pools, stage, vgpu, min(size, queue["requests"]))


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
    stage = topology.vgpus[vgpu]["pool"]
    move = topology.move_us[stage, topology.vgpus[vgpu]["down_rate"], size]
    return topology.latency_us[stage, size] + move


@kernel
def _send(pools: Pools, stage: int, vgpu: int, size: int) -> None:
    """Send the first requests of a queue to a vGPU, one transfer per run of equal senders."""
    state = pools.state[0]
    ready = state["now_us"]
    first = pools.queues[stage]["first"]
    sender = pools.place[first]
    together = 0
    last = NONE
    for _ in range(size):
        request = _dequeue(pools, stage)
        record = pools.requests[request]
        if record["dispatch_us"] == NONE:
            record["dispatch_us"] = state["now_us"]
        record["batch_id"] = state["batches"]
        record["batch_samples"] = size
        if pools.place[request] != sender:
            ready = max(ready, _move(pools, stage, sender, vgpu, together))
            sender = pools.place[request]
            together = 0
        together += 1
        last = request
    pools.next[last] = NONE
    ready = max(ready, _move(pools, stage, sender, vgpu, together))
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
    stage = pools.topology.vgpus[vgpu]["pool"]
    factor = pools.factors[state["factor"]]
    state["factor"] = (state["factor"] + 1) % len(pools.factors)
    latency = pools.topology.latency_us[stage, row["next_size"]]
    row["first"] = row["next_first"]
    row["size"] = row["next_size"]
    row["number"] = row["next_number"]
    row["start_us"] = max(state["now_us"], row["next_ready_us"])
    row["end_us"] = row["start_us"] + max(1, latency * factor // ONE)
    row["next_first"] = NONE
    event = pools.heap[state["events"]]
    event["at_us"] = row["end_us"]
    event["kind"] = STAGE_DONE
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
    stage = topology.vgpus[vgpu]["pool"]
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
            _answer(pools, vgpu, request)
        else:
            pools.place[request] = vgpu
            _enqueue(pools, stage + 1, request)
        request = following
    if row["next_first"] != NONE:
        _start_stage(pools, vgpu)
    if topology.stages[stage]["last"] == 0:
        _dispatch(pools, stage + 1, pipeline)
    _dispatch(pools, stage, pipeline)


@kernel
def _enqueue(pools: Pools, stage: int, request: int) -> None:
    """Put a request into a queue, in the order of deadlines (ties: arrival)."""
    queue = pools.queues[stage]
    deadline = pools.requests[request]["deadline_us"]
    queue["requests"] += 1
    last = queue["last"]
    if last == NONE or pools.requests[last]["deadline_us"] <= deadline:
        pools.next[request] = NONE
        if last == NONE:
            queue["first"] = request
        else:
            pools.next[last] = request
        queue["last"] = request
        return
    before = NONE
    after = queue["first"]
    while pools.requests[after]["deadline_us"] <= deadline:
        before = after
        after = pools.next[after]
    pools.next[request] = after
    if before == NONE:
        queue["first"] = request
    else:
        pools.next[before] = request


@kernel
def _dequeue(pools: Pools, stage: int) -> int:
    """Take the head out of a queue."""
    queue = pools.queues[stage]
    head = queue["first"]
    queue["first"] = pools.next[head]
    if queue["first"] == NONE:
        queue["last"] = NONE
    queue["requests"] -= 1
    return head


@kernel
def _drop(pools: Pools, request: int) -> None:
    """Give a request up."""
    record = pools.requests[request]
    record["outcome"] = DROPPED
    record["finish_us"] = pools.state[0]["now_us"]
    record["dispatch_us"] = record["batch_id"] = NONE
    record["batch_samples"] = 0


@kernel
def _move(pools: Pools, stage: int, sender: int, receiver: int, samples: int) -> int:
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
def _answer(pools: Pools, vgpu: int, request: int) -> None:
    """A request's answer leaves the last stage."""
    topology = pools.topology
    now = pools.state[0]["now_us"]
    pipeline = topology.stages[topology.vgpus[vgpu]["pool"]]["pipeline"]
    length = topology.answer_us[pipeline, topology.vgpus[vgpu]["up_rate"], 1]
    if length > 0:
        up = topology.vgpus[vgpu]["uplink"]
        now = max(now, pools.links[up]) + length
        pools.links[up] = now
        pools.busy_us[up] += length
    record = pools.requests[request]
    record["finish_us"] = now
    record["outcome"] = SERVED if now <= record["deadline_us"] else LATE
