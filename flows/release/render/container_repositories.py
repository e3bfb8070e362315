"""The model repositories inside a container bundle: what `render` writes, for other paths.

`nodes/gateway/` has the fronts and the scheduler, every other folder the node model of its node and,
where a stage has a TensorRT engine, that engine as a `tensorrt_plan` model of its own. Those are
loaded on demand (to try, profile or compare a stage by itself): the workers run the engines.
The token is not here; `start-node.sh` puts it into the settings.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.release.render.container_layout import GATEWAY, NodeContainer, StageHere, stage_of
from flows.release.render.repository import (
    CONTROL_MODEL,
    FIRST_GENERATION,
    node_model,
    render_template,
)
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import MANIFEST_NAME, Artifact

STAGE_PREFIX = "poolpipe_stage_"
ENGINE_ROLE = "engine"
NO_TOKEN = ""
DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Paths inside the containers."""

    bundle: Path
    serve: Path
    sockets: Path

    @property
    def settings(self) -> Path:
        """The settings file of a running container."""
        return self.serve / "settings.json"


def write_repositories(
    folder: Path, plan: Plan, containers: tuple[NodeContainer, ...], places: Places
) -> tuple[str, ...]:
    """Write `nodes/*/repository` and `nodes/*/plan.json`; returns the names of the stage models."""
    gateway = folder / "nodes" / GATEWAY
    _write_plan(gateway, plan)
    _model(gateway, "scheduler", CONTROL_MODEL, places)
    for model in plan.models:
        tensors = {
            "inputs": [spec.to_dict() for spec in model.inputs],
            "outputs": [spec.to_dict() for spec in model.outputs],
        }
        _model(gateway, "front", model.name, places, **tensors)
    stage_models: list[str] = []
    for container in containers:
        place = folder / "nodes" / container.name
        _write_plan(place, plan)
        name = node_model(container.node, FIRST_GENERATION)
        _model(place, "node", name, places, node=container.node)
        stage_models += [
            _stage_model(folder, place, plan, here, here.artifact)
            for here in container.stages
            if here.artifact is not None and here.artifact.runtime == "tensorrt"
        ]
    return tuple(dict.fromkeys(stage_models))


def write_settings(
    folder: Path, names: tuple[str, ...], variables: Mapping[str, Any], places: Places
) -> None:
    """`nodes/NAME/settings.json` without the token, each with an instance name of its own."""
    for name in names:
        text = render_template(
            "settings.json.j2",
            **variables,
            instance=digits(f"{variables['system']}/{name}"),
            folder=str(places.serve),
            socket_folder=str(places.sockets),
            token=NO_TOKEN,
        )
        (folder / "nodes" / name / "settings.json").write_text(text)


def copy_artifacts(folder: Path, root: Path | None, artifacts: Mapping[str, Artifact]) -> None:
    """Copy manifests and files of the artifacts into the bundle."""
    for name, artifact in artifacts.items():
        assert root is not None
        target = folder / "artifacts" / name
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted({MANIFEST_NAME, *artifact.files.values()}):
            if (root / name / file).is_file():
                (target / file).unlink(missing_ok=True)
                shutil.copyfile(root / name / file, target / file)


def digits(text: str) -> str:
    """A text as eight hexadecimal digits, the same in every rendering."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _write_plan(place: Path, plan: Plan) -> None:
    generation = place / "generations" / str(FIRST_GENERATION)
    generation.mkdir(parents=True, exist_ok=True)
    (generation / "plan.json").write_text(json.dumps(plan.to_dict()) + "\n")


def _model(place: Path, kind: str, name: str, places: Places, **variables: Any) -> None:
    target = place / "repository" / name
    (target / "1").mkdir(parents=True, exist_ok=True)
    common = {
        "name": name,
        "settings_path": str(places.settings),
        "generation": FIRST_GENERATION,
        "restart": 0,
    }
    for template, file in (("config.pbtxt", "config.pbtxt"), ("model.py", "1/model.py")):
        (target / file).write_text(render_template(f"{kind}/{template}.j2", **common, **variables))


def _stage_model(folder: Path, place: Path, plan: Plan, here: StageHere, artifact: Artifact) -> str:
    """An engine as a model of Triton's own TensorRT backend."""
    model = plan.models[here.model]
    name = f"{STAGE_PREFIX}{model.name}_p{here.pipeline}_s{here.stage}"
    target = place / "repository" / name
    (target / "1").mkdir(parents=True, exist_ok=True)
    options = artifact.options
    unused, forwarded = options.get("unused", ()), options.get("forwarded", ())
    batches = options.get("batches", [artifact.max_batch])
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
