"""The stages of a worker: loaded, warmed up, run from a slot into wherever their results belong.

Here: which runtime, types that differ between boundary and runtime (fp16 boundaries), tensors that
a stage only hands on, one run at a time, what the health board shows. Not here: which batch is next
(`queue`), where results go (`output`).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError, PoolPipeError
from triton_backend.contract.plan import Stage, StageRow
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.transition.workers import StageKey, runs, stage_key
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.emulated import (
    INTERFERENCE_OPTION,
    LATENCY_OPTION,
    ROWS_OPTION,
    SHAPES_OPTION,
    EmulatedRuntime,
    Pressing,
)
from triton_backend.runtimes.python_step.package import check_named
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serve_folder.settings import OVERLAP
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.workers import HealthRow
from triton_backend.serving.transport.shared_memory import Arrays, Segment
from triton_backend.serving.worker.on_demand import OnDemandRuntime, Residents
from triton_backend.serving.worker.queue import TaggedPlace
from triton_backend.serving.worker.scheduler_link import GatewayTime

WARM_UP_RUNS = 2
Specs = tuple[TensorSpec, ...]
_LOG = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A runtime, and the stage that it was loaded for.

    Generations that agree in it run the same.
    """

    key: StageKey
    stage: Stage
    runtime: Runtime

    @classmethod
    def of(cls, deployment: Deployment, row: StageRow, runtime: Runtime) -> Self:
        """A runtime that was loaded for a stage of a generation."""
        return cls(stage_key(deployment.plan, row), deployment.stage_of(row), runtime)

    def can_run(self, deployment: Deployment, row: StageRow) -> bool:
        """True if it runs a stage, of whichever generation."""
        wanted = stage_key(deployment.plan, row)
        return self.key == wanted and runs(self.stage, deployment.stage_of(row))


def open_runtimes(
    deployment: Deployment,
    vgpu: int,
    clock: Clock,
    held: Sequence[Loaded] = (),
    pressing: Pressing | None = None,
) -> list[Loaded]:
    """Load every stage of a vGPU that nothing `held` can run; run those that are real a few times.

    Those that are loaded on demand are only looked at. `pressing` is what runs beside it, where
    interference is emulated.

    Stages of one artifact (a whole model's tail, which requests of several entries share) have one
    runtime.

    Raises:
        InputError: an artifact cannot be used, or its tensors are not the plan's.
    """
    found: list[Loaded] = []
    on_demand = [one.runtime for one in held if isinstance(one.runtime, OnDemandRuntime)]
    residents = on_demand[0].residents if on_demand else Residents()
    by_artifact = {one.key.artifact: one.runtime for one in held if one.stage.load_us is None}
    for row in deployment.rows_of(vgpu):
        if any(one.can_run(deployment, row) for one in (*held, *found)):
            continue
        stage = deployment.stage_of(row)
        runtime: Runtime
        if stage.load_us is not None:
            runtime = _on_demand(deployment, row, vgpu, residents, clock, pressing)
        elif stage.artifact is None:
            artifact = _emulated(deployment, row, vgpu)
            runtime = EmulatedRuntime(artifact, clock=clock, pressing=pressing)
        else:
            if stage.artifact not in by_artifact:
                by_artifact[stage.artifact] = _open(deployment, vgpu, stage.artifact, clock)
            runtime = by_artifact[stage.artifact]
            _check(deployment, row, stage.artifact, runtime)
            # The largest batch that the policy may send: what was built for less fails here, not
            # later.
            inputs, outputs = _zeros_for(
                runtime, deployment.most_in_a_run(row), deployment.written_by(row)
            )
            for _ in range(WARM_UP_RUNS):
                runtime.run(inputs, outputs)
        found.append(Loaded.of(deployment, row, runtime))
    return found


def _on_demand(
    deployment: Deployment,
    row: StageRow,
    vgpu: int,
    residents: Residents,
    clock: Clock,
    pressing: Pressing | None,
) -> Runtime:
    """A stage that its runs load; what its manifest says is checked now."""
    stage = deployment.stage_of(row)
    if stage.memory is None or stage.load_us is None:
        raise InvariantError("a stage without memory and load is not loaded on demand")
    if stage.artifact is None:
        manifest = _emulated(deployment, row, vgpu)
        emulated = EmulatedRuntime(manifest, clock=clock, pressing=pressing)
        load_us = round(stage.load_us * deployment.settings.time_stretch)

        def open_it() -> Runtime:
            clock.sleep_until_us(clock.now_us() + load_us)
            return emulated
    else:
        manifest = Artifact.read(_folder(deployment, stage.artifact))
        open_it = partial(_open, deployment, vgpu, stage.artifact, clock)
        largest = deployment.most_in_a_run(row)
        if manifest.max_batch < largest:
            reason = f"built for batches of {manifest.max_batch}, the plan has {largest}"
            raise InputError(f"artifact {stage.artifact}", reason)
    specs = manifest.inputs, manifest.outputs
    runtime = OnDemandRuntime(residents, stage.memory.static, specs, open_it)
    if stage.artifact is not None:
        _check(deployment, row, stage.artifact, runtime)
    return runtime


def _folder(deployment: Deployment, artifact: str) -> Path:
    root = deployment.settings.artifacts
    if root is None:
        raise InputError("settings, artifacts", f"not set, but a stage needs {artifact!r}")
    return root / artifact


def _open(deployment: Deployment, vgpu: int, artifact: str, clock: Clock) -> Runtime:
    folder = _folder(deployment, artifact)
    check_named(Artifact.read(folder), deployment.plan.workload.steps, f"artifact {artifact}")
    return load_runtime(folder, share=deployment.pool_of(vgpu).share, clock=clock)


def _check(deployment: Deployment, row: StageRow, artifact: str, runtime: Runtime) -> None:
    known = {spec.name for spec in deployment.inputs_of(row)}
    missing = {spec.name for spec in runtime.inputs} - known
    if missing:
        raise InputError(f"artifact {artifact}", f"takes {sorted(missing)}, not in the plan")


def _emulated(deployment: Deployment, row: StageRow, vgpu: int) -> Artifact:
    stage, settings = deployment.stage_of(row), deployment.settings
    drawn = deployment.applications.drawn_rows(deployment.model_of(row).name)
    made = {spec.name for spec in deployment.written_by(row)}
    seat = deployment.seat_of(row) if settings.interference == OVERLAP else None
    return Artifact(
        runtime="emulated",
        gpu_class=deployment.pool_of(vgpu).gpu_class,
        inputs=deployment.inputs_of(row),
        outputs=deployment.outputs_of(row),
        max_batch=deployment.most_in_a_run(row),
        options={
            LATENCY_OPTION: [
                (us - (stage.load_us or 0)) * settings.time_stretch
                for us in stage.latency_us_by_batch
            ],
            "noise_sigma": settings.noise,
            "seed": settings.seed + vgpu,
            INTERFERENCE_OPTION: seat and (seat.factor, seat.susceptibility),
            ROWS_OPTION: {
                output: (counts, mean)
                for output, (counts, _, mean) in drawn.items()
                if {output, counts} <= made
            },
            SHAPES_OPTION: {
                output: (
                    shapes,
                    deployment.applications.shares_of(deployment.model_of(row).name, output),
                )
                for output, shapes in deployment.applications.choices(
                    deployment.model_of(row).name
                ).items()
                if output in made
            },
        },
    )


def _zeros_for(runtime: Runtime, batch: int, room: Specs) -> tuple[Arrays, Arrays]:
    """Zeros for a stage to run on, and room for results that go nowhere."""
    shapes = {spec.name: spec.shape[1:] for spec in room}
    inputs = {
        s.name: np.zeros((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in runtime.inputs
    }
    outputs = {
        s.name: np.empty((batch, *shapes.get(s.name, s.shape[1:])), NUMPY_DTYPES[s.dtype])
        for s in runtime.outputs
    }
    return inputs, outputs


def _each(loaded: Iterable[Loaded]) -> list[Runtime]:
    """Every runtime once: stages of one artifact share it."""
    return list({id(one.runtime): one.runtime for one in loaded}.values())


def pin(loaded: Iterable[Loaded], segment: Segment, slots: int) -> None:
    """Let runtimes copy to their GPU straight from the first slots, which are used most.

    Slots freed last are granted first, so nearly all batches lie in the first few. Pinned pages are
    taken at once: all slots would be memory that is seldom used.
    """
    for runtime in _each(loaded):
        try:
            runtime.register(segment.first_slots(slots))
        except PoolPipeError as error:
            _LOG.warning("inputs are copied once more on their way to the GPU: %s", error)


class LoadedStage:
    """A stage on its vGPU, between arrays of the plan's types."""

    def __init__(self, deployment: Deployment, row: StageRow, runtime: Runtime) -> None:
        stage = deployment.stage_of(row)
        given, wanted = deployment.inputs_of(row), deployment.outputs_of(row)
        fits = _types(given) == _types(runtime.inputs) and (
            _types(wanted) == _types(runtime.outputs)
        )
        self.runtime = runtime
        self._name = f"stage {stage.blocks} of {deployment.model_of(row).name!r}"
        self._batch = deployment.planned_batch(row)
        self._largest = deployment.most_in_a_run(row)
        self._latency_us_by_batch = stage.latency_us_by_batch
        seat = deployment.seat_of(row)
        self.pressure = 0.0 if seat is None else seat.pressure
        self.patience_us = deployment.step_patience_us[row.place[0]]
        self.run: Callable[[Arrays, Arrays], None] = runtime.run if fits else self._convert
        self._takes = given
        self._room = deployment.written_by(row)
        self._scratch: Arrays = {}
        self._joint: tuple[Arrays, Arrays] | None = None

    def expected_us(self, samples: int) -> int:
        """The profiled time of a run of so many samples."""
        return self._latency_us_by_batch[samples - 1]

    @property
    def planned_batch(self) -> int:
        """Samples of a planned batch."""
        return self._batch

    def zeros_run(self) -> Callable[[], None]:
        """A run of a planned batch of zeros, whose results go nowhere."""
        return partial(self.runtime.run, *_zeros_for(self.runtime, self._batch, self._room))

    def run_together(self, given: Sequence[Arrays], samples: int) -> Arrays:
        """Run batches as one.

        Returns the results of all, one after the other, until the next run.
        """
        if self._joint is None:
            self._joint = _empty(self._takes, self._largest), _empty(self._room, self._largest)
        inputs, outputs = ({n: a[:samples] for n, a in side.items()} for side in self._joint)
        if len(given) == 1:
            inputs = given[0]
        else:
            for name, array in inputs.items():
                np.concatenate([one[name] for one in given], out=array, casting="same_kind")
        self.run(inputs, outputs)
        return outputs

    def _convert(self, inputs: Arrays, outputs: Arrays) -> None:
        samples = len(next(iter(inputs.values())))
        given = {
            spec.name: inputs[spec.name].astype(NUMPY_DTYPES[spec.dtype], copy=False)
            for spec in self.runtime.inputs
        }
        into = {
            spec.name: outputs[spec.name]
            if spec.name in outputs and outputs[spec.name].dtype == NUMPY_DTYPES[spec.dtype]
            else self._own(spec, samples)
            for spec in self.runtime.outputs
        }
        self.runtime.run(given, into)
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
            named = [one for one in self._room if one.name == spec.name]
            shape = (self._largest, *(named or [spec])[0].shape[1:])
            self._scratch[spec.name] = np.empty(shape, NUMPY_DTYPES[spec.dtype])
        return self._scratch[spec.name][:samples]


class LoadedStages:
    """Every stage of a vGPU in every generation that it serves; one run at a time.

    Args:
        loaded: for the generation that the worker was started for; later ones use them too.
        health: the row in which the node sees for how long a run lasts already.
        time: in which runs are reported.
    """

    def __init__(self, loaded: Iterable[Loaded], health: HealthRow, time: GatewayTime) -> None:
        self._loaded = list(loaded)
        self._stages: dict[TaggedPlace, LoadedStage] = {}
        self._health = health
        self._time = time
        self._one_at_a_time = threading.Lock()
        self._loads = 0  # loads under way, which may use whatever is loaded
        self._ends_us = 0  # profiled time of the run (as this host counts)

    @property
    def ends_us(self) -> int:
        """When what runs or ran last ends by its profile (gateway's time)."""
        return self._ends_us - self._time.ahead_us

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Run the stages that the vGPU has in a generation.

        Raises:
            InputError: one of them has not been loaded.
        """
        stages: dict[TaggedPlace, LoadedStage] = {}
        for row in deployment.rows_of(vgpu):
            runtime = self._runtime_for(deployment, row)
            if runtime is None:
                raise InputError(f"vGPU {vgpu}", f"stage {row.place} is not loaded here")
            if isinstance(runtime, OnDemandRuntime):
                room = deployment.plan.room_bytes(row.pool)
                runtime.residents.serve(deployment.tag, room)
            stages[deployment.tag, *row.place] = LoadedStage(deployment, row, runtime)
        self._stages.update(stages)

    def _runtime_for(self, deployment: Deployment, row: StageRow) -> Runtime | None:
        can_run = (one.runtime for one in self._loaded if one.can_run(deployment, row))
        return next(can_run, None)

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """Everything that is loaded."""
        return tuple(self._loaded)

    def lacks(self, deployment: Deployment, vgpu: int) -> bool:
        """True if stages must be loaded before a generation can be served."""
        rows = deployment.rows_of(vgpu)
        return any(self._runtime_for(deployment, row) is None for row in rows)

    def begin_load(self) -> None:
        """Keep what is loaded until `end_load`; both are called in the thread that polls."""
        self._loads += 1

    def end_load(self, loaded: Iterable[Loaded]) -> None:
        """More runtimes, loaded while others ran; none where that failed."""
        self._loads -= 1
        self._loaded.extend(loaded)

    def forget(self, tag: int) -> None:
        """Run no more stages of a generation, and give up what no other generation runs."""
        for place in [place for place in self._stages if place[0] == tag]:
            runtime = self._stages.pop(place).runtime
            if isinstance(runtime, OnDemandRuntime):
                runtime.residents.forget(tag)
        self.forget_unused()

    def forget_unused(self) -> None:
        """Give up what no generation runs, unless more is loaded just now."""
        if self._loads:
            return
        used = {id(stage.runtime) for stage in self._stages.values()}
        unused = {
            id(one.runtime): one.runtime for one in self._loaded if id(one.runtime) not in used
        }
        self._loaded = [one for one in self._loaded if id(one.runtime) in used]
        with self._one_at_a_time:
            for runtime in unused.values():
                runtime.close()

    def expected_us(self, place: TaggedPlace, samples: int) -> int:
        """The profiled time of a run of so many samples."""
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
        return self._timed(stage, partial(stage.run, inputs, outputs), samples)

    def run_together(
        self, place: TaggedPlace, given: Sequence[Arrays], samples: int
    ) -> tuple[Arrays, tuple[int, int]]:
        """Run batches of so many samples in all as one, as `run`.

        Returns:
            the results of all, one after the other, until the next run; when it began and ended.
        """
        stage, made = self._stages[place], list[Arrays]()

        def run() -> None:
            made.append(stage.run_together(given, samples))

        span_us = self._timed(stage, run, samples)
        return made[0], span_us

    def run_on_zeros(self, tag: int) -> tuple[int, int]:
        """Run a planned batch of zeros at the first stage of a generation, as `run`.

        Raises:
            InputError: the generation is not served here; or as `run`.
        """
        stage = next((stage for place, stage in self._stages.items() if place[0] == tag), None)
        if stage is None:
            raise InputError("pace probe", f"plan {tag:016x} is not served here")
        return self._timed(stage, stage.zeros_run(), stage.planned_batch)

    def _timed(self, stage: LoadedStage, run: Callable[[], None], samples: int) -> tuple[int, int]:
        with self._one_at_a_time:
            start_us = self._time.local_now_us()
            expected_us = stage.expected_us(samples)
            self._ends_us = start_us + expected_us
            self._health.busy(start_us, expected_us, stage.pressure, stage.patience_us)
            try:
                run()
                ahead_us = self._time.ahead_us
                return start_us - ahead_us, self._time.local_now_us() - ahead_us
            finally:
                self._health.idle()

    def close(self) -> None:
        """Give up the runtimes, the last one first, and the memory that they have pinned."""
        for runtime in reversed(_each(self._loaded)):
            runtime.close()


def _empty(specs: Specs, samples: int) -> Arrays:
    return {s.name: np.empty((samples, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in specs}


def _types(specs: Specs) -> dict[str, str]:
    return {spec.name: spec.dtype for spec in specs}
