"""Runtime `tensorrt`: the library, engines on the GPU, the runtime of a stage."""

from pathlib import Path

from triton_backend.runtimes.base import Artifact, Runtime
from triton_backend.runtimes.clock import Clock


def open_stage(folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> Runtime:
    """Load a stage's engine onto the first GPU that this process sees.

    A part of a GPU is made by CUDA MPS and is as slow as it really is, so share and clock do not
    matter here.

    Raises:
        InputError: no GPU, no TensorRT, or an engine of another library or card.
    """
    # Imported here, because programs that build engines import this package and need no CUDA.
    from triton_backend.runtimes.tensorrt.runtime import open_tensorrt  # noqa: PLC0415

    del share, clock
    return open_tensorrt(folder, artifact)
