"""A plan as flat arrays: what the kernels may read and never write. Paces may be corrected.

Resources are numbered: first every vGPU (as `Plan.vgpus` numbers them, so the vGPUs of one stage
are neighbours), then the links. A link carries one transfer at a time at the full rate.

`nic="shared"`: one uplink and one downlink per node, whatever runs there.
`nic="isolated"`: every pipeline has an uplink and a downlink of its own on each node, and every vGPU
of a last stage a downlink of its own (what the published PPipe simulator assumes).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, VGpu
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.units import transfer_us
from triton_backend.scheduler.compiled import Integers

Nic = Literal["shared", "isolated"]


class LinkPace(NamedTuple):
    """Time that a transfer over a node's uplink or downlink takes, in percent of the planned."""

    up: int
    down: int


AS_PLANNED = LinkPace(100, 100)
BLOCK = 16  # vGPUs per entry of a pool's index


class Topology(NamedTuple):
    """Arrays that only `set_pace` changes; n counts samples, rate numbers distinct NIC rates from slow to fast.

    Attributes:
        model_pipelines: pipelines of model m are [m] .. [m + 1].
        pipeline_model, pipeline_batch: model and planned batch of a pipeline.
        pipeline_stages: stage rows of pipeline p are [p] .. [p + 1].
        stage_vgpus: vGPUs of stage row s are [s] .. [s + 1].
        stage_blocks: entries of the pool's index are [s] .. [s + 1].
        latency_us: [stage row, n].
        move_us: [stage row, rate, n] to move n samples *into* the stage.
        answer_us: [pipeline, rate, n] to move the answer back to the gateway.
        stage_up_rate, stage_down_rate: fastest uplink and downlink in the pool.
        stage_last: 1 for the last stage of a pipeline.
        stage_ahead_us: least time from a dispatch to the start of the stage, any batch.
        stage_least_us: least latency of the stage, any batch.
        path_us: [pipeline, n] least time from dispatch to answer, nothing else running.
        vgpu_stage: stage row of a vGPU.
        vgpu_up_rate, vgpu_down_rate, vgpu_up, vgpu_down: rates and resources of its node's links.
    """

    model_pipelines: Integers
    pipeline_model: Integers
    pipeline_batch: Integers
    pipeline_stages: Integers
    stage_vgpus: Integers
    stage_blocks: Integers
    latency_us: Integers
    move_us: Integers
    answer_us: Integers
    stage_up_rate: Integers
    stage_down_rate: Integers
    stage_last: Integers
    stage_ahead_us: Integers
    stage_least_us: Integers
    path_us: Integers
    vgpu_stage: Integers
    vgpu_up_rate: Integers
    vgpu_down_rate: Integers
    vgpu_up: Integers
    vgpu_down: Integers


def check_nic(nic: str) -> None:
    """Whether links can be shared so.

    Raises:
        InputError: they cannot.
    """
    if nic not in get_args(Nic):
        raise InputError("nic", f"{nic!r} is none of {', '.join(get_args(Nic))}")


def build_topology(
    plan: Plan,
    nic: str = "shared",
    *,
    count_io: bool = False,
    link_paces: Mapping[int, LinkPace] = MappingProxyType({}),
) -> Topology:
    """Arrays of a plan.

    Args:
        plan: what to serve.
        nic: "shared" or "isolated", see the module's head.
        count_io: also charge the input's way to the first stage and the answer's way back.
        link_paces: by node, where its links are not as fast as the cluster says.
    """
    check_nic(nic)
    pipelines = [(m, p) for m, model in enumerate(plan.models) for p in model.pipelines]
    stages = [stage for _, pipeline in pipelines for stage in pipeline.stages]
    vgpus = plan.vgpus()
    node_rates = _node_rates(plan, link_paces)
    rates = sorted({rate for both in node_rates for rate in both})
    batches = max((pipeline.batch for _, pipeline in pipelines), default=0)
    up_rate, down_rate = (
        _integers([rates.index(node_rates[vgpu.slot.node][side]) for vgpu in vgpus])
        for side in (0, 1)
    )
    stage_vgpus = _offsets([stage.vgpus for stage in stages])
    latency = np.zeros((len(stages), batches + 1), dtype=np.int64)
    move = np.zeros((len(stages), len(rates), batches + 1), dtype=np.int64)
    answer = np.zeros((len(pipelines), len(rates), batches + 1), dtype=np.int64)
    row = 0
    for number, (m, pipeline) in enumerate(pipelines):
        model = plan.models[m]
        into = total_bytes_per_sample(model.inputs) if count_io else 0
        for stage in pipeline.stages:
            latency[row, 1 : pipeline.batch + 1] = stage.latency_us_by_batch[: pipeline.batch]
            move[row] = _transfers(into, rates, pipeline.batch, batches)
            into = stage.boundary_bytes_per_sample
            row += 1
        back = (total_bytes_per_sample(model.outputs) or into) if count_io else 0
        answer[number] = _transfers(back, rates, pipeline.batch, batches)
    up, down = _links(plan, vgpus, nic)
    pipeline_stages = _offsets([len(pipeline.stages) for _, pipeline in pipelines])
    pipeline_batch = _integers([pipeline.batch for _, pipeline in pipelines])
    stage_up_rate, stage_down_rate = (
        _integers([rate[stage_vgpus[s] : stage_vgpus[s + 1]].max() for s in range(len(stages))])
        for rate in (up_rate, down_rate)
    )
    topology = Topology(
        model_pipelines=_offsets([len(model.pipelines) for model in plan.models]),
        pipeline_model=_integers([m for m, _ in pipelines]),
        pipeline_batch=pipeline_batch,
        pipeline_stages=pipeline_stages,
        stage_vgpus=stage_vgpus,
        stage_blocks=_offsets([-(-stage.vgpus // BLOCK) for stage in stages]),
        latency_us=latency,
        move_us=move,
        answer_us=answer,
        stage_up_rate=stage_up_rate,
        stage_down_rate=stage_down_rate,
        stage_last=_integers(np.isin(np.arange(len(stages)), pipeline_stages[1:] - 1)),
        stage_ahead_us=np.zeros(len(stages), dtype=np.int64),
        stage_least_us=np.zeros(len(stages), dtype=np.int64),
        path_us=np.zeros((len(pipelines), batches + 1), dtype=np.int64),
        vgpu_stage=_integers(np.repeat(np.arange(len(stages)), np.diff(stage_vgpus))),
        vgpu_up_rate=up_rate,
        vgpu_down_rate=down_rate,
        vgpu_up=up,
        vgpu_down=down,
    )
    _bound(topology)
    return topology


def set_pace(topology: Topology, row: int, latency_us: Integers) -> None:
    """Give a stage row other latencies [n], and all that follows from them."""
    topology.latency_us[row] = latency_us
    _bound(topology)


def with_link_paces(
    topology: Topology,
    plan: Plan,
    link_paces: Mapping[int, LinkPace],
    nic: str,
    *,
    count_io: bool,
) -> Topology:
    """The same with links that are not as fast as the cluster says; the stages keep their paces.

    All is numbered as before, but for the rates: there may be more of them.
    """
    made = build_topology(plan, nic, count_io=count_io, link_paces=link_paces)
    made.latency_us[:] = topology.latency_us
    _bound(made)
    return made


def _integers(values: object) -> Integers:
    return np.asarray(values, dtype=np.int64)


def _offsets(counts: list[int]) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _node_rates(plan: Plan, link_paces: Mapping[int, LinkPace]) -> list[tuple[float, float]]:
    """Rates of every node's uplink and downlink (Gbit/s)."""
    planned = [group.nic_gbps for group in plan.cluster.nodes for _ in range(group.count)]
    paces = [link_paces.get(node, AS_PLANNED) for node in range(len(planned))]
    return [
        (_rate(nic, pace.up), _rate(nic, pace.down))
        for nic, pace in zip(planned, paces, strict=True)
    ]


def _rate(nic_gbps: float, percent: int) -> float:
    """Exact as planned, lest a rate differs from itself in its last bit."""
    return nic_gbps if percent == 100 else nic_gbps * 100 / percent  # noqa: PLR2004 - percent


def _transfers(size_bytes: int, rates: list[float], batch: int, batches: int) -> Integers:
    table = np.zeros((len(rates), batches + 1), dtype=np.int64)
    for r, rate in enumerate(rates):
        table[r, : batch + 1] = [transfer_us(n * size_bytes, rate) for n in range(batch + 1)]
    return table


def _links(plan: Plan, vgpus: tuple[VGpu, ...], nic: str) -> tuple[Integers, Integers]:
    """Resource numbers of every vGPU's uplink and downlink."""
    numbers: dict[tuple[object, ...], int] = {}
    up: list[int] = []
    down: list[int] = []
    for vgpu in vgpus:
        owner = (vgpu.slot.node,)
        last = False
        if nic == "isolated":
            owner = (vgpu.slot.node, vgpu.model, vgpu.pipeline)
            stages = plan.models[vgpu.model].pipelines[vgpu.pipeline].stages
            last = vgpu.stage == len(stages) - 1
        for links, key in (
            (up, ("up", *owner)),
            (down, ("own", vgpu.index) if last else ("down", *owner)),
        ):
            links.append(numbers.setdefault(key, len(vgpus) + len(numbers)))
    return _integers(up), _integers(down)


def _bound(topology: Topology) -> None:
    """Derive `stage_ahead_us`, `stage_least_us` and `path_us` from latencies and transfers."""
    latency, move = topology.latency_us, topology.move_us
    for p, batch in enumerate(topology.pipeline_batch):
        rows = range(topology.pipeline_stages[p], topology.pipeline_stages[p + 1])
        so_far = np.zeros(batch, dtype=np.int64)
        for s in rows:
            fastest = topology.stage_down_rate[s]
            if s > rows[0]:
                fastest = min(topology.stage_up_rate[s - 1], fastest)
            so_far += move[s, fastest, 1 : batch + 1]
            topology.stage_ahead_us[s] = so_far.min()
            so_far += latency[s, 1 : batch + 1]
            topology.stage_least_us[s] = latency[s, 1 : batch + 1].min()
        answer = topology.answer_us[p, topology.stage_up_rate[rows[-1]], 1 : batch + 1]
        topology.path_us[p, 1 : batch + 1] = so_far + answer
