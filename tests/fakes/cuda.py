"""A GPU made of host memory: the second adapter of `engines.cuda.Cuda`.

Copies move bytes between "device" and host addresses, work runs at once when it is queued, and is
recorded instead while a graph is captured. Whatever was taken can be counted.
"""

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_backend.runtimes.cuda import CudaError


class HostCuda:
    """Keeps count of what is held, so that a test can see that all was given back."""

    def __init__(self, *, captures: bool = True, registers: bool = True) -> None:
        self.captures, self.registers = captures, registers
        self.held: dict[int, object] = {}
        self.registered: dict[int, int] = {}
        self.launched: list[int] = []
        self.copied_from: list[int] = []
        self._recording: list[Callable[[], object]] | None = None
        self._graphs: dict[int, list[Callable[[], object]]] = {}
        self._handles = 0

    def compute_capability(self) -> str:
        return "8.9"

    def submit(self, work: Callable[[], object]) -> None:
        """Queue work as a kernel launch would."""
        if self._recording is None:
            work()
        else:
            self._recording.append(work)

    def allocate(self, size_bytes: int) -> int:
        memory = ctypes.create_string_buffer(max(size_bytes, 1))
        address = ctypes.addressof(memory)
        self.held[address] = memory
        return address

    def free(self, address: int) -> None:
        del self.held[address]

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        memory = np.zeros(max(size_bytes, 1), np.uint8)
        self.held[memory.ctypes.data] = memory
        return memory

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        del self.held[memory.ctypes.data]

    def register(self, address: int, size_bytes: int) -> None:
        if not self.registers:
            raise CudaError("cudaHostRegister: CUDA error 801: operation not supported")
        self.registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def new_stream(self) -> int:
        return self._handle()

    def free_stream(self, stream: int) -> None:
        del self.held[stream]

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        assert stream in self.held
        self.copied_from.append(host)
        self.submit(lambda: ctypes.memmove(device, host, size_bytes))

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        assert stream in self.held
        self.submit(lambda: ctypes.memmove(host, device, size_bytes))

    def synchronize(self, stream: int) -> None:
        assert stream in self.held

    def capture(self, stream: int, work: Callable[[], object]) -> int:
        assert stream in self.held
        if not self.captures:
            raise CudaError("cudaStreamEndCapture: CUDA error 901: operation failed")
        self._recording = []
        try:
            work()
            recorded = self._recording
        finally:
            self._recording = None
        graph = self._handle()
        self._graphs[graph] = recorded
        return graph

    def launch(self, graph: int, stream: int) -> None:
        assert stream in self.held
        self.launched.append(graph)
        for work in self._graphs[graph]:
            work()

    def free_graph(self, graph: int) -> None:
        del self.held[graph], self._graphs[graph]

    def elapsed_us(self, stream: int, work: Callable[[], object]) -> float:
        assert stream in self.held
        work()
        return 100.0

    def _handle(self) -> int:
        self._handles += 1
        self.held[self._handles] = "handle"
        return self._handles
