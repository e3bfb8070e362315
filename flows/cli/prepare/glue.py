"""`glue crop`: small graphs between the modules of an application."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, show
from flows.cli.registry import command, family
from flows.cli.shared_options import AsJson

family("glue", "Small ONNX graphs between two modules of an application.")


@command("glue crop", "poolpipe glue crop --image 3x480x640 --size 224 -o crop.onnx")
def crop(
    *,
    image: Annotated[
        str,
        typer.Option(
            metavar="CxHxW", help="Channels, height and width of the pictures, such as 3x480x640."
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            metavar="HxW",
            help="Height and width of the crops, such as 224x224; one number stands for both.",
        ),
    ],
    boxes: Annotated[
        str,
        typer.Option(metavar="xyxy|yxyx|xywh|cxcywh", help="Order of the four numbers of a box."),
    ] = "xyxy",
    in_parts: Annotated[
        bool,
        typer.Option(
            "--in-parts/--in-pixels",
            help="Read box coordinates as parts of the picture from 0 to 1, or in pixels.",
        ),
    ] = False,
    label: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Crop only boxes of this label, read from an input `label`; by default all boxes.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Write the ONNX graph to this file."),
    ],
    as_json: AsJson = False,
) -> None:
    """Write a graph that cuts boxes out of pictures and brings them to one size.

    Split it with `--blocks 1`, profile it and name it in an application like any model: its module
    reads the request's picture as `image`, a detector's boxes as `box` and, with --label, its
    labels as `label`.
    """
    from dataclasses import asdict

    from flows.preparation.graphs.glue import Crop, write_crop

    channels, height, width = _sizes("--image", image, (3,))
    sizes = _sizes("--size", size, (1, 2))
    asked = Crop(
        image=(channels, height, width),
        size=(sizes[0], sizes[-1]),
        boxes=boxes,
        in_parts=in_parts,
        label=label,
    )
    write_crop(output, asked)
    if as_json:
        print_json({"file": output, **asdict(asked)})
    else:
        show(f"{output}; `poolpipe split {output} --blocks 1` is next")


def _sizes(where: str, text: str, counts: tuple[int, ...]) -> list[int]:
    from triton_backend.contract.errors import InputError

    parts = text.lower().split("x")
    if len(parts) not in counts or not all(part.isdecimal() for part in parts):
        form = {"--image": "CxHxW, as 3x480x640", "--size": "HxW, as 224x224"}[where]
        raise InputError(where, f"{text!r} is not {form}")
    return [int(part) for part in parts]
