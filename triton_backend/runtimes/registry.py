"""The runtimes by name.

The runtime `N` is the module `triton_backend/runtimes/N` with `open_stage`.

    def open_stage(folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> Runtime

Adding a runtime is adding such a module (or package), and a test. It is imported when an artifact
names it, so that a machine carries only what it serves with.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import triton_backend.runtimes
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.runtimes.base import Artifact, Runtime
from triton_backend.runtimes.clock import Clock, SystemClock

OPEN = "open_stage"


def load_runtime(folder: Path, *, share: int = WHOLE_GPU, clock: Clock | None = None) -> Runtime:
    """Load the stage in `folder` on a share of a device.

    Args:
        folder: the artifact.
        share: in 300ths; on a CPU the run time is stretched by 300 / share.
        clock: what waiting goes by; None is the host's clock.

    Raises:
        InputError: the manifest or its files cannot be used, or the runtime is not installed.
    """
    artifact = Artifact.read(folder)
    try:
        open_stage = _find(artifact.runtime)
        if open_stage is None:
            known = ", ".join(runtime_names())
            raise InputError(str(folder), f"unknown runtime {artifact.runtime!r}, known: {known}")
        return open_stage(folder, artifact, share=share, clock=clock or SystemClock())
    except ImportError as error:
        raise InputError(
            str(folder), f"runtime {artifact.runtime!r} is not installed here: {error}"
        ) from error


def import_runtime(name: str) -> None:
    """Import the module of a runtime, which loads nothing and starts nothing.

    Raises:
        ImportError: its package is not installed here.
    """
    _find(name)


def runtime_names() -> tuple[str, ...]:
    """The runtimes whose packages are installed here."""
    names: list[str] = []
    for module in pkgutil.iter_modules(triton_backend.runtimes.__path__):
        with suppress(ImportError):
            if _find(module.name) is not None:
                names.append(module.name)
    return tuple(sorted(names))


def _find(name: str) -> Callable[..., Runtime] | None:
    """How a runtime opens a stage; None where no module of that name is a runtime."""
    module = f"{triton_backend.runtimes.__name__}.{name}"
    if not name.isidentifier() or importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), OPEN, None)
