"""The files of a plan change on a host that is not the gateway's.

The gateway's host has its own files. On another host whoever rolls a plan out asks a node that runs
there to *adopt* the new generation: its plan, and a node model for each of the plan's nodes on the
host. Triton loads them later. *Forget* takes node models out again. Only files: what is loaded
goes on.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.serving.settings import Deployment, ServeSettings, check_complete

_NODE_MODEL = re.compile(r"poolpipe_node_[A-Za-z0-9_.-]+")


def adopt(settings: ServeSettings, template: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a generation.

    Args:
        settings: of this host.
        template: name of a node model of this host; the new ones are made like it.
        request: `generation`, `plan`, and `models`: node by name of its node model.

    Returns:
        `models`: the names written.

    Raises:
        InputError: the plan cannot be used, or this host lacks one of its artifacts.
    """
    try:
        generation, models = int(request["generation"]), dict(request["models"])
        plan = check_complete(Plan.from_dict(request["plan"]), "adopt, plan")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("adopt", f"not a plan to adopt: {error!r}") from error
    deployment = Deployment(settings, generation, plan)
    for name, node in models.items():
        _check_name(name)
        _check_artifacts(deployment, str(node))
    folder = settings.generation_folder(generation)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan.to_dict()) + "\n")
    for name, node in models.items():
        _write_model(settings, template, name, str(node), generation)
    return {"models": sorted(models)}


def forget(settings: ServeSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    """Delete the files of node models.

    Raises:
        InputError: a name is none of a node model.
    """
    names = [str(name) for name in request.get("models", ())]
    for name in names:
        _check_name(name)
    for name in names:
        shutil.rmtree(_model_folder(settings, name), ignore_errors=True)
    return {"models": sorted(names)}


def _check_name(name: str) -> None:
    if not _NODE_MODEL.fullmatch(name):
        raise InputError(f"model {name!r}", "is not the name of a node model")


def _check_artifacts(deployment: Deployment, node: str) -> None:
    root = deployment.settings.artifacts
    for vgpu in deployment.vgpus_on(node):
        artifact = deployment.stage_of(vgpu).artifact
        if artifact is not None and (
            root is None or not (root / artifact / MANIFEST_NAME).is_file()
        ):
            raise InputError(
                f"node {node}", f"artifact {artifact} of plan {deployment.plan.plan_id} is not here"
            )


def _model_folder(settings: ServeSettings, name: str) -> Path:
    return settings.folder / "repository" / name


def _write_model(
    settings: ServeSettings, template: str, name: str, node: str, generation: int
) -> None:
    source, target = _model_folder(settings, template), _model_folder(settings, name)
    text = re.sub(r'^name: ".*"', f'name: "{name}"', (source / "config.pbtxt").read_text())
    for key, value in (("generation", str(generation)), ("node", node), ("restart", "0")):
        text = re.sub(rf'(key: "{key}"[^"]*string_value: ")[^"]*', rf"\g<1>{value}", text)
    (target / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "1" / "model.py", target / "1" / "model.py")
    (target / "config.pbtxt").write_text(text)
