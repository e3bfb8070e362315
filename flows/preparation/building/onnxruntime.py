"""Artifacts of onnxruntime.

The stage's ONNX file beside the class's cores, threads, stretch, or its GPU. onnxruntime optimises
when it loads, for the machine it is on; nothing is compiled here. The file is linked, not copied,
where the file system allows it.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import onnxruntime

from flows.clock import now_utc
from flows.device_class import DeviceClass
from flows.preparation.building.keys import BuiltArtifact, artifact_key, file_digest, publish
from flows.preparation.building.python_step import build_python_step
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import LOADED, WHOLE_GPU, Part
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import CPU, CUDA, Artifact
from triton_backend.runtimes.python_step.package import RUNTIME as STEP_RUNTIME
from warehouse.profiles import add_artifact

RUNTIME = "onnxruntime"
DATA_SUFFIX = ".data"
# Raised when the same ingredients would give another artifact.
RECIPE = 1


def build_stage(
    stage: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    device_class: DeviceClass,
    max_batch: int,
    root: Path,
) -> BuiltArtifact:
    """Make the artifact of one stage for one CPU class under `root`, or find it there.

    Args:
        stage: the stage's ONNX file; large weights lie beside it as `<file>.data`.
        inputs: tensors it takes.
        outputs: tensors it gives.
        device_class: cores, threads and stretch.
        max_batch: largest batch it will be asked for.
        root: folder of all artifacts.

    Raises:
        InputError: no such stage file.
    """
    artifact = Artifact(
        runtime=RUNTIME,
        gpu_class=device_class.name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        max_batch=max_batch,
        files={"model": stage.name},
        options=device_class.to_options(),
    )
    return _publish(stage, artifact, root)


def build_cuda_stage(
    stage: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    gpu_class: str,
    max_batch: int,
    root: Path,
) -> BuiltArtifact:
    """As `build_stage`, for onnxruntime's CUDA provider on a GPU class.

    Raises:
        InputError: no such stage file.
    """
    artifact = Artifact(
        runtime=RUNTIME,
        gpu_class=gpu_class,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        max_batch=max_batch,
        device=CUDA,
        files={"model": stage.name},
    )
    return _publish(stage, artifact, root)


def _publish(stage: Path, artifact: Artifact, root: Path) -> BuiltArtifact:
    if not stage.is_file():
        raise InputError(str(stage), "no such stage file")
    data = stage.with_name(stage.name + DATA_SUFFIX)
    files = [file for file in (stage, data) if file.is_file()]
    on = {} if artifact.device == CPU else {"device": artifact.device}
    key = artifact_key(
        {
            "recipe": RECIPE,
            "stage": [file_digest(file) for file in files],
            "runtime": RUNTIME,
            "version": onnxruntime.__version__,
            "class": [artifact.gpu_class, dict(artifact.options) | on],
            "tensors": [spec.to_dict() for spec in (*artifact.inputs, *artifact.outputs)],
            "max_batch": artifact.max_batch,
        }
    )

    def fill(folder: Path) -> None:
        for file in files:
            _link(file, folder / file.name)
        artifact.write(folder)

    return publish(root, key, fill)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


class _Place(TypedDict):
    max_batch: int
    root: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxRuntimeClass:
    """A class that onnxruntime runs, and the parts it is wanted with."""

    device: DeviceClass
    parts: tuple[Part, ...] = ((WHOLE_GPU, LOADED),)


def build_stages(
    work: Workspace,
    split: SplitModel,
    stages: Sequence[tuple[int, int]],
    device: DeviceClass,
) -> dict[tuple[int, int], BuiltArtifact]:
    """Artifacts of stages [first, last) for one class, built or found, by stage."""
    built: dict[tuple[int, int], BuiltArtifact] = {}
    for first, last in stages:
        if split.step:
            built[first, last] = build_python_step(split, device, work.state.artifacts)
            continue
        file = extract_stage(split, first, last)
        tensors = (split.stage_inputs(first), split.stage_outputs(last))
        where: _Place = {"max_batch": split.max_batch, "root": work.state.artifacts}
        built[first, last] = (
            build_cuda_stage(file, *tensors, gpu_class=device.name, **where)
            if device.on_gpu
            else build_stage(file, *tensors, device_class=device, **where)
        )
    now = now_utc()
    with work.open() as warehouse:
        for (first, last), artifact in built.items():
            place = (first, last, device.name)
            runtime = STEP_RUNTIME if split.step else RUNTIME
            add_artifact(warehouse, artifact.key, split.key, place, runtime, now)
    return built


def classes_for(
    split: SplitModel, classes: Sequence[OnnxRuntimeClass]
) -> Sequence[OnnxRuntimeClass]:
    """Those that can run a model: a Python step runs on CPU cores alone.

    Raises:
        InputError: none can.
    """
    if not split.step:
        return classes
    kept = [each for each in classes if not each.device.on_gpu]
    if not kept:
        raise InputError(f"step {split.name!r}", "runs on CPU classes alone, and there is none")
    return kept


def build_step(
    work: Workspace, split: SplitModel, classes: Sequence[OnnxRuntimeClass]
) -> dict[str, dict[tuple[int, int], BuiltArtifact]]:
    """Artifacts of every block and of the whole model, by class that can run it and stage.

    Raises:
        InputError: no class can.
    """
    classes = classes_for(split, classes)
    whole = (0, split.blocks)
    stages = sorted({*((i, i + 1) for i in range(split.blocks)), whole})
    return {c.device.name: build_stages(work, split, stages, c.device) for c in classes}
