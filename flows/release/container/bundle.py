"""A plan becomes a bundle for stock Triton containers: repositories, start script, manifests.

The bundle holds everything that a node needs but the image and the token: model repositories per
container, artifacts, `start-node.sh`, an example Dockerfile, `compose.yaml` and `kubernetes/`. The
same inputs give the same bytes, so a bundle can be kept under version control and its changes read.

1. `nodes` says which containers a plan needs.
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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

from flows.release.container.nodes import (
    GATEWAY,
    Devices,
    NodeContainer,
    StageHere,
    gateway_memory_mib,
    node_containers,
    read_artifacts,
    stage_of,
)
from flows.release.container.options import ContainerChoices
from flows.release.container.replacing import START, replaced
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import CUDA, MANIFEST_NAME, Artifact
from triton_backend.runtimes.mig import divide
from triton_backend.runtimes.stage_tensors import complete_tensors, endpoints
from triton_backend.serve_folder.line_files import MOST_BYTES
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
)
from triton_backend.serve_folder.settings import (
    SETTINGS_NAME,
    THIS_HOST,
    ServeOptions,
    ServeSettings,
    gateway_folder,
    plan_artifacts,
)

STAGE_PREFIX = "poolpipe_stage_"
ENGINE_ROLE = "engine"
BESIDE_MIB = 256  # of a model beside the plan: it may have several instances
LOGS_MIB = 2048  # of a container's processes
TAKEN_MIB = 64  # of slots and retained outputs of a worker, taken when it starts
EXECUTABLE = 0o755
PLACED_BY_TARGET = ("artifacts", "compose.yaml", "kubernetes", "nodes")
_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions(ContainerChoices):
    """How a plan is served from containers.

    Attributes:
        serve: as on any machine, but that links are emulated where there are no artifacts, that a
            node without an address in `hosts` is reached by its container's name, and likewise the
            gateway where `gateway_host` is this machine's own.
        bundle_folder, serve_folder, socket_folder, beside_folder: paths inside the containers. The
            socket folder must be of the user who serves; a volume of a pod is root's, so it is
            mounted at the folder's parent. The last is the repository of the models beside the
            plan.
    """

    serve: ServeOptions = field(default_factory=ServeOptions)
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    bundle_folder: Path = Path("/opt/poolpipe/bundle")
    serve_folder: Path = Path("/var/lib/poolpipe/serve")
    socket_folder: Path = Path("/run/poolpipe/sockets")
    beside_folder: Path = Path("/opt/poolpipe/beside")

    def __post_init__(self) -> None:
        ContainerChoices.__post_init__(self)
        beside = self.serve.beside
        if self.beside_gpus and beside is None:
            raise InputError(f"--beside-gpus {self.beside_gpus}", "needs --beside")
        if beside is None:
            return
        places = sorted({str(folder.parent) for folder in beside.folders.values()})
        if len(places) > 1:
            reason = "a container has one repository beside the plan, these are of "
            raise InputError("--beside", reason + ", ".join(places))
        if self.kserve:
            reason = "KServe limits the memory of models beside the plan: no --kserve"
            raise InputError("--beside", reason)


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

    An interruption leaves the folder as it was (`replacing`).

    Raises:
        InputError: a model's, an application's or a group's name cannot be used, an artifact is
            missing, an address is given for no node of the plan, claims are asked for where no
            container needs a GPU, the slices of a node have several profiles where one is asked
            for, or the folder has files that no rendering wrote.
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
    _check_claims(options, containers)
    by_container = _settings(plan, containers, options)
    generation = first_names(plan, by_container[GATEWAY])
    names = tuple(by_container)
    variables = _variables(plan, containers, options, artifacts)  # which may refuse an option
    with replaced(folder, PLACED_BY_TARGET) as made:
        _copy_artifacts(made, options.serve.artifacts, artifacts)
        for name, settings in by_container.items():
            for number in range(settings.gateways):
                place = gateway_folder(made / "nodes" / name, number)
                place.mkdir(parents=True)
                settings.of_gateway(number).write(place / SETTINGS_NAME)
        stage_models = _write_repositories(made, plan, containers, options, generation)
        _write_texts(made, variables)
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


def _check_claims(options: ContainerOptions, containers: tuple[NodeContainer, ...]) -> None:
    if options.gpu_claims and not options.beside_gpus and not any(c.on_gpu for c in containers):
        raise InputError("--gpu-claims", "claims nothing: every stage of the plan runs on a CPU")


def _check_classes(options: ContainerOptions, plan: Plan) -> None:
    classes = [gpu_class.name for gpu_class in plan.cluster.gpu_classes]
    unknown = sorted(set(options.class_values) - set(classes))
    if unknown:
        reason = f"{unknown[0]!r} is no GPU class of the plan: {', '.join(classes)}"
        raise InputError("--class-value", reason)


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
        "served": [*endpoints(plan)],
        "options": options,
        "image": options.image or f"{options.name}-serving:{tag}",
        "gateway": f"{options.name}-{GATEWAY}",
        "gateway_devices": _gateway_devices(here, options),
        "gateway_memory_mib": memory_mib,
        "gateway_records_mib": LOGS_MIB + (1 + _fronts(plan)) * (MOST_BYTES >> 20),
        "logs_mib": LOGS_MIB,
        "beside": beside,
        "gpu_numbers": _gpu_numbers(containers, options),
        "on_gpus": options.request_gpus and any(c.on_gpu for c in containers),
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


def _fronts(plan: Plan) -> int:
    """Fronts, each of which keeps a record of requests."""
    return len(plan.models) + len(plan.applications)


def _gpu_numbers(
    containers: tuple[NodeContainer, ...], options: ContainerOptions
) -> dict[str, tuple[int, ...]]:
    """GPUs of each container where all are on one machine: node by node, then those of `--beside`.

    Docker gives a count of GPUs to every container from the first GPU on, so each has numbers.
    """
    counts = {c.name: c.gpus for c in containers if c.on_gpu and not c.slices}
    counts[GATEWAY] = options.beside_gpus
    last = accumulate(counts.values())
    return {
        name: tuple(range(end - count, end))
        for (name, count), end in zip(counts.items(), last, strict=True)
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
        START: "container/start-node.sh.j2",
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
    (folder / START).chmod(EXECUTABLE)


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
