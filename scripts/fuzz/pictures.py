"""Pictures that no camera and no scanner writes, and good ones, drawn from a seed.

Files of wrong sizes, lengths and checksums, of far more pixels, scans, frames or metadata than
bytes, of rare modes, thin ones, two formats in one, and random bytes behind a true beginning. Most
are refused; some are odd pictures that must be answered. `hostile_picture` draws one, of any kind.
"""

import io
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

Draws = np.random.Generator
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
OTHERS = ("GIF", "TIFF", "PPM", "ICO", "TGA", "PDF")
MODES = ("1", "L", "LA", "P", "RGBA", "I;16", "CMYK", "YCbCr")
MAGICS = (
    b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    b"\xff\xd8\xff\xe1\xff\xffExif\0\0II*\0",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"RIFF\xff\xff\xff\x7fWEBPVP8X",
    b"RIFF\x20\0\0\0WEBPVP8L\x14\0\0\0\x2f",
    b"RIFF\x40\0\0\0WEBPVP8 \x34\0\0\0",
    b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0",
    b"GIF89a",
    b"II*\0\x08\0\0\0",
    b"%PDF-1.7\n",
    b"%!PS-Adobe-3.0 EPSF-3.0\n",
    b"\0\0\x01\0\x01\0",
    b"8BPS\0\x01",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\0\0\0\x1cftypavif",
    b"P6 ",
)
SIDES = (0, 1, 2, 7, 255, 4_000, 10_000, 16_383, 32_768, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31)
SIDE, MOST_SIDE = 4_000, 10_000  # of pictures of 16 and of 100 megapixels
SOME, HALF, MOST = 0.2, 0.5, 0.8


def good_picture(draws: Draws, kind: str | None = None, most: int = 96) -> bytes:
    """A picture as cameras write them, of smooth colours and a few dark bars."""
    width, height = (int(side) for side in draws.integers(24, most, 2))
    coarse = draws.integers(90, 256, (4, 4, 3), np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    for _ in range(int(draws.integers(0, 4))):
        left, top = int(draws.integers(width)), int(draws.integers(height))
        picture.paste((10, 10, 10), (left, top, left + width // 2, top + height // 8 + 1))
    return _file(picture, kind or str(draws.choice(FORMATS)))


def hostile_picture(draws: Draws) -> tuple[str, bytes]:
    """One of any kind, and the kind's name."""
    kind = str(draws.choice(list(KINDS)))
    return kind, KINDS[kind](draws)


def _file(picture: Image.Image, kind: str, **how: Any) -> bytes:
    with io.BytesIO() as file:
        picture.save(file, kind, **how)
        return file.getvalue()


def _noise(draws: Draws, width: int, height: int) -> Image.Image:
    return Image.fromarray(draws.integers(0, 256, (height, width, 3), np.uint8))


def _chunk(name: bytes, data: bytes) -> bytes:
    """One of a PNG's, with its right checksum."""
    checksum = struct.pack(">I", zlib.crc32(name + data))
    return struct.pack(">I", len(data)) + name + data + checksum


def _after_header(picture: bytes, chunks: bytes) -> bytes:
    """A PNG with chunks behind its header."""
    return picture[:33] + chunks + picture[33:]


def _segment(marker: int, data: bytes) -> bytes:
    """One of a JPEG's."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def _with_segments(picture: bytes, segments: bytes) -> bytes:
    """A JPEG with segments before all others."""
    return picture[:2] + segments + picture[2:]


def _nothing(draws: Draws) -> bytes:
    return draws.bytes(int(draws.integers(0, 4)))


def _random(draws: Draws) -> bytes:
    return draws.bytes(int(draws.integers(4, 5_000)))


def _magic(draws: Draws) -> bytes:
    return MAGICS[int(draws.integers(len(MAGICS)))] + draws.bytes(int(draws.integers(0, 3_000)))


def _cut_short(draws: Draws) -> bytes:
    whole = good_picture(draws)
    return whole[: int(draws.integers(len(whole)))]


def _changed(draws: Draws) -> bytes:
    """Bytes replaced, put in and left out."""
    data = bytearray(good_picture(draws))
    for _ in range(int(draws.integers(1, 12))):
        at = int(draws.integers(len(data)))
        if draws.random() < MOST:
            data[at] = int(draws.integers(256))
        elif draws.random() < HALF:
            data[at:at] = draws.bytes(int(draws.integers(1, 9)))
        else:
            del data[at : at + int(draws.integers(1, 9))]
    return bytes(data)


def _lying_sides(draws: Draws) -> bytes:
    """Another width or height, or none, than its header's; a PNG's with a right checksum."""
    kind = str(draws.choice(FORMATS))
    data = bytearray(good_picture(draws, kind))
    wide, high = (SIDES[int(n)] for n in draws.integers(len(SIDES), size=2))
    if kind == "PNG":
        data[16:24] = struct.pack(">II", wide, high)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    elif kind == "BMP":
        data[18:26] = struct.pack("<II", wide, high)
    elif kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", high & 0xFFFF, wide & 0xFFFF)
    else:
        at = data.index(b"\x9d\x01\x2a") + 3
        data[at : at + 4] = struct.pack("<HH", wide & 0xFFFF, high & 0xFFFF)
    return bytes(data)


def _lying_lengths(draws: Draws) -> bytes:
    """Chunks and segments whose lengths are not theirs."""
    kind = str(draws.choice(("JPEG", "PNG", "WEBP", "BMP")))
    data = bytearray(good_picture(draws, kind))
    said = int(draws.choice([0, 1, 2, 255, 65_535, 2**31 - 1, 2**32 - 1]))
    if kind == "PNG":
        at = data.index(b"IDAT") - 4
        data[at : at + 4] = struct.pack(">I", said)
    elif kind == "JPEG":
        at = data.index(b"\xff\xdb") + 2
        data[at : at + 2] = struct.pack(">H", said & 0xFFFF)
    else:
        at = 4 if kind == "WEBP" and draws.random() < HALF else (16 if kind == "WEBP" else 10)
        data[at : at + 4] = struct.pack("<I", said)
    return bytes(data)


def _bad_sums(draws: Draws) -> bytes:
    """A PNG whose checksums or stream are wrong."""
    data = bytearray(good_picture(draws, "PNG"))
    at = data.index(b"IDAT") + int(draws.integers(4, 40))
    data[min(at, len(data) - 1)] ^= 0xFF
    if draws.random() < HALF:
        begin = data.index(b"IDAT")
        (size,) = struct.unpack(">I", data[begin - 4 : begin])
        checksum = zlib.crc32(bytes(data[begin : begin + 4 + size]))
        data[begin + 4 + size : begin + 8 + size] = struct.pack(">I", checksum)
    return bytes(data)


@cache
def _one_colour(mode: str, width: int, height: int, kind: str) -> bytes:
    return _file(Image.new(mode, (width, height)), kind)


def _bomb(draws: Draws) -> bytes:
    """100 megapixels and more in a few KB."""
    if draws.random() < HALF:
        return _one_colour("1", MOST_SIDE, MOST_SIDE, "PNG")
    if draws.random() < HALF:
        return _one_colour("L", 8_000, 8_000, str(draws.choice(("JPEG", "PNG"))))
    header = struct.pack(">IIBBBBB", 1 << 16, 1 << 16, 8, 2, 0, 0, 0)
    stream = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", stream)


@cache
def _large(kind: str) -> bytes:
    draws = np.random.default_rng(0)
    rough = _noise(draws, SIDE // 50, SIDE // 50).resize((SIDE, SIDE))
    if kind == "JPEG":
        return _file(rough, kind, quality=60, progressive=True)
    return _file(rough if kind == "WEBP" else rough.convert("L"), kind, **LARGE.get(kind, {}))


LARGE: dict[str, dict[str, Any]] = {"WEBP": {"quality": 60, "method": 0}}


def _as_large_as_allowed(draws: Draws) -> bytes:
    return _large(str(draws.choice(("JPEG", "WEBP")))) if draws.random() < SOME else _bomb(draws)


def _thin(draws: Draws) -> bytes:
    """Of one pixel's width or height, or nearly."""
    short = int(draws.integers(1, 5))
    long = int(draws.choice([30, 99, 150, 500, 2_000, 2_001, 5_000, 16_000]))
    size = (short, long) if draws.random() < HALF else (long, short)
    picture = Image.new("RGB", size, tuple(int(n) for n in draws.integers(0, 256, 3)))
    return _file(picture, str(draws.choice(FORMATS)))


def _tiny(draws: Draws) -> bytes:
    width, height = (int(side) for side in draws.integers(1, 5, 2))
    return _file(_noise(draws, width, height), str(draws.choice(FORMATS)))


def _of_noise(draws: Draws) -> bytes:
    width, height = (int(side) for side in draws.integers(1, 400, 2))
    return _file(_noise(draws, width, height), str(draws.choice(FORMATS)))


def _odd_mode(draws: Draws) -> bytes:
    """16 bits, CMYK, palettes, transparency."""
    with Image.open(io.BytesIO(good_picture(draws, "PNG"))) as whole:
        mode = str(draws.choice(MODES))
        if mode == "I;16":
            picture = Image.fromarray(np.asarray(whole.convert("L"), np.uint16) << 8)
        else:
            picture = whole.convert(mode)
    how: dict[str, Any] = {}
    kind = "JPEG" if mode in {"CMYK", "YCbCr"} else "PNG"
    if mode == "P":
        alphas = draws.bytes(int(draws.integers(1, 256)))
        how["transparency"] = alphas if draws.random() < HALF else int(draws.integers(256))
    return _file(picture, kind, **how)


def _animated(draws: Draws) -> bytes:
    """Of many frames, as PNG, WEBP or GIF."""
    count = int(draws.integers(2, 40))
    side = int(draws.integers(4, 60))
    first, *rest = (_noise(draws, side, side) for _ in range(count))
    kind = str(draws.choice(("PNG", "WEBP", "GIF")))
    data = _file(first, kind, save_all=True, append_images=rest, duration=1)
    return data if draws.random() < HALF else data[: int(draws.integers(len(data)))]


def _exif(draws: Draws) -> bytes:
    """Orientations of all kinds, offsets that point nowhere or at themselves, random bytes."""
    entries = b""
    count = int(draws.integers(0, 8))
    for _ in range(count):
        tag = int(draws.choice([0x0112, 0x011A, 0x8769, 0x8825, 0x927C, 0xA005, 0x0201, 0x0100]))
        kind = int(draws.integers(0, 15))
        entries += struct.pack("<HHII", tag, kind, *map(int, draws.integers(0, 1 << 32, 2)))
    said = count if draws.random() < HALF else int(draws.integers(1 << 16))
    following = struct.pack("<I", int(draws.choice([0, 8, 26, 1 << 31])))
    tree = b"II*\0" + struct.pack("<IH", 8, said) + entries + following
    if draws.random() < HALF:
        orientation = struct.pack("<HHII", 0x0112, 3, 1, int(draws.integers(0, 99)))
        tree = b"II*\0" + struct.pack("<IH", 8, 1) + orientation + bytes(4)
    if draws.random() < SOME:
        tree = draws.bytes(int(draws.integers(0, 300)))
    if draws.random() < HALF:
        return _with_segments(good_picture(draws, "JPEG"), _segment(0xE1, b"Exif\0\0" + tree))
    return _after_header(good_picture(draws, "PNG"), _chunk(b"eXIf", tree))


def _metadata(draws: Draws) -> bytes:
    """Megabytes beside few pixels, some of them compressed."""
    way = int(draws.integers(4))
    if way == 0:
        filled = _segment(int(draws.choice([0xE2, 0xED, 0xFE])), bytes(65_000))
        return _with_segments(good_picture(draws, "JPEG"), filled * int(draws.integers(1, 50)))
    whole = good_picture(draws, "PNG")
    if way == 1:
        bomb = _zeros()
        name = (b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0")
        kind, before = name[int(draws.integers(len(name)))]
        return _after_header(whole, _chunk(kind, before + bomb) * int(draws.integers(1, 4)))
    texts = _chunk(b"tEXt", b"a\0" + bytes(60_000)) * 40, _chunk(b"tEXt", b"a\0b") * 5_000
    return _after_header(whole, texts[way - 2])


@cache
def _zeros() -> bytes:
    """100 MB, compressed."""
    return zlib.compress(bytes(100_000_000))


def _two_in_one(draws: Draws) -> bytes:
    """Two formats in one file, or several pictures one after the other."""
    whole = good_picture(draws)
    others = (
        b"<html><script>alert(1)</script></html>",
        b"PK\x03\x04" + draws.bytes(200),
        b"GIF89a" + draws.bytes(200),
        b"%PDF-1.4\n%%EOF",
        good_picture(draws),
    )
    other = others[int(draws.integers(len(others)))]
    return whole + other if draws.random() < HALF else other + whole


def _another_format(draws: Draws) -> bytes:
    return _file(_noise(draws, 20, 20), str(draws.choice(OTHERS)))


def _many_scans(draws: Draws) -> bytes:
    """A progressive JPEG of 16 megapixels whose scans say nothing, in 30 bytes each."""
    return scanned(SIDE, SIDE, int(draws.choice([1, 10, 200, 2_000, 50_000])))


def scanned(width: int, height: int, scans: int) -> bytes:
    """A grey progressive JPEG with so many scans behind its first."""
    blocks = ((width + 7) // 8) * ((height + 7) // 8)
    codes = bytes([1]) + bytes(15)  # one code, of one bit
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    tables = _segment(0xC4, b"\0" + codes + b"\0") + _segment(0xC4, b"\x10" + codes + b"\xe0")
    runs = -(-blocks // ((1 << 15) - 1))  # each of as many blocks without coefficients as may be
    bits = ("0" + "1" * 14) * runs
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    first = _segment(0xDA, b"\1\1\0\0\0\0") + bytes((blocks + 7) // 8)
    later = _segment(0xDA, b"\1\1\0\1\x3f\0") + data
    head = b"\xff\xd8" + _segment(0xDB, b"\0" + b"\1" * 64) + _segment(0xC2, frame)
    return head + tables + first + later * scans + b"\xff\xd9"


def _runs(draws: Draws) -> bytes:
    """A BMP whose pixels are compressed by runs, most of which say nothing."""
    side = SIDE if draws.random() < HALF else 40
    body = (
        b"\1\0\0\0" * (side + 1),
        b"\1\0" * 500_000,
        b"\0\2\xff\xff" * 500,
        b"\0\3abc\0" * 50_000,
        draws.bytes(3_000),
    )[int(draws.integers(5))]
    return by_runs(side, side, body)


def by_runs(width: int, height: int, body: bytes) -> bytes:
    """A BMP of 256 greys whose pixels are in runs (RLE8)."""
    greys = b"".join(bytes([n, n, n, 0]) for n in range(256))
    begin = 14 + 40 + len(greys)
    file = b"BM" + struct.pack("<IHHI", begin + len(body), 0, 0, begin)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 1, 1, 256, 0)
    return file + info + greys + body


KINDS: dict[str, Callable[[Draws], bytes]] = {
    "nothing": _nothing,
    "random bytes": _random,
    "random bytes behind a true beginning": _magic,
    "cut short": _cut_short,
    "changed": _changed,
    "sides that are not theirs": _lying_sides,
    "lengths that are not theirs": _lying_lengths,
    "wrong checksums": _bad_sums,
    "bombs": _bomb,
    "as large as allowed": _as_large_as_allowed,
    "thin": _thin,
    "tiny": _tiny,
    "noise": _of_noise,
    "odd modes": _odd_mode,
    "animated": _animated,
    "EXIF": _exif,
    "metadata": _metadata,
    "two in one": _two_in_one,
    "another format": _another_format,
    "many scans": _many_scans,
    "runs": _runs,
}
