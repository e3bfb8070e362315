"""Stage files to TensorRT engines: what to build, what is there already, what could not be built.

Here: keys, one process per GPU class, what became of each request. Not here: requests and report
(`requests.py`), TensorRT itself (`network.py`, run by
`builder_process.py`), the precision of a stage (`half.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.preparation.building.keys import artifact_key
from flows.preparation.building.tensorrt.edges import stage_hash
from flows.preparation.building.tensorrt.network import require_supported
from flows.preparation.building.tensorrt.requests import (
    BuildReport,
    EngineFailure,
    EngineRequest,
    EngineResult,
    EngineSettings,
    compute_capability,
)
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.runtimes.mps import gpu_environment
from triton_backend.runtimes.tensorrt.library import RTX, Library, load_library
from triton_backend.serve_folder.files import make_private_folder

RUNTIME = "tensorrt"
# Written into every key: raise it when the same request would give another engine.
RECIPE_VERSION = 1


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
            complaint = _run_worker(path, settings.time_limit_s, settings.devices.get(gpu_class))
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
    # One GPU, one builder: engines made without a GPU wait for their class alone.
    default = f"class-{gpu_class}" if library.name == RTX else "default-gpu"
    device = settings.devices.get(gpu_class, default)
    locks = lock_folder()
    make_private_folder(locks)
    return {
        "library": library.name,
        "gpu_class": gpu_class,
        "compute_capability": capability,
        "workspace_mib": settings.workspace_mib,
        "tf32": settings.tf32,
        "timing_cache": str(cache) if library.name != RTX else None,
        "lock": str(locks / f"{device}.lock"),
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


def lock_folder() -> Path:
    """Where this user's builds on this machine wait for each other's devices."""
    return Path(tempfile.gettempdir()) / f"poolpipe-build-locks-{os.getuid()}"


def _run_worker(job: Path, limit_s: float, device: str | None) -> str | None:
    """Run one worker; None where it ended well, else what happened to it."""
    environment = os.environ if device is None else {**os.environ, **gpu_environment(device)}
    command = [
        sys.executable,
        "-m",
        "flows.preparation.building.tensorrt.builder_process",
        str(job),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment
        )
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
