"""The contract between the two halves: pipelines of every model, GPUs of every pool, proof.

A plan is self-contained: simulator, verifier and gateway need nothing else. It is checked for
form when built; whether its numbers follow from the profiles is `flows/planning/verify`'s work.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.applications import (
    ApplicationPlan,
    check_names,
    producing_models,
    received_bytes,
)
from triton_backend.contract.cluster import Cluster, GpuClass
from triton_backend.contract.entries import Entry, check_entries, shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import (
    LONGEST_NAME,
    About,
    FieldForm,
    Fields,
    Form,
    check_form,
    check_name,
    form_to_dict,
    read_form,
)
from triton_backend.contract.shares import (
    MAX_PERCENT,
    PER_PERCENT,
    WHOLE_GPU,
    check_share,
    divisor_of,
    percent_of,
    read_share,
    share_text,
    share_to_dict,
)
from triton_backend.contract.tensors import EXAMPLE, TensorSpec
from triton_backend.contract.units import US_PER_S, ms_to_us, transfer_us, us_to_ms
from triton_backend.contract.workload import (
    GATHERING,
    RULES,
    WAITS,
    Accounting,
    Workload,
    derived_accounting,
)

FORMAT = 2
# Of plans that name none. Under `reservation` a backlog once there, after a stall say, stays while
# the overload does: late heads allow small batches only, which make all later ones late.
DEFAULT_POLICY = "reservation-ahead"
TOLERANCE = 1e-6  # of sums of floats
BYTES_PER_GIB = 1 << 30
# Stages: what a scheduler decides at once about a batch of so many fits its memory.
LONGEST_PIPELINE = 100
EXPAND_UP_TO = 512  # vGPUs of one pool listed one by one in a file; above, as ranges


class Slot(NamedTuple):
    """One vGPU: slot `slot` (0 .. divisor - 1) of GPU `gpu` of node number `node`."""

    node: int
    gpu: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRun:
    """A block of vGPUs: every (node, gpu, slot) of three ranges, in lexicographic order."""

    node: int
    gpu: int
    slot: int
    nodes: int = 1
    gpus: int = 1
    slots: int = 1

    @property
    def vgpus(self) -> int:
        """Number of vGPUs in the block."""
        return self.nodes * self.gpus * self.slots

    def expand(self) -> Iterator[Slot]:
        """The vGPUs one by one."""
        for node in range(self.node, self.node + self.nodes):
            for gpu in range(self.gpu, self.gpu + self.gpus):
                for slot in range(self.slot, self.slot + self.slots):
                    yield Slot(node, gpu, slot)


def placement_to_dicts(runs: tuple[PlacementRun, ...], cluster: Cluster) -> list[dict[str, Any]]:
    """One entry per vGPU; where there are many, one per run with the counts `nodes/gpus/slots`."""
    if sum(run.vgpus for run in runs) <= EXPAND_UP_TO:
        return [
            {"node": cluster.node_name(slot.node), "gpu": slot.gpu, "slot": slot.slot}
            for run in runs
            for slot in run.expand()
        ]
    return [
        {
            "node": cluster.node_name(run.node),
            "gpu": run.gpu,
            "slot": run.slot,
            "nodes": run.nodes,
            "gpus": run.gpus,
            "slots": run.slots,
        }
        for run in runs
    ]


def read_run(fields: Fields, cluster: Cluster) -> PlacementRun:
    """Inverse of one entry of `placement_to_dicts`.

    Raises:
        InputError: a field cannot be used, or it lies outside the cluster.
    """
    node = cluster.node_index(fields.text("node"))
    counts = {n: fields.integer(n, least=1) for n in ("nodes", "gpus", "slots") if fields.has(n)}
    run = PlacementRun(node=node, gpu=fields.integer("gpu"), slot=fields.integer("slot"), **counts)
    if run.node + run.nodes > cluster.node_count:
        raise fields.wrong("nodes", f"{run.nodes} from node {node} on, of {cluster.node_count}")
    most = max(group.gpus for group in cluster.nodes)
    if run.gpu + run.gpus > most:
        raise fields.wrong("gpu", f"GPU {run.gpu + run.gpus - 1} on a node of at most {most}")
    if run.slot + run.slots > MAX_PERCENT:
        raise fields.wrong("slot", f"slot {run.slot + run.slots - 1} of at most {MAX_PERCENT}")
    return run


def slot_table(runs: Sequence[PlacementRun]) -> NDArray[np.int64]:
    """Node, GPU and slot of every vGPU, in placement order: an array [vGPUs, 3]."""
    blocks = [
        np.stack(
            np.meshgrid(
                np.arange(run.node, run.node + run.nodes),
                np.arange(run.gpu, run.gpu + run.gpus),
                np.arange(run.slot, run.slot + run.slots),
                indexing="ij",
            ),
            axis=-1,
        ).reshape(-1, 3)
        for run in runs
    ]
    return np.concatenate(blocks) if blocks else np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class VGpu:
    """One vGPU of a plan: its number, the number of its pool, and where it sits."""

    index: int
    pool: int
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatInterference(Form):
    """One stage on a vGPU: what it suffers, presses, and the factor its latencies contain."""

    susceptibility: Annotated[float, About("Slow-down of the stage per unit of pressure.", 0.4)]
    pressure: Annotated[float, About("Pressure that the stage exerts.", 0.3, least=0)]
    factor: Annotated[float, About("Factor that its latencies contain.", 1.1, least=1)]

    def __post_init__(self) -> None:
        if not (self.pressure >= 0 and self.factor >= 1):
            reason = f"pressure {self.pressure} or factor {self.factor} is too small"
            raise InputError("interference, seats", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInterference(Form):
    """Pressure and sensitivity of a pool's vGPUs."""

    pressure: Annotated[
        float, About("Pressure on other vGPUs of the GPU: the largest of its stages.", 0.3, least=0)
    ]
    felt: Annotated[float, About("Sum of the pressures of the other vGPUs.", 0.25, least=0)]
    inflation: Annotated[
        float, About("Reserve factor for what the model does not see.", 1.05, least=1)
    ]
    seats: Annotated[
        tuple[SeatInterference, ...],
        About("One per stage on the pool, in the order of rows.", [], kind="seat[]"),
    ]


_SHARES = (
    FieldForm("vgpu_divisor", "integer", "Each vGPU is 1/n of a GPU.", 2, required=False),
    FieldForm(
        "vgpu_percent", "integer", "Each vGPU is this percentage of a GPU.", 40, required=False
    ),
    FieldForm(
        "vgpu_mig", "text", "Each vGPU is this MIG slice, or part of one.", "1g/2", required=False
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """vGPUs of one class and one share, in 300ths of a GPU (`shares`), that hold the same stages.

    It starts anywhere where any tail of its model may run at once (clients that just moved their
    cut).
    """

    name: Annotated[str, About("Name of the pool.", "l4-0")]
    gpu_class: Annotated[str, About("Its GPU class.", "L4")]
    share: Annotated[
        int, About("Part of a GPU.", 2, read=read_share, write=share_to_dict, parts=_SHARES)
    ]
    vgpus: Annotated[int, About("Number of vGPUs.", 4, least=1)]
    placement: Annotated[
        tuple[PlacementRun, ...],
        About("Where the vGPUs are, in order.", [], kind="placement[]"),
    ]
    starts_anywhere: Annotated[
        bool, About("Any tail of its model may start here at once.", example=True)
    ] = False
    interference: Annotated[
        PoolInterference | None,
        About("Slow-down by neighbours on the GPU.", {"felt": 0.1}, kind="interference"),
    ] = None

    def __post_init__(self) -> None:
        check_name("pools.name", self.name)
        where = f"pool {self.name!r}"
        check_share(where, self.share)
        check_form(where, self)
        placed = sum(run.vgpus for run in self.placement)
        if placed != self.vgpus:
            raise InputError(f"{where}, placement", f"{self.vgpus} vGPUs but {placed} placed")

    @property
    def divisor(self) -> int | None:
        """v where its vGPUs are 1/v of a GPU, else None."""
        return divisor_of(self.share)

    def slots(self) -> tuple[Slot, ...]:
        """Every vGPU of the pool, in placement order (the order of ties)."""
        return tuple(slot for run in self.placement for slot in run.expand())

    def to_dict(self, cluster: Cluster) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        return form_to_dict(self, placement=placement_to_dicts(self.placement, cluster))

    @classmethod
    def read(cls, fields: Fields, cluster: Cluster) -> Self:
        """Inverse of `to_dict`."""
        placement = tuple(read_run(run, cluster) for run in fields.items("placement"))
        return cls(**read_form(cls, fields, placement=placement))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory(Form):
    """Bytes a stage takes on its vGPU."""

    static: Annotated[int, About("Bytes held always (weights).", 5000000, least=0)]
    dynamic: Annotated[int, About("Bytes held while it runs.", 12000000, least=0)]

    def __post_init__(self) -> None:
        check_form("memory_bytes", self)


def _read_blocks(fields: Fields) -> tuple[int, int]:
    blocks = fields.integers("blocks")
    if len(blocks) != 2:  # noqa: PLR2004 - first and last
        raise fields.wrong("blocks", f"{list(blocks)} is not [first, last)")
    return blocks[0], blocks[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Form):
    """Blocks [first, last) of a model on a pool, which it names.

    `latency_us_by_batch[b - 1]` is the run time of batch b. `transfer_us` is 0 for the last stage;
    the bytes that leave it are the answer's, 0 where not known. A stage that boards joins batches
    with the model's other pipelines on its pool: its batch is how many samples one batch takes in
    all. One with `load_us` is loaded on demand: every run is reckoned with a load.
    """

    blocks: Annotated[
        tuple[int, int],
        About("First block, and the block after the last.", [0, 4], read=_read_blocks),
    ]
    pool: Annotated[str, About("Pool that runs it.", "p4-0")]
    batch: Annotated[int | None, About("Planned batch, if not the pipeline's.", 8, least=1)] = None
    latency_us: Annotated[int, About("Run time of the planned batch, in µs.", 52000)]
    transfer_us: Annotated[
        int, About("Time to move a batch to the next stage, in µs.", 900, least=0)
    ]
    latency_us_by_batch: Annotated[
        tuple[int, ...],
        About(
            "Run time of batch 1, 2, …, in µs.",
            [16000, 28000, 40000, 52000],
            read=lambda f: f.integers("latency_us_by_batch", least=1),
        ),
    ]
    boundary_bytes_per_sample: Annotated[
        int, About("Bytes leaving it per sample.", 401408, least=0)
    ]
    duty_cycle_us: Annotated[
        int | None, About("Period of its turn on a shared vGPU, in µs.", 40000, least=1)
    ] = None
    boundary: Annotated[
        tuple[TensorSpec, ...] | None, About("Tensors that leave it.", [EXAMPLE], kind="tensor[]")
    ] = None
    memory: Annotated[
        StageMemory | None,
        About("Memory of its GPU.", {"static": 5000000, "dynamic": 0}, "memory_bytes", "memory"),
    ] = None
    load_us: Annotated[
        int | None,
        About(
            "Time of a load, which its latencies contain, in µs, if it is loaded on demand.",
            46000,
            least=1,
        ),
    ] = None
    artifact: Annotated[
        str | None, About("Folder that the runtime loads; absent if emulated.", "9a/1f…")
    ] = None
    boards: Annotated[
        bool, About("Batches of several pipelines run together here.", example=True)
    ] = False

    def __post_init__(self) -> None:
        where = f"stage {list(self.blocks)} on pool {self.pool!r}"
        if self.artifact is not None:
            check_name(f"{where}, artifact", self.artifact)
        if not 0 <= self.blocks[0] < self.blocks[1]:
            raise InputError(where, "blocks must be [first, last) with first < last")
        if not self.latency_us_by_batch or min(self.latency_us_by_batch) < 1:
            raise InputError(where, "latency_us_by_batch must be positive")
        check_form(where, self)
        if self.batch is not None and self.batch > self.largest:
            reason = f"{self.batch}, but latencies are known for batches 1 to {self.largest}"
            raise InputError(f"{where}, batch", reason)
        if self.load_us is not None:
            self._check_on_demand(f"{where}, load_us", self.load_us)

    def _check_on_demand(self, where: str, load_us: int) -> None:
        if self.memory is None:
            raise InputError(where, "needs memory_bytes: what is loaded must find room")
        if self.boards:
            raise InputError(where, "a stage that boards is not loaded on demand")
        shortest = min(self.latency_us_by_batch)
        if shortest <= load_us:
            reason = f"a load of {load_us} µs is contained in no run of {shortest} µs"
            raise InputError(where, reason)

    @property
    def largest(self) -> int:
        """Largest batch with a known latency."""
        return len(self.latency_us_by_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Form):
    """Stages that follow one another without a gap, one batch size for all.

    `throughput_rps` is its planned rate: what its slowest pool delivers, or less where the plan
    promises its model less than all pipelines together deliver. It is 0 for best-effort pipelines:
    whole models on GPUs that are free, which may use part of the SLO's margin and promise nothing.
    It names an entry where the model lists some. What its first stage reads of modules before it
    takes `input_transfer_us`, where the plan counts that (`with_module_transfers`).
    """

    entry: Annotated[str | None, About("Entry whose requests it takes.", "tails")] = None
    batch: Annotated[int, About("Planned batch size.", 4, least=1)]
    throughput_rps: Annotated[
        float, About("Planned rate; 0 for best effort.", 35.3, least=0, missing=0.0)
    ]
    latency_us: Annotated[
        int, About("Time of a planned batch, transfers included, in µs.", 96000, missing=0)
    ]
    input_bytes_per_sample: Annotated[
        int,
        About(
            "Bytes per sample from earlier modules, if their transfers count.",
            602112,
            least=0,
            written=False,
        ),
    ] = 0
    input_transfer_us: Annotated[
        int,
        About("Time to move them to the first stage, in µs.", 19268, least=0, written=False),
    ] = 0
    occupied_vgpus: Annotated[
        float | None, About("vGPUs it keeps busy, if billed by occupancy.", 1.6)
    ] = None
    stages: Annotated[
        tuple[Stage, ...],
        About("Its stages, without a gap between their blocks.", [], kind="stage[]"),
    ]

    def __post_init__(self) -> None:
        if self.occupied_vgpus is not None and not 0 < self.occupied_vgpus < float("inf"):
            raise InputError("pipeline, occupied_vgpus", f"{self.occupied_vgpus} is not positive")
        if self.batch < 1 or not 0 < len(self.stages) <= LONGEST_PIPELINE:
            reason = f"batch {self.batch} and {len(self.stages)} stages, at most {LONGEST_PIPELINE}"
            raise InputError("pipeline", reason)
        at = self.stages[0].blocks[0]
        for stage in self.stages:
            if stage.blocks[0] != at:
                raise InputError("pipeline", f"a stage starts at block {stage.blocks[0]}, not {at}")
            if stage.largest < (stage.batch or self.batch):
                raise InputError("pipeline", f"no latency for batch {self.batch} in {stage.blocks}")
            at = stage.blocks[1]

    @property
    def first_block(self) -> int:
        """The block it starts with."""
        return self.stages[0].blocks[0]

    @property
    def blocks(self) -> int:
        """The block after its last."""
        return self.stages[-1].blocks[1]

    @property
    def largest(self) -> int:
        """Largest batch that every stage has a latency for."""
        return min(stage.largest for stage in self.stages)

    @property
    def alone_us(self) -> int:
        """The time of a batch of one without waits, moves included."""
        moves_us = self.input_transfer_us
        return moves_us + sum(s.latency_us_by_batch[0] + s.transfer_us for s in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan(Form):
    """All pipelines of one model; `throughput_rps`, its planned rate, is their sum.

    A `pool` plan promises weight x objective (or the rate asked for) and keeps what GPUs deliver
    beyond that as slack, as the published plans do; the baselines promise all they deliver.
    Without entries, requests come in at block 0 with the SLO as budget.
    """

    name: Annotated[str, About("Name of the model.", "squeezenet")]
    slo_us: Annotated[int, About("Latency objective in µs.", 200000, least=1)]
    throughput_rps: Annotated[
        float, About("Planned rate, in requests/s.", 70.7, least=0, missing=0.0)
    ]
    policy: Annotated[str, About("Dispatch policy that it was planned for.", DEFAULT_POLICY)] = (
        DEFAULT_POLICY
    )
    inputs: Annotated[
        tuple[TensorSpec, ...], About("Tensors of a request.", [EXAMPLE], kind="tensor[]")
    ] = ()
    outputs: Annotated[
        tuple[TensorSpec, ...], About("Tensors of the answer.", [EXAMPLE], kind="tensor[]")
    ] = ()
    split: Annotated[str | None, About("Key of the split whose blocks these are.", "8c1d…")] = None
    entries: Annotated[
        tuple[Entry, ...], About("Blocks at which requests come in.", [], written=False)
    ] = ()
    pipelines: Annotated[tuple[Pipeline, ...], About("Ways through the pools.", [])]

    def __post_init__(self) -> None:
        check_name("models.name", self.name)
        where = f"model {self.name!r}"
        if not self.policy:
            raise InputError(f"{where}, policy", "is empty")
        if len({p.blocks for p in self.pipelines}) > 1:
            raise InputError(where, "pipelines end at different blocks")
        check_entries(self.name, self.entries, self.blocks)
        known = {entry.name: entry.block for entry in self.entries}
        for number, pipeline in enumerate(self.pipelines):
            self._check_entry(f"{where}, pipeline {number}", pipeline, known)
        served = {pipeline.entry for pipeline in self.pipelines}
        for name in known:
            if name not in served:
                raise InputError(f"{where}, entry {name!r}", "has no pipeline")

    def _check_entry(self, where: str, pipeline: Pipeline, known: Mapping[str, int]) -> None:
        if pipeline.entry is not None and pipeline.entry not in known:
            listed = ", ".join(known) or "none"
            reason = f"{pipeline.entry!r} is not one of the model's entries ({listed})"
            raise InputError(f"{where}, entry", reason)
        if known and pipeline.entry is None:
            raise InputError(f"{where}, entry", f"is missing; the model has {', '.join(known)}")
        block = 0 if pipeline.entry is None else known[pipeline.entry]
        if pipeline.first_block != block:
            reason = f"starts at block {pipeline.first_block}, its entry at {block}"
            raise InputError(f"{where}, stages", reason)

    @property
    def blocks(self) -> int:
        """Blocks of the model."""
        return self.pipelines[0].blocks if self.pipelines else 0

    @property
    def queues(self) -> tuple[Entry, ...]:
        """One entry per queue of requests: those listed, or block 0 with the SLO as budget."""
        return self.entries or (
            Entry(
                name=self.name, block=0, budget_us=self.slo_us, rate_rps=max(self.throughput_rps, 0)
            ),
        )

    def stage_inputs(self, pipeline: int, stage: int) -> tuple[TensorSpec, ...]:
        """The tensors that enter a stage, as far as the plan names them."""
        path = self.pipelines[pipeline]
        if stage:
            return path.stages[stage - 1].boundary or ()
        return next((e.inputs for e in self.entries if e.name == path.entry), self.inputs)

    def stage_outputs(self, pipeline: int, stage: int) -> tuple[TensorSpec, ...]:
        """The tensors that leave a stage, as far as the plan names them."""
        stages = self.pipelines[pipeline].stages
        return self.outputs if stage == len(stages) - 1 else stages[stage].boundary or ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Form):
    """The objective and its proof: gap = (upper_bound - value) / value.

    For minimised objectives `upper_bound` holds the lower bound and gap = (value - bound) / value.
    """

    name: Annotated[str, About("throughput, cost, power, gpus or share.", "throughput")]
    value: Annotated[float, About("Value of this plan.", 70.7)]
    upper_bound: Annotated[
        float,
        About(
            "No plan of `space` is better: an upper bound for throughput, a lower bound otherwise.",
            70.7,
        ),
    ]
    gap: Annotated[float, About("Relative distance of value and bound.", 0.0)]
    space: Annotated[str | None, About("Plans that the bound covers.", "pool")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained(Form):
    """Attainment of a finished plan in the simulator.

    Of all models and applications, that which attains least counts. Both shares are None, and the
    duration 0, where the plan is too large to be simulated at once.
    """

    even: Annotated[
        float | None,
        About(
            "Least share of a model's requests in time, at equal gaps at the planned rates; missing"
            " if not simulated.",
            0.9995,
            least=0,
            most=1,
        ),
    ] = None
    poisson: Annotated[
        float | None,
        About(
            "The same of Poisson arrivals at `poisson_load` of them.",
            0.993,
            least=0,
            most=1,
        ),
    ] = None
    poisson_load: Annotated[
        float, About("Part of the planned rates that is offered as Poisson arrivals.", 0.9, least=0)
    ]
    duration_s: Annotated[
        float, About("Seconds of arrivals of each; 0 if not simulated.", 20.0, least=0)
    ]
    seed: Annotated[int, About("Seed of the arrivals.", 0)]

    def __post_init__(self) -> None:
        check_form("attained", self)


StagePlace = tuple[int, int, int]
"""A stage: its model, its pipeline in the model and its place in the pipeline, by their numbers."""


class StageRow(NamedTuple):
    """One stage of one pipeline, numbered through the plan by model, pipeline, stage."""

    model: int
    pipeline: int
    stage: int
    pool: int

    @property
    def place(self) -> StagePlace:
        """Which stage it is."""
        return self[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan.

    Pools stand in the order in which stages first name them, whatever the order they are given in:
    pools and vGPUs are numbered so. `waits` is one of `workload.WAITS`, or None where the plan does
    not say; `gathering_rule` is one of `workload.RULES`, or None where batches gather at the
    workload's rate.
    """

    plan_id: Annotated[str, About("Identity of the plan: a hash of its content.", "3f2a9c01d7e4")]
    planner: Annotated[str, About("Planner that made it.", "pool")]
    options: Annotated[
        Mapping[str, Any], About("Options it was planned with.", {"slo_margin": 0.4})
    ] = field(default_factory=dict[str, Any])
    objective: Annotated[Objective, About("What was optimised, and the proof.", {"gap": 0.0})]
    solver: Annotated[
        str,
        About("Solvers that solved its programs: highs, gurobi, gurobi+highs, none.", "highs"),
    ] = ""
    solve_seconds: Annotated[float, About("Wall time of planning, in s.", 1.7, least=0)] = 0.0
    certificate: Annotated[
        Mapping[str, Any],
        About(
            "What the search did: status, seconds per step, configurations, parts of the proof;"
            " keys vary by planner.",
            {"status": "optimal"},
        ),
    ] = field(default_factory=dict[str, Any])
    cluster: Annotated[Cluster, About("The cluster, as in cluster.yaml.", {"name": "lab"})]
    workload: Annotated[Workload, About("The workload, as in workload.yaml.", {"models": []})]
    gpus_used: Annotated[
        Mapping[str, int], About("GPUs that hold at least one vGPU, by class.", {"L4": 2})
    ]
    price_paid: Annotated[
        float | None,
        About(
            "Sum of hourly_cost over `gpus_used`, per hour; missing if a used class states none.",
            12.5,
            least=0,
        ),
    ] = None
    pools: Annotated[
        tuple[Pool, ...], About("Pools of vGPUs, numbered in this order.", [], kind="pool[]")
    ]
    models: Annotated[
        tuple[ModelPlan, ...], About("Models with their pipelines.", [], kind="model[]")
    ]
    applications: Annotated[
        tuple[ApplicationPlan, ...],
        About("Applications with their time budgets.", [], kind="application[]", written=False),
    ] = ()
    attained: Annotated[
        Attained | None,
        About("Attainment in the simulator.", {"poisson": 0.993}, kind="attained"),
    ] = None
    waits: Annotated[
        str | None,
        About("How the wait for a whole batch counts: gathering, turn or margin.", GATHERING),
    ] = None
    gathering_rule: Annotated[
        str | None,
        About(
            "Rate at which batches gather, if not the workload's: dt, 2d, tc-even, tc-tail, "
            "tc-padded.",
            "tc-tail",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_name("plan_id", self.plan_id)
        _check_accounting(self)
        if not self.models:
            raise InputError(f"plan {self.plan_id}, models", "there is none")
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError(f"plan {self.plan_id}, models", f"a name is listed twice in {names}")
        check_names([planned.application for planned in self.applications], names)
        for planned in self.applications:
            for module in planned.application.modules:
                if module.model not in names:
                    where = f"application {planned.name!r}, module {module.name!r}.model"
                    raise InputError(where, f"{module.model!r} is none of {', '.join(names)}")
        object.__setattr__(self, "pools", self._pools_as_mentioned())
        _check_sizes(self.cluster, self.pools)
        _check_boards(self)
        _check_on_demand(self)
        _check_gpus(self)
        _check_sharing(self)

    def _pools_as_mentioned(self) -> tuple[Pool, ...]:
        by_name = {pool.name: pool for pool in self.pools}
        if len(by_name) < len(self.pools):
            raise InputError("pools", f"a name is listed twice in {[p.name for p in self.pools]}")
        order: dict[str, Pool] = {}
        for model in self.models:
            for p, pipeline in enumerate(model.pipelines):
                for s, stage in enumerate(pipeline.stages):
                    if stage.pool not in by_name:
                        where = f"model {model.name!r}, pipeline {p}, stage {s}, pool"
                        listed = ", ".join(by_name) or "none"
                        raise InputError(
                            where, f"{stage.pool!r} is not one of the pools ({listed})"
                        )
                    order[stage.pool] = by_name[stage.pool]
        for name in by_name:
            if name not in order:
                raise InputError(f"pool {name!r}", "no stage names it")
        return tuple(order.values())

    @property
    def accounting(self) -> Accounting:
        """How waiting counts: as stated, else as planner's options of earlier plans mean it."""
        if self.waits is not None:
            return Accounting(self.waits, self.gathering_rule)
        stages = [stage for m in self.models for p in m.pipelines for stage in p.stages]
        return derived_accounting(
            self.options,
            in_entries=any(p.entry is not None for m in self.models for p in m.pipelines),
            in_turns=all(stage.duty_cycle_us is not None for stage in stages),
        )

    def model(self, name: str) -> ModelPlan:
        """The plan of one model.

        Raises:
            InputError: it has none of that name.
        """
        for model in self.models:
            if model.name == name:
                return model
        names = ", ".join(m.name for m in self.models)
        raise InputError(f"plan {self.plan_id}", f"no model {name!r}; it has {names}")

    def least_tails_us(self, name: str) -> dict[int, int]:
        """Of every open cut of a model, by block: the least time of a batch of one, moves included.

        With a shadow pool it is that pool's. Clients use what time there is: where they knew of a
        faster pool, they would leave the server less, for which another plan needs faster ones
        still.

        Raises:
            InputError: it has no model of that name.
        """
        anywhere = {pool.name for pool in self.pools if pool.starts_anywhere}
        found: dict[int, int] = {}
        for pipeline in self.model(name).pipelines:
            if anywhere and any(stage.pool not in anywhere for stage in pipeline.stages):
                continue
            block = pipeline.first_block
            found[block] = min(pipeline.alone_us, found.get(block, pipeline.alone_us))
        return dict(sorted(found.items()))

    def own_rate_rps(self, name: str) -> float:
        """The rate at which clients of a model may ask for it by its name.

        The applications that use it leave that of its rate; of a name with variants, the rates of
        all; none of another name's variant.
        """
        rate = self.model(name).throughput_rps
        variant_of = self.workload.variant_of
        if name in variant_of:
            return 0.0
        rate += sum(m.throughput_rps for m in self.models if variant_of.get(m.name) == name)
        if not self.applications:
            return rate
        if name not in [demand.name for demand in self.workload.models]:
            return 0.0
        for planned in self.applications:
            for module in planned.application.modules:
                if module.model == name:
                    rate -= (planned.application.rate_rps or 0.0) * module.rows_per_request
        return max(rate, 0.0)

    def pool_of(self, stage: Stage) -> Pool:
        """The pool that a stage names."""
        return next(pool for pool in self.pools if pool.name == stage.pool)

    def stage_rows(self) -> tuple[StageRow, ...]:
        """Every stage, numbered by model, pipeline and stage, with the number of its pool."""
        numbers = {pool.name: number for number, pool in enumerate(self.pools)}
        return tuple(
            StageRow(m, p, s, numbers[stage.pool])
            for m, model in enumerate(self.models)
            for p, pipeline in enumerate(model.pipelines)
            for s, stage in enumerate(pipeline.stages)
        )

    @property
    def shares_requests(self) -> bool:
        """True if two entries share the requests of a model, as in a canary's steps."""
        return any(shares_of(model.entries) for model in self.models)

    def queues(self) -> tuple[range, ...]:
        """Of every model the numbers of its queues, one per entry, in the order of models."""
        ends = list(accumulate(len(model.queues) for model in self.models))
        return tuple(
            range(end - len(model.queues), end)
            for model, end in zip(self.models, ends, strict=True)
        )

    def placed_stages(self) -> Iterator[tuple[ModelPlan, Pipeline, Stage, Pool]]:
        """Every stage in the order of rows, with its model, pipeline and pool."""
        by_name = {pool.name: pool for pool in self.pools}
        for model in self.models:
            for pipeline in model.pipelines:
                for stage in pipeline.stages:
                    yield model, pipeline, stage, by_name[stage.pool]

    def gpus(self) -> dict[str, int]:
        """Whole GPUs that hold at least one vGPU, by class."""
        used = {gpu_class.name: 0 for gpu_class in self.cluster.gpu_classes}
        for name in used:
            tables = [slot_table(p.placement) for p in self.pools if p.gpu_class == name]
            if tables:
                used[name] = len(np.unique(np.concatenate(tables)[:, :2], axis=0))
        return used

    def counted(self) -> "Plan":
        """The plan with `gpus_used` and `price_paid` as its pools are placed."""
        used = self.gpus()
        costs = {c.name: c.hourly_cost for c in self.cluster.gpu_classes if used[c.name]}
        paid = None
        if all(cost is not None for cost in costs.values()):
            paid = math.fsum(used[name] * (cost or 0.0) for name, cost in costs.items())
        return replace(self, gpus_used=used, price_paid=paid)

    def stages_of(self, pool: int) -> tuple[Stage, ...]:
        """Every stage that names pool number `pool`, in the order of rows."""
        name = self.pools[pool].name
        return tuple(
            stage
            for model in self.models
            for pipeline in model.pipelines
            for stage in pipeline.stages
            if stage.pool == name
        )

    def room_bytes(self, pool: int) -> int:
        """Bytes that every vGPU of a pool has for stages that are loaded on demand."""
        place, stages = self.pools[pool], self.stages_of(pool)
        return _room_bytes(self.cluster.gpu_class(place.gpu_class), place.share, stages)

    def vgpus(self) -> tuple[VGpu, ...]:
        """Every vGPU, numbered by pool and placement order.

        The numbers are the resource ids of the scheduler, the simulator and the workers.
        """
        places = ((number, slot) for number, pool in enumerate(self.pools) for slot in pool.slots())
        return tuple(VGpu(index=i, pool=pool, slot=slot) for i, (pool, slot) in enumerate(places))

    def to_dict(self) -> dict[str, Any]:
        """Plain form: the object of `plan.json`."""
        pools = [pool.to_dict(self.cluster) for pool in self.pools]
        return {"format": FORMAT, **form_to_dict(self, pools=pools)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`; takes format 1 too.

        Raises:
            InputError: a field is missing, of the wrong type, or does not fit the others.
        """
        fields = Fields(data)
        if not fields.has("format"):
            data = upgrade_format_1(data)
            fields = Fields(data)
        fields.integer("format", least=FORMAT, most=FORMAT)
        cluster = Cluster.read(fields.inner("cluster"))
        pools = tuple(Pool.read(pool, cluster) for pool in fields.items("pools"))
        return cls(**read_form(cls, fields, cluster=cluster, pools=pools))


def next_pool_name(gpu_class: str, counts: dict[str, int]) -> str:
    """The class in lower case and a number from 0; `counts` remembers how many have been named."""
    stem = gpu_class.lower()[: LONGEST_NAME - len("-10000000")]
    number = counts.get(stem, 0)
    counts[stem] = number + 1
    return f"{stem}-{number}"


def upgrade_format_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of format 1 (every stage its own pool, times in ms) as one of format 2.

    Raises:
        InputError: a field of it is missing or of the wrong type.
    """
    pools: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    counts: dict[str, int] = {}

    def stage_of(fields: Fields) -> dict[str, Any]:
        gpu_class = fields.text("gpu_class")
        given = fields.plain()
        name = next_pool_name(gpu_class, counts)
        own = ("gpu_class", "vgpu_divisor", "vgpus", "placement")
        pools.append({"name": name} | {key: given[key] for key in own if key in given})
        rest = {k: v for k, v in given.items() if k not in {*own, "latency_ms", "transfer_ms"}}
        times = {
            "latency_us": ms_to_us(fields.number("latency_ms", least=0)),
            "transfer_us": ms_to_us(fields.number("transfer_ms", least=0)),
        }
        return {"pool": name, **rest, **times}

    for model in Fields(data).items("models"):
        pipelines = [
            pipeline.plain()
            | {
                "latency_us": ms_to_us(pipeline.number("latency_ms", least=0)),
                "stages": [stage_of(stage) for stage in pipeline.items("stages")],
            }
            for pipeline in model.items("pipelines")
        ]
        slo_us = ms_to_us(model.number("slo_ms", least=us_to_ms(1)))
        models.append(model.plain() | {"slo_us": slo_us, "pipelines": pipelines})
    return dict(data) | {"format": FORMAT, "pools": pools, "models": models}


# Checks of a whole plan


def _check_accounting(plan: Plan) -> None:
    for name, known in (("waits", WAITS), ("gathering_rule", RULES)):
        value = getattr(plan, name)
        if value is not None and value not in known:
            raise InputError(f"plan {plan.plan_id}, {name}", f"{value!r} is none of {known}")
    if plan.gathering_rule is not None and plan.waits != GATHERING:
        reason = f"{plan.gathering_rule!r} needs waits {GATHERING!r}, not {plan.waits!r}"
        raise InputError(f"plan {plan.plan_id}, gathering_rule", reason)


def _check_sizes(cluster: Cluster, pools: Sequence[Pool]) -> None:
    """Every pool's class exists and may be cut so."""
    for pool in pools:
        gpu_class = cluster.gpu_class(pool.gpu_class)
        known = gpu_class.shares if gpu_class.mig else (WHOLE_GPU, *gpu_class.shares)
        if pool.share not in known:
            listed = ", ".join(share_text(share) for share in gpu_class.shares)
            raise InputError(
                f"pool {pool.name!r}",
                f"vGPUs of {share_text(pool.share)}, but class {pool.gpu_class} lists {listed}",
            )


def _check_gpus(plan: Plan) -> None:
    """Slots exist and stand in one pool; what a GPU is cut into fits it, in shares and in memory.

    Works on arrays, because plans have up to 10^5 vGPUs: `slots` [vGPU, (node, GPU, slot)], `owner`
    [vGPU] the number of its pool, `gpu` [vGPU] the number of its GPU among those used, `at` [GPU]
    one vGPU of each.
    """
    if not plan.pools:
        return
    tables = [slot_table(pool.placement) for pool in plan.pools]
    slots = np.concatenate(tables)
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    _check_slots(plan, slots, owner)
    _, at, gpu = np.unique(
        slots[:, 0] * (int(slots[:, 1].max()) + 1) + slots[:, 1],
        return_index=True,
        return_inverse=True,
    )
    classes = [plan.cluster.gpu_class(pool.gpu_class) for pool in plan.pools]

    def complain(bad: NDArray[np.bool_], what: str, reason: Callable[[int], str]) -> None:
        if bad.any():
            number = int(np.flatnonzero(bad)[0])
            node, index = (int(v) for v in slots[at[number], :2])
            raise InputError(
                f"node {plan.cluster.node_name(node)}, GPU {index}, {what}", reason(number)
            )

    share = np.array([pool.share for pool in plan.pools])[owner]
    taken = np.bincount(gpu, weights=share)
    complain(
        taken > WHOLE_GPU,
        "share",
        lambda g: f"its vGPUs take {percent_of(int(taken[g])):g} % of it",
    )
    count = np.bincount(gpu)
    most = np.array([c.most_vgpus for c in classes])[owner[at]]
    complain(
        count > most,
        "max_vgpus_per_gpu",
        lambda g: f"{count[g]} vGPUs, its class allows {most[g]}",
    )
    _check_partitions(classes, (share, owner, gpu, at), complain)
    needed = np.array([_memory_gib(plan, number) for number in range(len(plan.pools))])
    held = np.bincount(gpu, weights=needed[owner])
    room = np.array([c.usable_gib or np.inf for c in classes])[owner[at]]
    complain(
        held > room * (1 + TOLERANCE),
        "memory",
        lambda g: f"{held[g]:.3f} GiB needed, it has {room[g]:g}",
    )


def _check_slots(plan: Plan, slots: NDArray[np.int64], owner: NDArray[np.int64]) -> None:
    """Every slot exists on a GPU of its pool's class, and stands once."""
    names = {c.name: number for number, c in enumerate(plan.cluster.gpu_classes)}
    counts = [group.count for group in plan.cluster.nodes]
    node_class = np.repeat([names[group.gpu_class] for group in plan.cluster.nodes], counts)
    node_gpus = np.repeat([group.gpus for group in plan.cluster.nodes], counts)
    wanted = np.array([names[pool.gpu_class] for pool in plan.pools])[owner]
    most = np.array([plan.cluster.gpu_classes[c].most_vgpus for c in range(len(names))])[wanted]
    node = slots[:, 0]
    known = (node >= 0) & (node < len(node_class))
    known[known] &= node_class[node[known]] == wanted[known]
    known[known] &= slots[known, 1] < node_gpus[node[known]]
    for bad, reason in (
        (~known, "no such GPU of class"),
        (slots[:, 2] >= most, "no such slot on a GPU of class"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            pool = plan.pools[owner[row]]
            where = f"pool {pool.name!r}, placement"
            raise InputError(where, f"{tuple(map(int, slots[row]))}: {reason} {pool.gpu_class}")
    order = np.lexsort(slots.T)
    again = np.flatnonzero((np.diff(slots[order], axis=0) == 0).all(axis=1))
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        pools = " and ".join(repr(plan.pools[owner[row]].name) for row in (first, second))
        node, index, slot = (int(v) for v in slots[first])
        where = f"node {plan.cluster.node_name(node)}, GPU {index}, slot {slot}"
        raise InputError(where, f"stands in pools {pools}")


def _check_partitions(
    classes: Sequence[GpuClass],
    cut: tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    complain: Callable[[NDArray[np.bool_], str, Callable[[int], str]], None],
) -> None:
    """Where a class lists its partitions, every GPU of it is cut into parts of one of them.

    Slices of MIG must fit the card together.
    """
    share, owner, gpu, at = cut
    for number, vgpu in enumerate(at.tolist()):
        gpu_class = classes[int(owner[vgpu])]
        allowed = gpu_class.partitions
        if gpu_class.mig is not None:
            shown = gpu_class.mig.refuses(share[gpu == number].tolist())
            if shown is not None:
                complain(np.arange(len(at)) == number, "slices", lambda _, text=shown: text)
            continue
        if not allowed:
            continue
        parts = sorted((share[gpu == number] // PER_PERCENT).tolist())
        if not any(_is_part_of(parts, partition) for partition in allowed):
            shown = f"cut into {parts}, its class allows {[list(p) for p in allowed]}"
            complain(np.arange(len(at)) == number, "partitions", lambda _, text=shown: text)


def _is_part_of(parts: Sequence[int], partition: Sequence[int]) -> bool:
    left = list(partition)
    for part in parts:
        if part not in left:
            return False
        left.remove(part)
    return True


def worker_memory_gib(gpu_class: GpuClass, held: Sequence[StageMemory | None]) -> float:
    """A worker's GPU memory: every stage's weights, the largest workspace, its process.

    Stages of which nothing is known count nothing.
    """
    known = [memory for memory in held if memory is not None]
    needed = sum(m.static for m in known) + max((m.dynamic for m in known), default=0)
    return (gpu_class.process_memory_gib or 0.0) + needed / BYTES_PER_GIB


# Stages that are loaded on demand
#
#     memory of a vGPU   [ process | weights of pinned stages | room                 | workspace ]
#                                                               loaded on demand, the largest of
#                                                               least recently used   all stages
#                                                               evicted first


def load_time_us(gpu_class: GpuClass, weights: int) -> int | None:
    """Time in which so many bytes of weights are loaded (µs); None where no rate is stated."""
    if gpu_class.load_gib_per_s is None:
        return None
    seconds = weights / BYTES_PER_GIB / gpu_class.load_gib_per_s
    return max(1, math.ceil(seconds * US_PER_S + ms_to_us(gpu_class.load_ms or 0.0)))


def pinned_memory(stage: Stage) -> StageMemory | None:
    """Memory that a stage always holds; its workspace alone where it is loaded on demand."""
    if stage.load_us is None or stage.memory is None:
        return stage.memory
    return replace(stage.memory, static=0)


def _room_bytes(gpu_class: GpuClass, share: int, stages: Sequence[Stage]) -> int:
    """Bytes of a vGPU's memory for stages that are loaded on demand.

    The rest of its part of the memory, no more than all of them take; 0 where there are none.

    Raises:
        InputError: the memory of the class is not stated, or the largest of them finds no room.
    """
    weights = [s.memory.static for s in stages if s.load_us is not None and s.memory is not None]
    if not weights:
        return 0
    where = f"pool {stages[0].pool!r}, load_us"
    if gpu_class.mig is not None:
        raise InputError(where, f"class {gpu_class.name} is divided by MIG: all stages are pinned")
    if gpu_class.usable_gib is None:
        raise InputError(where, f"class {gpu_class.name} needs memory_gib, which is shared out")
    part_gib = gpu_class.usable_gib * share / WHOLE_GPU
    kept = worker_memory_gib(gpu_class, [*map(pinned_memory, stages)]) * BYTES_PER_GIB
    room = math.floor(part_gib * BYTES_PER_GIB - kept)
    if room < max(weights):
        reason = (
            f"{max(weights) / BYTES_PER_GIB:.3f} GiB are loaded at once, of {part_gib:.4g} GiB "
            f"{max(room, 0) / BYTES_PER_GIB:.3f} are left beside pinned stages and workspace"
        )
        raise InputError(where, reason)
    return min(room, sum(weights))


def _memory_gib(plan: Plan, number: int) -> float:
    """Memory of a pool's vGPU: every stage's weights, the largest workspace, its process.

    Raises:
        InputError: more than a part of 1/v or of a MIG slice has; percents share what the GPU has.
    """
    pool = plan.pools[number]
    gpu_class = plan.cluster.gpu_class(pool.gpu_class)
    stages = plan.stages_of(number)
    held = {(s.blocks, s.memory): s.memory for s in stages if s.boards}
    alone = [pinned_memory(stage) for stage in stages if not stage.boards]
    needed = worker_memory_gib(gpu_class, [*held.values(), *alone])
    needed += _room_bytes(gpu_class, pool.share, stages) / BYTES_PER_GIB
    if gpu_class.mig is not None:
        room = gpu_class.mig.room_gib(pool.share)
        if needed > room * (1 + TOLERANCE):
            part = share_text(pool.share)
            reason = f"{needed:.3f} GiB needed, {part} of a {gpu_class.mig.card} has {room:.4g}"
            raise InputError(f"pool {pool.name!r}, memory", reason)
    divisor = divisor_of(pool.share) if gpu_class.vgpu_divisors else None
    usable_gib = gpu_class.usable_gib
    if divisor and usable_gib is not None and needed > usable_gib / divisor:
        reason = f"{needed:.3f} GiB needed, 1/{divisor} of {usable_gib:g} GiB is there"
        raise InputError(f"pool {pool.name!r}, memory", reason)
    return needed


def _check_boards(plan: Plan) -> None:
    """Stages that board on a pool are one stage: of one model, its blocks and its batch."""
    first: dict[int, tuple[int, tuple[int, int], int]] = {}
    for row in plan.stage_rows():
        pipeline = plan.models[row.model].pipelines[row.pipeline]
        stage = pipeline.stages[row.stage]
        if stage.boards:
            mine = (row.model, stage.blocks, stage.batch or pipeline.batch)
            if first.setdefault(row.pool, mine) != mine:
                where = f"pool {plan.pools[row.pool].name!r}, boards"
                raise InputError(where, "its stages differ in model, blocks or batch")


def _check_sharing(plan: Plan) -> None:
    """Models on one pool have one policy, and what is promised on it fits its vGPUs."""
    rows = plan.stage_rows()
    policies: dict[int, str] = {}
    work: dict[int, float] = {}
    stages: dict[int, int] = {}
    for row in rows:
        model = plan.models[row.model]
        pipeline = model.pipelines[row.pipeline]
        stage = pipeline.stages[row.stage]
        first = policies.setdefault(row.pool, model.policy)
        if first != model.policy:
            where = f"pool {plan.pools[row.pool].name!r}, policy"
            raise InputError(where, f"{model.name!r} has {model.policy}, others on it {first}")
        busy_us = pipeline.throughput_rps * stage.latency_us / (stage.batch or pipeline.batch)
        work[row.pool] = work.get(row.pool, 0.0) + busy_us / US_PER_S
        stages[row.pool] = stages.get(row.pool, 0) + 1
    for number, pool in enumerate(plan.pools):
        if pool.interference is not None and len(pool.interference.seats) != stages[number]:
            reason = f"{len(pool.interference.seats)} of them, but {stages[number]} stages name it"
            raise InputError(f"pool {pool.name!r}, interference, seats", reason)
        if stages[number] > 1 and work[number] > pool.vgpus * (1 + TOLERANCE):
            reason = f"its stages promise the work of {work[number]:.3f} vGPUs, it has {pool.vgpus}"
            raise InputError(f"pool {pool.name!r}, vgpus", reason)


def _check_on_demand(plan: Plan) -> None:
    """Stages that are loaded on demand are there once, on a pool without interference."""
    seen: set[tuple[str, str, tuple[int, int]]] = set()
    for model, _, stage, pool in plan.placed_stages():
        if stage.load_us is None:
            continue
        where = f"pool {pool.name!r}, load_us"
        if pool.interference is not None:
            raise InputError(where, "stands beside interference, which loads do not count")
        place = (pool.name, model.name, stage.blocks)
        if place in seen:
            raise InputError(where, f"{model.name!r} has two pipelines here; one is needed")
        seen.add(place)


# Transfers between modules: planners and `verify` count them, schedulers reserve them.
#
#     worker of the module before     uplink of its node    ─┐
#                                                             ├─ input_transfer_us, before the first
#     first stage of a pipeline       downlink of its node  ─┘   stage of a planned batch
#
# The time is that of a boundary between stages, at the slowest NIC of all classes that hold a side.


def modules_spread(plan: Plan) -> bool:
    """True if modules that read each other's tensors lie on more than one node."""
    asked = [planned.application for planned in plan.applications]
    for model in plan.models:
        if received_bytes(asked, model.name, model.inputs):
            nodes = _nodes(pool for p in model.pipelines for pool in (plan.pool_of(p.stages[0]),))
            if len(nodes | _nodes(giving_pools(plan, model.name))) > 1:
                return True
    return False


def giving_pools(plan: Plan, model: str) -> list[Pool]:
    """Pools of the last stages of the models whose outputs a model's modules read."""
    asked = [planned.application for planned in plan.applications]
    return [
        plan.pool_of(pipeline.stages[-1])
        for name in producing_models(asked, model)
        for pipeline in plan.model(name).pipelines
    ]


def module_rate_gbps(plan: Plan, model: str, pipeline: Pipeline) -> float:
    """The slowest NIC between the modules before a pipeline and its first stage (Gbit/s)."""
    pools = [*giving_pools(plan, model), plan.pool_of(pipeline.stages[0])]
    return min(plan.cluster.nic_gbps(pool.gpu_class) for pool in pools)


def sending_node(plan: Plan, model: str) -> int | None:
    """The node that all rows of a model come from; None where there are several, or none."""
    nodes = _nodes(giving_pools(plan, model))
    return nodes.pop() if len(nodes) == 1 else None


def receiving_nodes(plan: Plan, pipeline: Pipeline) -> set[int]:
    """The nodes of a pipeline's first stage."""
    return _nodes([plan.pool_of(pipeline.stages[0])])


def with_module_transfers(plan: Plan) -> Plan:
    """The plan with the transfers between its modules in its pipelines."""
    asked = [planned.application for planned in plan.applications]

    def moved(model: ModelPlan, pipeline: Pipeline, size: int) -> Pipeline:
        rate = module_rate_gbps(plan, model.name, pipeline)
        takes_us = transfer_us(pipeline.batch * size, rate)
        return replace(
            pipeline,
            input_bytes_per_sample=size,
            input_transfer_us=takes_us,
            latency_us=pipeline.latency_us + takes_us,
        )

    models: list[ModelPlan] = []
    for model in plan.models:
        size = received_bytes(asked, model.name, model.inputs)
        pipelines = tuple(moved(model, p, size) for p in model.pipelines) if size else ()
        models.append(replace(model, pipelines=pipelines or model.pipelines))
    return replace(plan, models=tuple(models))


def _nodes(pools: Iterable[Pool]) -> set[int]:
    return {slot.node for pool in pools for slot in pool.slots()}
