"""A plan becomes a bundle for stock Triton containers: repositories, start script, manifests.

The bundle holds everything that a node needs but the image and the token: model repositories per
container, artifacts, `start-node.sh`, an example Dockerfile, `compose.yaml` and `kubernetes/`. The
same inputs give the same bytes, so a bundle can be kept under version control and its changes read.

1. `node_containers` says which containers a plan needs: one gateway, and one for every node that
   has vGPUs. Nodes of a group become the ordinals 0, 1, … of that group, in the cluster's order and
   without gaps, so that a Kubernetes StatefulSet can stand for a group. Names are DNS labels.
2. `nodes/gateway/` gets the fronts and the scheduler, every other folder of `nodes/` the node model
   of its node and, where a stage has a TensorRT engine, that engine as a `tensorrt_plan` model of
   its own. Those are loaded on demand (to try, profile or compare a stage by itself): the workers
   run the engines.
3. Settings go beside them without the token, which `start-node.sh` puts in when a container starts.
4. With two gateways all is one container: their servers share its memory and sockets, and so do the
   workers, which need its GPUs, whichever of the two has started them. The plan's vGPUs must be on
   one node then.
5. The texts are rendered from `model_repo_templates/{container,compose,kubernetes}`.
"""

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.plan import Plan, Stage, StageRow, VGpu
from triton_backend.contract.shares import runs_beside
from triton_backend.contract.tensors import TensorSpec, total_bytes_per_sample
from triton_backend.runtimes.base import CPU, CUDA, MANIFEST_NAME, Artifact
from triton_backend.runtimes.mig import divide
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.repository import (
    FIRST_GENERATION,
    FIRST_WORKER_PORT,
    GenerationNames,
    check_beside,
    check_late_binding,
    check_quotas,
    check_served_names,
    first_names,
    render_control,
    render_for_clients,
    render_fronts,
    render_generation,
    render_template,
    used_nodes,
)
from triton_backend.serve_folder.settings import (
    SETTINGS_NAME,
    THIS_HOST,
    ServeOptions,
    ServeSettings,
    gateway_folder,
    plan_artifacts,
)

# NVIDIA's bulletin 5828 of May 2026 (CVE-2026-24206 to 24209: requests without a login) is mended
# from 26.03 on; this is the newest release known. It wants cards of compute capability 7.5 and
# later: older ones need an image without the fixes.
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:26.10-py3"
TLS_KINDS = ("off", "server", "mutual")
MIG_STRATEGIES = ("mixed", "single")
GPU_RESOURCE, GPU_CLASS = "nvidia.com/gpu", "gpu.nvidia.com"
MIG_RESOURCE, MIG_CLASS = "nvidia.com/mig-", "mig.nvidia.com"
GATEWAY = "gateway"
STAGE_PREFIX = "poolpipe_stage_"
ENGINE_ROLE = "engine"
LONGEST_LABEL = 63 - len("-0000")
MIB = 1 << 20
STUB_MIB = 64  # of shared memory for the Python backend of one model
BUSY_SLOTS = 8  # of a worker's receive slots that are ever touched at once, generously
BESIDE_MIB = 256  # of a model beside the plan: it may have several instances
TAKEN_MIB = 64  # of slots and retained outputs of a worker, taken when it starts
ROUND_MIB = 256
EXECUTABLE = 0o755
PLACED_BY_TARGET = ("artifacts", "compose.yaml", "kubernetes", "nodes")
_DIGITS = 8
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_VALUE.pattern}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """How a plan is served from containers.

    Attributes:
        serve: as on any machine, but that links are emulated where there are no artifacts, that a
            node without an address in `hosts` is reached by its container's name, and likewise the
            gateway where `gateway_host` is this machine's own.
        name: begins the names of containers, pods and services.
        triton_image: stock image that the example Dockerfile builds on.
        image: what that Dockerfile's image is called; None: after the name and the plan.
        namespace: of the Kubernetes objects.
        class_label: node label whose value is the GPU class.
        class_values: value of that label by GPU class, where it is not the class's name.
        tls: `off`, `server` or `mutual`: of the gateway's gRPC; HTTP is then on loopback only.
        metrics_address: where every Triton's Prometheus endpoint listens inside its container.
        beside_gpus: GPUs of the gateway's container, for the models beside the plan.
        request_gpus: False asks Kubernetes for no devices, for a rehearsal with emulated stages.
        gpu_claims: pods ask for devices by claims (DRA) in place of the device plugin's resources.
        mig_strategy: of the device plugin: under `single` MIG slices have the name of whole GPUs.
        kserve: the gateway is an InferenceService of KServe in place of a StatefulSet.
        bundle_folder, serve_folder, socket_folder, beside_folder: paths inside the containers. The
            socket folder must be of the user who serves; a volume of a pod is root's, so it is
            mounted at the folder's parent. The last is the repository of the models beside the
            plan.
    """

    serve: ServeOptions = field(default_factory=ServeOptions)
    name: str = "poolpipe"
    triton_image: str = TRITON_IMAGE
    image: str | None = None
    namespace: str = "poolpipe"
    class_label: str = "poolpipe/gpu-class"
    class_values: Mapping[str, str] = field(default_factory=dict[str, str])
    tls: str = "off"
    metrics_address: str = "127.0.0.1"
    beside_gpus: int = 0
    request_gpus: bool = True
    gpu_claims: bool = False
    mig_strategy: str = "mixed"
    kserve: bool = False
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    bundle_folder: Path = Path("/opt/poolpipe/bundle")
    serve_folder: Path = Path("/var/lib/poolpipe/serve")
    socket_folder: Path = Path("/run/poolpipe/sockets")
    beside_folder: Path = Path("/opt/poolpipe/beside")

    def __post_init__(self) -> None:
        if self.tls not in TLS_KINDS:
            raise InputError("--tls", f"{self.tls!r} is none of {', '.join(TLS_KINDS)}")
        if self.beside_gpus and self.serve.beside is None:
            raise InputError(f"--beside-gpus {self.beside_gpus}", "needs --beside")
        if self.serve.beside is not None:
            places = sorted({str(folder.parent) for folder in self.serve.beside.folders.values()})
            if len(places) > 1:
                reason = "a container has one repository beside the plan, these are of "
                raise InputError("--beside", reason + ", ".join(places))
        self._check_kubernetes()
        self._check_names()

    def _check_kubernetes(self) -> None:
        if self.mig_strategy not in MIG_STRATEGIES:
            reason = f"{self.mig_strategy!r} is none of {', '.join(MIG_STRATEGIES)}"
            raise InputError("--mig-strategy", reason)
        if self.gpu_claims and not self.request_gpus:
            raise InputError("--gpu-claims", "claims nothing with --no-request-gpus")
        if self.gpu_claims and self.mig_strategy == "single":
            raise InputError("--mig-strategy single", "is of the device plugin: no --gpu-claims")
        if self.kserve and self.tls != "off":
            raise InputError(f"--tls {self.tls}", "KServe asks the gateway over HTTP: no --kserve")
        if self.kserve and self.serve.beside is not None:
            reason = "KServe limits the memory of models beside the plan: no --kserve"
            raise InputError("--beside", reason)

    def _check_names(self) -> None:
        for option in ("name", "namespace"):
            given = getattr(self, option)
            if not given or label(given) != given:
                raise InputError(f"--{option}", f"{given!r} is not a DNS label like 'poolpipe'")
        if not self.name[0].isalpha():  # as names of services must, but for the newest Kubernetes
            raise InputError(f"--name {self.name}", "must begin with a letter")
        if not _LABEL_KEY.fullmatch(self.class_label):
            reason = f"{self.class_label!r} is not a label's key like 'poolpipe/gpu-class'"
            raise InputError("--class-label", reason)
        for gpu_class, value in self.class_values.items():
            if not _LABEL_VALUE.fullmatch(value):
                reason = f"{gpu_class}={value!r}: no value of a label"
                raise InputError("--class-value", reason)
        for option in ("image", "triton_image"):
            given = getattr(self, option)
            if given is not None and not _IMAGE.fullmatch(given):
                name = option.replace("_", "-")
                raise InputError(f"--{name}", f"{given!r} is not the name of an image")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The written files.

    Attributes:
        containers: their names, the gateway's first.
        stage_models: the `tensorrt_plan` models.
        notes: for users of the bundle, a sentence each.
    """

    folder: Path
    containers: tuple[str, ...]
    stage_models: tuple[str, ...]
    notes: tuple[str, ...]


def render_container(plan: Plan, folder: Path, options: ContainerOptions) -> Bundle:
    """Write the bundle of a plan into a folder; what an earlier rendering left there goes.

    Raises:
        InputError: a model's, an application's or a group's name cannot be used, an artifact is
            missing, an address is given for no node of the plan, or the folder has files that no
            rendering wrote.
    """
    _check_classes(options, plan)
    artifacts = read_artifacts(plan, options.serve.artifacts)
    plan = complete_tensors(plan)
    check_served_names(plan)
    check_beside(options.serve, plan)
    check_quotas(options.serve, plan)
    check_late_binding(options.serve, plan)
    containers = node_containers(plan, options.name, artifacts)
    _check_hosts(options, containers)
    _clear(folder)
    _copy_artifacts(folder, options.serve.artifacts, artifacts)
    by_container = _settings(plan, containers, options)
    generation = first_names(plan, by_container[GATEWAY])
    names = tuple(by_container)
    for name, settings in by_container.items():
        for number in range(settings.gateways):
            place = gateway_folder(folder / "nodes" / name, number)
            place.mkdir(parents=True)
            settings.of_gateway(number).write(place / SETTINGS_NAME)
    stage_models = _write_repositories(folder, plan, containers, options, generation)
    _write_texts(folder, _variables(plan, containers, options, artifacts))
    return Bundle(
        folder=folder,
        containers=names,
        stage_models=stage_models,
        notes=tuple(_notes(containers, artifacts)),
    )


def _check_hosts(options: ContainerOptions, containers: tuple[NodeContainer, ...]) -> None:
    nodes = [container.node for container in containers]
    if options.serve.gateways > 1 and len(nodes) > 1:
        reason = (
            f"the plan has vGPUs on {', '.join(nodes)}; two servers share the memory of one machine"
        )
        raise InputError("--gateways 2", reason)
    unknown = sorted(set(options.serve.hosts) - set(nodes))
    if unknown:
        raise InputError("--host", f"{unknown[0]!r} is no node of the plan: {', '.join(nodes)}")


def _check_classes(options: ContainerOptions, plan: Plan) -> None:
    classes = [gpu_class.name for gpu_class in plan.cluster.gpu_classes]
    unknown = sorted(set(options.class_values) - set(classes))
    if unknown:
        reason = f"{unknown[0]!r} is no GPU class of the plan: {', '.join(classes)}"
        raise InputError("--class-value", reason)


def _clear(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(str(folder), "is a file, not a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / "start-node.sh").is_file():
        raise InputError(str(folder), "has files that are not of a rendered bundle; name another")
    for name in PLACED_BY_TARGET:
        place = folder / name
        if place.is_dir():
            shutil.rmtree(place)
    folder.mkdir(parents=True, exist_ok=True)


def _settings(
    plan: Plan, containers: tuple[NodeContainer, ...], options: ContainerOptions
) -> dict[str, ServeSettings]:
    """By container, the gateway's first; without the token, each with an instance of its own."""
    given, with_artifacts = options.serve, bool(plan_artifacts(plan))
    gateway = f"{options.name}-{GATEWAY}"
    serve = replace(
        given,
        artifacts=options.bundle_folder / "artifacts" if with_artifacts else None,
        emulate_links=not with_artifacts,
        hosts={
            c.node: given.hosts.get(c.node, f"{c.name}.{c.group}")
            for c in _apart(containers, options)
        },
        gateway_host=f"{gateway}-0.{gateway}"
        if given.gateway_host == THIS_HOST
        else given.gateway_host,
        host_http_port=options.http_port,
        beside=None,
    )
    beside = given.beside
    if beside is not None:
        inside = {name: options.beside_folder / name for name in beside.folders}
        beside = replace(beside, folders=inside)
    system = _hexadecimal(f"{options.name}/{plan.plan_id}")
    return {
        name: ServeSettings.of(
            serve,
            system=system,
            instance=_hexadecimal(f"{system}/{name}"),
            folder=options.serve_folder,
            socket_folder=options.socket_folder,
            token="",
            python="python3",
            **({"beside": beside} if name == GATEWAY else {}),
        )
        for name in (GATEWAY, *(container.name for container in _apart(containers, options)))
    }


def _apart(
    containers: tuple[NodeContainer, ...], options: ContainerOptions
) -> tuple[NodeContainer, ...]:
    """The nodes that have containers of their own.

    None where two gateways have their workers beside them.
    """
    return containers if options.serve.gateways == 1 else ()


def _variables(
    plan: Plan,
    containers: tuple[NodeContainer, ...],
    options: ContainerOptions,
    artifacts: Mapping[str, Artifact],
) -> dict[str, Any]:
    """Values common to all texts."""
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", plan.plan_id).lstrip(".-") or "plan"
    groups: dict[str, list[NodeContainer]] = {}
    for container in containers:
        groups.setdefault(container.group, []).append(container)
    rendered = [_group(name, members, options) for name, members in groups.items()]
    apart, memory_mib = _apart(containers, options), gateway_memory_mib(plan)
    beside = () if options.serve.beside is None else tuple(options.serve.beside.folders)
    memory_mib += BESIDE_MIB * len(beside)
    here = None if apart else rendered[0]
    if here is not None:
        memory_mib = 2 * memory_mib + here["shared_memory_mib"] + TAKEN_MIB * here["vgpus"]
    return {
        "plan_id": plan.plan_id,
        "models": [model.name for model in plan.models],
        "options": options,
        "image": options.image or f"{options.name}-serving:{tag}",
        "gateway": f"{options.name}-{GATEWAY}",
        "gateway_devices": _gateway_devices(here, options),
        "gateway_memory_mib": memory_mib,
        "beside": beside,
        "containers": apart,
        "groups": rendered if apart else [],
        "here": here,
        "here_containers": () if apart else containers,
        "last_worker_port": options.serve.base_port + FIRST_WORKER_PORT + 2 * len(plan.vgpus()) - 1,
        "version": version("poolpipe"),
        "packages": _packages(artifacts),
        "libraries": _libraries(artifacts),
        "has_artifacts": bool(artifacts),
    }


def _group(name: str, members: list[NodeContainer], options: ContainerOptions) -> dict[str, Any]:
    gpu_class = members[0].gpu_class
    return {
        "name": name,
        "gpu_class": gpu_class,
        "class_value": options.class_values.get(gpu_class, _label_value(gpu_class)),
        "replicas": len(members),
        "devices": _devices(members, options),
        "shares_gpus": any(m.shares_gpus for m in members),
        "vgpus": max(m.vgpus for m in members),
        "cpus": 1 + max(m.vgpus for m in members),
        "memory_gib": max(m.memory_gib for m in members),
        "shared_memory_mib": max(m.shared_memory_mib for m in members),
    }


def _devices(members: list[NodeContainer], options: ContainerOptions) -> tuple[Devices, ...]:
    """Devices of each of a group's pods.

    Raises:
        InputError: the slices have several profiles, which the device plugin's strategy refuses.
    """
    if not options.request_gpus or not any(m.on_gpu for m in members):
        return ()
    slices = Counter(name for cut in members[0].slices.values() for name in cut)
    if not slices:
        return (Devices.gpus(max(m.gpus for m in members)),)
    if options.mig_strategy == "single" and len(slices) > 1:
        reason = f"{members[0].node} has slices of several profiles: {', '.join(sorted(slices))}"
        raise InputError("--mig-strategy single", reason)
    return tuple(  # of all members alike
        Devices.slices(profile, count, options.mig_strategy)
        for profile, count in sorted(slices.items())
    )


def _gateway_devices(
    here: Mapping[str, Any] | None, options: ContainerOptions
) -> tuple[Devices, ...]:
    """Those of the node that is in the gateway's pod, or GPUs of the models beside the plan."""
    if here is not None:
        return here["devices"]
    asked = options.beside_gpus if options.request_gpus else 0
    return (Devices.gpus(asked),) if asked else ()


def _label_value(text: str) -> str:
    """A text as the value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _libraries(artifacts: Mapping[str, Artifact]) -> list[tuple[str, str]]:
    """Library and version of every engine."""
    engines = (a.options for a in artifacts.values() if a.runtime == "tensorrt")
    return sorted({(o.get("library", "tensorrt"), o.get("library_version", "")) for o in engines})


def _packages(artifacts: Mapping[str, Artifact]) -> list[str]:
    """Packages that the online half imports."""
    packages = ["jinja2>=3.1", "numba>=0.60", "numpy>=1.26"]
    devices = {a.device for a in artifacts.values() if a.runtime == "onnxruntime"}
    if devices:
        packages.append("onnxruntime-gpu>=1.26" if CUDA in devices else "onnxruntime>=1.26")
    for library, number in _libraries(artifacts):
        exactly = f"=={number}" if number else ""
        if library == "tensorrt-rtx":
            packages += [f"tensorrt-rtx-cu12-{part}{exactly}" for part in ("bindings", "libs")]
        else:
            packages.append(f"tensorrt{exactly}")
    return packages


def _notes(containers: tuple[NodeContainer, ...], artifacts: Mapping[str, Artifact]) -> list[str]:
    notes: list[str] = []
    emulated = sum(s.artifact is None for c in containers for s in c.stages)
    if emulated:
        notes.append(f"{emulated} stages have no artifact and are emulated")
    notes += [
        f"{c.node}, GPU {gpu}: {divide(gpu, cut)}"
        for c in containers
        for gpu, cut in c.slices.items()
    ]
    libraries = _libraries(artifacts)
    if len(libraries) > 1:
        notes.append(f"engines of several libraries in one image: {libraries}")
    notes += [
        f"engines are of {library} {number}: Triton's own TensorRT backend cannot load them, the"
        " workers can"
        for library, number in libraries
        if library != "tensorrt"
    ]
    return notes


def _write_texts(folder: Path, variables: dict[str, Any]) -> None:
    kubernetes = folder / "kubernetes"
    kubernetes.mkdir()
    texts = {
        "start-node.sh": "container/start-node.sh.j2",
        "Dockerfile": "container/Dockerfile.j2",
        "README.md": "container/README.md.j2",
        "compose.yaml": "compose/compose.yaml.j2",
        "kubernetes/gateway.yaml": "kubernetes/gateway.yaml.j2",
        "kubernetes/network.yaml": "kubernetes/network.yaml.j2",
        "kubernetes/kustomization.yaml": "kubernetes/kustomization.yaml.j2",
    }
    for file, template in texts.items():
        (folder / file).write_text(render_template(template, **variables))
    for group in variables["groups"]:
        text = render_template("kubernetes/group.yaml.j2", **variables, group=group)
        (kubernetes / f"{group['name']}.yaml").write_text(text)
    (folder / "start-node.sh").chmod(EXECUTABLE)


def _write_repositories(
    folder: Path,
    plan: Plan,
    containers: tuple[NodeContainer, ...],
    options: ContainerOptions,
    names: GenerationNames,
) -> tuple[str, ...]:
    """Write `nodes/*/{repository,generations}`; returns the names of the stage models."""
    settings = options.serve_folder / SETTINGS_NAME
    gateway = folder / "nodes" / GATEWAY
    apart = _apart(containers, options)
    render_generation(
        gateway,
        plan,
        FIRST_GENERATION,
        nodes=() if apart else [container.node for container in containers],
        names=names,
        settings=settings,
    )
    render_control(gateway, FIRST_GENERATION, settings, standby=options.serve.standby)
    render_fronts(gateway, plan, FIRST_GENERATION, settings)
    cut_models = options.serve.cut_models
    render_for_clients(gateway, plan, FIRST_GENERATION, settings, cut_models=cut_models)
    stage_models: list[str] = []
    for container in containers:
        place = folder / "nodes" / container.name if apart else gateway
        if apart:
            node = (container.node,)
            render_generation(
                place, plan, FIRST_GENERATION, nodes=node, names=names, settings=settings
            )
        stage_models += [
            _stage_model(folder, place, plan, here, here.artifact)
            for here in container.stages
            if here.artifact is not None and here.artifact.runtime == "tensorrt"
        ]
    return tuple(dict.fromkeys(stage_models))


def _copy_artifacts(folder: Path, root: Path | None, artifacts: Mapping[str, Artifact]) -> None:
    """Copy manifests and files of the artifacts into the bundle."""
    for name, artifact in artifacts.items():
        assert root is not None
        target = folder / "artifacts" / name
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted({MANIFEST_NAME, *artifact.files.values()}):
            if (root / name / file).is_file():
                (target / file).unlink(missing_ok=True)
                shutil.copyfile(root / name / file, target / file)


def _hexadecimal(text: str) -> str:
    """A text as eight hexadecimal digits, the same in every rendering."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _stage_model(folder: Path, place: Path, plan: Plan, here: StageHere, artifact: Artifact) -> str:
    """An engine as a model of Triton's own TensorRT backend."""
    model = plan.models[here.row.model]
    name = f"{STAGE_PREFIX}{model.name}_p{here.row.pipeline}_s{here.row.stage}"
    target = place / "repository" / name
    (target / "1").mkdir(parents=True, exist_ok=True)
    options = artifact.options
    unused, forwarded = options.get("unused", ()), options.get("forwarded", ())
    known = Fields(options, f"{stage_of(plan, here).artifact}/{MANIFEST_NAME}, options")
    batches = known.integers("batches", least=1) if known.has("batches") else (artifact.max_batch,)
    text = render_template(
        "container/stage.pbtxt.j2",
        name=name,
        model=model.name,
        blocks=stage_of(plan, here).blocks,
        gpu_class=artifact.gpu_class,
        batches=batches,
        max_batch=artifact.max_batch,
        inputs=[_per_sample(s) for s in artifact.inputs if s.name not in unused],
        outputs=[_per_sample(s) for s in artifact.outputs if s.name not in forwarded],
        gpus=here.gpus,
        library=options.get("library", "tensorrt"),
        library_version=options.get("library_version", "unknown"),
    )
    (target / "config.pbtxt").write_text(text)
    key = stage_of(plan, here).artifact
    assert key is not None
    engine = target / "1" / "model.plan"
    engine.unlink(missing_ok=True)
    # The same file twice, not a copy: engines are large.
    os.link(folder / "artifacts" / key / artifact.files[ENGINE_ROLE], engine)
    return name


def _per_sample(spec: TensorSpec) -> dict[str, Any]:
    """Triton counts the batch dimension apart, and wants at least one other."""
    return {"name": spec.name, "dtype": spec.dtype, "dims": list(spec.shape[1:])}
