"""Artifacts of Python steps.

The package as a zip, samples to be measured with, and the class's cores.
"""

import shutil
from pathlib import Path

from flows.device_class import DeviceClass
from flows.preparation.building.keys import BuiltArtifact, artifact_key, file_digest, publish
from flows.preparation.splitting.model import SAMPLES_NAME, SplitModel
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.python_step.package import PACKAGE_FILE, RUNTIME, SAMPLES_FILE

PACKAGE_NAME = "package.zip"
# Raised when the same ingredients would give another artifact.
RECIPE = 1


def step_artifact(split: SplitModel, gpu_class: str, options: dict[str, object]) -> Artifact:
    """The manifest of a step on a class, whose files lie in the folder of the split."""
    names = {PACKAGE_FILE: PACKAGE_NAME, SAMPLES_FILE: SAMPLES_NAME}
    return Artifact(
        runtime=RUNTIME,
        gpu_class=gpu_class,
        inputs=split.inputs,
        outputs=split.outputs,
        max_batch=split.max_batch,
        files={role: name for role, name in names.items() if (split.folder / name).is_file()},
        options={**split.step, **options},
    )


def build_python_step(split: SplitModel, device: DeviceClass, root: Path) -> BuiltArtifact:
    """Make the artifact of a step for one CPU class under `root`, or find it there.

    Raises:
        InputError: the class is a GPU.
    """
    if device.on_gpu:
        raise InputError(f"step {split.name!r}", f"runs on CPU classes, not on {device.name!r}")
    artifact = step_artifact(split, device.name, device.to_options())
    files = [split.folder / name for name in artifact.files.values()]
    key = artifact_key(
        {
            "recipe": RECIPE,
            "files": [file_digest(file) for file in files],
            "runtime": RUNTIME,
            "class": [artifact.gpu_class, dict(artifact.options)],
            "tensors": [spec.to_dict() for spec in (*artifact.inputs, *artifact.outputs)],
            "max_batch": artifact.max_batch,
        }
    )

    def fill(folder: Path) -> None:
        for file in files:
            shutil.copyfile(file, folder / file.name)
        artifact.write(folder)

    return publish(root, key, fill)
