"""Files that a host other than the gateway's needs for a plan change, and how they get there.

The gateway's host has its own files. On another host the rollout asks a node that runs
there:

1. `missing_artifacts`: which of the artifacts the host lacks;
2. `put_artifact`: a piece of one. Pieces lie in an unfinished folder until the last one came and
   every file has the digest that was stated; then the folder gets its name, which is the artifact's
   identity. Nothing that is there is ever written to;
3. `put_generation`: the plan, and a model of each of its nodes that is new on the host, which
   Triton loads later;
4. `serve_generations`: which generations nodes of the host have from now on;
5. `remove_models`: models of nodes that no plan uses any more.

Only files: their readers see to the rest.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serve_folder.repository import (
    GenerationNames,
    Workers,
    is_node_model,
    remove_model,
    remove_old_generations,
    render_generation,
    render_node_generations,
)
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment, check_complete

_ARTIFACT_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def missing_artifacts(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Which of `artifacts` are not here.

    Returns:
        `artifacts`: their names; `root`: the folder in which they were looked for, or None.
    """
    names = [_checked(name) for name in request.get("artifacts", ())]
    root = settings.artifacts
    missing = [n for n in names if root is None or not (root / n / MANIFEST_NAME).is_file()]
    return {"artifacts": missing, "root": None if root is None else str(root)}


def put_artifact(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of an artifact.

    Args:
        settings: of this host.
        request: `artifact`; `file`, `offset` (bytes) and `data` (base64) of a piece, or, when all
            pieces came, `digests`: SHA-256 by file.

    Raises:
        InputError: a name or piece is none, a digest differs, or it cannot be written.
    """
    root, name = settings.artifacts, _checked(request.get("artifact"))
    if root is None:
        raise InputError("put_artifact", "this host was started without a folder of artifacts")
    unfinished = root / f".{name}.unfinished"
    try:
        if "digests" in request:
            _finish(unfinished, root / name, dict(request["digests"]))
        else:
            _write(unfinished / _checked(request["file"]), request["offset"], request["data"])
    except OSError as error:
        raise InputError(str(root / name), f"cannot be written: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InputError("put_artifact", f"not a piece of an artifact: {error!r}") from error
    return {"artifact": name}


def _checked(name: object) -> str:
    if not isinstance(name, str) or not _ARTIFACT_NAME.fullmatch(name):
        raise InputError(f"artifact {name!r}", "is no name of an artifact or its file")
    return name


def _write(path: Path, offset: int, data: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if offset == 0 else "r+b") as file:
        file.seek(offset)
        file.write(base64.b64decode(data, validate=True))


def _finish(unfinished: Path, folder: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        with (unfinished / _checked(name)).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise InputError(str(folder / name), "arrived damaged")
    unfinished.rename(folder)


def put_generation(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a generation.

    Args:
        settings: of this host.
        request: `generation`, `plan`, `nodes`: those of the plan that run on this host, and
            `front_ports` by model, and `workers`: their origins.

    Returns:
        `nodes`.

    Raises:
        InputError: the plan cannot be used, or this host lacks one of its artifacts.
    """
    try:
        generation, nodes = int(request["generation"]), [str(node) for node in request["nodes"]]
        ports = {str(model): int(port) for model, port in dict(request["front_ports"]).items()}
        workers = Workers.from_dict(request["workers"])
        plan = check_complete(Plan.from_dict(request["plan"]), "put_generation, plan")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("put_generation", f"not a generation: {error!r}") from error
    deployment = Deployment(settings, generation, plan, workers=workers)
    for node in nodes:
        _check_artifacts(deployment, node)
    render_generation(
        settings.folder, plan, generation, nodes=nodes, names=GenerationNames(ports, workers)
    )
    remove_old_generations(settings.folder, generation)
    return {"nodes": nodes}


def serve_generations(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write which `generations` some `nodes` of this host have.

    Raises:
        InputError: these are none, or they cannot be written.
    """
    try:
        nodes = [str(node) for node in request["nodes"]]
        generations = [int(number) for number in request["generations"]]
        render_node_generations(settings.folder, nodes, generations)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError("serve_generations", f"not generations of nodes: {error!r}") from error
    return {"nodes": nodes, "generations": generations}


def remove_models(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Delete the files of node models.

    Raises:
        InputError: a name is none of a node model.
    """
    names = [str(name) for name in request.get("models", ())]
    for name in names:
        if not is_node_model(name) or "/" in name:
            raise InputError(f"model {name!r}", "is not the name of a node model")
    for name in names:
        remove_model(settings.folder, name)
    return {"models": sorted(names)}


def _check_artifacts(deployment: Deployment, node: str) -> None:
    root = deployment.settings.artifacts
    for vgpu in deployment.vgpus_on(node):
        for row in deployment.rows_of(vgpu):
            name = deployment.stage_of(row).artifact
            if name is not None and (root is None or not (root / name / MANIFEST_NAME).is_file()):
                plan_id = deployment.plan.plan_id
                raise InputError(f"node {node}", f"artifact {name} of plan {plan_id} is not here")
