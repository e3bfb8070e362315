"""A crop is the box, cut out and brought to its size; it is split like any model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from flows.preparation.graphs.glue import Crop, write_crop
from flows.preparation.splitting import split_model
from triton_backend.contract.errors import InputError

IMAGE = (2, 12, 20)
BOXES = np.array([[3, 2, 11, 8], [0, 0, 20, 12], [6, 4, 14, 10]], np.float32)


def images() -> NDArray[np.float32]:
    return np.random.default_rng(4).standard_normal((3, *IMAGE)).astype(np.float32)


def run(path: Path, **inputs: NDArray[Any]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(str(path))
    return [np.asarray(one) for one in session.run(None, inputs)]


def resized(image: NDArray[Any], box: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Bilinear in plain numpy: a pixel's value stands at its middle."""
    x1, y1, x2, y2 = box
    out = np.empty((image.shape[0], *size))
    for i in range(size[0]):
        for k in range(size[1]):
            y = min(max(y1 + (i + 0.5) * (y2 - y1) / size[0] - 0.5, 0), image.shape[1] - 1)
            x = min(max(x1 + (k + 0.5) * (x2 - x1) / size[1] - 0.5, 0), image.shape[2] - 1)
            top, left = int(y), int(x)
            below, right = min(top + 1, image.shape[1] - 1), min(left + 1, image.shape[2] - 1)
            upper = image[:, top, left] * (1 - x + left) + image[:, top, right] * (x - left)
            lower = image[:, below, left] * (1 - x + left) + image[:, below, right] * (x - left)
            out[:, i, k] = upper * (1 - y + top) + lower * (y - top)
    return out


def test_a_box_of_whole_pixels_at_its_own_size_is_cut_out(tmp_path: Path) -> None:
    path = write_crop(tmp_path / "c.onnx", Crop(image=IMAGE, size=(6, 8)))
    given = images()
    (crops,) = run(path, image=given, box=BOXES)
    np.testing.assert_allclose(crops[0], given[0, :, 2:8, 3:11], atol=1e-6)
    np.testing.assert_allclose(crops[2], given[2, :, 4:10, 6:14], atol=1e-6)


def test_other_sizes_are_bilinear_and_boxes_end_at_the_edges(tmp_path: Path) -> None:
    path = write_crop(tmp_path / "c.onnx", Crop(image=IMAGE, size=(5, 9)))
    boxes = np.array([[-4, 1.5, 30, 7.25], [2.5, -1, 9, 99], [0, 0, 20, 12]], np.float32)
    (crops,) = run(path, image=images(), box=boxes)
    within = np.clip(boxes, 0, [20, 12, 20, 12])
    expected = [resized(i, b, (5, 9)) for i, b in zip(images(), within, strict=True)]
    np.testing.assert_allclose(crops, expected, atol=1e-5)


@pytest.mark.parametrize("form", ["yxyx", "xywh", "cxcywh"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_boxes_may_come_in_other_forms(tmp_path: Path, form: str, *, in_parts: bool) -> None:
    x1, y1, x2, y2 = BOXES.T / ([[20], [12], [20], [12]] if in_parts else 1)
    boxes = {
        "yxyx": (y1, x1, y2, x2),
        "xywh": (x1, y1, x2 - x1, y2 - y1),
        "cxcywh": ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1),
    }[form]
    plain = write_crop(tmp_path / "p.onnx", Crop(image=IMAGE, size=(4, 4)))
    asked = Crop(image=IMAGE, size=(4, 4), boxes=form, in_parts=in_parts)
    path = write_crop(tmp_path / "c.onnx", asked)
    (expected,) = run(plain, image=images(), box=BOXES)
    (crops,) = run(path, image=images(), box=np.stack(boxes, axis=1).astype(np.float32))
    np.testing.assert_allclose(crops, expected, atol=1e-4)


def test_other_labels_give_no_crop(tmp_path: Path) -> None:
    plain = write_crop(tmp_path / "p.onnx", Crop(image=IMAGE, size=(4, 4)))
    path = write_crop(tmp_path / "c.onnx", Crop(image=IMAGE, size=(4, 4), label=7))
    (every,) = run(plain, image=images(), box=BOXES)
    for labels, rows in (([7, 1, 7], [1, 0, 1]), ([1, 2, 3], [0, 0, 0])):
        crops, counts = run(path, image=images(), box=BOXES, label=np.array(labels))
        assert counts.tolist() == rows
        np.testing.assert_array_equal(crops, every[np.array(rows, bool)])


@pytest.mark.parametrize("label", [None, 1])
def test_it_is_split_like_any_model(tmp_path: Path, label: int | None) -> None:
    path = write_crop(tmp_path / "c.onnx", Crop(image=IMAGE, size=(4, 4), label=label))
    split = split_model(path, name="crop", out=tmp_path / "models", blocks=1)
    assert split.blocks == 1
    assert [spec.shape for spec in split.inputs[:2]] == [(-1, *IMAGE), (-1, 4)]
    assert [spec.name for spec in split.outputs] == ["crops", *["crops_rows"] * bool(label)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"boxes": "corners"}, "boxes: 'corners' is none of xyxy, yxyx, xywh, cxcywh"),
        ({"size": (0, 4)}, "size: 0x4 is not of 1 to"),
        ({"image": (3, 100_000, 100_000)}, "image: 3x100000x100000 is not of 1 to"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        replace(Crop(image=IMAGE, size=(4, 4)), **fields)
