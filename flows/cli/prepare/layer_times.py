"""`layer-times`: a model's layers measured on this machine's GPU, for `split --layer-times`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import progress, show
from flows.cli.prepare.selection import EngineBuilder
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, WarehouseFile


@command("layer-times", "poolpipe layer-times resnet50 --class L4 -o times.json")
def layer_times(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model that was split.")],
    *,
    gpu_class: Annotated[
        str, typer.Option("--class", metavar="NAME", help="The GPU class of this machine's GPU.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the times to this file, for `split --layer-times`.",
        ),
    ] = Path("layer_times.json"),
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batch size at which layers are measured.")
    ] = 8,
    builder: EngineBuilder,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Measure a model's layers on this machine's GPU.

    So that it can be cut by them.
    """
    import onnx

    from flows.files import check_writable
    from flows.preparation.building.tensorrt.engines import whole_engine
    from flows.preparation.profiling.gpu_layers import engine_layer_times_us, gpu_layer_times_us
    from flows.preparation.splitting.graph import read_layers
    from flows.preparation.splitting.layer_times import write_times
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    check_writable(output)
    work = workspace(warehouse)
    options = builder.options([batch])
    with progress("measuring layers"):
        split = read_split(work, model)
        folder = whole_engine(work, split, gpu_class, options)
        layers, times = engine_layer_times_us(folder, batch)
        graph = onnx.load(split.model_path, load_external_data=False).graph
        write_times(output, read_layers(graph), gpu_layer_times_us(split, layers, times))
    show(f"times of the layers of {model} on {gpu_class} are in {output}")
