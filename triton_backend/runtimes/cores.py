"""The CPU cores that a stage runs on, and how long its runs last there.

A share, and an emulated slower class. A CPU "GPU class" is a runtime configuration. Its stretch k
emulates a slower class: a run computes its true results and then waits until it has lasted k times
its true time. A vGPU that is a share of a class shares its cores with others, and is stretched by 1
/ share more. True time is the calling thread's CPU time where the stage has one thread, so that
being preempted by other processes is not multiplied; with more threads it is the time that passed.
"""

import os
from pathlib import Path

from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.clock import Clock


class CpuPart:
    """A share of a class's cores.

    The calling thread, and the threads it will start, run on them until `release`.

    Attributes:
        threads: of the stage.

    Raises:
        InputError: the cores cannot be used here.
    """

    def __init__(self, folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> None:
        self.threads = int(artifact.options.get("threads", 1))
        self._clock = clock
        # A part of a GPU is made by CUDA MPS, and is as slow as it really is.
        parts = 1.0 if artifact.device == CUDA else WHOLE_GPU / share
        self._factor = float(artifact.options.get("stretch", 1.0)) * parts
        self._cores_before = os.sched_getaffinity(0)
        _pin(artifact, folder)

    def begin(self) -> tuple[int, int]:
        """When a run begins: now, and the CPU time of this thread (both µs); 0 where none asks."""
        if self._factor <= 1.0:
            return 0, 0
        return self._clock.now_us(), self._clock.thread_cpu_us()

    def wait(self, began: tuple[int, int]) -> None:
        """Return when the run that began then has lasted as long as its class and share say."""
        if self._factor <= 1.0:
            return
        start_us, start_cpu_us = began
        true_us = (
            self._clock.thread_cpu_us() - start_cpu_us
            if self.threads == 1
            else self._clock.now_us() - start_us
        )
        self._clock.sleep_until_us(start_us + round(true_us * self._factor))

    def release(self) -> None:
        """Let the thread run on the cores it had before."""
        os.sched_setaffinity(0, self._cores_before)


def _pin(artifact: Artifact, folder: Path) -> None:
    cores = artifact.options.get("cores")
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except (OSError, TypeError, ValueError) as error:
        available = sorted(os.sched_getaffinity(0))
        raise InputError(
            f"{folder}, class {artifact.gpu_class!r}, cores",
            f"{cores} cannot be used here, available are {available}",
        ) from error
