"""Answers of the unsplit models, to check every response of the served ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from flows.preparation.splitting.graph import read_layers
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.observing import sample_tolerance
from flows.preparation.splitting.running import Arrays, open_session, random_inputs, run_session
from triton_backend.contract.applications import REQUEST, Application, Module
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES

SAMPLES = 16
SEED = 77


def write_answers(split: SplitModel, path: Path) -> Path:
    """Random inputs and the whole model's outputs as an `.npz` for `load --check`.

    Arrays are `inputs/<tensor>` and `outputs/<tensor>`, each [16, ...], and `tolerance`.
    """
    rng = np.random.default_rng(SEED)
    session = open_session(split.model_path, str(split.model_path))
    inputs = split.model_inputs().draw(SAMPLES, rng)
    # One sample at a time: nothing of the batching that is under test takes part.
    answers = [
        run_session(session, {name: array[i : i + 1] for name, array in inputs.items()})
        for i in range(SAMPLES)
    ]
    arrays = {f"inputs/{name}": array for name, array in inputs.items()}
    for spec in split.outputs:
        arrays[f"outputs/{spec.name}"] = np.concatenate([a[spec.name] for a in answers])
    arrays["tolerance"] = np.array(_tolerance([split]))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def write_application_answers(
    graph: Application, files: Mapping[str, Path], splits: Mapping[str, SplitModel], path: Path
) -> Path:
    """Random requests of an application and its answers, run model by model, as an `.npz`.

    Every model is the file that it was split from, run on one row at a time. Arrays are
    `inputs/<tensor>` [16, ...], `outputs/<name>` [rows of all requests, ...] and `rows/<name>`
    [16].

    Args:
        graph: of modules that say what they read.
        files: of every model, by its name.
        splits: the same.
        path: the file to write.
    """
    sessions = {name: open_session(file, str(file)) for name, file in files.items()}
    asked: dict[str, TensorSpec] = {}
    for module in graph.modules:
        given = {spec.name: spec for spec in splits[module.model].inputs}
        for tensor, source in module.inputs.items():
            producer, _, name = source.partition(".")
            if producer == REQUEST:
                spec = given[tensor]
                asked[name] = TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape)
    requests = random_inputs(tuple(asked.values()), SAMPLES, np.random.default_rng(SEED))
    answers: list[Arrays] = []
    for i in range(SAMPLES):
        known = {f"{REQUEST}.{name}": array[i : i + 1] for name, array in requests.items()}
        for module in graph.ordered():
            inputs = {tensor: known[source] for tensor, source in module.inputs.items()}
            made = _rows_of(module, inputs, splits[module.model])
            results = [run_session(sessions[module.model], row) for row in made]
            for spec in splits[module.model].outputs:
                rows = [result[spec.name] for result in results if spec.name in result]
                none = np.empty((0, *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
                known[f"{module.name}.{spec.name}"] = np.concatenate([none, *rows])
        answers.append({name: known[source] for name, source in graph.outputs.items()})
    arrays = {f"inputs/{name}": array for name, array in requests.items()}
    for name in graph.outputs:
        arrays[f"outputs/{name}"] = np.concatenate([answer[name] for answer in answers])
        arrays[f"rows/{name}"] = np.array([len(answer[name]) for answer in answers])
    arrays["tolerance"] = np.array(_tolerance(list(splits.values())))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def _tolerance(splits: Sequence[SplitModel]) -> float:
    """As between a sample's results in two batches, by the least precise of the models."""
    kinds = [NUMPY_DTYPES[spec.dtype] for split in splits for spec in split.outputs]
    graphs = [onnx.load(split.model_path, load_external_data=False).graph for split in splits]
    half = any(read_layers(graph).half for graph in graphs)
    return max(sample_tolerance(np.dtype(kind), half=half) for kind in kinds)


def _rows_of(module: Module, inputs: Arrays, split: SplitModel) -> list[Arrays]:
    """The inputs of each row of a module; the request's one sample goes with each."""
    own = [t for t, s in module.inputs.items() if not s.startswith(f"{REQUEST}.")]
    rows = len(inputs[own[0]]) if own else 1
    names = [spec.name for spec in split.inputs]
    return [
        {name: inputs[name][k : k + 1] if name in own else inputs[name] for name in names}
        for k in range(rows)
    ]


def mean_rows(path: Path, output: str) -> float:
    """Mean number of rows of an output in such a file."""
    with np.load(path, allow_pickle=False) as saved:
        return float(saved[f"rows/{output}"].mean())
