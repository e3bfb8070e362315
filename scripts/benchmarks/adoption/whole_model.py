"""The Triton Python model of `batcher`: a whole model on one vGPU, in the batches Triton forms.

A file of instances says of each which runtime it is and what it takes and gives. Triton's stub
imports this module and nothing else of the scripts.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Triton's stub provides it.
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime, Tensors
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.emulated import LATENCY_OPTION, EmulatedRuntime
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serving.liveness.ends import end_with, parent_named
from triton_backend.serving.transport.sched_tuning import ask_for_exact_timers, ask_for_short_slices

INSTANCES = "instances"  # the parameter that names the file
SERVER_PROCESS = "tritonserver"
WARM_UP_RUNS = 2


class WholeModel:
    """One instance. Batches of one run at a time; it waits as a worker of ours would."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the stage and run it a few times, at its largest batch."""
        server = parent_named(SERVER_PROCESS)
        if server is not None:
            end_with(server, lambda: os._exit(1))
        ask_for_short_slices()
        ask_for_exact_timers()
        config = json.loads(args["model_config"])
        file = Path(config["parameters"][INSTANCES]["string_value"])
        settings = json.loads(file.read_text())
        inputs = tuple(map(TensorSpec.from_dict, settings["inputs"]))
        self._outputs = tuple(map(TensorSpec.from_dict, settings["outputs"]))
        self._inputs = tuple(spec.name for spec in inputs)
        one = settings[INSTANCES][number_of(args["model_instance_name"])]
        os.environ.update(one["environment"])  # the GPU, before CUDA looks for one
        self._runtime = opened(one, inputs, self._outputs)
        largest = int(config["max_batch_size"])
        zeros = {s.name: np.zeros((largest, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in inputs}
        for _ in range(WARM_UP_RUNS if one["artifact"] else 0):
            self._runtime.run(zeros, self._room(largest))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Run the requests as one batch and give each its rows."""
        given = [{name: _array(request, name) for name in self._inputs} for request in requests]
        sizes = [len(one[self._inputs[0]]) for one in given]
        batch = {name: np.concatenate([one[name] for one in given]) for name in self._inputs}
        out = self._room(sum(sizes))
        try:
            self._runtime.run(batch, out)
        except Exception as error:  # noqa: BLE001  # the batch's requests alone may fail
            print(f"a batch of {sizes}: {error!r}", file=sys.stderr)
            refused = triton.TritonError(str(error))
            return [triton.InferenceResponse([], refused) for _ in requests]
        return [
            triton.InferenceResponse([triton.Tensor(n, rows) for n, rows in one.items()])
            for one in parts(out, sizes)
        ]

    def finalize(self) -> None:
        """Give back what the stage took."""
        self._runtime.close()

    def _room(self, batch: int) -> dict[str, NDArray[np.generic]]:
        return {
            spec.name: np.empty((batch, *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
            for spec in self._outputs
        }


def _array(request: Any, name: str) -> NDArray[np.generic]:
    return triton.get_input_tensor_by_name(request, name).as_numpy()


def number_of(instance: str) -> int:
    """The number of an instance among those of its group, of which one alone may bear none.

    Raises:
        InputError: the name ends in no number.
    """
    found = re.fullmatch(r"[a-z]+(?:_(\d+))?", instance)
    if found is None:
        raise InputError(f"instance {instance!r}", "is not the group's name and a number")
    return int(found[1] or 0)


def opened(
    one: Mapping[str, Any], inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Runtime:
    """The runtime of an instance: its artifact, or one that waits the latencies it states.

    Raises:
        InputError: the artifact cannot be used here.
    """
    clock = SystemClock()
    if one["artifact"] is not None:
        return load_runtime(Path(one["artifact"]), share=one["share"], clock=clock)
    latencies = one[LATENCY_OPTION]
    artifact = Artifact(
        runtime="emulated",
        gpu_class=one["gpu_class"],
        inputs=inputs,
        outputs=outputs,
        max_batch=len(latencies),
        options={LATENCY_OPTION: latencies},
    )
    return EmulatedRuntime(artifact, clock=clock)


def parts(out: Tensors, sizes: Sequence[int]) -> Iterator[dict[str, NDArray[np.generic]]]:
    """The rows of each request of a batch."""
    begin = 0
    for size in sizes:
        yield {name: rows[begin : begin + size] for name, rows in out.items()}
        begin += size
