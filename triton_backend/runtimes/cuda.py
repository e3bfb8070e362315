"""The door to the CUDA runtime: memory, copies, one stream, graphs, times.

Here: what the GPU runtimes need of CUDA as a protocol, and the adapter that calls libcudart found
on this machine. Every GPU-only step goes through `open_cuda`, which says in one line that there is
no GPU. Not here: TensorRT. No CUDA package for Python is needed.
"""

import ctypes
import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_MS

DRIVER = "libcuda.so.1"
CUDART_VARIABLE = "POOLPIPE_CUDART"
# Values of CUDA's own enumerations.
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_STREAM_NON_BLOCKING = 1
_CAPTURE_THREAD_LOCAL = 1
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76


class CudaError(PoolPipeError):
    """A CUDA call failed; carries the call and CUDA's own words."""


class Cuda(Protocol):
    """One GPU. Device memory, streams, graphs and events are plain integers (handles)."""

    def compute_capability(self) -> str:
        """For instance `8.9`."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Device memory, filled with zeros, aligned for any use."""
        ...

    def free(self, address: int) -> None:
        """Give device memory back."""
        ...

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Host memory that the GPU copies from and to directly."""
        ...

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give pinned memory back."""
        ...

    def register(self, address: int, size_bytes: int) -> None:
        """Pin host memory that exists already, for instance a shared-memory segment."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        ...

    def new_stream(self) -> int:
        """A stream of its own."""
        ...

    def free_stream(self, stream: int) -> None:
        """Give a stream back."""
        ...

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Queue a copy from host to device."""
        ...

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Queue a copy from device to host."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all that was queued is done."""
        ...

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record what `work` queues, without running it, as a graph ready to launch."""
        ...

    def launch(self, graph: int, stream: int) -> None:
        """Queue a recorded graph."""
        ...

    def free_graph(self, graph: int) -> None:
        """Give a graph back."""
        ...

    def elapsed_us(self, stream: int, work: Callable[[], None]) -> float:
        """Time on the GPU between the start and the end of what `work` queues."""
        ...


def open_cuda() -> Cuda:
    """The first GPU that this process sees (`CUDA_VISIBLE_DEVICES` decides which that is).

    Raises:
        InputError: no GPU, no driver or no libcudart here; the message says which.
    """
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        raise InputError("GPU", f"there is no NVIDIA driver on this machine ({error})") from error
    complaints: list[str] = []
    for name in _cudart_candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            complaints.append(f"{name} cannot be loaded")
            continue
        count = ctypes.c_int(0)
        code = library.cudaGetDeviceCount(ctypes.byref(count))
        if not code and count.value:
            return Cudart(library)
        complaints.append(f"{name}: {_words(library, code) if code else 'no device is visible'}")
    hint = f"{CUDART_VARIABLE} names the file of libcudart"
    raise InputError("GPU", f"none that this process can use ({'; '.join(complaints)}); {hint}")


def _cudart_candidates() -> Iterator[str]:
    """By name where the linker finds it, then inside packages that carry their own.

    All are tried, because a runtime newer than the driver refuses to work.
    """
    stated = os.environ.get(CUDART_VARIABLE)
    if stated is not None:
        yield stated
        return
    yield from ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
    packages = Path(sysconfig.get_paths()["platlib"])
    for pattern in ("nvidia/*/lib/libcudart.so.*", "nvidia_pytriton.libs/libcudart*.so*"):
        yield from (str(path) for path in sorted(packages.glob(pattern)))


def _words(library: ctypes.CDLL, code: int) -> str:
    library.cudaGetErrorString.restype = ctypes.c_char_p
    text = library.cudaGetErrorString(code)
    return f"CUDA error {code}: {text.decode() if text else 'unknown'}"


class Cudart:
    """`Cuda` by libcudart. Made by `open_cuda`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._graphs: dict[int, int] = {}

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            # The error is sticky only for the failed call: read it away.
            self._library.cudaGetLastError()
            raise CudaError(f"{name}: {_words(self._library, code)}")

    def compute_capability(self) -> str:
        """For instance `8.9`."""
        parts: list[str] = []
        for attribute in (_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR):
            value = ctypes.c_int(0)
            self._call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, 0)
            parts.append(str(value.value))
        return ".".join(parts)

    def allocate(self, size_bytes: int) -> int:
        """Device memory, filled with zeros."""
        pointer = ctypes.c_void_p()
        size = ctypes.c_size_t(max(size_bytes, 1))
        self._call("cudaMalloc", ctypes.byref(pointer), size)
        self._call("cudaMemset", pointer, 0, size)
        return pointer.value or 0

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._call("cudaFree", ctypes.c_void_p(address))

    def allocate_pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory."""
        pointer = ctypes.c_void_p()
        size = max(size_bytes, 1)
        self._call("cudaMallocHost", ctypes.byref(pointer), ctypes.c_size_t(size))
        buffer = (ctypes.c_uint8 * size).from_address(pointer.value or 0)
        return np.ctypeslib.as_array(buffer)

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Give page-locked memory back."""
        self._call("cudaFreeHost", ctypes.c_void_p(memory.ctypes.data))

    def register(self, address: int, size_bytes: int) -> None:
        """Page-lock memory that exists already."""
        self._call("cudaHostRegister", ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), 0)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call("cudaHostUnregister", ctypes.c_void_p(address))

    def new_stream(self) -> int:
        """A stream that does not wait for the default one."""
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(stream), _STREAM_NON_BLOCKING)
        return stream.value or 0

    def free_stream(self, stream: int) -> None:
        """Give a stream back."""
        self._call("cudaStreamDestroy", ctypes.c_void_p(stream))

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Queue a copy from host to device."""
        self._copy(device, host, size_bytes, _HOST_TO_DEVICE, stream)

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Queue a copy from device to host."""
        self._copy(host, device, size_bytes, _DEVICE_TO_HOST, stream)

    def _copy(self, target: int, source: int, size_bytes: int, kind: int, stream: int) -> None:
        self._call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(target),
            ctypes.c_void_p(source),
            ctypes.c_size_t(size_bytes),
            kind,
            ctypes.c_void_p(stream),
        )

    def synchronize(self, stream: int) -> None:
        """Wait until all that was queued is done."""
        self._call("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Record `work` as an executable graph.

        Raises:
            CudaError: something in it cannot be captured; the stream is usable again.
        """
        handle = ctypes.c_void_p(stream)
        self._call("cudaStreamBeginCapture", handle, _CAPTURE_THREAD_LOCAL)
        graph = ctypes.c_void_p()
        try:
            work()
        except PoolPipeError:
            self._library.cudaStreamEndCapture(handle, ctypes.byref(graph))
            self._library.cudaGetLastError()
            raise
        self._call("cudaStreamEndCapture", handle, ctypes.byref(graph))
        executable = ctypes.c_void_p()
        self._call(
            "cudaGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0)
        )
        self._graphs[executable.value or 0] = graph.value or 0
        return executable.value or 0

    def launch(self, graph: int, stream: int) -> None:
        """Queue a recorded graph."""
        self._call("cudaGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def free_graph(self, graph: int) -> None:
        """Give a graph back."""
        self._call("cudaGraphExecDestroy", ctypes.c_void_p(graph))
        self._call("cudaGraphDestroy", ctypes.c_void_p(self._graphs.pop(graph)))

    def elapsed_us(self, stream: int, work: Callable[[], None]) -> float:
        """Time on the GPU between two events around `work`."""
        events = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in events:
            self._call("cudaEventCreate", ctypes.byref(event))
        try:
            self._call("cudaEventRecord", events[0], ctypes.c_void_p(stream))
            work()
            self._call("cudaEventRecord", events[1], ctypes.c_void_p(stream))
            self._call("cudaEventSynchronize", events[1])
            elapsed_ms = ctypes.c_float(0.0)
            self._call("cudaEventElapsedTime", ctypes.byref(elapsed_ms), *events)
        finally:
            for event in events:
                self._library.cudaEventDestroy(event)
        return elapsed_ms.value * US_PER_MS
