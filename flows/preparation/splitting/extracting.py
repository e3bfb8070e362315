"""Cutting stages out of a split model with onnx-graphsurgeon.

Shared constants are copied into every stage that uses them. A tensor that a later stage needs is
both input and output of the stages between ("forwarded"): the stage files pass it through.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from flows.preparation.splitting.loading import (
    DATA_SUFFIX,
    OLDEST_IR_WRITTEN,
    load_external_data,
    save_model,
)
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.symbolic import BATCH
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES


def extract_stage(split: SplitModel, first: int, last: int) -> Path:
    """File of blocks [first, last), made where it does not exist yet.

    The same split gives the same bytes. Large weights lie beside it in `<file>.data`.

    Raises:
        InputError: no such blocks.
    """
    return extract_stages(split, [(first, last)])[0]


def extract_stages(split: SplitModel, stages: Sequence[tuple[int, int]]) -> list[Path]:
    """Files of several stages; the model is read once for all that do not exist yet.

    Raises:
        InputError: no such blocks.
    """
    split.require_graph("layers: it runs on CPU classes alone")
    model: onnx.ModelProto | None = None
    paths: list[Path] = []
    for first, last in stages:
        split.require_stage(first, last)
        path = split.folder / "stages" / f"{first}-{last}.onnx"
        paths.append(path)
        if path.exists():
            continue
        if model is None:
            model = onnx.load(split.model_path, load_external_data=False)
            load_external_data(model, split.model_path)
        stage = cut_out(model, split.stage_inputs(first), split.stage_outputs(last))
        stage.graph.name = f"{split.name} blocks {first} to {last}"
        _publish(stage, path)
    return paths


def cut_out(
    model: onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> onnx.ModelProto:
    """The part of a model between two boundaries."""
    graph = gs.import_onnx(model)
    tensors = graph.tensors()
    for spec in inputs:
        tensors[spec.name].inputs.clear()
    for spec in (*inputs, *outputs):
        tensors[spec.name].shape = [BATCH, *spec.shape[1:]]
        tensors[spec.name].dtype = np.dtype(NUMPY_DTYPES[spec.dtype])
    graph.inputs = [tensors[spec.name] for spec in inputs]
    graph.outputs = [tensors[spec.name] for spec in outputs]
    graph.cleanup(remove_unused_graph_inputs=False)
    stage = gs.export_onnx(graph)
    stage.ir_version = max(model.ir_version, OLDEST_IR_WRITTEN)
    del stage.graph.value_info[:]
    return stage


def _publish(stage: onnx.ModelProto, path: Path) -> None:
    """Write completely or not at all; the data file first, as the model file is what is looked for.

    A model file names its data file, so it is written under its final name in a folder of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        folder = Path(scratch)
        save_model(stage, folder / path.name)
        data = folder / (path.name + DATA_SUFFIX)
        if data.exists():
            data.replace(path.with_name(data.name))
        (folder / path.name).replace(path)
