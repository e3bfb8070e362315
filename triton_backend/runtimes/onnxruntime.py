"""One stage in onnxruntime: on stated CPU cores, threads and stretch, or on a GPU by CUDA.

A CPU "GPU class" is a runtime configuration. Its stretch k emulates a slower class: a run computes
its true results and then waits until it has lasted k times its true time. A vGPU that is a share of
a class shares its cores with others, and is stretched by 1 / share more. True time is the calling thread's CPU time where
the stage has one thread, so that being preempted by other processes is not multiplied; with more
threads it is the time that passed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import (
    CUDA,
    NUMPY_DTYPES,
    Artifact,
    Runtime,
    Tensors,
    counts_of,
    put_rows,
)
from triton_backend.runtimes.clock import Clock

ERRORS_ONLY = 3
MODEL_FILE = "model"
CUDA_PROVIDER = "CUDAExecutionProvider"


class OnnxRuntime:
    """One stage loaded into onnxruntime. Pins the calling thread to a CPU class until closed."""

    def __init__(self, folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._clock = clock
        self._threads = int(artifact.options.get("threads", 1))
        on_gpu = artifact.device == CUDA
        # A part of a GPU is made by CUDA MPS, and is as slow as it really is.
        parts = 1.0 if on_gpu else WHOLE_GPU / share
        self._factor = float(artifact.options.get("stretch", 1.0)) * parts
        self._given = {spec.name: spec for spec in self.inputs}
        # onnxruntime does not copy an input that is also an output into a bound buffer.
        self._forwarded = tuple(spec for spec in self.outputs if spec.name in self._given)
        self._counts = counts_of(spec.name for spec in self.outputs)
        self._computed = tuple(spec for spec in self.outputs if spec.name not in self._given)
        self._cores_before = os.sched_getaffinity(0)
        _pin(artifact, folder)
        try:
            self._session = _open(folder, artifact, self._threads)
        except InputError:
            os.sched_setaffinity(0, self._cores_before)
            raise

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Run one batch into `out`, and wait until it has lasted as long as its class says.

        Raises:
            InvariantError: an array is missing or not of the stage's type and shape.
        """
        start_us, start_cpu_us = self._clock.now_us(), self._clock.thread_cpu_us()
        self._compute(inputs, out)
        if self._factor <= 1.0:
            return
        true_us = (
            self._clock.thread_cpu_us() - start_cpu_us
            if self._threads == 1
            else self._clock.now_us() - start_us
        )
        self._clock.sleep_until_us(start_us + round(true_us * self._factor))

    def register(self, memory: NDArray[np.uint8]) -> None:
        """onnxruntime reads inputs where they lie."""

    def close(self) -> None:
        """Free the session and let the thread run on the cores it had before."""
        del self._session
        os.sched_setaffinity(0, self._cores_before)

    def _compute(self, inputs: Tensors, out: Tensors) -> None:
        batch = len(inputs[self.inputs[0].name])
        binding = self._session.io_binding()
        held: list[NDArray[Any]] = []  # onnxruntime is given addresses; these keep them valid
        for spec in self.inputs:
            array = np.ascontiguousarray(_checked(inputs, spec, batch))
            held.append(array)
            binding.bind_input(
                spec.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data
            )
        later: list[tuple[NDArray[Any], NDArray[Any]]] = []
        varying: list[str] = []  # onnxruntime makes their memory: nobody knows how many rows come
        for spec in self._computed:
            if spec.name in self._counts and out[spec.name].ndim > len(spec.shape):
                binding.bind_output(spec.name, "cpu")
                varying.append(spec.name)
                continue
            target = _checked(out, spec, batch)
            array = target
            if not target.flags.c_contiguous:
                array = np.empty_like(target, order="C")
                later.append((target, array))
            held.append(array)
            binding.bind_output(
                spec.name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data
            )
        if self._computed:
            self._session.run_with_iobinding(binding)
        for target, array in later:
            np.copyto(target, array)
        self._put_rows(varying, binding, out)
        for spec in self._forwarded:
            np.copyto(_checked(out, spec, batch), inputs[spec.name])

    def _put_rows(self, varying: Sequence[str], binding: Any, out: Tensors) -> None:
        """Write the outputs whose rows vary, and how many of each sample there is room for."""
        if not varying:
            return
        bound = [spec.name for spec in self._computed]
        made = dict(zip(bound, binding.get_outputs(), strict=True))
        given = {name: out[self._counts[name]].copy() for name in varying}
        for name in varying:
            out[self._counts[name]][:] = put_rows(made[name].numpy(), given[name], out[name])


def open_stage(folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> Runtime:
    """Load a stage's ONNX file.

    Raises:
        InputError: the file, the cores or the GPU cannot be used.
    """
    return OnnxRuntime(folder, artifact, share=share, clock=clock)


def _checked(arrays: Tensors, spec: TensorSpec, batch: int) -> NDArray[Any]:
    """The array of that name, if it is what the stage declares; its address is handed to C."""
    array = arrays.get(spec.name)
    if array is None:
        raise InvariantError(f"tensor {spec.name!r} is missing; got {sorted(arrays)}")
    if array.dtype != NUMPY_DTYPES[spec.dtype] or array.shape != (batch, *spec.shape[1:]):
        raise InvariantError(
            f"tensor {spec.name!r} is {array.dtype} {list(array.shape)}, the stage has"
            f" {spec.dtype} {[batch, *spec.shape[1:]]}"
        )
    return array


def _pin(artifact: Artifact, folder: Path) -> None:
    """Let the calling thread, and the threads it will start, run on the class's cores only."""
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


def _open(folder: Path, artifact: Artifact, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads that spin would take the cores of the other vGPUs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = folder / artifact.files.get(MODEL_FILE, "")
    if not path.is_file():
        raise InputError(str(folder), f"its model file {path.name!r} is missing")
    providers: list[Any] = ["CPUExecutionProvider"]
    if artifact.device == CUDA:
        require_cuda(str(path))
        providers.insert(0, (CUDA_PROVIDER, {"use_tf32": "0"}))
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime's own exceptions share no public base class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(str(path), f"onnxruntime cannot load it: {reason}") from error
    if len(providers) > 1 and CUDA_PROVIDER not in session.get_providers():
        raise InputError(str(path), "onnxruntime's CUDA provider did not load; is there a GPU?")
    return session


def require_cuda(where: str) -> None:
    """Refuse a GPU where onnxruntime has no CUDA: it would run on the CPU and say nothing.

    Raises:
        InputError: naming what asked for it, and what to install.
    """
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise InputError(
            where,
            f"is for a GPU, and onnxruntime {onnxruntime.__version__} here has no CUDA provider:"
            " install onnxruntime-gpu in its place",
        )
