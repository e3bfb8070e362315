"""The door every stage runtime goes through, and the folder it is loaded from.

An *artifact* is a folder with `engine.json` (this manifest) and the files it names. It is named by
the hash of what it was built from, so the folder's name is its identity. A plan's stage holds that
name, relative to the artifact root.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.fields import Fields, check_name
from triton_backend.contract.tensors import BYTES, TensorSpec

MANIFEST_NAME = "engine.json"
CPU, CUDA = "cpu", "cuda"
ROWS, _ROWS = "rows", "_rows"
REFUSED, REFUSED_BYTES = "refused", 240
"""The output of a Python step that says why it did not run a sample, as "STATUS reason".

Empty where it did.
"""
Tensors = Mapping[str, NDArray[np.generic]]
# BF16 is not here: numpy has no such type.
NUMPY_DTYPES: Mapping[str, type[np.generic]] = {
    BYTES: np.uint8,  # with their length before them (`texts`)
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Inputs of a runtime that loads one stage for one GPU class.

    Attributes:
        runtime: name of a module of this package, as `registry` finds it.
        device: `cpu` or `cuda`: what its worker must be given.
        files: role (for instance `model`) to file name inside the folder.
        options: what the runtime was built with; for a CPU class `cores`, `threads`, `stretch`.
    """

    runtime: str
    gpu_class: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    device: str = CPU
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.device not in {CPU, CUDA}:
            raise InputError(f"artifact of {self.runtime!r}", f"device {self.device!r}")
        check_name(f"artifact of {self.runtime!r}, gpu_class", self.gpu_class)
        for role, file in self.files.items():
            if Path(file).name != file:
                reason = f"{file!r} is not the name of a file in its folder"
                raise InputError(f"artifact of {self.runtime!r}, files.{role}", reason)
        for option in ("library", "library_version"):
            if option in self.options:
                check_name(f"artifact of {self.runtime!r}, {option}", self.options[option])

    def write(self, folder: Path) -> None:
        """Write the manifest into an existing folder."""
        data = {
            "runtime": self.runtime,
            "gpu_class": self.gpu_class,
            "device": self.device,
            "inputs": [spec.to_dict() for spec in self.inputs],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "max_batch": self.max_batch,
            "files": dict(self.files),
            "options": dict(self.options),
        }
        (folder / MANIFEST_NAME).write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a manifest.

        Raises:
            InputError: no such folder, or its manifest is not one.
        """
        path = folder / MANIFEST_NAME
        try:
            data = json.loads(path.read_text())
            return cls(
                runtime=data["runtime"],
                gpu_class=data["gpu_class"],
                inputs=tuple(map(TensorSpec.from_dict, data["inputs"])),
                outputs=tuple(map(TensorSpec.from_dict, data["outputs"])),
                max_batch=Fields(data).integer("max_batch", least=1),
                device=data.get("device") or _device_before(data),
                files=data["files"],
                options=data["options"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"not an artifact manifest: {error}") from error


def _device_before(data: Mapping[str, Any]) -> str:
    """The device of an artifact whose manifest is from before they stated it."""
    if data["runtime"] == "tensorrt":
        return CUDA
    return str(data["options"].get("device", CPU))


def counts_name(output: str) -> str:
    """The output that says how many rows of another one each sample gives."""
    return f"{output}{_ROWS}"


def counts_of(outputs: Iterable[str]) -> dict[str, str]:
    """Outputs of a module whose rows vary, and the output that says how many each sample gives.

    That is `NAME_rows`, or `rows` for all that have none of their own (INT64, one number per
    sample). Rows of one sample follow those of the sample before it.
    """
    names = list(outputs)
    counts = {
        name for name in names if name == ROWS or name.removesuffix(_ROWS) in {*names} - {name}
    }
    found: dict[str, str] = {}
    for name in names:
        own = counts_name(name)
        if name not in counts and (own in counts or ROWS in counts):
            found[name] = own if own in counts else ROWS
    return found


def put_rows(
    rows: NDArray[np.generic], counts: NDArray[np.generic], into: NDArray[np.generic]
) -> NDArray[np.int64]:
    """Write rows whose number varies by sample, sample by sample, from the start of `into`.

    Args:
        rows: [sum of counts, ...]
        counts: [samples]
        into: [samples, most, ...]; what a sample has beyond `most` is left out.

    Returns:
        [samples], how many were written of each.

    Raises:
        InvariantError: there are not as many rows as the counts say.
    """
    given = np.maximum(counts.astype(np.int64), 0)
    if len(rows) != given.sum():
        raise InvariantError(f"{len(rows)} rows, but the counts sum up to {given.sum()}")
    kept = np.minimum(given, into.shape[1])
    if (kept != given).any():
        begins = np.repeat(np.cumsum(given) - given, given)
        rows = rows[np.arange(len(rows)) - begins < np.repeat(kept, given)]
    into.reshape(-1, *into.shape[2:])[: len(rows)] = rows
    return kept


class Runtime(Protocol):
    """One loaded stage. Not thread-safe: one caller at a time."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors the stage takes."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors the stage gives."""
        ...

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Run one batch: every array is [batch, ...]; results are written into `out` in place.

        Inputs may lie in shared memory and are not changed; `out` may lie there too. An output
        whose rows vary (`counts_of`) is given as [batch, most, ...], and is written by `put_rows`.
        """
        ...

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Memory that batches will often lie in and that outlives the runtime.

        A runtime that copies to a device pins it, so that those batches need no copy on the host.

        Raises:
            PoolPipeError: it cannot be pinned; batches in it run all the same, with that copy.
        """
        ...

    def close(self) -> None:
        """Give back what was taken."""
        ...
