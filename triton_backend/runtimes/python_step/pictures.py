"""A ready step.

JPEG, PNG and what else Pillow reads, decoded and brought to one size (extra `pictures`). Whether a
picture may be decoded is said by its header, before memory is taken for its pixels.
"""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
MOST_PIXELS = 16_000_000


def decode(
    image: Sequence[bytes], *, height: int, width: int, max_pixels: int = MOST_PIXELS
) -> NDArray[np.float32]:
    """RGB pictures [pictures, 3, height, width], from 0 to 1, bilinear.

    Raises:
        ValueError: a file is no picture, is broken, or has more than `max_pixels` pixels.
    """
    found = np.empty((len(image), 3, height, width), np.float32)
    for number, data in enumerate(image):
        found[number] = _decoded(data, (width, height), max_pixels)
    return found


def _decoded(data: bytes, size: tuple[int, int], max_pixels: int) -> NDArray[np.float32]:
    from PIL import Image  # noqa: PLC0415  # as in `opened`

    with opened(data, max_pixels) as picture:
        try:
            resized = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
        except Exception as error:
            raise ValueError(f"a broken picture: {error}") from error
    return np.asarray(resized, np.float32).transpose(2, 0, 1) / np.float32(255)


def opened(data: bytes, max_pixels: int) -> "Image.Image":
    """A picture of which the header is read; its pixels are not decoded yet.

    Raises:
        ValueError: the bytes are no picture, or one of more than `max_pixels` pixels.
    """
    # Imported here: a workload can name a step of pictures where Pillow is not installed.
    from PIL import Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"a picture of more pixels than the {max_pixels} allowed") from error
    except Exception as error:  # Pillow's parsers raise what they like
        raise ValueError(f"{len(data)} bytes that are no picture ({', '.join(FORMATS)})") from error
    if picture.width * picture.height > max_pixels:
        shape = f"{picture.width} x {picture.height}"
        picture.close()
        raise ValueError(f"a picture of {shape} pixels, at most {max_pixels} are decoded")
    return picture
