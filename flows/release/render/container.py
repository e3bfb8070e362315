"""A plan becomes a bundle for stock Triton containers: repositories, start script, manifests.

The bundle holds everything that a node needs but the image and the token: model repositories per
container, artifacts, `start-node.sh`, an example Dockerfile, `compose.yaml` and `kubernetes/`. The same
inputs give the same bytes, so a bundle can be kept under version control and its changes read.
Here: the order of things. Not here: options (`container_options`), models (`container_models`),
which container runs what (`container_layout`), the texts (`model_repo_templates/{container,compose,kubernetes}`).
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.names import check_name
from flows.release.render.container_layout import (
    GATEWAY,
    NodeContainer,
    gateway_memory_mib,
    node_containers,
    read_artifacts,
)
from flows.release.render.container_options import ContainerOptions
from flows.release.render.container_repositories import (
    copy_artifacts,
    digits,
    write_repositories,
    write_settings,
)
from flows.release.render.repository import render_template
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.stage_tensors import complete_tensors

EXECUTABLE = 0o755
PLACED_BY_TARGET = ("artifacts", "compose.yaml", "kubernetes", "nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was written.

    Attributes:
        containers: their names, the gateway's first.
        stage_models: the `tensorrt_plan` models.
        notes: what whoever uses the bundle should know, a sentence each.
    """

    folder: Path
    containers: tuple[str, ...]
    stage_models: tuple[str, ...]
    notes: tuple[str, ...]


def render_container(plan: Plan, folder: Path, options: ContainerOptions) -> Bundle:
    """Write the bundle of a plan into a folder; what an earlier rendering left there goes.

    Raises:
        InputError: a model's or a group's name cannot be used, an artifact is missing, an address
            is given for no node of the plan, or the folder has files that no rendering wrote.
    """
    for model in plan.models:
        check_name(model.name)
    _check_classes(options, plan)
    artifacts = read_artifacts(plan, options.artifacts)
    plan = complete_tensors(plan)
    containers = node_containers(plan, options.name, artifacts)
    _check_hosts(options, containers)
    _clear(folder)
    copy_artifacts(folder, options.artifacts, artifacts)
    stage_models = write_repositories(folder, plan, containers, options.places)
    names = (GATEWAY, *(container.name for container in containers))
    write_settings(folder, names, _settings(plan, containers, options, artifacts), options.places)
    _write_texts(folder, _variables(plan, containers, options, artifacts))
    return Bundle(
        folder=folder,
        containers=names,
        stage_models=stage_models,
        notes=tuple(_notes(containers, artifacts)),
    )


def _check_hosts(options: ContainerOptions, containers: tuple[NodeContainer, ...]) -> None:
    nodes = [container.node for container in containers]
    unknown = sorted(set(options.hosts) - set(nodes))
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
    plan: Plan,
    containers: tuple[NodeContainer, ...],
    options: ContainerOptions,
    artifacts: Mapping[str, Artifact],
) -> dict[str, Any]:
    return {
        "system": digits(f"{options.name}/{plan.plan_id}"),
        "python": "python3",
        "artifacts": str(options.bundle_folder / "artifacts") if artifacts else None,
        "policy": options.policy,
        "nic": options.nic,
        "emulate_links": not artifacts,
        "noise": 0.0,
        "seed": 0,
        "time_stretch": 1.0,
        "guard_fraction": options.guard_fraction,
        "hosts": {c.node: options.hosts.get(c.node, f"{c.name}.{c.group}") for c in containers},
        "gateway_host": options.gateway_host
        or f"{options.name}-{GATEWAY}-0.{options.name}-{GATEWAY}",
        "base_port": options.base_port,
        "host_http_port": options.http_port,
    }


def _variables(
    plan: Plan,
    containers: tuple[NodeContainer, ...],
    options: ContainerOptions,
    artifacts: Mapping[str, Artifact],
) -> dict[str, Any]:
    """What all texts have in common."""
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", plan.plan_id).lstrip(".-") or "plan"
    groups: dict[str, list[NodeContainer]] = {}
    for container in containers:
        groups.setdefault(container.group, []).append(container)
    return {
        "plan_id": plan.plan_id,
        "models": [model.name for model in plan.models],
        "options": options,
        "image": options.image or f"{options.name}-serving:{tag}",
        "gateway": f"{options.name}-{GATEWAY}",
        "gateway_memory_mib": gateway_memory_mib(plan),
        "containers": containers,
        "groups": [_group(name, members, options) for name, members in groups.items()],
        "last_worker_port": options.base_port + 1000 + 2 * len(plan.vgpus()) - 1,
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
        "gpus": max(m.gpus for m in members) if any(m.on_gpu for m in members) else 0,
        "shares_gpus": any(m.shares_gpus for m in members),
        "cpus": 1 + max(m.vgpus for m in members),
        "memory_gib": 2 + 2 * max(m.vgpus for m in members),
        "shared_memory_mib": max(m.shared_memory_mib for m in members),
    }


def _label_value(text: str) -> str:
    """A text as the value of a Kubernetes label."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _libraries(artifacts: Mapping[str, Artifact]) -> list[tuple[str, str]]:
    """Library and version of every engine."""
    engines = (a.options for a in artifacts.values() if a.runtime == "tensorrt")
    return sorted({(o.get("library", "tensorrt"), o.get("library_version", "")) for o in engines})


def _packages(artifacts: Mapping[str, Artifact]) -> list[str]:
    """What the online half imports, beside PoolPipe itself."""
    packages = ["numpy>=1.26,<2", "numba>=0.60"]
    if any(artifact.runtime == "onnxruntime" for artifact in artifacts.values()):
        packages.append("onnxruntime>=1.20")
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
