"""A step of workload.yaml prepared.

Its package packed, run on its samples, and kept as a model of one block. The function is run as a
worker will run it. What it gives must be what the workload states, and a sample's result must not
depend on its batch, because batches are made of what comes.
"""

import hashlib
import json
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from flows.preparation.building.python_step import PACKAGE_NAME, step_artifact
from flows.preparation.splitting.model import RECORD_NAME, SAMPLES_NAME, SplitModel
from flows.preparation.splitting.running import relative_error
from flows.preparation.splitting.stored_split import store_split
from flows.preparation.steps.given import GivenStep
from flows.preparation.steps.samples import read_step_samples, sample_files, sample_rows
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec, total_bytes_per_sample
from triton_backend.runtimes.base import NUMPY_DTYPES, REFUSED, REFUSED_BYTES, counts_of
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.python_step.package import (
    ARGUMENTS_OPTION,
    PYTHON_OPTION,
    VERSION_OPTION,
    installed_version,
    write_package,
)
from triton_backend.runtimes.python_step.runtime import PythonStep

# Raised whenever the same step would be prepared or checked differently.
FORMAT = 1
KEY_DIGITS = 16
ROOM_ROWS = 256  # of one sample while it is checked
TOLERANCE = 1e-5
LIMIT_SECONDS, AGAIN_SECONDS = 300.0, 1.0
Arrays = dict[str, NDArray[Any]]


class _OverTimeError(BaseException):
    """Ends a function that runs too long; no `except Exception` of its own keeps it from that."""


def prepare_steps(
    work: Workspace, steps: list[GivenStep], limit_s: float = LIMIT_SECONDS
) -> list[SplitModel]:
    """Prepare steps and store them as models.

    Args:
        work: the project.
        steps: those to prepare.
        limit_s: how long the import and the runs of one step may take together.

    Raises:
        InputError: one cannot be imported, does not do what the workload states, or takes longer
            than the limit.
    """
    found: list[SplitModel] = []
    for step in steps:
        split = prepare_step(step, work.state.models, limit_s)
        store_split(work, split, f"python:{step.python}")
        found.append(split)
    return found


def prepare_step(given: GivenStep, out: Path, limit_s: float = LIMIT_SECONDS) -> SplitModel:
    """Prepare one step under `out/<name>/<key>/`, or find it prepared there.

    Its limit holds in the main thread alone, and for Python code: an extension that does not give
    control back runs on.

    Raises:
        InputError: as `prepare_steps`.
    """
    where = f"step {given.name!r}"
    outputs = (*given.outputs, TensorSpec.of_bytes(REFUSED, REFUSED_BYTES))
    for spec in given.outputs:
        if spec.name == REFUSED:
            raise InputError(f"{where}, outputs.{REFUSED}", "is the name of what a step refuses")
    (out / given.name).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out / given.name, prefix=".", ignore_cleanup_errors=True) as place:
        unfinished = Path(place) / "step"
        unfinished.mkdir()
        options: dict[str, Any] = {PYTHON_OPTION: given.python}
        if given.arguments:
            options[ARGUMENTS_OPTION] = dict(given.arguments)
        if given.source is None:
            options[VERSION_OPTION] = digest = installed_version(given.package, where)
        else:
            digest = write_package(given.source, given.package, unfinished / PACKAGE_NAME)
        samples = read_step_samples(given)
        np.savez(unfinished / SAMPLES_NAME, **samples)
        split = SplitModel(
            name=given.name,
            key=_key(given, outputs, options, digest, samples),
            folder=unfinished,
            inputs=given.inputs,
            outputs=outputs,
            cuts=(0, 1),
            boundaries=(),
            block_times_us=(0.0,),
            tolerance=0.0,
            tolerance_below=0.0,
            legal_cuts=0,
            max_batch=given.max_batch,
            block_memory_bytes=(
                given.max_batch * total_bytes_per_sample((*given.inputs, *outputs)),
            ),
            step=options,
        )
        folder = out / given.name / split.key
        if (folder / RECORD_NAME).exists():
            return SplitModel.read(folder)
        # Results go to standard output, and a function may print.
        with _limited(limit_s, where), redirect_stdout(sys.stderr):
            took_us, error = _check(split, samples, given)
        split = replace(split, block_times_us=(took_us,), check={"max_relative_error": error})
        split.write()
        try:
            unfinished.rename(folder)
        except OSError:  # another process was first
            return SplitModel.read(folder)
    return replace(split, folder=folder)


def _key(
    given: GivenStep,
    outputs: tuple[TensorSpec, ...],
    options: dict[str, Any],
    digest: str,
    samples: Arrays,
) -> str:
    parts = [
        FORMAT,
        given.name,
        digest,
        options,
        given.max_batch,
        [spec.to_dict() for spec in (*given.inputs, *outputs)],
        [hashlib.sha256(np.ascontiguousarray(a).data).hexdigest() for a in samples.values()],
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


@contextmanager
def _limited(limit_s: float, where: str) -> Generator[None]:
    """Give the work of the context up after a time; once a second where a function goes on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_SECONDS)
    try:
        yield
    except _OverTimeError:
        reason = f"has not ended after {limit_s:g} s; --time-limit gives more"
        raise InputError(where, reason) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _OverTimeError


def _check(split: SplitModel, samples: Arrays, given: GivenStep) -> tuple[float, float]:
    """Run a step on its samples, alone and in a batch.

    Time of one sample (µs), and how far both are apart.
    """
    where, files = f"step {given.name!r}", sample_files(given)
    artifact = step_artifact(split, "CPU", {"cores": []})
    clock = SystemClock()
    try:
        step = PythonStep(split.folder, artifact, share=WHOLE_GPU, clock=clock)
    except InputError as error:  # names the unfinished folder, which is gone when it is read
        raise InputError(where, error.reason) from error
    try:
        together = sample_rows(samples, split.max_batch)
        many = _room(split.outputs, split.max_batch)
        refused = step.check(together, many)
        begin_us = clock.now_us()
        singles = [
            _alone(step, split, {name: rows[n : n + 1] for name, rows in together.items()})
            for n in range(split.max_batch)
        ]
        took_us = (clock.now_us() - begin_us) / split.max_batch
    finally:
        step.close()
    for number, text in enumerate(refused):
        if text:
            place = f" ({files[number % len(files)]})" if files else ""
            raise InputError(f"{where}, sample {number}{place}", text.partition(" ")[2])
    error = _apart(split, many, singles)
    if error > TOLERANCE:
        reason = f"a sample's result differs by {error:.1g} with the batch it is in"
        raise InputError(where, reason)
    return took_us, error


def _alone(step: PythonStep, split: SplitModel, inputs: Arrays) -> Arrays:
    out = _room(split.outputs, 1)
    step.run(inputs, out)
    return out


def _room(specs: tuple[TensorSpec, ...], batch: int) -> Arrays:
    varying = counts_of(spec.name for spec in specs)
    return {
        spec.name: np.zeros(
            (batch, *((ROOM_ROWS,) if spec.name in varying else ()), *spec.shape[1:]),
            NUMPY_DTYPES[spec.dtype],
        )
        for spec in specs
    }


def _apart(split: SplitModel, many: Arrays, singles: list[Arrays]) -> float:
    """The largest relative error of any output between a batch and its samples alone."""
    worst = 0.0
    counted = counts_of(many)
    for spec in split.outputs:
        if spec.name in counted:
            counts = [int(one[counted[spec.name]][0]) for one in singles]
            flat = many[spec.name].reshape(-1, *spec.shape[1:])[: sum(counts)]
            rows = [one[spec.name][0, :n] for one, n in zip(singles, counts, strict=True)]
            worst = max(worst, relative_error(flat, np.concatenate(rows)))
        else:
            joined = np.concatenate([one[spec.name] for one in singles])
            worst = max(worst, relative_error(many[spec.name], joined))
    return worst
