"""An engine that computes with numpy: the second adapter of `engines.tensorrt_engine.Engine`."""

import ctypes
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tests.fakes.cuda import HostCuda
from triton_backend.contract.tensors import TensorSpec

NUMPY = {"FP32": np.float32, "FP16": np.float16, "INT64": np.int64}
Compute = Callable[[Mapping[str, NDArray[np.generic]]], Mapping[str, NDArray[np.generic]]]


class NumpyEngine:
    """Runs `compute` on whole planned batches that lie at "device" addresses."""

    def __init__(
        self,
        cuda: HostCuda,
        batches: tuple[int, ...],
        tensors: tuple[TensorSpec, ...],
        compute: Compute,
        *,
        refuses_capture: bool = False,
    ) -> None:
        self._cuda, self._batches, self._compute = cuda, batches, compute
        self._tensors = {spec.name: spec for spec in tensors}
        self._addresses: dict[int, dict[str, int]] = {}
        self._refuses_capture = refuses_capture
        self.ran: list[int] = []
        self.closed = False

    def prepare(self, profile: int, addresses: Mapping[str, int], stream: int) -> None:
        assert stream in self._cuda.held
        self._addresses[profile] = dict(addresses)

    def enqueue(self, profile: int, stream: int) -> None:
        assert stream in self._cuda.held
        self._cuda.submit(lambda: self._run(profile))

    def capturable(self, profile: int, stream: int) -> bool:
        assert profile in self._addresses
        assert stream in self._cuda.held
        return not self._refuses_capture

    def layer_times_us(self, profile: int, stream: int) -> dict[str, float]:
        self.enqueue(profile, stream)
        return {"layer": 100.0}

    def close(self) -> None:
        self.closed = True

    def _run(self, profile: int) -> None:
        self.ran.append(self._batches[profile])
        arrays = {name: self._array(profile, name) for name in self._addresses[profile]}
        for name, value in self._compute(arrays).items():
            arrays[name][...] = value

    def _array(self, profile: int, name: str) -> NDArray[np.generic]:
        spec = self._tensors[name]
        shape = (self._batches[profile], *spec.shape[1:])
        size = spec.bytes_per_sample * shape[0]
        buffer = (ctypes.c_uint8 * size).from_address(self._addresses[profile][name])
        return np.ctypeslib.as_array(buffer).view(NUMPY[spec.dtype]).reshape(shape)
