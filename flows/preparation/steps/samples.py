"""Samples of a step.

An `.npz` of arrays, or a folder of files of which each is one text of its BYTES input.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.preparation.splitting.inputs.values import read_samples
from flows.preparation.steps.given import GivenStep
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import BYTES, TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.runtimes.texts import pack_texts

MOST_FILES = 256
DRAWN, SEED = 4, 11
Arrays = dict[str, NDArray[Any]]


def read_step_samples(given: GivenStep) -> Arrays:
    """[samples, ...] of every input; numbers are drawn where no samples are given.

    Raises:
        InputError: samples are missing, too large, or not of the inputs' types and shapes.
    """
    where = f"step {given.name!r}, samples"
    texts = [spec for spec in given.inputs if spec.dtype == BYTES]
    if given.samples is None:
        if texts:
            raise InputError(where, f"is missing: input {texts[0].name!r} is BYTES")
        return _drawn(given.inputs)
    if given.samples.is_dir() and not any(given.samples.glob("*.npz")):
        return _files(given, texts, where)
    found = read_samples(given.samples)
    for spec in given.inputs:
        array = found.get(spec.name)
        if array is None:
            raise InputError(where, f"{given.samples} has no array {spec.name!r}")
        fits = array.shape[1:] == spec.shape[1:] or spec.dtype == BYTES
        if array.dtype != NUMPY_DTYPES[spec.dtype] or not fits:
            shape = f"{array.dtype} {list(array.shape[1:])}"
            raise InputError(where, f"{spec.name!r} is {shape}, not {spec.dtype} {spec.shape[1:]}")
    return {spec.name: found[spec.name] for spec in given.inputs}


def sample_files(given: GivenStep) -> tuple[Path, ...]:
    """Files that are one sample each, in their order; none where samples are not such files."""
    if given.samples is None or not given.samples.is_dir() or any(given.samples.glob("*.npz")):
        return ()
    return tuple(sorted(f for f in given.samples.iterdir() if f.is_file())[:MOST_FILES])


def _files(given: GivenStep, texts: list[TensorSpec], where: str) -> Arrays:
    assert given.samples is not None
    if len(given.inputs) != 1 or not texts:
        raise InputError(where, "a folder of files is for a step whose one input is BYTES")
    files = sample_files(given)
    most = texts[0].max_bytes or 0
    for file in files:
        if file.stat().st_size > most:
            raise InputError(str(file), f"{file.stat().st_size} bytes, max_bytes is {most}")
    if not files:
        raise InputError(where, f"no file in {given.samples}")
    return {texts[0].name: pack_texts([file.read_bytes() for file in files])}


def _drawn(specs: tuple[TensorSpec, ...]) -> Arrays:
    rng = np.random.default_rng(SEED)
    found: Arrays = {}
    for spec in specs:
        dtype, shape = np.dtype(NUMPY_DTYPES[spec.dtype]), (DRAWN, *spec.shape[1:])
        floating = np.issubdtype(dtype, np.floating)
        drawn = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
        found[spec.name] = drawn.astype(dtype)
    return found


def sample_rows(samples: Arrays, batch: int) -> Arrays:
    """A batch of samples in their order, from the first again where there are fewer."""
    return {name: rows[np.arange(batch) % len(rows)] for name, rows in samples.items()}
