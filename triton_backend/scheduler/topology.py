"""A plan as flat arrays: what the kernels may read and never write. Paces may be corrected.

Models, their pipelines, the stages of those and the vGPUs of those are rows, in the order of the
plan, so that what belongs together are neighbours:

    models      | model 0                                   | model 1          [first_pipeline, end_pipeline)
    pipelines   | pipeline 0               | pipeline 1     | pipeline 2       first_stage, stages
    stages      | row 0       | row 1      | row 2          | row 3            [first_vgpu, end_vgpu)
    vgpus       | 0  1  2  3  | 4  5       | 6  7  8        | 9                as `Plan.vgpus` numbers them

Resources are numbered: first every vGPU, then the links. A link carries one transfer at a time at
the full rate.

`nic="shared"`: one uplink and one downlink per node, whatever runs there.
`nic="isolated"`: every pipeline has an uplink and a downlink of its own on each node, and every vGPU
of a last stage a downlink of its own (what the published PPipe simulator assumes).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Pipeline, Plan, Stage, VGpu
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.units import transfer_us
from triton_backend.scheduler.compiled import Integers, Records, inlined

Nic = Literal["shared", "isolated"]


class LinkPace(NamedTuple):
    """Time that a transfer over a node's uplink or downlink takes, in percent of the planned."""

    up: int
    down: int


AS_PLANNED = LinkPace(100, 100)
BLOCK = 16  # vGPUs per entry of a stage's index

MODEL = np.dtype([(name, np.int64) for name in ("first_pipeline", "end_pipeline")])
PIPELINE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "model",
            "batch",  # planned samples
            "first_stage",
            "stages",
        )
    ]
)
STAGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "pipeline",
            "last",  # 1 for the last stage of a pipeline
            "first_vgpu",
            "end_vgpu",
            "first_block",  # of the index: a block per `BLOCK` vGPUs, the last one may be shorter
            "up_rate",  # fastest uplink of its vGPUs
            "down_rate",  # fastest downlink
            "ahead_us",  # least time from a dispatch to the start of the stage, any batch
            "least_us",  # least latency of the stage, any batch
        )
    ]
)
VGPU = np.dtype(
    [
        (name, np.int64)
        for name in (
            "stage",
            "up_rate",  # of its node's uplink, as an index of `move_us`
            "down_rate",
            "uplink",  # resource
            "downlink",
        )
    ]
)


class Topology(NamedTuple):
    """Arrays that only `set_pace` changes; n counts samples, rate numbers link rates from slow to fast.

    Few arrays, because a call between kernels hands each of them over: where every attribute of a
    stage or vGPU was an array of its own, simulated requests took more than twice the time.

    Attributes:
        models: [model] `MODEL`.
        pipelines: [pipeline] `PIPELINE`.
        stages: [stage row] `STAGE`.
        vgpus: [vGPU] `VGPU`.
        latency_us: [stage row, n].
        move_us: [stage row, rate, n] to move n samples *into* the stage.
        answer_us: [pipeline, rate, n] to move the answer back to the gateway.
        path_us: [pipeline, n] least time from dispatch to answer, nothing else running.
    """

    models: Records
    pipelines: Records
    stages: Records
    vgpus: Records
    latency_us: Integers
    move_us: Integers
    answer_us: Integers
    path_us: Integers


@inlined
def pipelines_of(topology: Topology, model: int) -> range:
    """Numbers of a model's pipelines."""
    row = topology.models[model]
    return range(row["first_pipeline"], row["end_pipeline"])


@inlined
def vgpus_of(topology: Topology, stage: int) -> range:
    """Numbers of a stage row's vGPUs."""
    row = topology.stages[stage]
    return range(row["first_vgpu"], row["end_vgpu"])


def resource_count(topology: Topology) -> int:
    """Number of vGPUs and links together."""
    vgpus = topology.vgpus
    links = max(vgpus["uplink"].max(initial=-1), vgpus["downlink"].max(initial=-1)) + 1
    return max(len(vgpus), int(links))


def block_count(topology: Topology) -> int:
    """Number of blocks of all stages' indexes."""
    return int(_blocks(topology.stages["end_vgpu"] - topology.stages["first_vgpu"]).sum())


def _blocks(vgpus: Integers) -> Integers:
    return -(-vgpus // BLOCK)


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
        count_io: also charge the transfers of the input and of the answer.
        link_paces: by node, where its links are not as fast as the cluster says.
    """
    check_nic(nic)
    pipelines = [(m, p) for m, model in enumerate(plan.models) for p in model.pipelines]
    stages = [(p, stage) for p, (_, pipeline) in enumerate(pipelines) for stage in pipeline.stages]
    node_rates = _node_rates(plan, link_paces)
    rates = sorted({rate for both in node_rates for rate in both})
    batches = max((pipeline.batch for _, pipeline in pipelines), default=0)
    topology = Topology(
        models=_model_rows(plan),
        pipelines=_pipeline_rows(pipelines),
        stages=np.zeros(len(stages), dtype=STAGE),
        vgpus=_vgpu_rows(plan, nic, [tuple(map(rates.index, both)) for both in node_rates]),
        latency_us=np.zeros((len(stages), batches + 1), dtype=np.int64),
        move_us=np.zeros((len(stages), len(rates), batches + 1), dtype=np.int64),
        answer_us=np.zeros((len(pipelines), len(rates), batches + 1), dtype=np.int64),
        path_us=np.zeros((len(pipelines), batches + 1), dtype=np.int64),
    )
    for number, (m, pipeline) in enumerate(pipelines):
        model, batch = plan.models[m], pipeline.batch
        row = int(topology.pipelines[number]["first_stage"])
        into = total_bytes_per_sample(model.inputs) if count_io else 0
        for stage in pipeline.stages:
            topology.latency_us[row, 1 : batch + 1] = stage.latency_us_by_batch[:batch]
            topology.move_us[row] = _transfers(into, rates, batch, batches)
            into = stage.boundary_bytes_per_sample
            row += 1
        back = (total_bytes_per_sample(model.outputs) or into) if count_io else 0
        topology.answer_us[number] = _transfers(back, rates, batch, batches)
    _fill_stages(topology, stages)
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


def _model_rows(plan: Plan) -> Records:
    rows = np.zeros(len(plan.models), dtype=MODEL)
    ends = np.cumsum([len(model.pipelines) for model in plan.models])
    rows["end_pipeline"] = ends
    rows["first_pipeline"] = ends - [len(model.pipelines) for model in plan.models]
    return rows


def _pipeline_rows(pipelines: list[tuple[int, Pipeline]]) -> Records:
    rows = np.zeros(len(pipelines), dtype=PIPELINE)
    rows["model"] = [m for m, _ in pipelines]
    rows["batch"] = [pipeline.batch for _, pipeline in pipelines]
    rows["stages"] = [len(pipeline.stages) for _, pipeline in pipelines]
    rows["first_stage"] = np.cumsum(rows["stages"]) - rows["stages"]
    return rows


def _vgpu_rows(plan: Plan, nic: str, node_rates: Sequence[tuple[int, ...]]) -> Records:
    """Stage, rates and links of every vGPU; `node_rates` are a node's up and down, as numbers."""
    vgpus = plan.vgpus()
    rows = np.zeros(len(vgpus), dtype=VGPU)
    stages = [s for model in plan.models for p in model.pipelines for s in p.stages]
    rows["stage"] = np.repeat(np.arange(len(stages)), [stage.vgpus for stage in stages])
    for side, name in enumerate(("up_rate", "down_rate")):
        rows[name] = [node_rates[vgpu.slot.node][side] for vgpu in vgpus]
    rows["uplink"], rows["downlink"] = _links(plan, vgpus, nic)
    return rows


def _fill_stages(topology: Topology, stages: list[tuple[int, Stage]]) -> None:
    """All of `STAGE` but its bounds."""
    rows = topology.stages
    counts = np.asarray([stage.vgpus for _, stage in stages], dtype=np.int64)
    blocks = _blocks(counts)
    rows["pipeline"] = [p for p, _ in stages]
    rows["end_vgpu"] = np.cumsum(counts)
    rows["first_vgpu"] = rows["end_vgpu"] - counts
    rows["first_block"] = np.cumsum(blocks) - blocks
    ends = topology.pipelines["first_stage"] + topology.pipelines["stages"]
    rows["last"][ends - 1] = 1
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
    return up, down


def _bound(topology: Topology) -> None:
    """Derive `ahead_us`, `least_us` and `path_us` from latencies and transfers."""
    stages = topology.stages
    for p, pipeline in enumerate(topology.pipelines):
        sizes = slice(1, int(pipeline["batch"]) + 1)
        first = int(pipeline["first_stage"])
        so_far = np.zeros(int(pipeline["batch"]), dtype=np.int64)
        for s in range(first, first + int(pipeline["stages"])):
            fastest = stages[s]["down_rate"]
            if s > first:
                fastest = min(stages[s - 1]["up_rate"], fastest)
            so_far += topology.move_us[s, fastest, sizes]
            stages[s]["ahead_us"] = so_far.min()
            so_far += topology.latency_us[s, sizes]
            stages[s]["least_us"] = topology.latency_us[s, sizes].min()
        last = stages[first + int(pipeline["stages"]) - 1]
        topology.path_us[p, sizes] = so_far + topology.answer_us[p, last["up_rate"], sizes]
