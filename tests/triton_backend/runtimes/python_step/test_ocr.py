"""Ready steps that read a page, beside the package's own parts that they stand for."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flows.quickstart.pages import draw_page
from triton_backend.runtimes.python_step import ocr

pytestmark = pytest.mark.long
det: Any = pytest.importorskip("rapidocr_onnxruntime.ch_ppocr_det", reason="needs the extra `ocr`")
cls: Any = pytest.importorskip("rapidocr_onnxruntime.ch_ppocr_cls")
rec: Any = pytest.importorskip("rapidocr_onnxruntime.ch_ppocr_rec")
ROOM = {"height": 1024, "width": 736}
WIDTH, LARGE = 320, 1_600


def picture(width: int, height: int, kind: str = "PNG", colour: str = "white") -> bytes:
    with io.BytesIO() as file:
        Image.new("RGB", (width, height), colour).save(file, kind)
        return file.getvalue()


def likely(*places: tuple[int, int, int, int]) -> NDArray[np.float32]:
    """As a detector that is certain of these rectangles (top, left, bottom, right)."""
    found = np.zeros((1, 1, ROOM["height"], ROOM["width"]), np.float32)
    for top, left, bottom, right in places:
        found[0, 0, top:bottom, left:right] = 0.9
    return found


def packed(pixels: NDArray[np.uint8], padded: int = WIDTH) -> NDArray[np.uint8]:
    """As `crops` hands one on."""
    found = np.zeros(ocr.CROP_BYTES, np.uint8)
    found[:6] = np.array([*pixels.shape[:2], padded], "<u2").view(np.uint8)
    found[6 : 6 + pixels.size] = pixels.reshape(-1)
    return found


def noise(height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(4).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("shape", [(1024, 736), (832, 600), (768, 552), (512, 368)])
def test_pages_of_the_detectors_proportions_are_prepared_as_the_package_does(
    shape: tuple[int, int],
) -> None:
    data = draw_page(2).picture if shape == (1024, 736) else picture(shape[1], shape[0])
    settings = det.text_detect.DetPreProcess(736, "min", [0.5] * 3, [0.5] * 3)
    with Image.open(io.BytesIO(data)) as opened:
        wanted = settings(np.asarray(opened.convert("RGB"))[:, :, ::-1])
    assert wanted is not None
    if wanted.shape[2:] == (1024, 736):
        assert np.array_equal(ocr.page([data], **ROOM), wanted)


def test_sizes_are_the_packages_own_where_they_fit() -> None:
    settings = det.text_detect.DetPreProcess(736, "min")
    for height, width in ((1024, 736), (832, 600), (736, 736), (300, 200), (100, 90), (735, 738)):
        wanted = settings.resize(np.zeros((height, width, 3), np.uint8))
        assert wanted is not None
        assert ocr.size_read((height, width), (9_999, 9_999)) == wanted.shape[:2]


def test_a_page_that_does_not_fit_is_made_smaller_with_its_edge_beside_it() -> None:
    assert ocr.size_read((1_000, 2_000), (1024, 736)) == (352, 736)
    (found,) = ocr.page([picture(1_500, 750, colour="red")], **ROOM)
    assert np.array_equal(np.unique(found[2]), [1])  # the last of blue, green and red


def test_lines_are_cut_out_in_the_order_of_reading() -> None:
    data = picture(736, 1024)
    found = ocr.crops([data], likely((500, 50, 520, 300), (100, 50, 120, 600)))
    (boxes,), (lines,) = found["box"], found["crop"]
    assert boxes.shape == (2, 4, 2)
    assert boxes[0, 0, 1] < 100 < boxes[0, 2, 1] < boxes[1, 0, 1] < 500
    assert lines.shape == (2, ocr.CROP_BYTES)
    height, width, padded = (int(one) for one in lines[0, :6].copy().view("<u2"))
    assert 20 < height < 60
    assert 500 < width < 700
    assert padded == int(48 * (width / height))
    assert lines[0, 6 : 6 + 3 * height * width].all()
    assert not lines[0, 6 + 3 * height * width :].any()


def test_boxes_are_in_pixels_of_the_picture_as_it_came() -> None:
    large = likely((100, 100, 130, 600))
    (whole,) = ocr.crops([picture(736, 1024)], large)["box"]
    (half,) = ocr.crops([picture(368, 512)], large)["box"]
    assert np.allclose(whole, 2 * half, atol=2)


def test_a_page_without_text_has_no_lines() -> None:
    found = ocr.crops([picture(736, 1024)], likely())
    assert found["box"][0].shape == (0, 4, 2)
    assert found["crop"][0].shape == (0, ocr.CROP_BYTES)


def test_a_crop_that_is_too_large_is_made_smaller() -> None:
    found = ocr.crops([picture(736, 1024)], likely((100, 50, 900, 680)))
    (lines,) = found["crop"]
    assert lines.shape == (1, ocr.CROP_BYTES)
    assert ocr.views(lines)["angle"].any()


def test_lines_are_padded_in_sixes_by_their_proportions_as_in_the_package() -> None:
    lengths = (620, 60, 300, 90, 500, 200, 250, 400)
    places = [(40 + 60 * n, 40, 60 + 60 * n, 40 + length) for n, length in enumerate(lengths)]
    (lines,) = ocr.crops([picture(736, 1024)], likely(*places))["crop"]
    height, width, padded = lines[:, :6].copy().view("<u2").T.astype(int)
    recogniser = rec.TextRecognizer.__new__(rec.TextRecognizer)
    recogniser.rec_image_shape, recogniser.rec_batch_num = [3, 48, 320], 6
    seen: list[int] = []

    def session(batch: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        seen.extend([batch.shape[3]] * len(batch))
        return [batch]

    def nothing(batch: NDArray[np.float32], *_: Any, **__: Any) -> list[tuple[str, float]]:
        return [("", 0.0)] * len(batch)

    recogniser.session, recogniser.postprocess_op = session, nothing
    recogniser([np.zeros((h, w, 3), np.uint8) for h, w in zip(height, width, strict=True)])
    assert len(set(seen)) == 2
    assert padded[np.argsort(width / height)].tolist() == seen


@pytest.mark.parametrize("shape", [(30, 100), (20, 200), (30, 900)])
@pytest.mark.parametrize("turned", [False, True])
def test_lines_are_prepared_as_the_package_does(shape: tuple[int, int], turned: bool) -> None:
    line = noise(*shape)
    classifier = cls.TextClassifier.__new__(cls.TextClassifier)
    classifier.cls_image_shape = [3, 48, 192]
    recogniser = rec.TextRecognizer.__new__(rec.TextRecognizer)
    recogniser.rec_image_shape = [3, 48, 320]
    padded = max(320, 48 * shape[1] // shape[0])
    seen = ocr.views(packed(line, padded)[None])
    assert np.array_equal(seen["angle"][0], classifier.resize_norm_img(line))
    chances = np.array([[0.05, 0.95]] if turned else [[0.8, 0.2]], np.float32)
    found = ocr.upright(seen["line"], chances, widths=f"8,{LARGE}")
    way = np.ascontiguousarray(line[::-1, ::-1]) if turned else line
    wanted = recogniser.resize_norm_img(way, padded / 48)
    assert wanted.shape == (3, 48, padded)
    (found_line,) = found["upright"]
    assert found_line.shape == (3, 48, LARGE)
    assert np.array_equal(found_line[:, :, :padded], wanted)
    assert not found_line[:, :, padded:].any()
    assert found["padded"].tolist() == [padded]
    assert found["degrees"].tolist() == [180 if turned else 0]


def test_a_line_is_turned_back_where_that_is_certain() -> None:
    lines = np.stack([packed(noise(48, 100))] * 2)
    chances = np.array([[0.15, 0.85], [0.05, 0.95]], np.float32)
    found = ocr.upright(lines, chances, widths=str(WIDTH))
    same, turned = found["upright"]
    assert found["degrees"].tolist() == [0, 180]
    assert np.array_equal(turned[:, :, :100], same[:, ::-1, :100][:, :, ::-1])


def test_a_line_has_the_least_width_with_room_for_what_it_is_padded_to() -> None:
    lines = np.stack([packed(noise(30, 60), padded) for padded in (320, 321, 480, 481, 900)])
    chances = np.tile(np.array([1.0, 0.0], np.float32), (5, 1))
    found = ocr.upright(lines, chances, widths="480,320,672")
    assert [line.shape[2] for line in found["upright"]] == [320, 480, 480, 672, 672]
    assert found["padded"].tolist() == [320, 321, 480, 481, 672]


def test_a_line_that_is_too_long_is_pressed_into_the_width() -> None:
    found = ocr.upright(
        packed(noise(30, 900), 1_440)[None],
        np.array([[1.0, 0.0]], np.float32),
        widths=f"320,{WIDTH}",
    )
    (line,) = found["upright"]
    assert line.shape == (3, 48, WIDTH)
    assert line[:, :, -1].any()
    assert found["padded"].tolist() == [WIDTH]


def test_symbols_become_text_and_uncertain_lines_none() -> None:
    symbols = np.zeros((2, 8), np.int64)
    symbols[:, [1, 2, 4, 6]] = [500, 500, 500, 501]  # the same symbol again is the same letter
    certain = np.full((2, 8), 0.9, np.float32)
    certain[1] = 0.2
    found = ocr.text(symbols, certain)
    assert len(found["text"][0]) == 3
    assert found["text"][0][0] == found["text"][0][1] != found["text"][0][2]
    assert found["text"][1] == ""
    assert np.allclose(found["score"], [0.9, 0.2])


@pytest.mark.parametrize("data", [b"", b"no picture", picture(40, 40)[:60]])
def test_what_is_no_picture_is_a_value_error(data: bytes) -> None:
    for run in (
        lambda: ocr.page([data], **ROOM),
        lambda: ocr.crops([data], likely()),
    ):
        with pytest.raises(ValueError, match="picture"):
            run()


def test_a_picture_with_too_many_pixels_is_refused_with_the_limit() -> None:
    with pytest.raises(ValueError, match="200 x 100 pixels, at most 19999 are decoded"):
        ocr.page([picture(200, 100)], **ROOM, max_pixels=19_999)


@pytest.mark.parametrize("size", [(1, 2_000), (2_000, 1), (3_000, 5), (1, 101), (4, 16_000)])
def test_a_thin_page_is_refused(size: tuple[int, int]) -> None:
    reason = (
        f"^a picture of {size[0]} x {size[1]} pixels, whose sides are more than 100 times apart"
    )
    for run in (
        lambda: ocr.page([picture(*size)], **ROOM),
        lambda: ocr.crops([picture(*size)], likely()),
    ):
        with pytest.raises(ValueError, match=reason):
            run()


@pytest.mark.parametrize("size", [(100, 1), (1, 100), (3_000, 30), (20, 2_000), (1, 1)])
def test_a_page_that_is_nearly_too_thin_is_read(size: tuple[int, int]) -> None:
    assert ocr.page([picture(*size)], **ROOM).shape == (1, 3, 1024, 736)
    assert ocr.crops([picture(*size)], likely())["box"][0].shape == (0, 4, 2)


def test_no_more_lines_are_cut_out_than_are_read() -> None:
    places = [(40 * n, 60 * m, 40 * n + 16, 60 * m + 30) for n in range(1, 20) for m in range(1, 9)]
    data = picture(736, 1024)
    every = ocr.crops([data], likely(*places), most_lines=len(places))
    found = ocr.crops([data], likely(*places))
    assert len(every["box"][0]) == len(places)
    assert len(found["box"][0]) == ocr.MOST_LINES == 64
    assert np.array_equal(found["box"][0], every["box"][0][:64])
    assert np.array_equal(found["crop"][0], every["crop"][0][:64])


def test_grey_of_16_bits_is_read_as_grey_of_8() -> None:
    grey = np.tile(np.arange(250, dtype=np.uint8), (300, 1))
    files: list[bytes] = []
    for pixels in (grey, grey.astype(np.uint16) << 8):
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG")
            files.append(file.getvalue())
    wanted, found = ocr.page(files, **ROOM)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (500, 500), (65_535, 65_535)])
def test_what_is_no_crop_is_a_value_error(shape: tuple[int, int]) -> None:
    held = np.zeros(ocr.CROP_BYTES, np.uint8)
    held[:6] = np.array([*shape, WIDTH], "<u2").view(np.uint8)
    with pytest.raises(ValueError, match="that are no crop"):
        ocr.views(held[None])
