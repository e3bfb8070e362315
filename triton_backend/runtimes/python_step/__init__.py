"""Runtime `python_step`: a stage that is a Python function which the workload names."""

from pathlib import Path

from triton_backend.runtimes.base import Artifact, Runtime
from triton_backend.runtimes.clock import Clock


def open_stage(folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> Runtime:
    """Import the step's function and let it run on the cores of its class.

    Raises:
        InputError: it cannot be imported here, or is for a GPU.
    """
    # Imported here, because the command that builds steps imports this package and runs none.
    from triton_backend.runtimes.python_step.runtime import PythonStep  # noqa: PLC0415

    return PythonStep(folder, artifact, share=share, clock=clock)
