"""Artifacts of the CPU runtime: the stage's ONNX file beside the class's cores, threads, stretch.

onnxruntime optimises when it loads, for the machine it is on; nothing is compiled here. The file is
linked, not copied, where the file system allows it.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from flows.building.keys import BuiltArtifact, artifact_key, file_digest, publish
from flows.device_class import DeviceClass
from triton_backend.core.errors import InputError
from triton_backend.core.tensors import TensorSpec
from triton_backend.engines.base import Artifact

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
    if not stage.is_file():
        raise InputError(str(stage), "no such stage file")
    data = stage.with_name(stage.name + DATA_SUFFIX)
    files = [file for file in (stage, data) if file.is_file()]
    artifact = Artifact(
        runtime=RUNTIME,
        gpu_class=device_class.name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        max_batch=max_batch,
        files={"model": stage.name},
        options=device_class.to_options(),
    )
    key = artifact_key(
        {
            "recipe": RECIPE,
            "stage": [file_digest(file) for file in files],
            "runtime": RUNTIME,
            "version": onnxruntime.__version__,
            "class": [device_class.name, device_class.to_options()],
            "tensors": [spec.to_dict() for spec in (*inputs, *outputs)],
            "max_batch": max_batch,
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
