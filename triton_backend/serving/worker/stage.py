"""The stage of a worker: loaded, warmed up, run from a slot into wherever its results belong.

Here: which runtime, types that differ between boundary and runtime (fp16 boundaries), tensors that a
stage only hands on, one run at a time, what the health board shows. Not here: which batch is next
(`queue`), where results go (`output`).
"""

import logging
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.emulated import LATENCY_OPTION, EmulatedRuntime
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serving.deployment import MIN_SLOTS, Deployment
from triton_backend.serving.liveness.processes import HealthBoard
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.worker.scheduler_link import GatewayTime

WARM_UP_RUNS = 2
Specs = tuple[TensorSpec, ...]
_LOG = logging.getLogger(__name__)


def open_runtime(deployment: Deployment, vgpu: int, clock: Clock) -> Runtime:
    """Load the stage of a vGPU and, where it is real, run it a few times at the planned batch.

    Raises:
        InputError: the artifact cannot be used, or its tensors are not the plan's.
    """
    stage, settings = deployment.stage_of(vgpu), deployment.settings
    if stage.artifact is None:
        return EmulatedRuntime(_emulated(deployment, vgpu), clock=clock)
    if settings.artifacts is None:
        raise InputError("settings, artifacts", f"not set, but a stage needs {stage.artifact!r}")
    path = settings.artifacts / stage.artifact
    runtime = load_runtime(path, vgpu_divisor=deployment.divisor_of(vgpu), clock=clock)
    known = {spec.name for spec in deployment.inputs_of(vgpu)}
    missing = {spec.name for spec in runtime.inputs} - known
    if missing:
        raise InputError(str(path), f"takes {sorted(missing)}, not in the plan")
    inputs, outputs = _zeros_for(runtime, deployment.pipeline_of(vgpu).batch)
    for _ in range(WARM_UP_RUNS):
        runtime.run(inputs, outputs)
    return runtime


def _emulated(deployment: Deployment, vgpu: int) -> Artifact:
    stage, settings = deployment.stage_of(vgpu), deployment.settings
    return Artifact(
        runtime="emulated",
        gpu_class=deployment.pool_of(vgpu).gpu_class,
        inputs=deployment.inputs_of(vgpu),
        outputs=deployment.outputs_of(vgpu),
        max_batch=deployment.pipeline_of(vgpu).batch,
        options={
            LATENCY_OPTION: [us * settings.time_stretch for us in stage.latency_us_by_batch],
            "noise_sigma": settings.noise,
            "seed": settings.seed + vgpu,
        },
    )


def _zeros_for(runtime: Runtime, batch: int) -> tuple[Arrays, Arrays]:
    """Zeros for a stage to run on, and room for results that go nowhere."""
    inputs = {
        s.name: np.zeros((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in runtime.inputs
    }
    outputs = {
        s.name: np.empty((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in runtime.outputs
    }
    return inputs, outputs


class LoadedStage:
    """A stage on its vGPU, between arrays of the plan's types.

    Args:
        board: where the node sees for how long a run lasts already.
        time: in which runs are reported.
    """

    def __init__(
        self,
        deployment: Deployment,
        vgpu: int,
        runtime: Runtime,
        board: HealthBoard,
        time: GatewayTime,
    ) -> None:
        stage = deployment.stage_of(vgpu)
        given, wanted = deployment.inputs_of(vgpu), deployment.outputs_of(vgpu)
        fits = _types(given) == _types(runtime.inputs) and (
            _types(wanted) == _types(runtime.outputs)
        )
        self._vgpu = vgpu
        self._name = f"stage {stage.blocks}"
        self._batch = deployment.pipeline_of(vgpu).batch
        self._latency_us_by_batch = stage.latency_us_by_batch
        self._runtime = runtime
        self._execute: Callable[[Arrays, Arrays], None] = runtime.run if fits else self._convert
        self._scratch: Arrays = {}
        self._board = board
        self._time = time
        self._one_at_a_time = threading.Lock()

    def expected_us(self, samples: int) -> int:
        """What a run of so many samples takes by its profile."""
        return self._latency_us_by_batch[samples - 1]

    def run(self, inputs: Arrays, outputs: Arrays, samples: int) -> tuple[int, int]:
        """Run once, from inputs into outputs of [samples, ...]; waits while another thread runs.

        Returns:
            when it began and ended (gateway's time).

        Raises:
            InputError: an output is asked for that the stage neither makes nor hands on; or
                whatever the runtime raises.
        """
        return self._timed(self._execute, inputs, outputs, samples)

    def run_on_zeros(self) -> tuple[int, int]:
        """Run a full batch of zeros, as `run`."""
        inputs, outputs = _zeros_for(self._runtime, self._batch)
        return self._timed(self._runtime.run, inputs, outputs, self._batch)

    def _timed(
        self,
        execute: Callable[[Arrays, Arrays], None],
        inputs: Arrays,
        outputs: Arrays,
        samples: int,
    ) -> tuple[int, int]:
        with self._one_at_a_time:
            start_us = self._time.local_now_us()
            self._board.busy(self._vgpu, start_us, self.expected_us(samples))
            try:
                execute(inputs, outputs)
                ahead_us = self._time.ahead_us
                return start_us - ahead_us, self._time.local_now_us() - ahead_us
            finally:
                self._board.idle(self._vgpu)

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

    def pin(self, segment: Segment) -> None:
        """Let the runtime copy to its GPU straight from the slots that are used most.

        Slots freed last are granted first, so nearly all batches lie in the first few. Pinned pages are
        taken at once: all slots would be memory that is seldom used.
        """
        try:
            self._runtime.register(segment.first_slots(MIN_SLOTS))
        except PoolPipeError as error:
            _LOG.warning("inputs are copied once more on their way to the GPU: %s", error)

    def close(self) -> None:
        """Give up the runtime, and the memory that it has pinned."""
        self._runtime.close()


def _types(specs: Specs) -> dict[str, str]:
    return {spec.name: spec.dtype for spec in specs}
