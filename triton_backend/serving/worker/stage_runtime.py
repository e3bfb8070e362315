"""The runtime of a vGPU's stage: from its artifact, or emulated where the plan names none."""

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact, Runtime
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.emulated import LATENCY_OPTION, EmulatedRuntime
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Arrays

WARM_UP_RUNS = 2


def open_runtime(deployment: Deployment, vgpu: int, clock: Clock) -> Runtime:
    """Load a stage and, where it is real, run it a few times at the planned batch.

    Raises:
        InputError: the artifact cannot be used, or its tensors are not the plan's.
    """
    stage, settings = deployment.stage_of(vgpu), deployment.settings
    if stage.artifact is None:
        return EmulatedRuntime(_emulated(deployment, vgpu), clock=clock)
    if settings.artifacts is None:
        raise InputError("settings, artifacts", f"not set, but a stage needs {stage.artifact!r}")
    runtime = load_runtime(
        settings.artifacts / stage.artifact, vgpu_divisor=stage.vgpu_divisor, clock=clock
    )
    known = {spec.name for spec in deployment.inputs_of(vgpu)}
    missing = {spec.name for spec in runtime.inputs} - known
    if missing:
        raise InputError(
            str(settings.artifacts / stage.artifact), f"takes {sorted(missing)}, not in the plan"
        )
    inputs, outputs = nothing_for(runtime, deployment.pipeline_of(vgpu).batch)
    for _ in range(WARM_UP_RUNS):
        runtime.run(inputs, outputs)
    return runtime


def _emulated(deployment: Deployment, vgpu: int) -> Artifact:
    stage, settings = deployment.stage_of(vgpu), deployment.settings
    return Artifact(
        runtime="emulated",
        gpu_class=stage.gpu_class,
        inputs=deployment.inputs_of(vgpu),
        outputs=deployment.outputs_of(vgpu),
        max_batch=deployment.pipeline_of(vgpu).batch,
        options={
            LATENCY_OPTION: [us * settings.time_stretch for us in stage.latency_us_by_batch],
            "noise_sigma": settings.noise,
            "seed": settings.seed + vgpu,
        },
    )


def nothing_for(runtime: Runtime, batch: int) -> tuple[Arrays, Arrays]:
    """Zeros for a stage to run on, and room for results that go nowhere."""
    inputs = {
        s.name: np.zeros((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in runtime.inputs
    }
    outputs = {
        s.name: np.empty((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype]) for s in runtime.outputs
    }
    return inputs, outputs
