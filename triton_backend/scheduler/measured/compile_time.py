"""Time that this process has spent on compiling kernels, which happens once per machine.

A limit that an operator gives for a run is not meant for it: the first run on a machine would end
with less than the second. Not here: how kernels are compiled (`compiled`).
"""

import time
from collections.abc import Generator
from contextlib import contextmanager


class CompileTime:
    """Seconds spent so far, by one thread at a time: numba compiles for one."""

    def __init__(self) -> None:
        self._ns = 0

    def seconds(self) -> float:
        """So far, without what is being compiled now."""
        return self._ns / 1e9

    @contextmanager
    def counted(self) -> Generator[None]:
        """Count what the block takes."""
        begin_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._ns += time.perf_counter_ns() - begin_ns


COMPILE_TIME = CompileTime()
"""Of this process."""
