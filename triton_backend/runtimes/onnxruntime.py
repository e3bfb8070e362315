"""One stage in onnxruntime: on stated CPU cores, threads and stretch, or on a GPU by CUDA.

Here: sessions and their bindings. Not here: cores, and how long a run lasts (`cores`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
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
from triton_backend.runtimes.cores import CpuPart

ERRORS_ONLY = 3
MODEL_FILE = "model"
CUDA_PROVIDER = "CUDAExecutionProvider"


class OnnxRuntime:
    """One stage loaded into onnxruntime. Pins the calling thread to a CPU class until closed."""

    def __init__(self, folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._given = {spec.name: spec for spec in self.inputs}
        # onnxruntime does not copy an input that is also an output into a bound buffer.
        self._forwarded = tuple(spec for spec in self.outputs if spec.name in self._given)
        self._counts = counts_of(spec.name for spec in self.outputs)
        self._computed = tuple(spec for spec in self.outputs if spec.name not in self._given)
        self._part = CpuPart(folder, artifact, share=share, clock=clock)
        try:
            self._session = _open(folder, artifact, self._part.threads)
        except InputError:
            self._part.release()
            raise

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Run one batch into `out`, and wait until it has lasted as long as its class says.

        Raises:
            InvariantError: an array is missing or not of the stage's type and shape.
        """
        began = self._part.begin()
        self._compute(inputs, out)
        self._part.wait(began)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """onnxruntime reads inputs where they lie."""

    def close(self) -> None:
        """Free the session and let the thread run on the cores it had before."""
        del self._session
        self._part.release()

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
        varying: list[str] = []  # onnxruntime makes their memory: the number of rows is unknown
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
