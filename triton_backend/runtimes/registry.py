"""Opening an artifact with the runtime it names.

A runtime's package is imported when an artifact needs it, so that a machine carries only what it
serves with.
"""

from pathlib import Path

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact, Runtime
from triton_backend.runtimes.clock import Clock, SystemClock

RUNTIMES = ("onnxruntime", "tensorrt", "emulated")


def load_runtime(folder: Path, *, vgpu_divisor: int = 1, clock: Clock | None = None) -> Runtime:
    """Load the stage in `folder` as one of `vgpu_divisor` copies that share a device.

    Args:
        folder: the artifact.
        vgpu_divisor: on a CPU, the run time is stretched by it.
        clock: what waiting goes by; None is the host's clock.

    Raises:
        InputError: the manifest or its files cannot be used, or the runtime is not installed.
    """
    artifact = Artifact.read(folder)
    clock = clock or SystemClock()
    if artifact.runtime not in RUNTIMES:
        raise InputError(
            str(folder), f"unknown runtime {artifact.runtime!r}, known: {', '.join(RUNTIMES)}"
        )
    try:
        return _open(folder, artifact, vgpu_divisor, clock)
    except ImportError as error:
        raise InputError(
            str(folder), f"runtime {artifact.runtime!r} is not installed here: {error}"
        ) from error


def _open(folder: Path, artifact: Artifact, vgpu_divisor: int, clock: Clock) -> Runtime:
    if artifact.runtime == "onnxruntime":
        from triton_backend.runtimes.onnxruntime import OnnxRuntime  # noqa: PLC0415 - see the charter

        return OnnxRuntime(folder, artifact, vgpu_divisor=vgpu_divisor, clock=clock)
    if artifact.runtime == "tensorrt":
        from triton_backend.runtimes.tensorrt.runtime import open_tensorrt  # noqa: PLC0415 - see the charter

        return open_tensorrt(folder, artifact)
    from triton_backend.runtimes.emulated import EmulatedRuntime  # noqa: PLC0415 - see the charter

    return EmulatedRuntime(artifact, clock=clock)
