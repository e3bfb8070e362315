"""Glue: small ONNX graphs between two modules, split, profiled and placed like any model.

`crop` cuts one box out of each picture and brings it to one size:

    image [batch, C, H, W], box [batch, 4] (, label [batch])
        ->  crops [rows, C, h, w] (, crops_rows [batch])

A module that reads the boxes of a detector runs one sample for each, and the request's picture
beside it (`docs/explanation/request.md`, Rows). With `label`, boxes of other labels give no crop:
what comes after runs for that class alone.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.files import check_writable
from flows.preparation.splitting.symbolic import BATCH
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import counts_name

OPSET, IR_VERSION = 17, 9
IMAGE, BOX, LABEL, CROPS = "image", "box", "label", "crops"
# To corners (x1, y1, x2, y2): box @ matrix, by the form in which boxes come.
FORMS: dict[str, NDArray[np.float32]] = {
    name: np.array(columns, np.float32).T
    for name, columns in {
        "xyxy": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        "yxyx": [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]],
        "xywh": [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]],
        "cxcywh": [[1, 0, -0.5, 0], [0, 1, 0, -0.5], [1, 0, 0.5, 0], [0, 1, 0, 0.5]],
    }.items()
}
MOST_PIXELS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """The crop: its source and its size.

    Attributes:
        image: channels, height and width of the pictures.
        size: height and width of the crops.
        boxes: one of `FORMS`.
        in_parts: boxes are in parts of the picture, 0 to 1; else in pixels.
        label: only boxes of this label; None takes all, and there is no label to read then.
    """

    image: tuple[int, int, int]
    size: tuple[int, int]
    boxes: str = "xyxy"
    in_parts: bool = False
    label: int | None = None

    def __post_init__(self) -> None:
        for name, sizes in (("image", self.image), ("size", self.size)):
            if min(sizes) < 1 or np.prod(sizes, dtype=np.float64) > MOST_PIXELS:
                text = "x".join(map(str, sizes))
                raise InputError(name, f"{text} is not of 1 to {MOST_PIXELS} numbers")
        if self.boxes not in FORMS:
            raise InputError("boxes", f"{self.boxes!r} is none of {', '.join(FORMS)}")


def write_crop(path: Path, crop: Crop) -> Path:
    """Write the graph to `path` and return `path`.

    Raises:
        InputError: it cannot be written.
    """
    channels, height, width = crop.image
    scale = np.tile([width, height], 2) if crop.in_parts else 1
    constants = {
        "to_corners": FORMS[crop.boxes] * scale,
        "nothing": np.zeros(4),
        "edges": np.array([width, height, width, height]),
    }
    numbers = {"none": np.array(0), "first": np.array([0]), "one": np.array(1)}
    value, node = helper.make_tensor_value_info, helper.make_node
    inputs = [
        value(IMAGE, TensorProto.FLOAT, [BATCH, *crop.image]),
        value(BOX, TensorProto.FLOAT, [BATCH, 4]),
    ]
    rows, counts = BATCH, []
    nodes = [  # boxes end at the picture's edges
        node("MatMul", [BOX, "to_corners"], ["corners"]),
        node("Max", ["corners", "nothing"], ["not_before"]),
        node("Min", ["not_before", "edges"], ["inside"]),
    ]
    if crop.label is None:
        nodes += [
            node("Shape", [BOX], ["shape"]),
            node("Gather", ["shape", "none"], ["batch"], axis=0),
            node("Range", ["none", "batch", "one"], ["whose"]),
        ]
    else:
        numbers["wanted"] = np.array([crop.label])
        inputs.append(value(LABEL, TensorProto.INT64, [BATCH]))
        rows, counts = "rows", [value(counts_name(CROPS), TensorProto.INT64, [BATCH])]
        nodes += [
            node("Equal", [LABEL, "wanted"], ["kept"]),
            node("Cast", ["kept"], [counts_name(CROPS)], to=TensorProto.INT64),
            node("NonZero", ["kept"], ["places"]),
            node("Squeeze", ["places", "first"], ["whose"]),
        ]
    nodes += [
        node("Gather", ["inside", "whose"], ["boxes"], axis=0),
        node(
            "RoiAlign",
            [IMAGE, "boxes", "whose"],
            [CROPS],
            output_height=crop.size[0],
            output_width=crop.size[1],
            sampling_ratio=1,  # one bilinear sample for each pixel of a crop
            coordinate_transformation_mode="half_pixel",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "crop",
        inputs,
        [value(CROPS, TensorProto.FLOAT, [rows, channels, *crop.size]), *counts],
        [
            *(numpy_helper.from_array(v.astype(np.float32), n) for n, v in constants.items()),
            *(numpy_helper.from_array(v.astype(np.int64), n) for n, v in numbers.items()),
        ],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
    check_writable(path)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
