"""A ready step.

JPEG, PNG and what else Pillow reads, decoded and brought to one size (extra `pictures`). Whether a
picture may be decoded is said by its header, before memory is taken for its pixels.
"""

import io
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
MOST_PIXELS = 16_000_000
# Each scan goes over all pixels again, for 30 bytes of a file. Encoders write about ten.
MOST_SCANS = 64
_SCAN = b"\xff\xda"
# Pillow undoes them in Python, pixel by pixel: seconds for a file of some KB.
_RUNS = (1, 2)
_DEEP = "I;16"


def decode(
    image: Sequence[bytes], *, height: int, width: int, max_pixels: int = MOST_PIXELS
) -> NDArray[np.float32]:
    """RGB pictures [pictures, 3, height, width], from 0 to 1, bilinear.

    Raises:
        ValueError: as `opened`.
    """
    found = np.empty((len(image), 3, height, width), np.float32)
    for number, data in enumerate(image):
        found[number] = _decoded(data, (width, height), max_pixels)
    return found


def _decoded(data: bytes, size: tuple[int, int], max_pixels: int) -> NDArray[np.float32]:
    from PIL import Image  # noqa: PLC0415  # as in `opened`

    with opened(data, max_pixels) as picture:
        resized = eight_bits(picture).convert("RGB").resize(size, Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32).transpose(2, 0, 1) / np.float32(255)


@contextmanager
def opened(data: bytes, max_pixels: int, most_apart: int | None = None) -> "Generator[Image.Image]":
    """A picture of which the header is read; its pixels are decoded within the context.

    Pillow's warnings, of broken EXIF for example, are left out: they would fill a worker's log.

    Args:
        data: a file.
        max_pixels: width x height at most.
        most_apart: so many times as long as the shorter side is the longer one at most.

    Raises:
        ValueError: the bytes are no picture, one beyond these limits or of a kind that takes too
            long to decode, or a broken one (within the context, too).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _checked(data, max_pixels, most_apart) as picture:
            try:
                yield picture
            except Exception as error:
                reason = str(error) or type(error).__name__
                raise ValueError(f"a broken picture: {reason}") from error


def eight_bits(picture: "Image.Image") -> "Image.Image":
    """The picture, with grey of 16 bits scaled to 8, which Pillow would cut off at 255."""
    from PIL import Image  # noqa: PLC0415  # as in `_checked`

    if not picture.mode.startswith(_DEEP):
        return picture
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))


def _checked(data: bytes, max_pixels: int, most_apart: int | None) -> "Image.Image":
    # Imported here: a workload can name a step of pictures where Pillow is not installed.
    from PIL import Image  # noqa: PLC0415

    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"a picture of more pixels than the {max_pixels} allowed") from error
    except Exception as error:  # Pillow's parsers raise what they like
        raise ValueError(f"{len(data)} bytes that are no picture ({', '.join(FORMATS)})") from error
    reason = _beyond(picture, max_pixels, most_apart) or _too_slow(picture, data)
    if reason:
        picture.close()
        raise ValueError(reason)
    return picture


def _beyond(picture: "Image.Image", max_pixels: int, most_apart: int | None) -> str:
    """Why a picture is too large or too thin, or ""."""
    width, height = picture.size
    shape = f"a picture of {width} x {height} pixels"
    if width * height > max_pixels:
        return f"{shape}, at most {max_pixels} are decoded"
    if most_apart and max(width, height) > most_apart * min(width, height):
        return f"{shape}, whose sides are more than {most_apart} times apart"
    return ""


def _too_slow(picture: "Image.Image", data: bytes) -> str:
    """Why a picture would take much longer than others of its size, or ""."""
    scans = data.count(_SCAN) if picture.format in {"JPEG", "MPO"} else 0
    if scans > MOST_SCANS:
        return f"a JPEG of {scans} scans, at most {MOST_SCANS} are decoded"
    if picture.format == "BMP" and picture.info.get("compression") in _RUNS:
        return "a BMP compressed by runs, which is not decoded"
    return ""
