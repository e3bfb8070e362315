"""The contract between the two halves: pipelines of every model, GPUs of every pool, proof.

A plan is self-contained: simulator, verifier and gateway need nothing else. It is checked for
form when built; whether its numbers follow from the profiles is `flows/planning/verify`'s work.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from triton_backend.contract.cluster import MAX_DIVISOR, Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.units import ms_to_us, us_to_ms
from triton_backend.contract.workload import Workload

EXPAND_UP_TO = 512  # vGPUs of one stage listed one by one in a file; above, as ranges


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VGpu:
    """One vGPU of a plan and what it serves; indices into the plan's tuples."""

    index: int
    model: int
    pipeline: int
    stage: int
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Blocks [first, last) of a model on `vgpus` vGPUs of one class and size: one pool.

    Attributes:
        latency_us: run time of the planned batch; `latency_us_by_batch[b - 1]` that of batch b.
        transfer_us: time to move the planned batch's boundary to the next stage; 0 for the last.
        boundary_bytes_per_sample: bytes that leave the stage per sample (for the last stage the
            answer's, 0 where not known).
        boundary: the tensors behind those bytes, where known.
        artifact: what the runtime loads, relative to the artifact folder; None when emulated.
    """

    blocks: tuple[int, int]
    gpu_class: str
    vgpu_divisor: int
    vgpus: int
    latency_us: int
    transfer_us: int
    latency_us_by_batch: tuple[int, ...]
    boundary_bytes_per_sample: int
    placement: tuple[PlacementRun, ...]
    boundary: tuple[TensorSpec, ...] | None = None
    artifact: str | None = None

    def __post_init__(self) -> None:
        where = f"stage {list(self.blocks)} on {self.gpu_class}"
        if not 0 <= self.blocks[0] < self.blocks[1]:
            raise InputError(where, "blocks must be [first, last) with first < last")
        if self.vgpus < 1 or self.vgpu_divisor < 1:
            raise InputError(where, f"{self.vgpus} vGPUs of divisor {self.vgpu_divisor}")
        placed = sum(run.vgpus for run in self.placement)
        if placed != self.vgpus:
            raise InputError(where, f"{self.vgpus} vGPUs but {placed} placed")
        if not self.latency_us_by_batch or min(self.latency_us_by_batch) < 1:
            raise InputError(where, "latency_us_by_batch must be positive")
        if self.transfer_us < 0 or self.boundary_bytes_per_sample < 0:
            raise InputError(where, "transfer and boundary bytes must not be negative")

    def slots(self) -> tuple[Slot, ...]:
        """Every vGPU of the pool, in placement order (the order of ties)."""
        return tuple(slot for run in self.placement for slot in run.expand())

    def to_dict(self, cluster: Cluster) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        out: dict[str, Any] = {
            "blocks": list(self.blocks),
            "gpu_class": self.gpu_class,
            "vgpu_divisor": self.vgpu_divisor,
            "vgpus": self.vgpus,
            "latency_ms": us_to_ms(self.latency_us),
            "transfer_ms": us_to_ms(self.transfer_us),
            "latency_us_by_batch": list(self.latency_us_by_batch),
            "boundary_bytes_per_sample": self.boundary_bytes_per_sample,
        }
        if self.boundary is not None:
            out["boundary"] = [spec.to_dict() for spec in self.boundary]
        if self.artifact is not None:
            out["artifact"] = self.artifact
        out["placement"] = _placement_to_dicts(self.placement, cluster)
        return out

    @classmethod
    def read(cls, fields: Fields, cluster: Cluster) -> Self:
        """Inverse of `to_dict`."""
        blocks = fields.wholes("blocks")
        if len(blocks) != 2:  # noqa: PLR2004 - first and last
            raise fields.wrong("blocks", f"{list(blocks)} is not [first, last)")
        tensors = map(TensorSpec.read, fields.items("boundary") if fields.has("boundary") else ())
        return cls(
            blocks=(blocks[0], blocks[1]),
            gpu_class=fields.text("gpu_class"),
            vgpu_divisor=fields.whole("vgpu_divisor", least=1),
            vgpus=fields.whole("vgpus", least=1),
            latency_us=ms_to_us(fields.number("latency_ms", least=0)),
            transfer_us=ms_to_us(fields.number("transfer_ms", least=0)),
            latency_us_by_batch=fields.wholes("latency_us_by_batch", least=1),
            boundary_bytes_per_sample=fields.whole("boundary_bytes_per_sample"),
            boundary=tuple(tensors) if fields.has("boundary") else None,
            artifact=fields.text("artifact") if fields.has("artifact") else None,
            placement=tuple(_read_run(run, cluster) for run in fields.items("placement")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages that cover the model in order, one batch size for all.

    `throughput_rps` is its planned rate: what its slowest pool delivers, or less where the plan
    promises its model less than all pipelines together deliver. It is 0 for overflow: whole models
    on GPUs that are free, which may use part of the SLO's margin and promise nothing.
    """

    batch: int
    throughput_rps: float
    latency_us: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.stages:
            raise InputError("pipeline", f"batch {self.batch} and {len(self.stages)} stages")
        at = 0
        for stage in self.stages:
            if stage.blocks[0] != at:
                raise InputError("pipeline", f"a stage starts at block {stage.blocks[0]}, not {at}")
            if len(stage.latency_us_by_batch) < self.batch:
                raise InputError("pipeline", f"no latency for batch {self.batch} in {stage.blocks}")
            at = stage.blocks[1]

    @property
    def blocks(self) -> int:
        """Blocks covered."""
        return self.stages[-1].blocks[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """All pipelines of one model; `throughput_rps`, its planned rate, is their sum.

    A `pool` plan promises weight x objective (or the rate asked for) and keeps what GPUs deliver
    beyond that as slack, as the published plans do; the baselines promise all they deliver.
    """

    name: str
    slo_us: int
    throughput_rps: float
    pipelines: tuple[Pipeline, ...]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def __post_init__(self) -> None:
        if len({p.blocks for p in self.pipelines}) > 1:
            raise InputError(
                f"plan of {self.name!r}", "pipelines cover different numbers of blocks"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What was optimised and what is proven: gap = (upper_bound - value) / value.

    For minimised objectives `upper_bound` holds the lower bound and gap = (value - bound) / value.
    """

    name: str
    value: float
    upper_bound: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan.

    Attributes:
        certificate: status, seconds per step, configurations enumerated, feasible and kept.
    """

    plan_id: str
    planner: str
    options: Mapping[str, Any]
    objective: Objective
    solver: str
    solve_seconds: float
    cluster: Cluster
    workload: Workload
    gpus_used: Mapping[str, int]
    models: tuple[ModelPlan, ...]
    certificate: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError(f"plan {self.plan_id}, models", "there is none")
        for model in self.models:
            for pipeline in model.pipelines:
                for stage in pipeline.stages:
                    self.cluster.gpu_class(stage.gpu_class)

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

    def vgpus(self) -> tuple[VGpu, ...]:
        """Every vGPU, numbered by model, pipeline, stage and placement order.

        The numbers are the resource ids of the scheduler, the simulator and the workers.
        """
        places = (
            (m, p, s, slot)
            for m, model in enumerate(self.models)
            for p, pipeline in enumerate(model.pipelines)
            for s, stage in enumerate(pipeline.stages)
            for slot in stage.slots()
        )
        return tuple(
            VGpu(index=i, model=m, pipeline=p, stage=s, slot=slot)
            for i, (m, p, s, slot) in enumerate(places)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain form: the object of `plan.json`."""
        return {
            "plan_id": self.plan_id,
            "planner": self.planner,
            "options": dict(self.options),
            "objective": {
                "name": self.objective.name,
                "value": self.objective.value,
                "upper_bound": self.objective.upper_bound,
                "gap": self.objective.gap,
            },
            "solver": self.solver,
            "solve_seconds": self.solve_seconds,
            "certificate": dict(self.certificate),
            "cluster": self.cluster.to_dict(),
            "workload": self.workload.to_dict(),
            "gpus_used": dict(self.gpus_used),
            "models": [self._model_to_dict(model) for model in self.models],
        }

    def _model_to_dict(self, model: ModelPlan) -> dict[str, Any]:
        return {
            "name": model.name,
            "slo_ms": us_to_ms(model.slo_us),
            "throughput_rps": model.throughput_rps,
            "inputs": [spec.to_dict() for spec in model.inputs],
            "outputs": [spec.to_dict() for spec in model.outputs],
            "pipelines": [
                {
                    "batch": pipeline.batch,
                    "throughput_rps": pipeline.throughput_rps,
                    "latency_ms": us_to_ms(pipeline.latency_us),
                    "stages": [stage.to_dict(self.cluster) for stage in pipeline.stages],
                }
                for pipeline in model.pipelines
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`.

        Raises:
            InputError: a field is missing, of the wrong type, or does not fit the others.
        """
        fields = Fields(data)
        cluster = Cluster.read(fields.inner("cluster"))
        objective = fields.inner("objective")
        used = fields.inner("gpus_used")
        return cls(
            plan_id=fields.text("plan_id"),
            planner=fields.text("planner"),
            options=fields.table("options"),
            objective=Objective(
                name=objective.text("name"),
                value=objective.number("value"),
                upper_bound=objective.number("upper_bound"),
                gap=objective.number("gap"),
            ),
            solver=fields.text("solver"),
            solve_seconds=fields.number("solve_seconds", least=0),
            certificate=fields.table("certificate") if fields.has("certificate") else {},
            cluster=cluster,
            workload=Workload.read(fields.inner("workload")),
            gpus_used={name: used.whole(name) for name in fields.table("gpus_used")},
            models=tuple(_read_model(model, cluster) for model in fields.items("models")),
        )


def _read_model(fields: Fields, cluster: Cluster) -> ModelPlan:
    def tensors(name: str) -> tuple[TensorSpec, ...]:
        return tuple(map(TensorSpec.read, fields.items(name) if fields.has(name) else ()))

    return ModelPlan(
        name=fields.text("name"),
        slo_us=ms_to_us(fields.number("slo_ms", least=us_to_ms(1))),
        throughput_rps=fields.number("throughput_rps", least=0),
        inputs=tensors("inputs"),
        outputs=tensors("outputs"),
        pipelines=tuple(_read_pipeline(part, cluster) for part in fields.items("pipelines")),
    )


def _read_pipeline(fields: Fields, cluster: Cluster) -> Pipeline:
    return Pipeline(
        batch=fields.whole("batch", least=1),
        throughput_rps=fields.number("throughput_rps", least=0),
        latency_us=ms_to_us(fields.number("latency_ms", least=0)),
        stages=tuple(Stage.read(stage, cluster) for stage in fields.items("stages")),
    )


def _placement_to_dicts(runs: tuple[PlacementRun, ...], cluster: Cluster) -> list[dict[str, Any]]:
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


def _read_run(fields: Fields, cluster: Cluster) -> PlacementRun:
    """Inverse of one entry of `_placement_to_dicts`.

    Raises:
        InputError: a field cannot be used, or it lies outside the cluster.
    """
    node = cluster.node_index(fields.text("node"))
    counts = {n: fields.whole(n, least=1) for n in ("nodes", "gpus", "slots") if fields.has(n)}
    run = PlacementRun(node=node, gpu=fields.whole("gpu"), slot=fields.whole("slot"), **counts)
    if run.node + run.nodes > cluster.node_count:
        raise fields.wrong("nodes", f"{run.nodes} from node {node} on, of {cluster.node_count}")
    most = max(group.gpus for group in cluster.nodes)
    if run.gpu + run.gpus > most:
        raise fields.wrong("gpu", f"GPU {run.gpu + run.gpus - 1} on a node of at most {most}")
    if run.slot + run.slots > MAX_DIVISOR:
        raise fields.wrong("slot", f"slot {run.slot + run.slots - 1} of at most {MAX_DIVISOR}")
    return run
