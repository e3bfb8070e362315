"""Pages of text drawn from a seed, to read again: what the OCR example is asked and compared with.

Lines of words or of words without spaces, in three typefaces, on pages of three sizes that all have
the proportions of the detector's; a fifth of them lie upside down.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np

TYPEFACES = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono")
SIZES = ((736, 1024), (600, 832), (552, 768))  # width, height
MOST_LINES = 40
SHORTEST, LONGEST = 3, 60  # characters of a line, but for its first word
_LISTED = (
    "account address amount answer april article batch bill black board bridge budget building "
    "card chapter city class clear clock contract copy country court date deadline delivery desk "
    "door early east engine evening every exact field figure first floor forty garden general "
    "glass green group hall hour house invoice island january journal key kitchen large latency "
    "late letter library light line list long machine march market memory method middle model "
    "monday morning name nation nature night north note number office order page paid paper party "
    "past pipeline plan plant platform point pool price product project public queue quiet rate "
    "receipt record region report request result river road room rule sample school second server "
    "seven share signal silver slow south stage standard station stone street summer table tax "
    "team ticket tower total town train twelve value village wall water week west white window "
    "winter witness word work year yellow"
)
WORDS = tuple(_LISTED.split())
MARGIN, EDGE = 25, 20  # pixels left of lines, and above the first
LARGEST, SMALLEST, OF_PITCH = 24, 12, 0.65  # size of type, in pixels and in parts of a line's
QUALITY = 95
UPSIDE_DOWN = 0.2  # of all pages


@dataclass(frozen=True, slots=True)
class DrawnPage:
    """A picture (JPEG), and its lines from top to bottom as they lie in it."""

    picture: bytes
    lines: tuple[str, ...]


def draw_page(seed: int, *, spaces: bool = True, most_lines: int = MOST_LINES) -> DrawnPage:
    """One page, the same for the same arguments.

    Args:
        seed: of everything on it.
        spaces: between words; else each word begins with a capital.
        most_lines: it has from five lines to so many.
    """
    # Pillow comes with an extra.
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415

    rng = np.random.default_rng(seed)
    width, height = SIZES[rng.integers(len(SIZES))]
    count = int(rng.integers(5, most_lines + 1))
    pitch = (height - 2 * EDGE) / count
    size = int(min(LARGEST, max(SMALLEST, OF_PITCH * pitch)))
    file = Path(mpl.get_data_path(), "fonts", "ttf", f"{rng.choice(TYPEFACES)}.ttf")
    font = ImageFont.truetype(str(file), size)
    picture = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(picture)
    lines: list[str] = []
    for number in range(count):
        most = int(rng.integers(SHORTEST, LONGEST + 1))
        line = _line(rng, most, width - 2 * MARGIN, font.getlength, " " if spaces else "")
        pen.text((MARGIN, EDGE + number * pitch), line, fill="black", font=font)
        lines.append(line)
    if rng.random() < UPSIDE_DOWN:
        picture, lines = picture.rotate(180), lines[::-1]
    with io.BytesIO() as out:
        picture.save(out, "JPEG", quality=QUALITY)
        return DrawnPage(out.getvalue(), tuple(lines))


def _line(
    rng: np.random.Generator, most: int, room: int, length: Callable[[str], float], between: str
) -> str:
    """Whole words of at most so many characters together, and at least one, within `room`."""
    line = str(rng.choice(WORDS))
    while True:
        word = str(rng.choice(WORDS))
        more = line + between + (word if between else word.capitalize())
        if len(more) > most or length(more) > room:
            return line
        line = more
