"""`split`: a model cut into blocks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import shared_options
from flows.cli.console import cell, print_json, progress, show, table
from flows.cli.prepare.choices import given_inputs, split_choices
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

if TYPE_CHECKING:
    from flows.preparation.splitting.model import SplitModel


@command(
    "split",
    "poolpipe split resnet50.onnx --name resnet --blocks 10",
    "poolpipe split yolo.onnx --input-shape images=3x320x320",
    "poolpipe split rec.onnx --input-shape x=3x48x320 --input-shape x=3x48x640",
)
def split(
    model: Annotated[
        Path, typer.Argument(metavar="FILE", help="An ONNX file, with its external data beside it.")
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the model; by default the name of the file."),
    ] = None,
    blocks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of blocks to cut the model into.")
    ] = 10,
    max_batch: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Largest batch size at which the cuts are checked."),
    ] = 8,
    layer_times: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Balance blocks by the times in this file (`layer-times`); by default by times "
            "on this CPU.",
        ),
    ] = None,
    input_shape: shared_options.InputShapes = None,
    samples: shared_options.Samples = None,
    input_range: shared_options.InputRanges = None,
    allow_unproven: shared_options.AllowUnproven = False,
    workload: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="workload.yaml that says this model's input_shapes, samples and input_ranges.",
        ),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Cut a model into blocks, check the cuts, and store them; each of its sizes by itself."""
    from flows.preparation.splitting.inputs.values import read_samples
    from flows.preparation.splitting.stored_split import split_step
    from flows.workspace import workspace

    whole = _name_of(model) if name is None else name
    sizes = split_choices(
        given_inputs(input_shape, input_range, samples),
        allow_unproven=allow_unproven,
        stated=None if workload is None else (workload, whole),
    )
    for one in sizes:  # a size without samples is refused before another is split
        if one.samples is not None and one.size:
            read_samples(one.samples, one.size)
    made: list[SplitModel] = []
    for choices in sizes:
        with progress(
            f"splitting {model}" + (f" as {choices.named(whole)}" if choices.size else "")
        ):
            made.append(
                split_step(
                    workspace(warehouse),
                    model,
                    choices.named(whole),
                    blocks=blocks,
                    max_batch=max_batch,
                    layer_times=layer_times,
                    choices=choices,
                )
            )
    if as_json:
        one, *others = map(_plain, made)
        print_json({"name": whole, "sizes": [one, *others]} if others else one)
        return
    for found in made:
        _show(found, blocks)


def _name_of(file: Path) -> str:
    from flows.files import check_is_file
    from triton_backend.contract.errors import InputError
    from triton_backend.serve_folder.names import check_name

    check_is_file(file)
    try:
        check_name(file.stem)
    except InputError as error:
        raise InputError(str(file), f"{error.reason}; give --name") from error
    return file.stem


def _plain(found: "SplitModel") -> dict[str, Any]:
    return {
        "name": found.name,
        "key": found.key,
        "folder": found.folder,
        "blocks": found.blocks,
        "cuts": found.cuts,
        "legal_cuts": found.legal_cuts,
        "block_times_us": found.block_times_us,
        "boundary_bytes": found.boundary_bytes,
        "boundaries": [[s.to_dict() for s in specs] for specs in found.boundaries],
        "inputs": [s.to_dict() for s in found.inputs],
        "outputs": [s.to_dict() for s in found.outputs],
        "check": dict(found.check),
        "unproven": found.unproven,
        "input_ranges": {name: limits[:2] for name, limits in found.input_ranges.items()},
        "reused": found.reused,
    }


def _show(found: "SplitModel", asked: int) -> None:
    total = sum(found.block_times_us)
    rows = [
        (
            str(block),
            f"{found.cuts[block]} to {found.cuts[block + 1] - 1}",
            f"{time / total:.1%}",
            cell(found.boundary_bytes[block] if block + 1 < found.blocks else None),
        )
        for block, time in enumerate(found.block_times_us)
    ]
    show(table(("block", "layers", "run time", "bytes per sample after it"), rows))
    for remark in found.remarks():
        show(f"{found.name}: {remark}")
    if found.blocks == found.legal_cuts + 1 < asked and not found.sample_by_sample:
        show(f"{found.name}: {asked} blocks were asked for, it can be cut into {found.blocks}")
    done = "reused from" if found.reused else "written to"
    show(f"{found.name}: {found.in_words}, {done}")
    show(str(found.folder))
