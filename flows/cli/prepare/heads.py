"""`heads export`: what a client needs that runs the first blocks itself."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, progress, show
from flows.cli.registry import command, family
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile

family("heads", "First blocks of models, for clients that run them.")


@command("heads export", "poolpipe heads export resnet -o heads/")
def export_heads(
    model: Annotated[str, typer.Argument(metavar="NAME", help="Name of a model that was split.")],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="Write the heads and cuts.json to this folder."
        ),
    ],
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write blocks [0, p) for every cut p of a model, and cuts.json with the tensors of each cut.

    Every head is checked, with its tail, against the whole model. Latencies of tails are the least
    that were measured, where the model was profiled. `poolpipe-client` runs the heads.
    """
    from flows.preparation.heads import CUTS_NAME, export_heads, stored_tails_us
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    work = workspace(warehouse)
    split = read_split(work, model)
    with progress(f"heads of {model}"):
        tails_us = stored_tails_us(work, model)
        error = export_heads(split, output, tails_us)
    if as_json:
        print_json(
            {
                "model": split.name,
                "split": split.key,
                "blocks": split.blocks,
                "cuts": output / CUTS_NAME,
                "max_relative_error": error,
                "tails_known": tails_us is not None,
            }
        )
        return
    show(f"{split.blocks} heads of {split.name} in {output}; with their tails they are the model")
    show(f"to {error:.1g} relative; tails: {'as measured' if tails_us else 'not measured'}")
