"""Whole models behind Triton's own dynamic batcher, served: what a plan is compared with.

A plan of whole models becomes a model repository as people tune it by hand: for each model a Python
model with an instance per vGPU, preferred batch sizes and a maximum queue delay. An instance runs
the model by the runtime that a worker of ours would run it by, emulated where the plan names no
artifacts. Nothing of PoolPipe takes part in queues and batches, so that only they differ.

Queues have no `default_timeout_microseconds`: with one, Triton leaves requests waiting beside free
instances (its issue 8870), and loses goodput that it holds without.

    python -m scripts.benchmarks.adoption.batcher PLAN --reference PLAN --load LOAD [LOAD ...]
        --out FILE [FILE ...] [--seconds 20] [--artifacts DIR] [--delay-share 0] [--port 18800]

serves PLAN under each load, a share of the planned rates of the reference, and writes what
`poolpipe load --json` says of each into a file.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from flows.clock import Stopwatch
from scripts.benchmarks.served import Load, stop_when_terminated
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Plan, Slot, Stage
from triton_backend.contract.shares import runs_beside
from triton_backend.contract.tensors import BYTES, TensorSpec
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.emulated import LATENCY_OPTION
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serving.server.command import (
    environment_folders,
    lay_out_backends,
    server_environment,
    wheel_folder,
)

GROUP = "vgpu"
INSTANCES = "instances"
MODEL = '''"""The code is `scripts.benchmarks.adoption.whole_model`."""

from scripts.benchmarks.adoption.whole_model import WholeModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''
READY_SECONDS, POLL_SECONDS, STOP_SECONDS = 180.0, 0.2, 15.0
SHARED_FOLDER = Path("/dev/shm")  # noqa: S108  # Linux's shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherOptions:
    """How the batcher is set, and where models run.

    Attributes:
        delay_share: the maximum queue delay, as a share of each SLO.
        artifacts: root of those that the plan names.
        mps: the daemon of instances that are a part of a GPU.
    """

    delay_share: float = 0.0
    artifacts: Path | None = None
    mps: MpsDaemon | None = None

    def manifest(self, stage: Stage) -> Artifact | None:
        """Of the artifact that runs a stage; None where it is emulated.

        Raises:
            InputError: there is no folder of artifacts, or it lacks this one.
        """
        if stage.artifact is None:
            return None
        if self.artifacts is None:
            reason = f"the plan names {stage.artifact!r}, and no folder is given"
            raise InputError("artifacts", reason)
        return Artifact.read(self.artifacts / stage.artifact)

    def on_parts(self, plan: Plan) -> bool:
        """True if an instance is a part of a GPU, so that it needs MPS."""
        stages = [stage for model in plan.models for stage in _stages(model)]
        return any(
            found is not None and found.device == CUDA and runs_beside(plan.pool_of(stage).share)
            for stage in stages
            for found in (self.manifest(stage),)
        )


def write_repository(folder: Path, plan: Plan, options: BatcherOptions) -> None:
    """Write the model repository of a plan of whole models: a folder per model.

    Tensors that the plan does not name are those that our own fronts would take.

    Raises:
        InputError: a model runs in stages, shares a pool, or takes texts; or as `manifest`.
    """
    plan = complete_tensors(plan)
    _check(plan)
    for model in plan.models:
        place = folder / model.name
        (place / "1").mkdir(parents=True)
        (place / "1" / "model.py").write_text(MODEL)
        file = place / f"{INSTANCES}.json"
        rows = [row for stage in _stages(model) for row in _instances(plan, stage, options)]
        settings = {
            "inputs": [spec.to_dict() for spec in model.inputs],
            "outputs": [spec.to_dict() for spec in model.outputs],
            INSTANCES: rows,
        }
        file.write_text(json.dumps(settings, indent=1) + "\n")
        delay_us = round(options.delay_share * model.slo_us)
        text = configuration(model, sizes_of(model, options), len(rows), delay_us, file)
        (place / "config.pbtxt").write_text(text)


def _check(plan: Plan) -> None:
    names = [stage.pool for model in plan.models for stage in _stages(model)]
    for model in plan.models:
        where = f"model {model.name!r}"
        if any(len(pipeline.stages) > 1 for pipeline in model.pipelines):
            raise InputError(where, "runs in stages; Triton's batcher runs whole models")
        if any(names.count(stage.pool) > 1 for stage in _stages(model)):
            raise InputError(where, "shares a pool of vGPUs, which instances do not")
        if any(spec.dtype == BYTES for spec in (*model.inputs, *model.outputs)):
            raise InputError(where, "takes or gives texts, which are not compared")


def _stages(model: ModelPlan) -> list[Stage]:
    return [stage for pipeline in model.pipelines for stage in pipeline.stages]


def _instances(plan: Plan, stage: Stage, options: BatcherOptions) -> list[dict[str, Any]]:
    """One row for each vGPU of a stage's pool."""
    pool, manifest = plan.pool_of(stage), options.manifest(stage)
    folder = None
    if stage.artifact is not None and options.artifacts is not None:
        folder = str((options.artifacts / stage.artifact).resolve())
    row = {
        "artifact": folder,
        "share": pool.share,
        "gpu_class": pool.gpu_class,
        LATENCY_OPTION: list(stage.latency_us_by_batch),
    }

    def environment(slot: Slot) -> dict[str, str]:
        if manifest is None or manifest.device != CUDA:
            return {}
        gpu = plan.cluster.node_group_of(slot.node).device(slot.gpu)
        mps = options.mps
        return gpu_environment(gpu) if mps is None else mps.environment(gpu, pool.share)

    return [row | {"environment": environment(slot)} for slot in pool.slots()]


def sizes_of(model: ModelPlan, options: BatcherOptions) -> list[int]:
    """Preferred batch sizes: those that were planned and the largest that every instance runs.

    As in the simulator's policy `triton`.
    """
    stages = _stages(model)
    built = [found.max_batch for found in map(options.manifest, stages) if found is not None]
    most = min(built + [len(stage.latency_us_by_batch) for stage in stages])
    return sorted({min(pipeline.batch, most) for pipeline in model.pipelines} | {most})


def configuration(
    model: ModelPlan, sizes: Sequence[int], instances: int, delay_us: int, file: Path
) -> str:
    """The `config.pbtxt` of a model."""

    def tensors(kind: str, specs: Sequence[TensorSpec]) -> list[str]:
        return [
            f"{kind} {{ name: {json.dumps(spec.name)} data_type: TYPE_{spec.dtype}"
            f" dims: {list(spec.shape[1:])} }}"
            for spec in specs
        ]

    return "\n".join(
        [
            f"name: {json.dumps(model.name)}",
            'backend: "python"',
            f"max_batch_size: {max(sizes)}",
            *tensors("input", model.inputs),
            *tensors("output", model.outputs),
            f'instance_group {{ name: "{GROUP}" kind: KIND_CPU count: {instances} }}',
            "dynamic_batching {",
            f"  preferred_batch_size: {list(sizes)}",
            f"  max_queue_delay_microseconds: {delay_us}",
            "}",
            f'parameters {{ key: "{INSTANCES}"',
            f"  value {{ string_value: {json.dumps(str(file))} }} }}",
            "",
        ]
    )


class Batcher:
    """A plan of whole models behind Triton's batcher while the context lasts.

    `port` is the first of three.
    """

    def __init__(self, plan: Plan, port: int, options: BatcherOptions | None = None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="poolpipe-batcher-"))
        self.plan = plan
        self._options = options or BatcherOptions()
        self._ports = Endpoints(http=port, grpc=port + 1, metrics=port + 2)
        self._repository = self.root / "models"
        self._log = self.root / "triton.log"
        self._before: set[Path] = set()

    def __enter__(self) -> Self:
        """Start the server and wait until every instance is loaded.

        Raises:
            InputError: as `write_repository`, or a port is in use.
            RuntimeError: the server does not come up.
        """
        stop_when_terminated()
        try:
            self._ports.check_can_listen()
            if self._options.on_parts(self.plan):
                daemon = MpsDaemon.in_folder(self.root / "mps", ())
                self._options = replace(self._options, mps=daemon)
                daemon.start()
            write_repository(self._repository, self.plan, self._options)
        except BaseException:
            shutil.rmtree(self.root)
            raise
        self._before = environment_folders()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=server_environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._options.mps is not None:
            self._options.mps.stop()
        for left in environment_folders() - self._before:
            shutil.rmtree(left, ignore_errors=True)
        for left in SHARED_FOLDER.glob(f"{self.root.name}*"):
            left.unlink(missing_ok=True)
        if kind in {None, KeyboardInterrupt, SystemExit}:
            shutil.rmtree(self.root)
        else:
            print(f"left for inspection: {self.root}", file=sys.stderr)

    @property
    def url(self) -> str:
        """Where gRPC clients reach it."""
        return f"127.0.0.1:{self._ports.grpc}"

    def _command(self) -> list[str]:
        return [
            str(wheel_folder() / "tritonserver" / "bin" / "tritonserver"),
            f"--model-repository={self._repository}",
            f"--backend-directory={lay_out_backends(self.root)}",
            f"--backend-config=python,shm-region-prefix-name={self.root.name}",
            "--backend-config=python,shm-default-byte-size=4194304",
            *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
            f"--http-port={self._ports.http}",
            f"--grpc-port={self._ports.grpc}",
            f"--metrics-port={self._ports.metrics}",
            "--allow-gpu-metrics=false",
            "--allow-cpu-metrics=false",
            "--disable-auto-complete-config",
            "--exit-timeout-secs=3",
        ]

    def _wait(self) -> None:
        watch = Stopwatch()
        address = f"http://127.0.0.1:{self._ports.http}/v2/health/ready"
        while watch.seconds() < READY_SECONDS:
            if self._process.poll() is not None:
                break
            with suppress(OSError):  # not there yet, or not ready, which is an error of HTTP
                urllib.request.urlopen(address, timeout=1.0).close()  # our own server
                return
            time.sleep(POLL_SECONDS)
        lines = self._log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("E")] or lines or ["nothing"]
        raise RuntimeError(f"Triton does not come up; its log says: {said[-1][:500]}")

    def load(
        self, reference: Plan, load_factor: float, seconds: float, seed: int = 0
    ) -> dict[str, Any]:
        """Offer a share of the planned rates of a plan, Poisson; the load generator's summary.

        Raises:
            RuntimeError: the generator failed.
        """
        files = {"plan": self.plan, "reference": reference}
        for name, plan in files.items():
            (self.root / f"{name}.json").write_text(json.dumps(plan.to_dict()))
        return (
            Load(
                self.url,
                self.root / "plan.json",
                f"--reference-plan={self.root / 'reference.json'}",
                f"--load-factor={load_factor}",
                f"--duration={seconds:g}",
                f"--seed={seed}",
                "--give-up-s=1",
            )
            .result()
            .summary
        )


def main(arguments: Sequence[str]) -> int:
    """Serve, load, write; 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, metavar="PLAN")
    parser.add_argument("--reference", type=Path, required=True, metavar="PLAN")
    parser.add_argument("--load", type=float, nargs="+", required=True, metavar="LOAD")
    parser.add_argument("--out", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--artifacts", type=Path, metavar="DIR")
    parser.add_argument("--delay-share", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=18_800)
    asked = parser.parse_args(arguments)
    if len(asked.load) != len(asked.out):
        parser.error("--load and --out: a file for each load")
    try:
        plan, reference = (
            Plan.from_dict(json.loads(path.read_text())) for path in (asked.plan, asked.reference)
        )
        options = BatcherOptions(delay_share=asked.delay_share, artifacts=asked.artifacts)
        with Batcher(plan, asked.port, options) as served:
            for load, path in zip(asked.load, asked.out, strict=True):
                summary = served.load(reference, load, asked.seconds)
                path.write_text(json.dumps(summary) + "\n")
    except (InputError, OSError, ValueError) as error:
        print(f"batcher: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
