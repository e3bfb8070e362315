"""Opening an artifact with the runtime it names."""

from pathlib import Path

from triton_backend.core.errors import InputError
from triton_backend.engines.base import Artifact, Runtime


def load_runtime(folder: Path, *, vgpu_divisor: int = 1) -> Runtime:
    """Load the stage in `folder` as one of `vgpu_divisor` copies that share a device.

    Raises:
        InputError: the manifest or its files cannot be used, or the runtime is not installed.
    """
    artifact = Artifact.read(folder)
    raise InputError(str(folder), f"unknown runtime {artifact.runtime!r} ({vgpu_divisor=})")
