"""Artifacts of steps written by hand: source text, function, tensors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import REFUSED, REFUSED_BYTES, Artifact
from triton_backend.runtimes.python_step.package import (
    ARGUMENTS_OPTION,
    PACKAGE_FILE,
    PYTHON_OPTION,
    RUNTIME,
    write_package,
)


def write_step(
    folder: Path,
    source: str,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    python: str = "shop:run",
    arguments: dict[str, Any] | None = None,
) -> Path:
    """The artifact of a step whose package is one file with this text."""
    package = python.partition(":")[0].partition(".")[0]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{package}.py"
    file.write_text(source)
    write_package(file, package, folder / "package.zip")
    Artifact(
        runtime=RUNTIME,
        gpu_class="CPU",
        inputs=tuple(inputs),
        outputs=(*outputs, TensorSpec.of_bytes(REFUSED, REFUSED_BYTES)),
        max_batch=8,
        files={PACKAGE_FILE: "package.zip"},
        options={PYTHON_OPTION: python, ARGUMENTS_OPTION: arguments or {}},
    ).write(folder)
    return folder
