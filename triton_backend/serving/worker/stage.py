"""The stages of a worker: loaded, warmed up, run from a slot into wherever their results belong.

Here: which runtime, types that differ between boundary and runtime (fp16 boundaries), tensors that a
stage only hands on, one run at a time, what the health board shows. Not here: which batch is next
(`queue`), where results go (`output`).
"""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import StageRow
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.emulated import LATENCY_OPTION, EmulatedRuntime
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serving.deployment import MIN_SLOTS, Deployment
from triton_backend.serving.liveness.processes import HealthRow
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.worker.queue import TaggedPlace
from triton_backend.serving.worker.scheduler_link import GatewayTime

WARM_UP_RUNS = 2
Specs = tuple[TensorSpec, ...]
_LOG = logging.getLogger(__name__)


class LoadedKey(NamedTuple):
    """What a runtime was loaded for: generations that agree in it run the same."""

    model: str
    blocks: tuple[int, int]
    artifact: str | None
    inputs: Specs
    outputs: Specs


def loaded_key(deployment: Deployment, row: StageRow) -> LoadedKey:
    """Of a stage."""
    stage = deployment.stage_of(row)
    return LoadedKey(
        deployment.model_of(row).name,
        stage.blocks,
        stage.artifact,
        deployment.inputs_of(row),
        deployment.outputs_of(row),
    )


def open_runtimes(deployment: Deployment, vgpu: int, clock: Clock) -> dict[LoadedKey, Runtime]:
    """Load every stage of a vGPU and run those that are real a few times at the planned batch.

    Stages of one artifact (a whole model's tail, which requests of several entries share) have one
    runtime.

    Raises:
        InputError: an artifact cannot be used, or its tensors are not the plan's.
    """
    runtimes: dict[LoadedKey, Runtime] = {}
    by_artifact: dict[str, Runtime] = {}
    for row in deployment.rows_of(vgpu):
        artifact, key = deployment.stage_of(row).artifact, loaded_key(deployment, row)
        if artifact is None:
            runtimes[key] = EmulatedRuntime(_emulated(deployment, row, vgpu), clock=clock)
            continue
        if artifact not in by_artifact:
            by_artifact[artifact] = _open(deployment, vgpu, artifact, clock)
        runtime = runtimes[key] = by_artifact[artifact]
        _check(deployment, row, artifact, runtime)
        inputs, outputs = _zeros_for(runtime, deployment.pipeline_of(row).batch)
        for _ in range(WARM_UP_RUNS):
            runtime.run(inputs, outputs)
    return runtimes


def _open(deployment: Deployment, vgpu: int, artifact: str, clock: Clock) -> Runtime:
    root = deployment.settings.artifacts
    if root is None:
        raise InputError("settings, artifacts", f"not set, but a stage needs {artifact!r}")
    return load_runtime(root / artifact, share=deployment.pool_of(vgpu).share, clock=clock)


def _check(deployment: Deployment, row: StageRow, artifact: str, runtime: Runtime) -> None:
    known = {spec.name for spec in deployment.inputs_of(row)}
    missing = {spec.name for spec in runtime.inputs} - known
    if missing:
        raise InputError(f"artifact {artifact}", f"takes {sorted(missing)}, not in the plan")


def _emulated(deployment: Deployment, row: StageRow, vgpu: int) -> Artifact:
    stage, settings = deployment.stage_of(row), deployment.settings
    return Artifact(
        runtime="emulated",
        gpu_class=deployment.pool_of(vgpu).gpu_class,
        inputs=deployment.inputs_of(row),
        outputs=deployment.outputs_of(row),
        max_batch=deployment.largest_of(row),
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
    """A stage on its vGPU, between arrays of the plan's types."""

    def __init__(self, deployment: Deployment, row: StageRow, runtime: Runtime) -> None:
        stage = deployment.stage_of(row)
        given, wanted = deployment.inputs_of(row), deployment.outputs_of(row)
        fits = _types(given) == _types(runtime.inputs) and (
            _types(wanted) == _types(runtime.outputs)
        )
        self._runtime = runtime
        self._name = f"stage {stage.blocks} of {deployment.model_of(row).name!r}"
        self._batch = deployment.pipeline_of(row).batch
        self._largest = deployment.largest_of(row)
        self._latency_us_by_batch = stage.latency_us_by_batch
        self.run: Callable[[Arrays, Arrays], None] = runtime.run if fits else self._convert
        self._scratch: Arrays = {}

    def expected_us(self, samples: int) -> int:
        """What a run of so many samples takes by its profile."""
        return self._latency_us_by_batch[samples - 1]

    @property
    def planned_us(self) -> int:
        """What the planned batch takes by its profile."""
        return self.expected_us(self._batch)

    def zeros_run(self) -> Callable[[], None]:
        """A run of a planned batch of zeros, whose results go nowhere."""
        return partial(self._runtime.run, *_zeros_for(self._runtime, self._batch))

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
            shape = (self._largest, *spec.shape[1:])
            self._scratch[spec.name] = np.empty(shape, NUMPY_DTYPES[spec.dtype])
        return self._scratch[spec.name][:samples]


class LoadedStages:
    """Every stage of a vGPU in every generation that it serves; one run at a time.

    Args:
        runtimes: loaded for the generation that the worker was started for; later ones use them too.
        health: the row in which the node sees for how long a run lasts already.
        time: in which runs are reported.
    """

    def __init__(
        self, runtimes: Mapping[LoadedKey, Runtime], health: HealthRow, time: GatewayTime
    ) -> None:
        self._runtimes = dict(runtimes)
        self._stages: dict[TaggedPlace, LoadedStage] = {}
        self._health = health
        self._time = time
        self._one_at_a_time = threading.Lock()

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Run the stages that the vGPU has in a generation.

        Raises:
            InputError: one of them has not been loaded.
        """
        stages: dict[TaggedPlace, LoadedStage] = {}
        for row in deployment.rows_of(vgpu):
            runtime = self._runtimes.get(loaded_key(deployment, row))
            if runtime is None:
                raise InputError(f"vGPU {vgpu}", f"stage {row.place} is not loaded here")
            stages[deployment.tag, *row.place] = LoadedStage(deployment, row, runtime)
        self._stages.update(stages)

    def forget(self, tag: int) -> None:
        """Run no more stages of a generation."""
        for place in [place for place in self._stages if place[0] == tag]:
            del self._stages[place]

    def expected_us(self, place: TaggedPlace, samples: int) -> int:
        """What a run of so many samples takes by its profile."""
        return self._stages[place].expected_us(samples)

    def run(
        self, place: TaggedPlace, inputs: Arrays, outputs: Arrays, samples: int
    ) -> tuple[int, int]:
        """Run a stage once, from inputs into outputs of [samples, ...]; waits while another runs.

        Returns:
            when it began and ended (gateway's time).

        Raises:
            InputError: an output is asked for that the stage neither makes nor hands on; or
                whatever the runtime raises.
        """
        stage = self._stages[place]
        return self._timed(partial(stage.run, inputs, outputs), stage.expected_us(samples))

    def run_on_zeros(self) -> tuple[int, int]:
        """Run a planned batch of zeros at the first stage of the latest generation, as `run`."""
        tag = next(reversed(self._stages))[0]
        stage = next(stage for place, stage in self._stages.items() if place[0] == tag)
        return self._timed(stage.zeros_run(), stage.planned_us)

    def _timed(self, run: Callable[[], None], expected_us: int) -> tuple[int, int]:
        with self._one_at_a_time:
            start_us = self._time.local_now_us()
            self._health.busy(start_us, expected_us)
            try:
                run()
                ahead_us = self._time.ahead_us
                return start_us - ahead_us, self._time.local_now_us() - ahead_us
            finally:
                self._health.idle()

    def pin(self, segment: Segment) -> None:
        """Let the runtimes copy to their GPU straight from the slots that are used most.

        Slots freed last are granted first, so nearly all batches lie in the first few. Pinned pages are
        taken at once: all slots would be memory that is seldom used.
        """
        for runtime in self._each():
            try:
                runtime.register(segment.first_slots(MIN_SLOTS))
            except PoolPipeError as error:
                _LOG.warning("inputs are copied once more on their way to the GPU: %s", error)

    def close(self) -> None:
        """Give up the runtimes, the last one first, and the memory that they have pinned."""
        for runtime in reversed(self._each()):
            runtime.close()

    def _each(self) -> list[Runtime]:
        """Every runtime once: stages of one artifact share it."""
        return list({id(runtime): runtime for runtime in self._runtimes.values()}.values())


def _types(specs: Specs) -> dict[str, str]:
    return {spec.name: spec.dtype for spec in specs}
