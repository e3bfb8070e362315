"""Runtime `tensorrt`: one stage from host arrays to host arrays through one GPU.

The life of a batch of b samples:
1. the smallest planned batch size p >= b is chosen; its context and buffers exist already;
2. inputs go to the device: straight from memory that was registered (a shared-memory segment),
   else by way of pinned buffers;
3. the CUDA graph of p is launched, or its context is run where no graph could be captured;
4. outputs come back the same way, the first b rows of them;
5. tensors that the stage only hands on are copied on the host.

Everything is allocated and captured once, when the stage is loaded. A batch size whose graph could
not be captured is named in `graph_fallbacks` and logged as a warning. Not here: calls to TensorRT
(`tensorrt_engine.py`) or CUDA (`cuda.py`).
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError, PoolPipeError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Tensors
from triton_backend.runtimes.cuda import Cuda, CudaError, open_cuda
from triton_backend.runtimes.tensorrt.engine import Engine, EngineError, TensorrtEngine
from triton_backend.runtimes.tensorrt.library import load_library

LOGGER = logging.getLogger(__name__)


class TensorrtRuntime:
    """A loaded stage. Not thread-safe."""

    def __init__(
        self, artifact: Artifact, engine: Engine, cuda: Cuda, *, use_graphs: bool = True
    ) -> None:
        """Allocate buffers, warm up every planned batch size once and capture its graph."""
        self._artifact, self._engine, self._cuda = artifact, engine, cuda
        self._batches: tuple[int, ...] = tuple(artifact.options["batches"])
        self._forwarded = frozenset[str](artifact.options.get("forwarded", ()))
        unused = frozenset[str](artifact.options.get("unused", ()))
        self._in = tuple(s for s in artifact.inputs if s.name not in unused)
        self._out = tuple(s for s in artifact.outputs if s.name not in self._forwarded)
        self._stream = cuda.new_stream()
        self._device: dict[str, int] = {}
        self._pinned: dict[str, NDArray[np.uint8]] = {}
        for spec in (*self._in, *self._out):
            size = spec.bytes_per_sample * artifact.max_batch
            self._device[spec.name] = cuda.allocate(size)
            self._pinned[spec.name] = cuda.allocate_pinned(size)
        self._registered: dict[int, int] = {}
        self._graphs: dict[int, int] = {}
        self.graph_fallbacks: dict[int, str] = {}
        for profile in range(len(self._batches)):
            self._ready(profile, use_graphs=use_graphs)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors the stage takes."""
        return self._artifact.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors the stage gives."""
        return self._artifact.outputs

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Run one batch; a size between two planned ones runs as the larger.

        Raises:
            InputError: the batch is larger than the largest planned one.
            InvariantError: an array is missing or not of the stage's type and shape.
        """
        batch = len(inputs[self.inputs[0].name])
        profile = self._profile_for(batch)
        for given, specs in ((inputs, self.inputs), (out, self.outputs)):
            for spec in specs:
                _check(given, spec, batch)
        for spec in self._in:
            self._send(spec, inputs[spec.name])
        self._start(profile)
        arrivals = [self._fetch(spec, out[spec.name]) for spec in self._out]
        self._cuda.synchronize(self._stream)
        for arrive in arrivals:
            arrive()
        for name in self._forwarded:
            np.copyto(out[name], inputs[name], casting="no")

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin memory that batches will lie in, so that they need no copy on the host.

        Raises:
            CudaError: the memory cannot be pinned; runs from it go by way of pinned buffers.
        """
        self._cuda.register(memory.ctypes.data, memory.nbytes)
        self._registered[memory.ctypes.data] = memory.nbytes

    def compute_us(self, batch: int) -> float:
        """Time on the GPU of one run of a planned batch size, copies apart."""
        profile = self._profile_for(batch)
        return self._cuda.elapsed_us(self._stream, lambda: self._start(profile))

    def layer_times_us(self, batch: int) -> dict[str, float]:
        """Time of every layer of one run, by TensorRT's profiler."""
        return self._engine.layer_times_us(self._profile_for(batch), self._stream)

    def close(self) -> None:
        """Give everything back."""
        with suppress(CudaError):  # an error that a run left behind was raised by that run
            self._cuda.synchronize(self._stream)
        for graph in self._graphs.values():
            self._cuda.free_graph(graph)
        self._engine.close()
        for name, address in self._device.items():
            self._cuda.free(address)
            self._cuda.free_pinned(self._pinned[name])
        for address in self._registered:
            self._cuda.unregister(address)
        self._cuda.free_stream(self._stream)

    def _ready(self, profile: int, *, use_graphs: bool) -> None:
        self._engine.prepare(profile, self._device, self._stream)
        # The first run compiles and allocates, which a graph cannot hold.
        self._engine.enqueue(profile, self._stream)
        self._cuda.synchronize(self._stream)
        if not use_graphs:
            return
        batch = self._batches[profile]
        if not self._engine.capturable(profile, self._stream):
            self._fall_back(batch, "TensorRT says that this engine cannot be captured")
            return
        try:
            self._graphs[profile] = self._cuda.capture(
                self._stream, lambda: self._engine.enqueue(profile, self._stream)
            )
        except (CudaError, EngineError) as error:
            self._fall_back(batch, str(error))

    def _fall_back(self, batch: int, reason: str) -> None:
        self.graph_fallbacks[batch] = reason
        LOGGER.warning("batch %d runs without a CUDA graph: %s", batch, reason)

    def _profile_for(self, batch: int) -> int:
        for profile, planned in enumerate(self._batches):
            if batch <= planned:
                return profile
        raise InputError("batch", f"{batch} samples, built for at most {self._batches[-1]}")

    def _start(self, profile: int) -> None:
        graph = self._graphs.get(profile)
        if graph is None:
            self._engine.enqueue(profile, self._stream)
        else:
            self._cuda.launch(graph, self._stream)

    def _send(self, spec: TensorSpec, array: NDArray[np.generic]) -> None:
        source = np.ascontiguousarray(array)
        if not self._is_registered(source):
            pinned = self._pinned[spec.name][: source.nbytes]
            np.copyto(pinned, source.reshape(-1).view(np.uint8))
            source = pinned
        self._cuda.copy_in(self._device[spec.name], source.ctypes.data, source.nbytes, self._stream)

    def _fetch(self, spec: TensorSpec, target: NDArray[np.generic]) -> Callable[[], None]:
        """Queue an output's way back; the step returned finishes it after the stream is done."""
        direct = self._is_registered(target) and target.flags.c_contiguous
        pinned = self._pinned[spec.name][: target.nbytes]
        host = target.ctypes.data if direct else pinned.ctypes.data
        self._cuda.copy_out(host, self._device[spec.name], target.nbytes, self._stream)
        if direct:
            return lambda: None
        return lambda: np.copyto(target, pinned.view(target.dtype).reshape(target.shape))

    def _is_registered(self, array: NDArray[np.generic]) -> bool:
        first = array.ctypes.data
        return any(
            start <= first and first + array.nbytes <= start + size
            for start, size in self._registered.items()
        )


def _check(arrays: Tensors, spec: TensorSpec, batch: int) -> None:
    """Copies go by address and size: an array of another size would overrun a buffer."""
    array, shape = arrays.get(spec.name), (batch, *spec.shape[1:])
    if array is None:
        raise InvariantError(f"tensor {spec.name!r} is missing; got {sorted(arrays)}")
    if array.dtype != NUMPY_DTYPES[spec.dtype] or array.shape != shape:
        raise InvariantError(
            f"tensor {spec.name!r} is {array.dtype} {list(array.shape)}, the stage has"
            f" {spec.dtype} {list(shape)}"
        )


def open_tensorrt(folder: Path, artifact: Artifact, *, use_graphs: bool = True) -> TensorrtRuntime:
    """Load an engine that `flows/building` made onto the GPU this process sees.

    Raises:
        InputError: no GPU, another kind of GPU than the engine is for, the library the engine was
            built with is missing or of another version, or the folder lacks the engine.
    """
    library = load_library(str(artifact.options["library"]))
    built_with = str(artifact.options["library_version"])
    if library.version != built_with:
        raise InputError(
            str(folder), f"built with {library.name} {built_with}, here is {library.version}"
        )
    cuda = open_cuda()
    wanted, found = str(artifact.options["compute_capability"]), cuda.compute_capability()
    if wanted != found:
        raise InputError(
            str(folder), f"built for compute capability {wanted}, this GPU has {found}"
        )
    plan = folder / artifact.files["engine"]
    if not plan.is_file():
        raise InputError(str(plan), "the engine is missing")
    engine = TensorrtEngine(plan, library, cuda, shapes=_profile_shapes(artifact))
    try:
        return TensorrtRuntime(artifact, engine, cuda, use_graphs=use_graphs)
    except PoolPipeError as error:
        raise InputError(str(folder), f"cannot be made ready: {error}") from error


def _profile_shapes(artifact: Artifact) -> list[Mapping[str, tuple[int, ...]]]:
    unused = frozenset(artifact.options.get("unused", ()))
    return [
        {s.name: (batch, *s.shape[1:]) for s in artifact.inputs if s.name not in unused}
        for batch in artifact.options["batches"]
    ]
