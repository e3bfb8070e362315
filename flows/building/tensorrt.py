"""Stage files to TensorRT engines: what to build, what is there already, what could not be built.

Here: requests and their keys, one process per GPU class, the report that a planner reads to leave
a (stage, class) out. Not here: TensorRT itself (`tensorrt_network.py`, run by
`tensorrt_worker.py`), the precision of a stage (`tensorrt_half.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.building.keys import artifact_key
from flows.building.tensorrt_network import require_supported
from flows.building.tensorrt_stage import stage_hash
from triton_backend.core.errors import InputError
from triton_backend.engines.base import MANIFEST_NAME
from triton_backend.engines.tensorrt_library import Library, load_library

RUNTIME = "tensorrt"
# Written into every key: raise it when the same request would give another engine.
RECIPE_VERSION = 1
DEFAULT_BATCHES = (1, 2, 4, 8, 16)
DEFAULT_WORKSPACE_MIB = 1024
# https://developer.nvidia.com/cuda-gpus; a class of another name states its own.
COMPUTE_CAPABILITIES: Mapping[str, str] = {
    "P4": "6.1",
    "P100": "6.0",
    "V100": "7.0",
    "T4": "7.5",
    "A100": "8.0",
    "A30": "8.0",
    "A2": "8.6",
    "A10": "8.6",
    "A10G": "8.6",
    "A16": "8.6",
    "A40": "8.6",
    "L4": "8.9",
    "L40": "8.9",
    "L40S": "8.9",
    "H100": "9.0",
    "H200": "9.0",
    "GH200": "9.0",
    "B200": "10.0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One stage to be built for one GPU class.

    Attributes:
        stage: how people call it, for instance `squeezenet blocks 0-4`.
        onnx: its file; weights may lie in files beside it.
        batches: planned batch sizes; a batch in between runs padded to the next one.
        dimensions: sizes for symbolic dimensions other than the batch, by symbol.
        notes: kept in the artifact's options, for instance what a conversion to fp16 lost.
    """

    stage: str
    onnx: Path
    gpu_class: str
    batches: tuple[int, ...] = DEFAULT_BATCHES
    dimensions: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise InputError(
                f"engine of {self.stage!r}",
                f"batches {list(self.batches)} must be distinct and positive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What holds for all engines of one call.

    Attributes:
        library: `tensorrt` or `tensorrt-rtx`; None takes the first that is installed.
        compute_capabilities: of classes whose name does not say it, or that differ.
        devices: uuid of the GPU on which a class is built, where it is built on one; two builds
            that name the same GPU wait for each other, whoever started them.
        time_limit_s: for one process, which builds all engines of one class.
    """

    library: str | None = None
    compute_capabilities: Mapping[str, str] = field(default_factory=dict[str, str])
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    workspace_mib: int = DEFAULT_WORKSPACE_MIB
    tf32: bool = False
    time_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """An engine that is there: `seconds` is None where it was there before."""

    request: EngineRequest
    key: str
    folder: Path
    seconds: float | None

    @property
    def reused(self) -> bool:
        """Whether nothing had to be built."""
        return self.seconds is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailure:
    """An engine that could not be built: the ONNX node where known, and why."""

    request: EngineRequest
    node: str | None
    reason: str

    def __str__(self) -> str:
        node = "" if self.node is None else f", node {self.node!r}"
        return f"{self.request.stage} for {self.request.gpu_class}{node}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What became of every request, in the order asked."""

    library: str
    library_version: str
    results: tuple[EngineResult, ...]
    failures: tuple[EngineFailure, ...]

    @property
    def built(self) -> int:
        """Engines built by this call."""
        return sum(not result.reused for result in self.results)

    @property
    def reused(self) -> int:
        """Engines that were there already."""
        return sum(result.reused for result in self.results)

    def left_out(self) -> frozenset[tuple[str, str]]:
        """(stage, GPU class) that a plan must not use."""
        return frozenset((f.request.stage, f.request.gpu_class) for f in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, for `--json`."""
        return {
            "library": self.library,
            "library_version": self.library_version,
            "built": self.built,
            "reused": self.reused,
            "engines": [
                {
                    "stage": r.request.stage,
                    "gpu_class": r.request.gpu_class,
                    "artifact": r.key,
                    "seconds": r.seconds,
                }
                for r in self.results
            ],
            "failures": [
                {
                    "stage": f.request.stage,
                    "gpu_class": f.request.gpu_class,
                    "node": f.node,
                    "reason": f.reason,
                }
                for f in self.failures
            ],
        }


def compute_capability(gpu_class: str, stated: Mapping[str, str]) -> str:
    """Compute capability of a GPU class, as stated or by its name (`L4`, `l4-24gb`, `L4/mig`).

    Raises:
        InputError: neither known nor stated.
    """
    if gpu_class in stated:
        return stated[gpu_class]
    words = gpu_class.upper().replace("-", " ").replace("_", " ").replace(".", " ").split()
    for word in words:
        if word in COMPUTE_CAPABILITIES:
            return COMPUTE_CAPABILITIES[word]
    raise InputError(
        f"GPU class {gpu_class!r}",
        "its compute capability is not known; state it, for instance 8.9",
    )


def engine_key(
    request: EngineRequest, library: Library, capability: str, settings: EngineSettings
) -> str:
    """Name of the artifact: a hash over all that decides which engine comes out.

    The stage's hash holds its precision, because networks are strongly typed.
    """
    parts = {
        "runtime": RUNTIME,
        "recipe": RECIPE_VERSION,
        "stage": stage_hash(request.onnx),
        "gpu_class": request.gpu_class,
        "compute_capability": capability,
        "library": library.name,
        "library_version": library.version,
        "batches": sorted(request.batches),
        "dimensions": dict(sorted(request.dimensions.items())),
        "workspace_mib": settings.workspace_mib,
        "tf32": settings.tf32,
    }
    return artifact_key(parts)


def build_engines(
    requests: Sequence[EngineRequest], root: Path, settings: EngineSettings | None = None
) -> BuildReport:
    """Build what is missing; one process per GPU class, one class after the other.

    Args:
        requests: stages and classes.
        root: the artifact folder; each engine gets a folder named by its key.
        settings: what holds for all.

    Raises:
        InputError: TensorRT is not installed. Everything else is in the report's failures.
    """
    chosen = settings or EngineSettings()
    library = load_library(chosen.library)
    root.mkdir(parents=True, exist_ok=True)
    done: dict[int, EngineResult | EngineFailure] = {}
    waiting: dict[str, dict[str, list[int]]] = {}
    for index, request in enumerate(requests):
        try:
            capability = compute_capability(request.gpu_class, chosen.compute_capabilities)
            require_supported(library, capability)
            key = engine_key(request, library, capability, chosen)
        except InputError as error:
            done[index] = EngineFailure(
                request=request, node=None, reason=f"{error.where}: {error.reason}"
            )
            continue
        if (root / key / MANIFEST_NAME).is_file():
            done[index] = EngineResult(request=request, key=key, folder=root / key, seconds=None)
        else:
            waiting.setdefault(request.gpu_class, {}).setdefault(key, []).append(index)
    for gpu_class, keys in waiting.items():
        stages = {key: requests[indices[0]] for key, indices in keys.items()}
        outcomes = _build_class(library, gpu_class, stages, root, chosen)
        for key, indices in keys.items():
            for index in indices:
                done[index] = _outcome(requests[index], key, root, outcomes[key])
    ordered = [done[index] for index in range(len(requests))]
    return BuildReport(
        library=library.name,
        library_version=library.version,
        results=tuple(x for x in ordered if isinstance(x, EngineResult)),
        failures=tuple(x for x in ordered if isinstance(x, EngineFailure)),
    )


def _outcome(
    request: EngineRequest, key: str, root: Path, outcome: Mapping[str, Any]
) -> EngineResult | EngineFailure:
    if outcome["state"] == "built":
        return EngineResult(request=request, key=key, folder=root / key, seconds=outcome["seconds"])
    return EngineFailure(request=request, node=outcome.get("node"), reason=outcome["reason"])


def _build_class(
    library: Library,
    gpu_class: str,
    stages: Mapping[str, EngineRequest],
    root: Path,
    settings: EngineSettings,
) -> dict[str, dict[str, Any]]:
    """Run worker processes until every key has an outcome; one that dies costs one engine."""
    outcomes: dict[str, dict[str, Any]] = {}
    while left := [key for key in stages if key not in outcomes]:
        with tempfile.TemporaryDirectory(dir=root, prefix="building-") as scratch:
            job = _job(library, gpu_class, {key: stages[key] for key in left}, root, settings)
            path = Path(scratch) / "job.json"
            path.write_text(json.dumps(job))
            complaint = _run_worker(path, settings.time_limit_s)
            found = _read_results(path.with_name(job["results"]))
        outcomes |= {key: x for key, x in found.items() if x["state"] != "begun"}
        cut_off = [key for key, x in found.items() if x["state"] == "begun"] or left[:1]
        if complaint is not None:
            blamed = next((key for key in cut_off if key not in outcomes), None)
            if blamed is not None:
                outcomes[blamed] = {"state": "failed", "node": None, "reason": complaint}
    return outcomes


def _job(
    library: Library,
    gpu_class: str,
    stages: Mapping[str, EngineRequest],
    root: Path,
    settings: EngineSettings,
) -> dict[str, Any]:
    capability = compute_capability(gpu_class, settings.compute_capabilities)
    cache = root / "timing" / f"{gpu_class}-{library.name}-{library.version}.cache"
    device = settings.devices.get(gpu_class)
    locks = Path(tempfile.gettempdir()) / f"poolpipe-locks-{os.getuid()}"
    return {
        "library": library.name,
        "gpu_class": gpu_class,
        "compute_capability": capability,
        "workspace_mib": settings.workspace_mib,
        "tf32": settings.tf32,
        "timing_cache": str(cache) if library.name == "tensorrt" else None,
        # One GPU, one builder: for engines made without a GPU the class is the device.
        "lock": str(locks / f"{device or 'class-' + gpu_class}.lock"),
        "results": "results.jsonl",
        "engines": [
            {
                "key": key,
                "folder": str(root / key),
                "onnx": str(request.onnx.resolve()),
                "stage_hash": stage_hash(request.onnx),
                "batches": sorted(request.batches),
                "dimensions": dict(request.dimensions),
                "notes": dict(request.notes),
            }
            for key, request in stages.items()
        ],
    }


def _run_worker(job: Path, limit_s: float) -> str | None:
    """Run one worker; None where it ended well, else what happened to it."""
    command = [sys.executable, "-m", "flows.building.tensorrt_worker", str(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"the builder was stopped after {limit_s:.0f} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        hint = " (out of memory?)" if done.returncode == -9 else ""  # noqa: PLR2004 -- SIGKILL
        return f"the builder's process died of signal {-done.returncode}{hint}"
    said = done.stderr.strip().splitlines()
    return f"the builder's process failed: {said[-1] if said else done.returncode}"


def _read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Last state of every key the worker reached."""
    if not path.is_file():
        return {}
    lines: Iterable[dict[str, Any]] = map(json.loads, path.read_text().splitlines())
    return {line["key"]: line for line in lines}
