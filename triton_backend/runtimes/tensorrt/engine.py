"""An engine on the GPU: contexts per batch profile, their memory, one enqueue, layer times.

Here: the protocol that the runtime needs of an engine and the adapter that calls TensorRT's
runtime half. Not here: buffers, copies, graphs, padding (`tensorrt.py`).
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_MS
from triton_backend.runtimes.cuda import Cuda
from triton_backend.runtimes.tensorrt.library import Library, LogKeeper, make_logger

LOGGER = logging.getLogger(__name__)
CACHE_NAME = "runtime.cache"


class EngineError(PoolPipeError):
    """TensorRT refused a step at run time; carries its last words."""


class Engine(Protocol):
    """A loaded engine whose profiles each admit one batch size."""

    def prepare(self, profile: int, addresses: Mapping[str, int], stream: int) -> None:
        """Make the context of one profile with fixed device addresses for its tensors."""
        ...

    def enqueue(self, profile: int, stream: int) -> None:
        """Queue one run."""
        ...

    def capturable(self, profile: int, stream: int) -> bool:
        """True if TensorRT says that a run can be captured in a CUDA graph."""
        ...

    def layer_times_us(self, profile: int, stream: int) -> dict[str, float]:
        """Run once and time every layer, by name."""
        ...

    def close(self) -> None:
        """Give back what was taken."""
        ...


class TensorrtEngine:
    """`Engine` by TensorRT. One context memory serves all profiles: only one runs at a time."""

    def __init__(
        self,
        plan: Path,
        library: Library,
        cuda: Cuda,
        *,
        shapes: Sequence[Mapping[str, tuple[int, ...]]],
    ) -> None:
        """Load `plan`; `shapes` are the input shapes of every profile, in order.

        Raises:
            InputError: the engine does not fit this library or this GPU.
        """
        self._trt, self._cuda, self._shapes = library.module, cuda, shapes
        self._keeper = LogKeeper()
        self._logger = make_logger(library, self._keeper)
        self._runtime = self._trt.Runtime(self._logger)
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise InputError(
                str(plan), f"{library.name} {library.version} cannot load it: {self._last_words()}"
            )
        for name in _tensor_names(self._engine):
            if self._engine.get_tensor_location(name) == self._trt.TensorLocation.HOST:
                raise InputError(str(plan), f"tensor {name!r} decides shapes, which is not served")
        self._cache_path = plan.with_name(CACHE_NAME)
        self._cache, self._config = self._runtime_config()
        self._contexts: dict[int, Any] = {}
        self._memory_bytes = int(self._engine.device_memory_size_v2)
        self._memory = cuda.allocate(self._memory_bytes)

    def prepare(self, profile: int, addresses: Mapping[str, int], stream: int) -> None:
        """Make the context of one profile with fixed device addresses."""
        context = self._new_context()
        context.set_device_memory(self._memory, self._memory_bytes)
        if not context.set_optimization_profile_async(profile, stream):
            raise EngineError(f"optimisation profile {profile}: {self._last_words()}")
        for name, shape in self._shapes[profile].items():
            if not context.set_input_shape(name, shape):
                raise EngineError(f"input {name!r} as {shape}: {self._last_words()}")
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise EngineError(f"tensor {name!r}: {self._last_words()}")
        self._contexts[profile] = context

    def enqueue(self, profile: int, stream: int) -> None:
        """Queue one run."""
        if not self._contexts[profile].execute_async_v3(stream):
            raise EngineError(f"a run of profile {profile} was refused: {self._last_words()}")

    def capturable(self, profile: int, stream: int) -> bool:
        """TensorRT's answer; libraries without that query are probed."""
        ask: Callable[[int], bool] | None = getattr(
            self._contexts[profile], "is_stream_capturable", None
        )
        return True if ask is None else bool(ask(stream))

    def layer_times_us(self, profile: int, stream: int) -> dict[str, float]:
        """Run once with TensorRT's profiler attached."""
        base: Any = self._trt.IProfiler
        times: dict[str, float] = {}

        class Recorder(base):
            def __init__(self) -> None:
                base.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times[layer_name] = times.get(layer_name, 0.0) + ms * US_PER_MS

        context, recorder = self._contexts[profile], Recorder()
        context.profiler = recorder
        try:
            self.enqueue(profile, stream)
            self._cuda.synchronize(stream)
        finally:
            context.profiler = None
        return times

    def close(self) -> None:
        """Keep what was compiled on this card for the next start, and give memory back."""
        if self._cache is not None:
            self._keep_cache(bytes(self._cache.serialize()))
        self._contexts.clear()
        self._cuda.free(self._memory)
        self._config = self._cache = None
        del self._engine, self._runtime

    def _keep_cache(self, cache: bytes) -> None:
        """Replace the file in one step: several workers may serve the same engine."""
        making = self._cache_path.with_name(f"{CACHE_NAME}.{os.getpid()}")
        try:
            making.write_bytes(cache)
            making.replace(self._cache_path)
        except OSError as error:
            LOGGER.warning("kernels compiled on this card are not kept: %s", error)

    def _runtime_config(self) -> tuple[Any, Any]:
        """tensorrt-rtx compiles kernels when it loads: keep them beside the engine."""
        if not hasattr(self._engine, "create_runtime_config"):
            return None, None
        config = self._engine.create_runtime_config()
        strategies = self._trt.ExecutionContextAllocationStrategy
        config.set_execution_context_allocation_strategy(strategies.USER_MANAGED)
        if not hasattr(config, "create_runtime_cache"):
            return None, config
        cache = config.create_runtime_cache()
        if self._cache_path.is_file():
            cache.deserialize(self._cache_path.read_bytes())
        config.set_runtime_cache(cache)
        return cache, config

    def _new_context(self) -> Any:
        strategies = self._trt.ExecutionContextAllocationStrategy
        wanted = strategies.USER_MANAGED if self._config is None else self._config
        context = self._engine.create_execution_context(wanted)
        if context is None:
            raise EngineError(f"no execution context: {self._last_words()}")
        return context

    def _last_words(self) -> str:
        errors = self._keeper.lines("ERROR", "INTERNAL_ERROR")
        return errors[-1].text.strip() if errors else "TensorRT said nothing"


def _tensor_names(engine: Any) -> list[str]:
    return [str(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)]
