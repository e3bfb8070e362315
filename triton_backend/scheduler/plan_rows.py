"""The topology of a plan, built once: rows of queues, pipelines, stages, vGPUs and links.

The rows are those of `topology`; kernels read them as they are built here.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from math import gcd
from types import MappingProxyType
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.applications import Application, Module
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    ModelPlan,
    Pipeline,
    Plan,
    Stage,
    VGpu,
    module_rate_gbps,
    receiving_nodes,
    sending_node,
)
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.units import US_PER_S, transfer_us
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Records
from triton_backend.scheduler.topology import (
    AS_PLANNED,
    BLOCK,
    EDGE,
    LONGEST_GAP_US,
    LOW,
    MODULE,
    MOST_SEATS,
    NO_LEAD,
    PARTS,
    PIPELINE,
    POOL,
    QUEUE_PLAN,
    RATE_SHIFT,
    STAGE,
    TIMES,
    VGPU,
    LateRules,
    Lead,
    LinkPace,
    Nic,
    QueuePolicy,
    Topology,
)


def _blocks(vgpus: Integers) -> Integers:
    return -(-vgpus // BLOCK)


def check_nic(nic: str) -> None:
    """Check that links can be shared so.

    Raises:
        InputError: they cannot.
    """
    if nic not in get_args(Nic):
        raise InputError("nic", f"{nic!r} is none of {', '.join(get_args(Nic))}")


class QueuedPipeline(NamedTuple):
    """A pipeline in the order of queues: its model, its queue, its place in the model, itself."""

    model: int
    queue: int
    number: int
    pipeline: Pipeline


def pipelines_by_queue(plan: Plan) -> list[QueuedPipeline]:
    """Every pipeline of a plan as kernels number them: by model, entry and place in the model."""
    pipelines: list[QueuedPipeline] = []
    queue = 0
    for m, model in enumerate(plan.models):
        for entry in model.queues:
            name = entry.name if model.entries else None
            pipelines += [
                QueuedPipeline(m, queue, number, pipeline)
                for number, pipeline in enumerate(model.pipelines)
                if pipeline.entry == name
            ]
            queue += 1
    return pipelines


def build_topology(
    plan: Plan,
    nic: str = "shared",
    *,
    policies: Sequence[QueuePolicy] | None = None,
    lead: Lead = NO_LEAD,
    count_io: bool = False,
    link_paces: Mapping[int, LinkPace] = MappingProxyType({}),
    shared_batches: bool = True,
) -> Topology:
    """Arrays of a plan.

    Args:
        plan: what to serve.
        nic: "shared" or "isolated", see the module's head.
        policies: of every model; None: number 0, early binding, for all.
        lead: of late binding.
        count_io: also charge the transfers of the input and of the answer.
        link_paces: by node, where its links are not as fast as the cluster says.
        shared_batches: whether stages that board do.
    """
    check_nic(nic)
    policies = policies or [QueuePolicy(0)] * len(plan.models)
    pipelines = pipelines_by_queue(plan)
    node_rates = _node_rates(plan, link_paces)
    rates = sorted({rate for both in node_rates for rate in both})
    capacities = _capacities(pipelines, policies, shared_batches=shared_batches)
    rows = _pipeline_rows(plan, pipelines, policies, capacities)
    rates_rps = np.asarray([known.pipeline.throughput_rps for known in pipelines])
    _share_rates(rows, rates_rps)
    _rank(plan, pipelines, rows)
    most = max(int(rows["largest"].max(initial=0)), max(map(max, capacities), default=0))
    stages = int(rows["stages"].sum())
    topology = Topology(
        queues=_queue_rows(plan, rows, policies, rates_rps),
        pipelines=rows,
        stages=np.zeros(stages, dtype=STAGE),
        pools=np.zeros(len(plan.pools), dtype=POOL),
        vgpus=_vgpu_rows(plan, nic, [tuple(map(rates.index, both)) for both in node_rates]),
        latency_us=np.zeros((stages, most + 1), dtype=np.int64),
        move_us=np.zeros((stages, len(rates), most + 1), dtype=np.int64),
        answer_us=np.zeros((len(pipelines), len(rates), most + 1), dtype=np.int64),
        path_us=np.zeros((len(pipelines), most + 1), dtype=np.int64),
    )
    numbers = {pool.name: number for number, pool in enumerate(plan.pools)}
    first_queues = [own.start for own in plan.queues()]
    for number, known in enumerate(pipelines):
        model, largest = plan.models[known.model], int(rows[number]["largest"])
        row = int(rows[number]["first_stage"])
        into = _brought_bytes(plan, model, known.pipeline)
        speeds = rates
        if into:
            slowest = module_rate_gbps(plan, model.name, known.pipeline)
            speeds = [min(rate, slowest) for rate in rates]
            rows[number]["source"] = _vgpu_of(plan, sending_node(plan, model.name))
        into = total_bytes_per_sample(model.inputs) if count_io else into
        for stage, aboard in zip(known.pipeline.stages, capacities[number], strict=True):
            sizes = max(largest, aboard)
            topology.latency_us[row, 1 : sizes + 1] = stage.latency_us_by_batch[:sizes]
            if aboard:  # missing members make no shared batch longer
                np.maximum.accumulate(topology.latency_us[row], out=topology.latency_us[row])
            topology.stages[row]["capacity"] = aboard
            topology.move_us[row] = _transfers(into, speeds, largest, most)
            topology.stages[row]["pipeline"] = number
            topology.stages[row]["pool"] = numbers[stage.pool]
            into, speeds = stage.boundary_bytes_per_sample, rates
            row += 1
        topology.stages[row - 1]["last"] = 1
        budget_us = model.queues[known.queue - first_queues[known.model]].budget_us
        _reckon_company(topology, number, budget_us)
        back = (total_bytes_per_sample(model.outputs) or into) if count_io else 0
        topology.answer_us[number] = _transfers(back, rates, largest, most)
    _fill_pools(plan, topology)
    _bound(topology, lead)
    return topology


def _brought_bytes(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> int:
    """Bytes per sample that modules before bring, as planned; 0 where all is on one node."""
    node = sending_node(plan, model.name)
    local = node is not None and receiving_nodes(plan, pipeline) == {node}
    return 0 if local else pipeline.input_bytes_per_sample


def _vgpu_of(plan: Plan, node: int | None) -> int:
    """The first vGPU of a node; NONE where there is no node."""
    return next((vgpu.index for vgpu in plan.vgpus() if vgpu.slot.node == node), NONE)


def _capacities(
    pipelines: Sequence[QueuedPipeline], policies: Sequence[QueuePolicy], *, shared_batches: bool
) -> list[list[int]]:
    """[pipeline][stage] samples of a joint batch; 0 where it runs alone."""
    return [
        [
            capacity_of(stage, known.pipeline, policies[known.model]) if shared_batches else 0
            for stage in known.pipeline.stages
        ]
        for known in pipelines
    ]


def capacity_of(stage: Stage, pipeline: Pipeline, policy: QueuePolicy) -> int:
    """Samples of a joint batch of a stage; 0 where each batch runs alone, as under late binding."""
    joins = stage.boards and policy.rules is None
    return min(stage.batch or pipeline.batch, MOST_SEATS) if joins else 0


def _reckon_company(topology: Topology, number: int, budget_us: int) -> None:
    """`boards` of a pipeline and `company_us` of its stages.

    What the budget leaves beyond all runs is there for waiting, a part for each stage as its run is
    long. A joint batch is worth its part, at most its own run, and what it lasts longer than the
    batch alone.
    """
    row = topology.pipelines[number]
    first, batch = int(row["first_stage"]), int(row["batch"])
    stages = topology.stages[first : first + int(row["stages"])]
    row["boards"] = (stages["capacity"] > 0).sum()
    latency = topology.latency_us[first : first + len(stages)]
    lasts = [int(us[max(batch, n)]) for us, n in zip(latency, stages["capacity"], strict=True)]
    slack_us = max(0, budget_us - sum(lasts))
    after = 0
    for k in range(len(stages) - 1, -1, -1):
        stages[k]["company_us"] = after
        if stages[k]["capacity"] > 0:
            longer = lasts[k] - int(latency[k, batch])
            after += longer + min(lasts[k], slack_us * lasts[k] // sum(lasts))


def set_pace(topology: Topology, row: int, latency_us: Integers, lead: Lead) -> None:
    """Give a stage row other latencies [n], and all that follows from them."""
    topology.latency_us[row] = latency_us
    _bound(topology, lead)


def with_latencies(made: Topology, before: Topology, lead: Lead) -> Topology:
    """A new topology (with other link paces) with latencies and queues of the one before."""
    made.latency_us[:] = before.latency_us
    _bound(made, lead)
    return made._replace(queues=before.queues)


def with_orphans(topology: Topology) -> Topology:
    """The same with one more queue, of no model and no pipeline.

    Requests of models that the plan does not have join it when their batch is lost; whatever
    waits there is dropped.
    """
    row = np.zeros(1, dtype=QUEUE_PLAN)
    row["model"], row["largest"] = NONE, np.iinfo(np.int64).max
    high, low = np.split(topology.queues, 2)
    return topology._replace(queues=np.concatenate([high, row, low, _low(row)]))


def _pipeline_rows(
    plan: Plan,
    pipelines: Sequence[QueuedPipeline],
    policies: Sequence[QueuePolicy],
    capacities: Sequence[Sequence[int]],
) -> Records:
    """All of `PIPELINE`; `rows` are of every stage, 0 where it does not board."""
    rows = np.zeros(len(pipelines), dtype=PIPELINE)
    rows["source"] = NONE
    numbers, unshared = (
        {p.name: number for number, p in enumerate(plan.pools)},
        unshared_pools(plan),
    )
    for row, known, aboard in zip(rows, pipelines, capacities, strict=True):
        rules = policies[known.model].rules
        row["queue"], row["number"] = known.queue, known.number
        # A batch is never split, so it is no larger than what the smallest stage takes.
        batch = min([known.pipeline.batch, known.pipeline.largest, *(n for n in aboard if n)])
        row["batch"] = row["largest"] = batch
        if grows(rules, known.pipeline, unshared):
            row["largest"] = known.pipeline.largest
        row["stages"] = len(known.pipeline.stages)
        row["pool"] = numbers[known.pipeline.stages[0].pool]
    rows["first_stage"] = np.cumsum(rows["stages"]) - rows["stages"]
    rows["placed"] = np.argsort(rows["pool"], kind="stable")
    rows["place"][rows["placed"]] = np.arange(len(rows))
    return rows


def unshared_pools(plan: Plan) -> frozenset[str]:
    """Pools whose vGPUs run one stage only."""
    stages = Counter(stage.pool for m in plan.models for p in m.pipelines for stage in p.stages)
    return frozenset(pool for pool, count in stages.items() if count == 1)


def grows(rules: LateRules | None, pipeline: Pipeline, unshared: Container[str]) -> bool:
    """True if a pipeline's batches may exceed the planned size, given pools of one stage only."""
    if rules is None:
        return False
    return rules.grows or (rules.grows_alone and all(s.pool in unshared for s in pipeline.stages))


def _share_rates(rows: Records, rates_rps: NDArray[np.float64]) -> None:
    """The part of its queue's planned rate that every pipeline has.

    Equal ones where none is planned.
    """
    for queue in np.unique(rows["queue"]):
        own = np.flatnonzero(rows["queue"] == queue)
        total = rates_rps[own].sum()
        share = rates_rps[own] / total if total > 0 else np.full(len(own), 1 / len(own))
        rows["part"][own] = np.maximum(1, np.rint(share * PARTS))


def _rank(plan: Plan, pipelines: Sequence[QueuedPipeline], rows: Records) -> None:
    """Order the pipelines of every queue by what a sample costs.

    VGPU time at its part of the GPU's price. GPUs without a price count alike. Ties: plan order.
    """
    costs = np.zeros(len(rows))
    for number, known in enumerate(pipelines):
        for stage in known.pipeline.stages:
            pool = plan.pool_of(stage)
            price = plan.cluster.gpu_class(pool.gpu_class).hourly_cost or 1.0
            planned = stage.batch or known.pipeline.batch
            took_us = stage.latency_us_by_batch[planned - 1]
            costs[number] += price * pool.share * took_us / planned
    rows["ranked"] = np.lexsort((np.arange(len(rows)), costs, rows["queue"]))


def _queue_rows(
    plan: Plan,
    pipelines: Records,
    policies: Sequence[QueuePolicy],
    rates_rps: NDArray[np.float64],
) -> Records:
    """All of `QUEUE_PLAN`; `rates_rps` [pipeline] are the planned ones."""
    entries = [(m, entry) for m, model in enumerate(plan.models) for entry in model.queues]
    rows = np.zeros(len(entries), dtype=QUEUE_PLAN)
    for number, (row, (m, entry)) in enumerate(zip(rows, entries, strict=True)):
        own = np.flatnonzero(pipelines["queue"] == number)
        row["model"], row["policy"] = m, policies[m].number
        row["budget_us"] = entry.budget_us
        planned_rps = float(rates_rps[own].sum())
        if planned_rps > 0:
            row["gap"] = round(min(US_PER_S / planned_rps, LONGEST_GAP_US) * (1 << RATE_SHIFT))
        if len(own):
            row["first_pipeline"], row["end_pipeline"] = own[0], own[-1] + 1
            row["largest"] = pipelines["largest"][own].max()
        rules = policies[m].rules
        if rules is not None:
            row["late"] = 1
            row["opens"], row["heads"], row["rank"] = rules.opens, rules.heads, rules.rank
            row["target"] = rules.target
            row["timeout_us"] = rules.timeout_us or round(rules.timeout_share * entry.budget_us)
    return np.concatenate([rows, _low(rows)])


def _low(rows: Records) -> Records:
    """The queues of low requests beside those of a plan."""
    low = rows.copy()
    low["late"], low["target"] = LOW, 0
    return low


def _vgpu_rows(plan: Plan, nic: str, node_rates: Sequence[tuple[int, ...]]) -> Records:
    """Pool, rates and links of every vGPU; `node_rates` are a node's up and down, as numbers."""
    vgpus = plan.vgpus()
    rows = np.zeros(len(vgpus), dtype=VGPU)
    rows["pool"] = [vgpu.pool for vgpu in vgpus]
    for side, name in enumerate(("up_rate", "down_rate")):
        rows[name] = [node_rates[vgpu.slot.node][side] for vgpu in vgpus]
    rows["uplink"], rows["downlink"] = _links(plan, vgpus, nic)
    return rows


def _fill_pools(plan: Plan, topology: Topology) -> None:
    """All of `POOL` but its bounds."""
    rows = topology.pools
    counts = np.asarray([pool.vgpus for pool in plan.pools], dtype=np.int64)
    rows["end_vgpu"] = np.cumsum(counts)
    rows["first_vgpu"] = rows["end_vgpu"] - counts
    rows["end_block"] = np.cumsum(_blocks(counts))
    rows["first_block"] = rows["end_block"] - _blocks(counts)
    begin_here = np.bincount(topology.pipelines["pool"], minlength=len(rows))
    rows["end_candidate"] = np.cumsum(begin_here)
    rows["first_candidate"] = rows["end_candidate"] - begin_here
    for row in rows:
        for name in ("up_rate", "down_rate"):
            row[name] = topology.vgpus[name][row["first_vgpu"] : row["end_vgpu"]].max()


def _node_rates(plan: Plan, link_paces: Mapping[int, LinkPace]) -> list[tuple[float, float]]:
    """Rates of every node's uplink and downlink (Gbit/s)."""
    planned = [group.nic_gbps for group in plan.cluster.nodes for _ in range(group.count)]
    paces = [link_paces.get(node, AS_PLANNED) for node in range(len(planned))]
    return [
        (_rate(nic, pace.up), _rate(nic, pace.down))
        for nic, pace in zip(planned, paces, strict=True)
    ]


def edge_rows(plan: Plan) -> Records:
    """All of `EDGE`, by application and then by the module that they come from."""
    rows: list[tuple[int, int, int]] = []
    for planned in plan.applications:
        application, modules = planned.application, planned.application.modules
        part = len(modules)
        for module in modules:
            for place, child in enumerate(modules):
                if module.name in child.parents:
                    rows.append((place, part, module.name in application.givers(child)))
                    part += 1
    return np.asarray(rows, dtype=EDGE)


def module_rows(plan: Plan, topology: Topology) -> Records:
    """`MODULE` of every module, application after application.

    Ways through models are those of one row.

    Raises:
        InputError: a module's model cannot be entered at its first block.
    """
    rows = np.zeros(sum(len(a.application.modules) for a in plan.applications), dtype=MODULE)
    entries = {model.name: model.queues for model in plan.models}
    queues = dict(zip(entries, plan.queues(), strict=True))
    row = edge = 0
    for number, planned in enumerate(plan.applications):
        application = planned.application
        alone_us: dict[str, int] = {}
        first = row
        for place, module in enumerate(application.modules):
            at_start = [
                q
                for q, e in zip(queues[module.model], entries[module.model], strict=True)
                if e.block == 0
            ]
            if not at_start:
                where = f"application {planned.name!r}, module {module.name!r}.model"
                raise InputError(where, f"{module.model!r} has no entry at its first block")
            own = topology.pipelines["queue"] == at_start[0]
            sizes, ways = topology.pipelines["largest"][own], topology.path_us[own, 1]
            alone_us[module.name] = 0 if module.optional else int(ways.min(initial=FAR))
            children = sum(module.name in child.parents for child in application.modules)
            most = module.max_rows or 1
            rows[row] = (
                number,
                len(application.modules),
                place,
                at_start[0],
                NONE if application.rows_vary(module) else round(module.rows_per_request),
                most,
                _piece(application, module, sizes.tolist()),
                module.optional,
                len(module.parents),
                edge,
                edge + children,
                planned.tails_us[module.name],
                0,
                application.slo_us,
                *(0 for _ in TIMES),
            )
            edge += children
            row += 1
        for name, tail_us in application.tails(alone_us).items():
            place = [module.name for module in application.modules].index(name)
            rows[first + place]["least_tail_us"] = tail_us
    return rows


def _piece(application: Application, module: Module, largest: Sequence[int]) -> int:
    """Rows of a task at most, so that tasks of a sample fill the largest batch of every pipeline.

    One where rows vary; several fixed rows are cut into parts that the batches are multiples of.
    Samples of one row each stay together, as in a request of the model itself.
    """
    rows = round(module.rows_per_request)
    if application.rows_vary(module):
        return 1
    return gcd(rows, *largest) if rows > 1 else min(largest, default=module.max_rows or 1)


def _rate(nic_gbps: float, percent: int) -> float:
    """Exact as planned, lest a rate differs from itself in its last bit."""
    return nic_gbps if percent == 100 else nic_gbps * 100 / percent  # noqa: PLR2004 - percent


def _transfers(size_bytes: int, rates: list[float], batch: int, batches: int) -> Integers:
    table = np.zeros((len(rates), batches + 1), dtype=np.int64)
    for r, rate in enumerate(rates):
        table[r, : batch + 1] = [transfer_us(n * size_bytes, rate) for n in range(batch + 1)]
    return table


def _links(plan: Plan, vgpus: tuple[VGpu, ...], nic: str) -> tuple[list[int], list[int]]:
    """Resource numbers of every vGPU's uplink and downlink."""
    numbers: dict[tuple[object, ...], int] = {}
    up: list[int] = []
    down: list[int] = []
    users = _pipelines_of_pools(plan) if nic == "isolated" else []
    for vgpu in vgpus:
        owner = (vgpu.slot.node,)
        last = False
        if nic == "isolated":
            pipelines, last = users[vgpu.pool]
            owner = (vgpu.slot.node, pipelines)
        for links, key in (
            (up, ("up", *owner)),
            (down, ("own", vgpu.index) if last else ("down", *owner)),
        ):
            links.append(numbers.setdefault(key, len(vgpus) + len(numbers)))
    return up, down


def _pipelines_of_pools(plan: Plan) -> list[tuple[tuple[tuple[int, int], ...], bool]]:
    """Of every pool, the (model, pipeline) pairs on it, and whether only last stages are."""
    pairs: list[set[tuple[int, int]]] = [set() for _ in plan.pools]
    last = [True] * len(plan.pools)
    for row in plan.stage_rows():
        pairs[row.pool].add((row.model, row.pipeline))
        stages = len(plan.models[row.model].pipelines[row.pipeline].stages)
        last[row.pool] &= row.stage == stages - 1
    return [(tuple(sorted(own)), only) for own, only in zip(pairs, last, strict=True)]


def _bound(topology: Topology, lead: Lead) -> None:
    """Derive `ahead_us`, `least_us`, `path_us` and `efficient` from latencies and transfers."""
    pools = topology.pools
    pools["ahead_us"] = pools["least_us"] = np.iinfo(np.int64).max
    for p, pipeline in enumerate(topology.pipelines):
        largest, first = int(pipeline["largest"]), int(pipeline["first_stage"])
        sizes = slice(1, largest + 1)
        so_far = np.zeros(largest, dtype=np.int64)
        for s in range(first, first + int(pipeline["stages"])):
            pool = pools[topology.stages[s]["pool"]]
            fastest = pool["down_rate"]
            if s > first:
                fastest = min(pools[topology.stages[s - 1]["pool"]]["up_rate"], fastest)
            elif pipeline["source"] != NONE:
                fastest = min(topology.vgpus[pipeline["source"]]["up_rate"], fastest)
            so_far += topology.move_us[s, fastest, sizes]
            pool["ahead_us"] = min(pool["ahead_us"], so_far.min())
            so_far += topology.latency_us[s, sizes]
            pool["least_us"] = min(pool["least_us"], topology.latency_us[s, sizes].min())
        last = topology.stages[first + int(pipeline["stages"]) - 1]["pool"]
        path = so_far + topology.answer_us[p, pools[last]["up_rate"], sizes]
        if topology.queues[pipeline["queue"]]["late"]:
            path += lead.fixed + lead.per_sample * np.arange(1, largest + 1)
            path = np.maximum.accumulate(path)
        topology.path_us[p, sizes] = path
        took = topology.latency_us[first, sizes] / np.arange(1, largest + 1)
        pipeline["efficient"] = 1 + int(np.argmin(took))
