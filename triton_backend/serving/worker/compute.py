"""Running a stage from a slot of its worker into wherever the results belong.

Here: types that differ between boundary and runtime (fp16 boundaries), tensors that a stage only
hands on. Not here: when it runs, and where the results go.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, Runtime
from triton_backend.serving.transport.shared_memory import Arrays

Specs = tuple[TensorSpec, ...]
Run = Callable[[Arrays, Arrays], None]


class StageCompute:
    """A loaded stage between arrays of the plan's types.

    `run` runs one batch from inputs into outputs; every array is [samples, ...]. It raises
    InputError where an output is asked for that the stage neither makes nor hands on, and whatever
    the runtime raises.

    Args:
        given, wanted: the tensors that come in and go out.
        batch: the most samples of one run.
        name: of the stage, for errors.
    """

    def __init__(
        self, runtime: Runtime, given: Specs, wanted: Specs, batch: int, name: str
    ) -> None:
        self._runtime = runtime
        fits = _types(given) == _types(runtime.inputs) and (
            _types(wanted) == _types(runtime.outputs)
        )
        self.run: Run = runtime.run if fits else self._convert
        self._batch = batch
        self._name = name
        self._scratch: Arrays = {}

    def _convert(self, inputs: Arrays, outputs: Arrays) -> None:
        samples = len(next(iter(inputs.values())))
        given = {
            spec.name: inputs[spec.name].astype(NUMPY_DTYPES[spec.dtype], copy=False)
            for spec in self._runtime.inputs
        }
        into = {
            spec.name: outputs[spec.name]
            if spec.name in outputs and outputs[spec.name].dtype == NUMPY_DTYPES[spec.dtype]
            else self._own(spec, samples)
            for spec in self._runtime.outputs
        }
        self._runtime.run(given, into)
        for name, output in outputs.items():
            # A tensor that the stage only hands on is not among the runtime's outputs.
            made = into.get(name, inputs.get(name))
            if made is None:
                raise InputError(self._name, f"gives no tensor {name!r}")
            if made is not output:
                np.copyto(output, made, casting="same_kind")

    def _own(self, spec: TensorSpec, samples: int) -> NDArray[np.generic]:
        """Memory for an output that cannot be written in place."""
        if spec.name not in self._scratch:
            shape = (self._batch, *spec.shape[1:])
            self._scratch[spec.name] = np.empty(shape, NUMPY_DTYPES[spec.dtype])
        return self._scratch[spec.name][:samples]


def _types(specs: Specs) -> dict[str, str]:
    return {spec.name: spec.dtype for spec in specs}
