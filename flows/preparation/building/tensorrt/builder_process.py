"""The process that builds.

`python -m flows.preparation.building.tensorrt.builder_process JOB.json`. One process builds the
engines of one GPU class, one after the other, under a lock per device, so that two builds never
time kernels on the same GPU. It writes one line of JSON per step to the job's result file: which
engine it began, and how that ended. A process that dies leaves the line that says what it was
doing. Not here: what to build and whether (`tensorrt.py`).
"""

import fcntl
import hashlib
import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from flows.preparation.building.keys import publish
from flows.preparation.building.tensorrt.network import (
    BuiltEngine,
    EngineRecipe,
    StageError,
    build_engine,
)
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.tensorrt.library import Library, LogKeeper, load_library

PLAN_FILE = "engine.plan"
LOG_FILE = "builder.log"
DESCRIPTION_FILE = "layers.json"
FAILED_FOLDER = "failed"


def work_off(job_path: Path) -> None:
    """Build every engine of a job; failures of single engines are results, not errors."""
    job = json.loads(job_path.read_text())
    library = load_library(job["library"])
    results = job_path.with_name(job["results"])
    with _lock(Path(job["lock"])), results.open("a", buffering=1) as stream:
        for item in job["engines"]:
            stream.write(json.dumps({"key": item["key"], "state": "begun"}) + "\n")
            stream.write(json.dumps({"key": item["key"], **_build_one(library, job, item)}) + "\n")


@contextmanager
def _lock(path: Path) -> Generator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build_one(library: Library, job: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    watch, keeper = Stopwatch(), LogKeeper()
    cache_path = None if job["timing_cache"] is None else Path(job["timing_cache"])
    known = cache_path.read_bytes() if cache_path is not None and cache_path.is_file() else None
    folder = Path(item["folder"])
    try:
        built = build_engine(library, Path(item["onnx"]), _recipe(job, item), keeper, known)
    except (InputError, MemoryError, RuntimeError) as error:
        _write_log(folder.parent / FAILED_FOLDER / f"{folder.name}.log", keeper)
        return {"state": "failed", "seconds": watch.seconds(), **_blame(error)}
    seconds = watch.seconds()
    _keep(folder, built, keeper, _artifact(library, job, item, built, seconds))
    if cache_path is not None and built.timing_cache is not None:
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        cache_path.write_bytes(built.timing_cache)
    return {"state": "built", "seconds": seconds}


def _blame(error: Exception) -> dict[str, Any]:
    if isinstance(error, StageError):
        return {"node": error.node, "reason": error.bare_reason}
    if isinstance(error, InputError):
        return {"node": None, "reason": f"{error.where}: {error.reason}"}
    return {"node": None, "reason": f"{type(error).__name__}: {error}"}


def _recipe(job: Mapping[str, Any], item: Mapping[str, Any]) -> EngineRecipe:
    return EngineRecipe(
        batches=tuple(item["batches"]),
        compute_capability=job["compute_capability"],
        dimensions=item["dimensions"],
        workspace_mib=job["workspace_mib"],
        tf32=job["tf32"],
    )


def _artifact(
    library: Library,
    job: Mapping[str, Any],
    item: Mapping[str, Any],
    built: BuiltEngine,
    seconds: float,
) -> Artifact:
    return Artifact(
        runtime="tensorrt",
        gpu_class=job["gpu_class"],
        inputs=built.inputs,
        outputs=built.outputs,
        max_batch=max(item["batches"]),
        device=CUDA,
        files={"engine": PLAN_FILE, "layers": DESCRIPTION_FILE, "log": LOG_FILE},
        options={
            "library": library.name,
            "library_version": library.version,
            "module": library.module.__name__,
            "compute_capability": job["compute_capability"],
            "batches": list(item["batches"]),
            "forwarded": list(built.forwarded),
            "unused": list(built.unused),
            "precision": built.precision,
            "tf32": job["tf32"],
            "workspace_mib": job["workspace_mib"],
            "stage_hash": item["stage_hash"],
            "engine_hash": hashlib.sha256(built.plan).hexdigest(),
            "layers": len(built.description.of_profile(0)),
            "described_by": built.described_by,
            "build_seconds": round(seconds, 3),
            **item["notes"],
        },
    )


def _keep(folder: Path, built: BuiltEngine, keeper: LogKeeper, artifact: Artifact) -> None:
    def fill(making: Path) -> None:
        (making / PLAN_FILE).write_bytes(built.plan)
        text = json.dumps(built.description.to_dict(), indent=1)
        (making / DESCRIPTION_FILE).write_text(text + "\n")
        _write_log(making / LOG_FILE, keeper)
        artifact.write(making)

    publish(folder.parent, folder.name, fill)


def _write_log(path: Path, keeper: LogKeeper) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line.severity} {line.text}\n" for line in keeper.lines()))


if __name__ == "__main__":
    work_off(Path(sys.argv[1]))
