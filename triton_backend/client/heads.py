"""The folder that `poolpipe heads export` writes.

cuts.json, and a file of the blocks before each cut.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import triton_to_np_dtype

from .errors import ClientError

CUTS_NAME = "cuts.json"
HALF_SUFFIX = ".fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that crosses a cut; `shape` of one sample."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of one sample."""
        return prod(self.shape) * np.dtype(triton_to_np_dtype(self.dtype)).itemsize

    def half(self) -> "Tensor":
        """The FP16 tensor sent in its place."""
        if self.dtype != "FP32":
            return self
        return Tensor(name=self.name + HALF_SUFFIX, dtype="FP16", shape=self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Blocks [0, block); the last one is the whole model.

    Attributes:
        file: an ONNX file; None: no blocks.
        tensors: what it gives; of block 0 what the model takes.
        head_us: time on this device; None: not measured.
        tail_us: least time of the other blocks on the server; None: not known.
    """

    block: int
    file: Path | None
    tensors: tuple[Tensor, ...]
    head_us: int | None
    tail_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Every cut of one split of a model, by rising block."""

    folder: Path
    model: str
    split: str
    cuts: tuple[Head, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the model."""
        return self.cuts[0].tensors

    @property
    def whole(self) -> Head:
        """The whole model."""
        return self.cuts[-1]


def read_heads(folder: Path) -> Heads:
    """Read cuts.json.

    Raises:
        ClientError: it is not what `poolpipe heads export` writes.
    """
    path = folder / CUTS_NAME
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        cuts = tuple(_head(folder, row) for row in rows)
        models, splits = ({row[name] for row in rows} for name in ("model", "split"))
    except OSError as error:
        raise ClientError(str(path), f"cannot be read: {error.strerror}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,  # Infinity as an integer
        RecursionError,  # lists within lists without end
    ) as error:
        raise ClientError(
            str(path), f"not written by `poolpipe heads export`: {error!r}"
        ) from error
    if [cut.block for cut in cuts] != list(range(len(cuts))) or len(cuts) < 2:  # noqa: PLR2004  # 0 and all
        raise ClientError(str(path), f"cuts {[cut.block for cut in cuts]}, not every one from 0 on")
    if len(models) > 1 or len(splits) > 1:
        raise ClientError(str(path), f"several models or splits: {sorted(models | splits)}")
    for cut in cuts:
        for field, time_us in (("head_us", cut.head_us), ("tail_us", cut.tail_us)):
            if time_us is not None and time_us < 0:
                raise ClientError(str(path), f"block {cut.block}: {field} {time_us} is no time")
        if (cut.file is None) != (cut.block == 0) or (cut.file and not cut.file.is_file()):
            raise ClientError(str(path), f"block {cut.block}: its file {cut.file} is not there")
    return Heads(folder=folder, model=models.pop(), split=splits.pop(), cuts=cuts)


def _head(folder: Path, row: Mapping[str, Any]) -> Head:
    return Head(
        block=int(row["block"]),
        file=None if row["file"] is None else folder / row["file"],
        tensors=tuple(
            Tensor(
                name=t["name"], dtype=_datatype(t["dtype"]), shape=tuple(map(int, t["shape"][1:]))
            )
            for t in row["tensors"]
        ),
        **{n: None if row[n] is None else int(row[n]) for n in ("head_us", "tail_us")},
    )


def _datatype(name: str) -> str:
    if triton_to_np_dtype(name) is None:
        raise ValueError(f"{name!r} is no datatype")
    return name


def write_times(folder: Path, heads_us: Sequence[int]) -> None:
    """Write measured times of all heads into cuts.json, whole or not at all.

    Raises:
        ClientError: it cannot be written.
    """
    path = folder / CUTS_NAME
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        for row, head_us in zip(rows, heads_us, strict=True):
            row["head_us"] = head_us
        unfinished = path.with_name(f".{CUTS_NAME}")
        unfinished.write_text(json.dumps(rows, indent=1) + "\n")
        unfinished.replace(path)
    except OSError as error:
        raise ClientError(str(path), f"cannot be written: {error.strerror}") from error
