"""Split models of the project.

A model file split into its state folder and known to the warehouse.
"""

from pathlib import Path

from flows.clock import now_utc
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.split import (
    DEFAULT_BLOCKS,
    DEFAULT_MAX_BATCH,
    SplitChoices,
    split_model,
)
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from warehouse.profiles import ModelRecord, add_model, find_model


def split_step(
    work: Workspace,
    path: Path,
    name: str,
    *,
    blocks: int = DEFAULT_BLOCKS,
    max_batch: int = DEFAULT_MAX_BATCH,
    layer_times: Path | None = None,
    choices: SplitChoices | None = None,
) -> SplitModel:
    """Split a model file, by this machine's layer times or those of a file, and store it.

    Raises:
        InputError: the model cannot be split.
    """
    split = split_model(
        path,
        name=name,
        out=work.state.models,
        blocks=blocks,
        max_batch=max_batch,
        layer_times=layer_times,
        choices=choices,
    )
    store_split(work, split, str(path))
    return split


def store_split(work: Workspace, split: SplitModel, source: str) -> None:
    """Blocks and boundaries of a split model into the warehouse."""
    record = ModelRecord(
        model_key=split.key,
        name=split.name,
        source=source,
        folder=str(split.folder.resolve()),
        boundary_bytes=split.boundary_bytes,
        inputs=split.inputs,
        outputs=split.outputs,
        boundaries=split.boundaries,
        block_memory_bytes=split.block_memory_bytes,
        block_times_us=split.block_times_us,
    )
    with work.open() as warehouse:
        add_model(warehouse, record, now_utc())


def read_split(work: Workspace, name: str) -> SplitModel:
    """The split of a model in the warehouse.

    Raises:
        InputError: no such model, or only its tables were imported.
    """
    with work.open(read_only=True) as warehouse:
        record = find_model(warehouse, name)
    if record.folder is None:
        raise InputError(f"model {name!r}", "has imported tables only; split its ONNX file first")
    folder = Path(record.folder)
    if not folder.is_dir():  # the project was moved: among its models there
        folder = work.state.models.joinpath(*folder.parts[-2:])
    return SplitModel.read(folder)
