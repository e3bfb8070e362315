"""The containers that a plan needs: devices, stages, shared memory and memory of each.

One gateway, and one for every node that has vGPUs. Nodes of a group become the ordinals 0, 1, … of
that group, in the cluster's order and without gaps, so that a Kubernetes StatefulSet can stand for
a group. Names are DNS labels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flows.release.container.options import LONGEST_LABEL, label
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, Stage, StageRow, VGpu
from triton_backend.contract.shares import runs_beside
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.runtimes.base import CPU, Artifact
from triton_backend.serve_folder.repository import used_nodes
from triton_backend.serve_folder.settings import plan_artifacts

GPU_RESOURCE, GPU_CLASS = "nvidia.com/gpu", "gpu.nvidia.com"
MIG_RESOURCE, MIG_CLASS = "nvidia.com/mig-", "mig.nvidia.com"
GATEWAY = "gateway"
MIB = 1 << 20
STUB_MIB = 64  # of shared memory for the Python backend of one model
BUSY_SLOTS = 8  # of a worker's receive slots that are ever touched at once, generously
ROUND_MIB = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Equal devices that a pod asks Kubernetes for.

    Attributes:
        resource: their name as a resource of NVIDIA's device plugin.
        device_class: their class in claims on NVIDIA's DRA driver.
        profile: of MIG slices; None: whole GPUs.
    """

    resource: str
    device_class: str
    profile: str | None
    count: int

    @classmethod
    def gpus(cls, count: int) -> Self:
        """Whole GPUs."""
        return cls(resource=GPU_RESOURCE, device_class=GPU_CLASS, profile=None, count=count)

    @classmethod
    def slices(cls, profile: str, count: int, strategy: str) -> Self:
        """MIG slices of one profile, named as the plugin's strategy does."""
        resource = GPU_RESOURCE if strategy == "single" else MIG_RESOURCE + profile
        return cls(resource=resource, device_class=MIG_CLASS, profile=profile, count=count)

    @property
    def request(self) -> str:
        """Name of the request in a claim."""
        return "gpu" if self.profile is None else label(f"mig-{self.profile}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHere:
    """A stage whose pool has vGPUs on a node: its row, the pool's GPUs there, its artifact."""

    row: StageRow
    gpus: tuple[int, ...]
    artifact: Artifact | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainer:
    """The container of one node.

    Attributes:
        name: of the container, the pod and its folder: the group's and an ordinal.
        node: the node's name in the plan.
        gpus: how many the container must see, so that the plan's GPU numbers exist.
        slices: MIG slices by GPU number, where the class is divided so; then it sees these alone.
        on_gpu: whether it needs GPUs at all: not where every stage runs on a CPU.
        shared_memory_mib: an estimate of what its segments in /dev/shm grow to.
    """

    name: str
    group: str
    node: str
    gpu_class: str
    gpus: int
    on_gpu: bool
    shares_gpus: bool
    vgpus: int
    shared_memory_mib: int
    stages: tuple[StageHere, ...]
    slices: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])

    @property
    def memory_gib(self) -> int:
        """The request of a container; twice as much is its limit."""
        return 2 + 2 * self.vgpus


def node_containers(
    plan: Plan, prefix: str, artifacts: Mapping[str, Artifact]
) -> tuple[NodeContainer, ...]:
    """The containers of a completed plan's nodes, in the cluster's order.

    Raises:
        InputError: two groups of the cluster would have the same name as DNS labels.
    """
    groups = _group_labels(plan, prefix)
    found: list[NodeContainer] = []
    cuts: dict[str, list[tuple[str, ...]]] = {}  # of a group: what its nodes are divided into
    for node in used_nodes(plan):
        number = plan.cluster.node_index(node)
        slices = _slices_on(plan, number)
        group = groups[_group_number(plan, number)]
        cut = tuple(sorted(name for names in slices.values() for name in names))
        known = cuts.setdefault(group, [])
        if cut not in known:
            known.append(cut)
        if known.index(cut):  # pods of a StatefulSet ask for the same devices
            group = f"{group[: LONGEST_LABEL - len('-cut00')]}-cut{known.index(cut)}"
        ordinal = sum(other.group == group for other in found)
        vgpus = [vgpu for vgpu in plan.vgpus() if vgpu.slot.node == number]
        pools = Counter(vgpu.pool for vgpu in vgpus)
        stages = tuple(_stages_on(plan, vgpus, artifacts))
        on_cpu = [s.artifact is not None and s.artifact.device == CPU for s in stages]
        found.append(
            NodeContainer(
                name=f"{group}-{ordinal}",
                group=group,
                node=node,
                gpu_class=plan.cluster.node_group_of(number).gpu_class,
                gpus=1 + max(vgpu.slot.gpu for vgpu in vgpus),
                on_gpu=not all(on_cpu),
                shares_gpus=any(runs_beside(plan.pools[pool].share) for pool in pools),
                vgpus=len(vgpus),
                shared_memory_mib=_shared_memory_mib(plan, pools),
                stages=stages,
                slices=slices,
            )
        )
    return tuple(found)


def _slices_on(plan: Plan, node: int) -> dict[int, tuple[str, ...]]:
    """MIG slices of a node by GPU number; none where its class is not divided so."""
    mig = plan.cluster.gpu_class(plan.cluster.node_group_of(node).gpu_class).mig
    if mig is None:
        return {}
    shares: dict[int, list[int]] = {}
    for vgpu in plan.vgpus():
        if vgpu.slot.node == node:
            shares.setdefault(vgpu.slot.gpu, []).append(plan.pools[vgpu.pool].share)
    return {gpu: mig.slices_of(own) for gpu, own in sorted(shares.items())}


def stage_of(plan: Plan, here: StageHere) -> Stage:
    """The plan's stage."""
    return plan.models[here.row.model].pipelines[here.row.pipeline].stages[here.row.stage]


def gateway_memory_mib(plan: Plan) -> int:
    """An estimate of the gateway's shared memory: Python backend and answers of every model."""
    answers = sum(
        BUSY_SLOTS
        * max((p.batch for p in model.pipelines), default=1)
        * total_bytes_per_sample(model.outputs)
        for model in plan.models
    )
    return _rounded(STUB_MIB * (len(plan.models) + 1) + answers // MIB)


def read_artifacts(plan: Plan, root: Path | None) -> dict[str, Artifact]:
    """Manifests of the artifacts that a plan names.

    Raises:
        InputError: the plan names some and there is no root, or one is missing.
    """
    names = plan_artifacts(plan)
    if names and root is None:
        raise InputError(
            f"plan {plan.plan_id}", f"needs a folder of artifacts: it names {names[0]!r}"
        )
    return {name: Artifact.read(root / name) for name in names if root is not None}


def _group_labels(plan: Plan, prefix: str) -> list[str]:
    labels = [label(f"{prefix}-{name}") for name in plan.cluster.node_group_names()]
    reserved = [*labels, label(f"{prefix}-{GATEWAY}")]
    twice = sorted({name for name in reserved if reserved.count(name) > 1})
    if twice:
        raise InputError(
            f"cluster {plan.cluster.name!r}",
            f"node groups must differ as DNS labels, and from the gateway's: {', '.join(twice)}",
        )
    return labels


def _group_number(plan: Plan, node: int) -> int:
    group = plan.cluster.node_group_of(node)
    return next(i for i, other in enumerate(plan.cluster.nodes) if other is group)


def _stages_on(
    plan: Plan, vgpus: Iterable[VGpu], artifacts: Mapping[str, Artifact]
) -> Iterator[StageHere]:
    """The stages of a node's vGPUs; a shared vGPU has several."""
    gpus: dict[int, set[int]] = {}
    for vgpu in vgpus:
        gpus.setdefault(vgpu.pool, set()).add(vgpu.slot.gpu)
    for row, (_, _, stage, _) in zip(plan.stage_rows(), plan.placed_stages(), strict=True):
        if row.pool in gpus:
            yield StageHere(
                row=row,
                gpus=tuple(sorted(gpus[row.pool])),
                artifact=None if stage.artifact is None else artifacts[stage.artifact],
            )


def _shared_memory_mib(plan: Plan, vgpus: Mapping[int, int]) -> int:
    """For a node with so many vGPUs of each pool; a slot holds the largest input of its stages."""
    slot_bytes = dict.fromkeys(vgpus, 0)
    for row in plan.stage_rows():
        if row.pool in slot_bytes:
            model = plan.models[row.model]
            pipeline = model.pipelines[row.pipeline]
            batch = pipeline.stages[row.stage].batch or pipeline.batch
            input_bytes = total_bytes_per_sample(model.stage_inputs(row.pipeline, row.stage))
            slot_bytes[row.pool] = max(slot_bytes[row.pool], batch * input_bytes)
    inputs = sum(BUSY_SLOTS * count * slot_bytes[pool] for pool, count in vgpus.items())
    return _rounded(STUB_MIB + inputs // MIB)


def _rounded(mib: int) -> int:
    return -(-mib // ROUND_MIB) * ROUND_MIB
