"""A Python function as a stage: batches in, rows out, and what it refuses, sample by sample.

The function is called with its inputs by name, [batch, ...] each (a list of texts for BYTES), and
the arguments that the workload gives; it returns its outputs by name, or the only one. Where it
raises, its samples are run one by one, so that a sample that cannot be run costs none but itself: a
ValueError refuses it with the error's text, any other error fails it. Either is said in the output
`refused`, from which the front answers the client.
"""

from collections.abc import Mapping, Sequence
from operator import gt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.applications import shape_name
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.tensors import BYTES, TensorSpec
from triton_backend.runtimes.base import (
    CPU,
    NUMPY_DTYPES,
    REFUSED,
    REFUSED_BYTES,
    Artifact,
    Tensors,
    counts_of,
    put_rows,
)
from triton_backend.runtimes.clock import Clock
from triton_backend.runtimes.cores import CpuPart
from triton_backend.runtimes.python_step.package import ARGUMENTS_OPTION, load_function
from triton_backend.runtimes.texts import pack_texts, put_tensor, put_text, unpack_texts

WRONG, FAILED = "INVALID_ARG", "INTERNAL"
Array = NDArray[Any]


class _Made(NamedTuple):
    """Result of a call: rows by output, and counts per sample of outputs whose rows vary."""

    rows: dict[str, Array]
    counts: dict[str, Array]


class PythonStep:
    """One step. Pins the calling thread to a CPU class until closed."""

    def __init__(self, folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        if artifact.device != CPU:
            raise InputError(str(folder), "a Python step runs on CPU classes alone")
        self._where = f"step {artifact.options.get('python')}"
        self._arguments: Mapping[str, Any] = artifact.options.get(ARGUMENTS_OPTION) or {}
        self._vary = counts_of(spec.name for spec in self.outputs)
        self._counts = set(self._vary.values())
        names = {spec.name for spec in self.outputs}
        self._shapes = {shape_name(name) for name in names} & names
        self._given = tuple(
            spec for spec in self.outputs if spec.name != REFUSED and spec.name not in self._counts
        )
        self._part = CpuPart(folder, artifact, share=share, clock=clock)
        try:
            self._function = load_function(folder, artifact)
        except BaseException:
            self._part.release()
            raise

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Run one batch into `out`, and wait until it has lasted as long as its class says.

        Raises:
            InvariantError: an array is missing, or a text is longer than its row.
        """
        began = self._part.begin()
        batch = len(inputs[self.inputs[0].name])
        given = {spec.name: _readable(inputs, spec) for spec in self.inputs}
        said = [""] * batch
        made = self._try(given, batch, said)
        if made is None and batch > 1:
            parts = [self._one(given, sample, said) for sample in range(batch)]
            self._put_each(parts, out)
        else:
            self._put_each([made] if made is not None else [None] * batch, out)
        for row, text in zip(out.get(REFUSED, ()), said, strict=False):
            # An error's text may quote what a client sent, and have characters that UTF-8 lacks.
            put_text(row, text.encode(errors="backslashreplace")[:REFUSED_BYTES])
        self._part.wait(began)

    def register(self, memory: NDArray[np.uint8]) -> None:
        """A function reads inputs where they lie."""

    def close(self) -> None:
        """Let the thread run on the cores it had before."""
        del self._function
        self._part.release()

    def check(self, inputs: Tensors, out: Tensors) -> list[str]:
        """As `run`; what the samples are refused with, "" where they are not."""
        self.run(inputs, out)
        return [text.decode(errors="replace") for text in unpack_texts(np.asarray(out[REFUSED]))]

    def _one(self, given: Mapping[str, Any], sample: int, said: list[str]) -> _Made | None:
        alone = {name: rows[sample : sample + 1] for name, rows in given.items()}
        mine = [""]
        made = self._try(alone, 1, mine)
        said[sample] = mine[0]
        return made

    def _try(self, given: Mapping[str, Any], batch: int, said: list[str]) -> _Made | None:
        """The function's result for a batch.

        None where it cannot, and why is said of every sample.
        """
        try:
            return self._call(given, batch)
        except ValueError as error:
            reason = f"{WRONG} {_line(error)}"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a function may raise anything
            reason = f"{FAILED} {self._where}: {type(error).__name__}: {_line(error)}"
        said[:] = [reason] * len(said)
        return None

    def _call(self, given: Mapping[str, Any], batch: int) -> _Made:
        result = self._function(**given, **self._arguments)
        if not isinstance(result, Mapping):
            if len(self._given) != 1:
                names = [spec.name for spec in self._given]
                raise TypeError(f"returned {type(result).__name__}, not a dict of {names}")
            result = {self._given[0].name: result}
        result = self._with_shapes(result)
        rows: dict[str, Array] = {}
        counts: dict[str, Array] = {}
        for spec in self._given:
            if spec.name not in result:
                raise KeyError(f"returned no {spec.name!r}")
            value = result[spec.name]
            try:
                if spec.name in self._vary:
                    value, counted = _counted(spec, value, result.get(self._vary[spec.name]), batch)
                    counts[self._vary[spec.name]] = counted
                    rows[spec.name] = _as_rows(spec, value, int(counted.sum()))
                else:
                    rows[spec.name] = _as_rows(spec, value, batch)
            except ValueError as error:  # of NumPy: the function's mistake, not its client's
                reason = f"{spec.name!r} is no array of {spec.dtype}: {_line(error)}"
                raise TypeError(reason) from error
        return _Made(rows, counts)

    def _with_shapes(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rows of shapes of their own, each with room for the largest, and those shapes."""
        if not self._shapes:
            return result
        found = dict(result)
        for spec in self._given:
            rows, said = result.get(spec.name), shape_name(spec.name)
            if said not in self._shapes or said in result or not isinstance(rows, list):
                continue
            room = np.zeros((len(rows), *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
            shapes = np.zeros((len(rows), len(spec.shape) - 1), np.int64)
            for number, row in enumerate(_arrays(spec.name, rows)):
                if row.ndim != room.ndim - 1:
                    raise TypeError(f"a row of {spec.name!r} has {row.ndim} dimensions")
                if any(map(gt, row.shape, spec.shape[1:])):
                    given, most = ("x".join(map(str, s)) for s in (row.shape, spec.shape[1:]))
                    raise ValueError(f"a row of {spec.name!r} is {given}, there is room for {most}")
                np.copyto(room[(number, *map(slice, row.shape))], row, casting="same_kind")
                shapes[number] = row.shape
            found |= {spec.name: room, said: shapes}
        return found

    def _put_each(self, parts: Sequence[_Made | None], out: Tensors) -> None:
        """Write what calls gave, one after the other.

        Zeros and no rows of samples that are refused.
        """
        for spec in self._given:
            if spec.name not in out:
                continue
            into = np.asarray(out[spec.name])
            if spec.name in self._vary:
                self._put_varying(spec, parts, out)
                continue
            at = 0
            for part in parts:
                rows = None if part is None else part.rows[spec.name]
                end = at + (1 if rows is None else len(rows))
                if rows is None:
                    into[at:end] = 0
                else:
                    put_tensor(into[at:end], rows)
                at = end

    def _put_varying(self, spec: TensorSpec, parts: Sequence[_Made | None], out: Tensors) -> None:
        name = self._vary[spec.name]
        none = np.zeros(1, np.int64)
        counts = np.concatenate([none if part is None else part.counts[name] for part in parts])
        rows = [part.rows[spec.name] for part in parts if part is not None]
        into = np.asarray(out[spec.name])
        if spec.dtype == BYTES:
            width = into.shape[-1]
            rows = [np.pad(r, ((0, 0), (0, width - r.shape[1]))) for r in rows]
        empty = np.empty((0, *into.shape[2:]), into.dtype)
        kept = put_rows(np.concatenate([*rows, empty]), counts, into)
        if name in out:
            np.asarray(out[name])[:] = kept


def _readable(inputs: Tensors, spec: TensorSpec) -> Any:
    """An input as its function sees it: an array that cannot be written, or a list of texts."""
    array = inputs.get(spec.name)
    if array is None:
        raise InvariantError(f"tensor {spec.name!r} is missing; got {sorted(inputs)}")
    if spec.dtype == BYTES:
        return unpack_texts(np.asarray(array, np.uint8))
    seen = array.view()
    seen.flags.writeable = False
    return seen


def _counted(spec: TensorSpec, value: Any, counts: Any, batch: int) -> tuple[Any, Array]:
    """Rows one after the other, and how many each sample has.

    As given, or of a list of one entry per sample.
    """
    if counts is not None:
        found = np.asarray(counts, np.int64)
        if found.shape != (batch,) or (found < 0).any():
            raise TypeError(f"counts of {spec.name!r} are {list(found.shape)}, not one per sample")
        return value, found
    if not isinstance(value, list | tuple) or len(value) != batch:
        raise TypeError(f"{spec.name!r} is not a list with the rows of each sample")
    found = np.array([len(rows) for rows in value], np.int64)
    if spec.dtype == BYTES:
        return [text for texts in value for text in texts], found
    shape = (0, *spec.shape[1:])
    rows = [np.asarray(rows).reshape(len(rows), *spec.shape[1:]) for rows in value if len(rows)]
    return np.concatenate(rows) if rows else np.empty(shape, NUMPY_DTYPES[spec.dtype]), found


def _arrays(name: str, rows: list[Any]) -> list[Array]:
    """Each row as an array.

    Raises:
        TypeError: one is none.
    """
    try:
        return [np.asarray(row) for row in rows]
    except ValueError as error:  # of NumPy: the function's mistake, not its client's
        raise TypeError(f"a row of {name!r} is no array: {_line(error)}") from error


def _as_rows(spec: TensorSpec, value: Any, count: int) -> Array:
    """An output as the stage's rows.

    Raises:
        TypeError: it has another shape, a type that is not kept, a whole number beyond it, or a
            text without room.
        ValueError: it is no array.
    """
    if spec.dtype == BYTES:
        texts = [_as_text(spec, one) for one in value]
        if len(texts) != count or max(map(len, texts), default=0) > (spec.max_bytes or 0):
            most = f"{count} texts of at most {spec.max_bytes} bytes"
            raise TypeError(f"{spec.name!r} is not {most}")
        return pack_texts(texts)
    rows, wanted = np.asarray(value), np.dtype(NUMPY_DTYPES[spec.dtype])
    if rows.shape != (count, *spec.shape[1:]):
        shape = [count, *spec.shape[1:]]
        raise TypeError(f"{spec.name!r} is of shape {list(rows.shape)}, {shape} is stated")
    if rows.dtype == wanted:
        return rows
    if not np.can_cast(rows.dtype, wanted, casting="same_kind"):
        raise TypeError(f"{spec.name!r} is {rows.dtype}, {spec.dtype} is stated")
    if wanted.kind in "iu" and rows.dtype.itemsize > wanted.itemsize:
        beyond = rows[rows != rows.astype(wanted)]
        if beyond.size:
            reason = f"{spec.name!r} has {beyond.flat[0]}, which {spec.dtype} does not hold"
            raise TypeError(reason)
    return rows


def _as_text(spec: TensorSpec, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview | np.ndarray):
        return bytes(value)
    raise TypeError(f"{spec.name!r} has a {type(value).__name__}, not a text")


def _line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
