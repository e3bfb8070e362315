"""The result of a split: a folder with the model, described by `split.json`.

<folder>/split.json           this record
<folder>/model.onnx (.data)   the model with a symbolic batch
<folder>/samples.npz          samples that it was checked with, where they were given
<folder>/stages/3-7.onnx      blocks [3, 7), made when first asked for
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from flows.preparation.splitting.inputs.values import (
    InputValues,
    ModelInputs,
    Range,
    read_samples,
)
from flows.preparation.splitting.observing import SAME
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec, total_bytes_per_sample

RECORD_NAME = "split.json"
MODEL_NAME = "model.onnx"
SAMPLES_NAME = "samples.npz"
MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitModel:
    """One model cut into blocks.

    Attributes:
        key: hash of the model's content and of what was asked for; the folder's name.
        cuts: layer positions; block i is layers [cuts[i], cuts[i + 1]).
        boundaries: tensors that cross after block i, for i in 0 .. blocks - 2.
        block_times_us: estimated run time of each block at batch 1, one thread.
        block_memory_bytes: weights of each block and what enters and leaves it at `max_batch`.
        tolerance, tolerance_below: how far a block's time may be above and below an equal share
            (fractions of the share).
        legal_cuts: how many positions could have been cut; 0 where one block was asked for.
        max_batch: largest batch the checks were run at.
        check: errors found by `check_split`, with their tolerance.
        unproven: tensors that two samples do not change, at boundaries where no cut was made for
            that reason, or (`allow_unproven`) at boundaries of blocks.
        sample_by_sample: all its layers are in a Loop over the samples (`per_sample`).
        input_ranges: what the model's inputs are drawn within, by name, where they are.
        step: options of a Python step's artifact, where it is one: there is no `model.onnx` then.
        reused: the split was on disk already.
    """

    name: str
    key: str
    folder: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cuts: tuple[int, ...]
    boundaries: tuple[tuple[TensorSpec, ...], ...]
    block_times_us: tuple[float, ...]
    tolerance: float
    tolerance_below: float
    legal_cuts: int
    max_batch: int
    block_memory_bytes: tuple[int, ...] = ()
    check: Mapping[str, float] = field(default_factory=dict[str, float])
    unproven: tuple[str, ...] = ()
    sample_by_sample: bool = False
    input_ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    step: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reused: bool = False

    def model_inputs(self) -> ModelInputs:
        """The inputs and the values they were checked with, for further runs.

        Raises:
            InputError: the samples kept beside the model cannot be read.
        """
        samples = self.folder / SAMPLES_NAME
        values = InputValues(
            ranges=self.input_ranges, samples=read_samples(samples) if samples.exists() else {}
        )
        return ModelInputs(specs=self.inputs, values=values)

    @property
    def answers_vary(self) -> bool:
        """Two samples differ in the answers, as far as they were compared."""
        return self.check.get("input_dependence", 1.0) > SAME

    @property
    def in_words(self) -> str:
        """Its blocks, and out of how many places for a cut."""
        if self.blocks == 1:
            return "one block, the whole model"
        cuts = "cut" if self.legal_cuts == 1 else "cuts"
        return f"{self.blocks} blocks from {self.legal_cuts} legal {cuts}"

    def remarks(self) -> list[str]:
        """Notes for the user on the check; none if all is plain."""
        found: list[str] = []
        if not self.answers_vary:
            found.append(
                "its answers do not depend on its input; it was compared at its boundaries"
            )
        if self.sample_by_sample:
            found.append(
                "its control flow takes one sample, so it runs sample by sample and cannot be cut: "
                "a batch takes as long as its samples one after the other"
            )
        if self.unproven:
            named = ", ".join(self.unproven[:MOST_NAMED])
            more = len(self.unproven) - MOST_NAMED
            named += f" and {more} more" if more > 0 else ""
            found.append(f"two different inputs do not change {named}")
        return found

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.cuts) - 1

    @property
    def model_path(self) -> Path:
        """The whole model with a symbolic batch."""
        return self.folder / MODEL_NAME

    @property
    def boundary_bytes(self) -> tuple[int, ...]:
        """Bytes per sample that cross after block i."""
        return tuple(total_bytes_per_sample(specs) for specs in self.boundaries)

    def stage_inputs(self, first: int) -> tuple[TensorSpec, ...]:
        """Tensors a stage that starts with block `first` takes."""
        return self.inputs if first == 0 else self.boundaries[first - 1]

    def stage_outputs(self, last: int) -> tuple[TensorSpec, ...]:
        """Tensors a stage that ends before block `last` gives."""
        return self.outputs if last == self.blocks else self.boundaries[last - 1]

    def require_graph(self, what: str) -> None:
        """Refuse what needs layers where the model is a Python step.

        Raises:
            InputError: it is one.
        """
        if self.step:
            raise InputError(f"model {self.name!r}", f"is a Python step, which has no {what}")

    def require_stage(self, first: int, last: int) -> None:
        """Check that blocks [first, last) exist.

        Raises:
            InputError: they do not.
        """
        if not 0 <= first < last <= self.blocks:
            raise InputError(
                f"stage of {self.name!r}", f"blocks [{first}, {last}) of {self.blocks} blocks"
            )

    def write(self) -> None:
        """Write the record into the folder."""
        data = {
            "name": self.name,
            "key": self.key,
            "inputs": [s.to_dict() for s in self.inputs],
            "outputs": [s.to_dict() for s in self.outputs],
            "cuts": list(self.cuts),
            "boundaries": [[s.to_dict() for s in specs] for specs in self.boundaries],
            "block_times_us": list(self.block_times_us),
            "block_memory_bytes": list(self.block_memory_bytes),
            "tolerance": self.tolerance,
            "tolerance_below": self.tolerance_below,
            "legal_cuts": self.legal_cuts,
            "max_batch": self.max_batch,
            "check": dict(self.check),
            "unproven": list(self.unproven),
            "sample_by_sample": self.sample_by_sample,
            "input_ranges": {name: list(limits) for name, limits in self.input_ranges.items()},
        } | ({"step": dict(self.step)} if self.step else {})
        (self.folder / RECORD_NAME).write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the record of a split on disk.

        Raises:
            InputError: there is none, or it cannot be used.
        """
        path = folder / RECORD_NAME
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            return cls(
                name=data["name"],
                key=data["key"],
                folder=folder,
                inputs=tuple(map(TensorSpec.from_dict, data["inputs"])),
                outputs=tuple(map(TensorSpec.from_dict, data["outputs"])),
                cuts=tuple(data["cuts"]),
                boundaries=tuple(
                    tuple(map(TensorSpec.from_dict, specs)) for specs in data["boundaries"]
                ),
                block_times_us=tuple(data["block_times_us"]),
                block_memory_bytes=tuple(data["block_memory_bytes"]),
                tolerance=data["tolerance"],
                tolerance_below=data["tolerance_below"],
                legal_cuts=data["legal_cuts"],
                max_batch=data["max_batch"],
                check=data["check"],
                unproven=tuple(data.get("unproven", ())),
                sample_by_sample=data.get("sample_by_sample", False),
                input_ranges={
                    n: Range(*limits) for n, limits in data.get("input_ranges", {}).items()
                },
                step=data.get("step", {}),
                reused=True,
            )
        except FileNotFoundError as error:
            raise InputError(str(path), "no such file; split the model again") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"not the record of a split: {error}") from error
