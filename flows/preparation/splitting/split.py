"""Splitting one model file: the steps in order, and the folder they end in."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from flows.preparation.splitting.checking import check_split
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.graph import Layers, input_names, read_layers
from flows.preparation.splitting.grouping import group_layers
from flows.preparation.splitting.inputs.sizes import Shapes, fix_sizes
from flows.preparation.splitting.inputs.values import (
    InputValues,
    ModelInputs,
    Range,
    read_samples,
)
from flows.preparation.splitting.layer_times import layer_times_us, read_times, times_of
from flows.preparation.splitting.loading import (
    load_external_data,
    load_skeleton,
    save_model,
    weight_bytes,
)
from flows.preparation.splitting.model import MODEL_NAME, RECORD_NAME, SAMPLES_NAME, SplitModel
from flows.preparation.splitting.observing import (
    NOWHERE,
    boundary_specs,
    input_specs,
    output_specs,
)
from flows.preparation.splitting.per_sample import (
    can_run_per_sample,
    is_sample_by_sample,
    run_ends_per_sample,
)
from flows.preparation.splitting.shapes import make_shapes_constant
from flows.preparation.splitting.symbolic import make_batch_symbolic
from triton_backend.contract.applications.sizes import size_name
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.serve_folder.names import check_name

DEFAULT_BLOCKS = 10
DEFAULT_MAX_BATCH = 8
# Raised whenever the same input would be split or checked differently.
FORMAT = 5
KEY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChoices:
    """Choices for a model beside its file.

    Attributes:
        input_shapes: input name to its sizes without the batch, where the file leaves some open.
        input_ranges: input name to the values it is checked with.
        samples: an `.npz` file or a folder of such, in place of values drawn.
        allow_unproven: cut also where two samples do not differ.
        size_inputs: inputs whose shapes tell this size from the model's others; none where the
            model has one size.
    """

    input_shapes: Shapes = field(default_factory=dict[str, tuple[int, ...]])
    input_ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    samples: Path | None = None
    allow_unproven: bool = False
    size_inputs: tuple[str, ...] = ()

    @property
    def size(self) -> Shapes:
        """Shapes that tell this size from the model's others."""
        return {name: self.input_shapes[name] for name in self.size_inputs}

    def named(self, model: str) -> str:
        """The model's own name, or that of this size."""
        if not self.size_inputs:
            return model
        shapes = {name: "x".join(map(str, sizes)) for name, sizes in self.size.items()}
        return size_name(model, shapes)

    def asked(self, values: InputValues) -> tuple[object, ...]:
        """The choices in the key of a split beside the file; empty without choices."""
        digests = tuple(
            (name, array.shape, hashlib.sha256(np.ascontiguousarray(array).data).hexdigest())
            for name, array in sorted(values.samples.items())
        )
        shapes = tuple(sorted((name, tuple(sizes)) for name, sizes in self.input_shapes.items()))
        ranges = tuple(sorted(self.input_ranges.items()))
        chosen = (shapes, ranges, digests, self.allow_unproven)
        return chosen if any(chosen) else ()


def split_model(
    path: Path,
    *,
    name: str,
    out: Path,
    blocks: int = DEFAULT_BLOCKS,
    max_batch: int = DEFAULT_MAX_BATCH,
    layer_times: Path | None = None,
    choices: SplitChoices | None = None,
) -> SplitModel:
    """Split an ONNX model into blocks under `out/<name>/<key>/`, or find it split there.

    Args:
        path: the model file; external data lies where it says.
        name: what the model is called from here on.
        out: folder of all split models.
        blocks: blocks wanted; a model with fewer legal cuts gets fewer.
        max_batch: largest batch the split is checked at.
        layer_times: file of layer times to cut by; None times the layers on this machine.
        choices: sizes, values and cuts that the file leaves open.

    Raises:
        InputError: the model cannot be split, with the reason.
    """
    check_name(name)
    if blocks < 1 or max_batch < 1:
        raise InputError("split", f"{blocks} blocks and a largest batch of {max_batch}")
    choices = choices or SplitChoices()
    skeleton = load_skeleton(path)
    fix_sizes(skeleton, choices.input_shapes, str(path))
    names, file = input_names(skeleton.graph), choices.samples
    values = InputValues(
        ranges=choices.input_ranges,
        samples={} if file is None else read_samples(file, choices.size, names),
        file=file,
    )
    specs = input_specs(skeleton, names, str(path))
    values.fit(specs, str(path))
    values = values.with_allowed(skeleton.graph)
    times = None if layer_times is None else read_times(layer_times)
    key = _key(
        skeleton,
        path,
        (name, blocks, max_batch, *(() if times is None else (times,)), *choices.asked(values)),
    )
    folder = out / name / key
    if (folder / RECORD_NAME).exists():
        return SplitModel.read(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        dir=folder.parent, prefix=f".{key}.", ignore_cleanup_errors=True
    ) as scratch:
        unfinished = Path(scratch) / key
        unfinished.mkdir()
        asked = SplitRequest(
            name=name,
            key=key,
            blocks=blocks,
            max_batch=max_batch,
            times=times,
            values=values,
            allow_unproven=choices.allow_unproven,
        )
        _for_any_batch(skeleton, path, unfinished / MODEL_NAME, asked)
        split = _grouped_and_checked(unfinished, str(path), asked)
        split.write()
        try:
            unfinished.rename(folder)
        except OSError:  # another process was first
            return SplitModel.read(folder)
    return replace(split, folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """The request of `split_model`."""

    name: str
    key: str
    blocks: int
    max_batch: int
    times: Mapping[str, float] | None
    values: InputValues
    allow_unproven: bool


def _grouped_and_checked(folder: Path, where: str, asked: SplitRequest) -> SplitModel:
    """The blocks of the model in the folder, compared with the whole; its samples are kept.

    Raises:
        InputError: an answer or a boundary differs, with the first layer that does.
    """
    if asked.values.samples:
        kept: dict[str, Any] = {f"inputs/{n}": array for n, array in asked.values.samples.items()}
        np.savez(folder / SAMPLES_NAME, **kept)
    split = _group(folder, where, asked)
    found = check_split(split, allow_unproven=asked.allow_unproven)
    return replace(
        split,
        block_memory_bytes=_memory(split),
        check={
            "max_relative_error": found.max_relative_error,
            "input_dependence": found.input_dependence,
        },
    )


def _for_any_batch(skeleton: onnx.ModelProto, path: Path, out: Path, asked: SplitRequest) -> None:
    """Write the model for any batch: constants that hold it changed.

    Where that does not do, with Loops.
    """
    where, given = str(path), onnx.ModelProto()
    given.CopyFrom(skeleton)
    model = make_batch_symbolic(skeleton, where)
    load_external_data(model, path)
    save_model(model, out)
    if not can_run_per_sample(given):
        return
    layers, inputs = _read(out, where, asked.values)
    try:
        output_specs(out, where, layers, inputs, asked.max_batch)
    except InputError:
        load_external_data(given, path)
        save_model(run_ends_per_sample(given, where, asked.values), out)


def _group(folder: Path, where: str, asked: SplitRequest) -> SplitModel:
    """Group the layers of the prepared model in `folder` into blocks; not checked yet."""
    path = folder / MODEL_NAME
    make_shapes_constant(path, where, _read(path, where, asked.values)[1])
    layers, inputs = _read(path, where, asked.values)
    for output in layers.outputs:
        if layers.made_at.get(output, -1) < 0:
            raise InputError(f"{where}, output {output!r}", "is not computed from any input")
    outputs = output_specs(path, where, layers, inputs, asked.max_batch)
    whole = asked.blocks == 1
    crossing = NOWHERE if whole else boundary_specs(path, where, layers, inputs)
    legal = crossing.legal_cuts(layers)
    unproven = {at: live for at, live in legal.items() if not crossing.proven(live)}
    if not asked.allow_unproven:
        legal = {at: live for at, live in legal.items() if at not in unproven}
    times = (
        layer_times_us(path, where, inputs)
        if asked.times is None
        else times_of(layers, asked.times, f"layer times of {where}")
    )
    sizes = {position: total_bytes_per_sample(live) for position, live in legal.items()}
    grouping = group_layers(times, sizes, asked.blocks)
    edges = list(pairwise(grouping.cuts))
    return SplitModel(
        name=asked.name,
        key=asked.key,
        folder=folder,
        inputs=inputs.specs,
        outputs=outputs,
        cuts=grouping.cuts,
        boundaries=tuple(legal[position] for position in grouping.cuts[1:-1]),
        block_times_us=tuple(round(sum(times[a:b]), 3) for a, b in edges),
        tolerance=grouping.tolerance,
        tolerance_below=grouping.tolerance_below,
        legal_cuts=len(legal),
        max_batch=asked.max_batch,
        unproven=tuple(dict.fromkeys(spec.name for live in unproven.values() for spec in live)),
        sample_by_sample=is_sample_by_sample(layers),
        input_ranges=asked.values.ranges,
    )


def _read(path: Path, where: str, values: InputValues) -> tuple[Layers, ModelInputs]:
    model = onnx.load(path, load_external_data=False)
    layers = read_layers(model.graph)
    specs = input_specs(model, layers.inputs, where)
    return layers, ModelInputs(specs=specs, values=values)


def _memory(split: SplitModel) -> tuple[int, ...]:
    """Weights of each block and what enters and leaves it at the largest batch, in bytes."""
    needs: list[int] = []
    for block in range(split.blocks):
        stage = onnx.load(extract_stage(split, block, block + 1), load_external_data=False)
        crossing = (*split.stage_inputs(block), *split.stage_outputs(block + 1))
        needs.append(weight_bytes(stage.graph) + split.max_batch * total_bytes_per_sample(crossing))
    return tuple(needs)


def _key(skeleton: onnx.ModelProto, path: Path, asked: tuple[object, ...]) -> str:
    """Hash of the model file, the data files it names, and what was asked for."""
    digest = hashlib.sha256(repr((FORMAT, *asked)).encode())
    names = {path.name}
    for tensor in skeleton.graph.initializer:
        names |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    for name in sorted(names):
        file = path.parent / name
        if not file.is_file():
            raise InputError(str(path), f"its external data file {name} is missing")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:KEY_DIGITS]
