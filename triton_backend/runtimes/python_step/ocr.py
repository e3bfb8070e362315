"""Ready steps around the three models of `rapidocr_onnxruntime` 1.4.4 (extra `ocr`): a page read.

    image ---page---> pixels --[detector]--> likely --crops(image)--> box, crop
    crop ---views---> angle --[classifier]--> chances
    line, chances --upright--> upright, padded --[recogniser]--> symbols, certain --text--> text

What happens between the models is that package's own code, with its own settings. Sizes are fixed
here, where the package takes those of each page: the detector reads `height` x `width`, the
recogniser lines of 48 x one of `widths`. A page that the package would bring to exactly the
detector's size gives exactly its boxes; any other is made to fit, with its edge repeated beside it.
The package pads the lines of a page in sixes, each six to a width of its own, and a recogniser sees
spaces by that width: it comes with every line as `padded`, beside the columns that are there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.python_step.pictures import MOST_PIXELS, eight_bits, opened

PACKAGE = "rapidocr_onnxruntime"
# A crop takes so much in every slot; a larger one is made smaller before it is handed on.
CROP_BYTES = 150_000
# Of a page; more are left out. A page of specks has a thousand, of as many crops.
MOST_LINES = 64
# Of a page's sides. The package makes the shorter one at least 30 pixels and the page at least an
# eighth as high as wide: gigabytes for thinner ones, or no height at all.
MOST_APART = 100
_SHAPE = np.dtype("<u2")
_SHAPE_BYTES = 6
_WIDEST = 65_535
_GRID = 32  # the detector reads sizes that this divides
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Reader:
    """The package's parts, without the models that they would load."""

    load: Any  # bytes of a picture -> BGR
    whole: Any  # `RapidOCR`: what it does to a page before and after the models
    detector: Any
    classifier: Any
    recogniser: Any
    models: dict[str, Path]
    least_side: int
    least_angle: float
    least_score: float


class _Page(NamedTuple):
    """One picture, as its lines are looked for.

    Attributes:
        pixels: [height, width, BGR], within the package's least and largest sides.
        was: height and width as it came.
        changes: of its size since then, in the package's form.
    """

    pixels: Pixels
    was: tuple[int, int]
    changes: dict[str, Any]


@cache
def _reader() -> _Reader:
    """The package, imported when a step first runs.

    Raises:
        InputError: it, or a library it needs, is not installed.
    """
    try:
        import cv2  # noqa: PLC0415
        from rapidocr_onnxruntime.ch_ppocr_cls import TextClassifier  # noqa: PLC0415
        from rapidocr_onnxruntime.ch_ppocr_det import TextDetector  # noqa: PLC0415
        from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess  # noqa: PLC0415
        from rapidocr_onnxruntime.ch_ppocr_rec import TextRecognizer  # noqa: PLC0415
        from rapidocr_onnxruntime.main import DEFAULT_CFG_PATH, RapidOCR  # noqa: PLC0415
        from rapidocr_onnxruntime.utils import LoadImage, read_yaml, update_model_path  # noqa: PLC0415
    except ImportError as error:
        raise InputError(PACKAGE, f"is not installed: {error}; {HOW_TO_INSTALL}") from error
    cv2.setNumThreads(1)  # a step has the cores of its class
    settings: dict[str, Any] = update_model_path(read_yaml(DEFAULT_CFG_PATH))
    found, turns, read = settings["Det"], settings["Cls"], settings["Rec"]
    post = ("thresh", "box_thresh", "max_candidates", "unclip_ratio", "use_dilation", "score_mode")
    reads = {"mean": found["mean"], "std": found["std"], "limit_type": found["limit_type"]}
    detector = _without_model(TextDetector, limit_side_len=found["limit_side_len"], **reads)
    detector.postprocess_op = DBPostProcess(**{name: found[name] for name in post})
    return _Reader(
        load=LoadImage(),
        whole=_without_model(RapidOCR, **settings["Global"]),
        detector=detector,
        classifier=_without_model(TextClassifier, cls_image_shape=turns["cls_image_shape"]),
        recogniser=_without_model(
            TextRecognizer,
            rec_image_shape=read["rec_img_shape"],
            rec_batch_num=read["rec_batch_num"],
        ),
        models={part: Path(settings[part]["model_path"]) for part in ("Det", "Cls", "Rec")},
        least_side=found["limit_side_len"],
        least_angle=turns["cls_thresh"],
        least_score=settings["Global"]["text_score"],
    )


HOW_TO_INSTALL = (
    'pip install "poolpipe[ocr]"; where OpenCV misses libGL, install that, or '
    "opencv-python-headless below 4.12 in place of opencv-python"
)


def _without_model(kind: Any, **settings: Any) -> Any:
    """An object of one of the package's classes with the settings that its methods read.

    Its own constructor would open the ONNX file, which is served elsewhere.
    """
    made = kind.__new__(kind)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def page(
    image: Sequence[bytes], *, height: int, width: int, max_pixels: int = MOST_PIXELS
) -> NDArray[np.float32]:
    """Pages as the detector reads them: [pages, 3, height, width].

    Raises:
        ValueError: as `pictures.opened`; sides are at most `MOST_APART` times apart.
    """
    import cv2  # noqa: PLC0415

    found = np.empty((len(image), 3, height, width), np.float32)
    for number, data in enumerate(image):
        pixels = _page(data, max_pixels).pixels
        rows, columns = size_read(pixels.shape[:2], (height, width))
        resized = cv2.resize(pixels, (columns, rows))
        below, beside = height - rows, width - columns
        whole = cv2.copyMakeBorder(resized, 0, below, 0, beside, cv2.BORDER_REPLICATE)
        prepare = _reader().detector.get_preprocess(max(pixels.shape))
        found[number] = prepare.permute(prepare.normalize(whole))
    return found


def crops(
    image: Sequence[bytes],
    likely: NDArray[np.float32],
    *,
    max_pixels: int = MOST_PIXELS,
    most_lines: int = MOST_LINES,
) -> dict[str, list[Any]]:
    """The lines of pages: corners in pixels of the picture [4, (x, y)], and what is within them.

    Args:
        image: the pages again.
        likely: [pages, 1, height, width], how likely each pixel is text; as the detector gives it.
        max_pixels: as in `page`.
        most_lines: of a page, the first in the order of reading.

    Returns:
        `box` and `crop` [lines, CROP_BYTES] (UINT8) of each page, in the order of reading. A crop
        has its height, its width and that to which it is padded when it is read (UINT16,
        little-endian), its pixels, three bytes each, and zeros.

    Raises:
        ValueError: as `page`.
    """
    reader = _reader()
    boxes: list[NDArray[np.float32]] = []
    found: list[Pixels] = []
    for data, one in zip(image, likely, strict=True):
        pixels, was, changes = _page(data, max_pixels)
        shape = (pixels.shape[0], pixels.shape[1])
        rows, columns = size_read(shape, one.shape[1:])
        places, _ = reader.detector.postprocess_op(one[None, :, :rows, :columns], shape)
        places = reader.detector.filter_tag_det_res(places, shape)
        if not len(places):
            boxes.append(np.empty((0, 4, 2), np.float32))
            found.append(np.empty((0, CROP_BYTES), np.uint8))
            continue
        ordered = reader.whole.sorted_boxes(places)[:most_lines]
        lines = reader.whole.get_crop_img_list(pixels, ordered)
        padded = _padded_widths(lines)
        found.append(np.stack([_packed(*each) for each in zip(lines, padded, strict=True)]))
        corners = reader.whole._get_origin_points(ordered, changes, *was)  # noqa: SLF001
        boxes.append(np.asarray(corners, np.float32))
    return {"box": boxes, "crop": found}


def views(crop: Pixels) -> dict[str, NDArray[Any]]:
    """Lines as the classifier of angles reads them, and as they came.

    Returns:
        `angle` [lines, 3, 48, 192]; `line` [lines, CROP_BYTES] (UINT8), the crop.

    Raises:
        ValueError: a crop is not as `crops` gives it.
    """
    classifier = _reader().classifier
    angle = np.empty((len(crop), *classifier.cls_image_shape), np.float32)
    for number, held in enumerate(crop):
        angle[number] = classifier.resize_norm_img(_unpacked(held)[0])
    return {"angle": angle, "line": crop}


def upright(line: Pixels, chances: NDArray[np.float32], *, widths: str) -> dict[str, Any]:
    """Lines as the recogniser reads them, those turned back that lie upside down.

    Args:
        line: [lines, CROP_BYTES], as `crops` gives them.
        chances: [lines, 2] of an angle of 0 and of 180 degrees; as the classifier gives them.
        widths: what there is for a line, as `640,1024,1344`; a longer one is pressed into the last.

    Returns:
        `upright`, of each line [3, 48, width], the line at its left and zeros, of the least width
        that has room; `padded` [lines] (INT64), to which width the package pads it; and `degrees`
        [lines] (INT64) by which it was turned.

    Raises:
        ValueError: a crop is not as `crops` gives it.
    """
    import cv2  # noqa: PLC0415

    recogniser, least = _reader().recogniser, _reader().least_angle
    channels, height = recogniser.rec_image_shape[:2]
    turned = (chances.argmax(axis=1) == 1) & (chances[:, 1] > least)
    known = sorted(map(int, widths.split(",")))
    found: list[NDArray[np.float32]] = []
    padded = np.empty(len(line), np.int64)
    for number, held in enumerate(line):
        pixels, wide = _unpacked(held)
        if turned[number]:
            pixels = cv2.rotate(pixels, cv2.ROTATE_180)
        padded[number] = min(wide, known[-1])
        width = next(one for one in known if one >= padded[number])
        found.append(np.zeros((channels, height, width), np.float32))
        # Its own width is what this is a whole number of pixels of, rounded down.
        ratio = (padded[number] + 0.5) / height
        found[-1][:, :, : padded[number]] = recogniser.resize_norm_img(pixels, ratio)
    degrees = np.where(turned, 180, 0).astype(np.int64)
    return {"upright": found, "padded": padded, "degrees": degrees}


def text(symbols: NDArray[np.int64], certain: NDArray[np.float32]) -> dict[str, Any]:
    """Texts of lines, and how certain each is, from 0 to 1.

    A line that the package would leave out, because it is too uncertain, has an empty text.

    Args:
        symbols: [lines, steps], the likeliest symbol of each step across a line.
        certain: [lines, steps], how likely it is.
    """
    read = _alphabet().decode(symbols, certain, is_remove_duplicate=True)
    scores = np.array([score for _, score in read], np.float32)
    least = _reader().least_score
    return {"text": [line if score >= least else "" for line, score in read], "score": scores}


@cache
def _alphabet() -> Any:
    """The decoder of the recogniser's symbols, whose alphabet is in the recogniser's own file."""
    _reader()
    import onnxruntime  # noqa: PLC0415
    from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode  # noqa: PLC0415

    file = model_file("Rec")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    listed = session.get_modelmeta().custom_metadata_map["character"]
    return CTCLabelDecode(character=listed.splitlines())


def model_file(part: str) -> Path:
    """One of the package's models: `Det`, `Cls` or `Rec`.

    Raises:
        InputError: the package is not installed.
    """
    return _reader().models[part]


def size_read(shape: Sequence[int], room: Sequence[int]) -> tuple[int, int]:
    """Height and width at which the detector reads a picture of `shape` that must fit `room`.

    The package's own where that fits, else the largest that does.
    """
    ratio = max(_reader().least_side / min(shape[0], shape[1]), 1.0)
    rows, columns = (round(int(side * ratio) / _GRID) * _GRID for side in shape[:2])
    over = max(rows / room[0], columns / room[1], 1.0)
    if over > 1:
        rows, columns = (max(int(side / over / _GRID), 1) * _GRID for side in (rows, columns))
    return rows, columns


def _page(data: bytes, max_pixels: int) -> _Page:
    reader = _reader()
    with opened(data, max_pixels, MOST_APART) as picture:
        pixels = reader.load(eight_bits(picture))
    was = (pixels.shape[0], pixels.shape[1])
    pixels, ratio_h, ratio_w = reader.whole.preprocess(pixels)
    changes: dict[str, Any] = {"preprocess": {"ratio_h": ratio_h, "ratio_w": ratio_w}}
    pixels, changes = reader.whole.maybe_add_letterbox(pixels, changes)
    return _Page(pixels, was, changes)


def _padded_widths(lines: Sequence[Pixels]) -> list[int]:
    """To what width the package pads each line of a page: that of the widest of six alike."""
    recogniser = _reader().recogniser
    _, height, least = recogniser.rec_image_shape
    together = recogniser.rec_batch_num
    ratios = np.array([line.shape[1] / line.shape[0] for line in lines])
    order = np.argsort(ratios)  # as the package does, so that ties fall alike
    found = np.empty(len(lines), np.int64)
    for first in range(0, len(lines), together):
        alike = order[first : first + together]
        found[alike] = int(height * max(least / height, ratios[alike].max()))
    return found.tolist()


def _packed(pixels: Pixels, padded: int) -> Pixels:
    import cv2  # noqa: PLC0415

    over = (pixels.size + _SHAPE_BYTES) / CROP_BYTES
    if over > 1:
        sides = (max(int(side / over**0.5), 1) for side in (pixels.shape[1], pixels.shape[0]))
        smaller = cv2.resize(pixels, tuple(sides), interpolation=cv2.INTER_AREA)
        pixels = np.asarray(smaller, np.uint8)
    found = np.zeros(CROP_BYTES, np.uint8)
    shape = np.array([*pixels.shape[:2], min(padded, _WIDEST)], _SHAPE)
    found[:_SHAPE_BYTES] = shape.view(np.uint8)
    found[_SHAPE_BYTES : _SHAPE_BYTES + pixels.size] = pixels.reshape(-1)
    return found


def _unpacked(held: Pixels) -> tuple[Pixels, int]:
    """A crop's pixels, and to what width it is padded."""
    height, width, padded = (int(one) for one in held[:_SHAPE_BYTES].copy().view(_SHAPE))
    end = _SHAPE_BYTES + 3 * height * width
    if not height * width * padded or end > len(held):
        raise ValueError(f"{height} x {width} pixels, padded to {padded}, that are no crop")
    return held[_SHAPE_BYTES:end].reshape(height, width, 3), padded
