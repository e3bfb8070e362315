"""Which containers a plan needs: one gateway, and one for every node that has vGPUs.

Nodes of a group become the ordinals 0, 1, … of that group, in the cluster's order and without gaps,
so that a Kubernetes StatefulSet can stand for a group. Names are DNS labels.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.release.render.repository import used_nodes
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, Stage, VGpu
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.stage_tensors import stage_inputs

GATEWAY = "gateway"
LONGEST_LABEL = 63 - len("-0000")
MIB = 1 << 20
STUB_MIB = 64  # of shared memory for the Python backend of one model
BUSY_SLOTS = 8  # of a worker's receive slots that are ever touched at once, generously
ROUND_MIB = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHere:
    """A stage that has vGPUs on a node: indices into the plan, its GPUs there, its artifact."""

    model: int
    pipeline: int
    stage: int
    gpus: tuple[int, ...]
    vgpus: int
    artifact: Artifact | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainer:
    """The container of one node.

    Attributes:
        name: of the container, the pod and its folder: the group's and an ordinal.
        node: the node's name in the plan.
        gpus: how many the container must see, so that the plan's GPU numbers exist.
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


def label(text: str) -> str:
    """A text as a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_LABEL].strip("-")


def node_containers(
    plan: Plan, prefix: str, artifacts: Mapping[str, Artifact]
) -> tuple[NodeContainer, ...]:
    """The containers of a completed plan's nodes, in the cluster's order.

    Raises:
        InputError: two groups of the cluster would have the same name as DNS labels.
    """
    groups = _group_labels(plan, prefix)
    found: list[NodeContainer] = []
    for node in used_nodes(plan):
        number = plan.cluster.node_index(node)
        group = groups[_group_number(plan, number)]
        ordinal = sum(other.group == group for other in found)
        stages = tuple(_stages_on(plan, number, artifacts))
        on_cpu = [s.artifact is not None and s.artifact.runtime == "onnxruntime" for s in stages]
        found.append(
            NodeContainer(
                name=f"{group}-{ordinal}",
                group=group,
                node=node,
                gpu_class=plan.cluster.node_group_of(number).gpu_class,
                gpus=1 + max(gpu for stage in stages for gpu in stage.gpus),
                on_gpu=not all(on_cpu),
                shares_gpus=any(stage_of(plan, s).vgpu_divisor > 1 for s in stages),
                vgpus=sum(s.vgpus for s in stages),
                shared_memory_mib=_shared_memory_mib(plan, stages),
                stages=stages,
            )
        )
    return tuple(found)


def stage_of(plan: Plan, here: StageHere) -> Stage:
    """The plan's stage."""
    return plan.models[here.model].pipelines[here.pipeline].stages[here.stage]


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
    stages = (s for m in plan.models for p in m.pipelines for s in p.stages)
    names = sorted({stage.artifact for stage in stages if stage.artifact is not None})
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


def _stages_on(plan: Plan, node: int, artifacts: Mapping[str, Artifact]) -> Iterator[StageHere]:
    here: dict[tuple[int, int, int], list[VGpu]] = {}
    for vgpu in plan.vgpus():
        if vgpu.slot.node == node:
            here.setdefault((vgpu.model, vgpu.pipeline, vgpu.stage), []).append(vgpu)
    for (model, pipeline, stage), vgpus in here.items():
        name = plan.models[model].pipelines[pipeline].stages[stage].artifact
        yield StageHere(
            model=model,
            pipeline=pipeline,
            stage=stage,
            gpus=tuple(sorted({vgpu.slot.gpu for vgpu in vgpus})),
            vgpus=len(vgpus),
            artifact=None if name is None else artifacts[name],
        )


def _shared_memory_mib(plan: Plan, stages: tuple[StageHere, ...]) -> int:
    inputs = sum(
        BUSY_SLOTS
        * here.vgpus
        * plan.models[here.model].pipelines[here.pipeline].batch
        * total_bytes_per_sample(stage_inputs(plan.models[here.model], here.pipeline, here.stage))
        for here in stages
    )
    return _rounded(STUB_MIB + inputs // MIB)


def _rounded(mib: int) -> int:
    return -(-mib // ROUND_MIB) * ROUND_MIB
