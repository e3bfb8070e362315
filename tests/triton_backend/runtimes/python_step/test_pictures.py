"""The ready step that decodes pictures."""

import contextlib
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from scripts.fuzz.pictures import by_runs, scanned
from triton_backend.runtimes.python_step.pictures import MOST_SCANS, decode

SIZE = {"height": 8, "width": 6}


def file_of(picture: Image.Image, kind: str = "JPEG") -> bytes:
    with io.BytesIO() as file:
        picture.save(file, kind)
        return file.getvalue()


def drawn(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(3)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_pictures_are_decoded_and_resized(kind: str) -> None:
    data = file_of(drawn(30, 20), kind)
    with Image.open(io.BytesIO(data)) as opened:
        wanted = np.asarray(opened.convert("RGB").resize((6, 8), Image.Resampling.BILINEAR))
    (found,) = decode([data], **SIZE)
    assert found.dtype == np.float32
    assert np.array_equal(found, wanted.transpose(2, 0, 1).astype(np.float32) / 255)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_every_mode_is_made_rgb(mode: str) -> None:
    assert decode([file_of(drawn(9, 9).convert(mode), "PNG")], **SIZE).shape == (1, 3, 8, 6)


def test_a_picture_with_too_many_pixels_is_refused_by_its_header() -> None:
    data = bytearray(file_of(drawn(16, 16), "PNG"))
    data[16:24] = struct.pack(">II", 10_000, 10_000)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    with pytest.raises(ValueError, match="10000 x 10000 pixels, at most 16000000 are decoded"):
        decode([bytes(data)], **SIZE)
    data[16:24] = struct.pack(">II", 1 << 20, 1 << 20)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    with pytest.raises(ValueError, match="16000000"):
        decode([bytes(data)], **SIZE)


def test_every_end_of_a_picture_is_answered() -> None:
    data = file_of(drawn(40, 40))
    for end in range(0, len(data), 37):
        with pytest.raises(ValueError, match=r"no picture|broken"):
            decode([data[:end]], **SIZE)


def test_noise_is_refused_or_decoded() -> None:
    rng = np.random.default_rng(5)
    whole = np.frombuffer(file_of(drawn(40, 40)), np.uint8)
    for _ in range(200):
        noisy = whole.copy()
        noisy[rng.integers(0, len(noisy), 8)] = rng.integers(0, 256, 8)
        with contextlib.suppress(ValueError):
            assert decode([noisy.tobytes()], **SIZE, max_pixels=10_000).shape == (1, 3, 8, 6)


def test_grey_of_16_bits_is_as_bright_as_grey_of_8() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    deep = Image.fromarray(grey.astype(np.uint16) << 8)
    same, wanted = decode([file_of(deep, "PNG"), file_of(Image.fromarray(grey), "PNG")], **SIZE)
    assert np.array_equal(same, wanted)


def test_a_jpeg_of_more_scans_than_encoders_write_is_refused() -> None:
    assert decode([scanned(40, 40, MOST_SCANS - 1)], **SIZE).shape == (1, 3, 8, 6)
    reason = f"a JPEG of {MOST_SCANS + 1} scans, at most {MOST_SCANS} are decoded"
    with pytest.raises(ValueError, match=reason):
        decode([scanned(40, 40, MOST_SCANS)], **SIZE)


def test_a_bmp_compressed_by_runs_is_refused() -> None:
    with pytest.raises(ValueError, match="a BMP compressed by runs"):
        decode([by_runs(40, 40, b"\x28\x07\0\0" * 40)], **SIZE)


def test_what_pillow_warns_of_is_no_output() -> None:
    transparent = io.BytesIO()
    drawn(9, 9).convert("P").save(transparent, "PNG", transparency=bytes(range(9)))
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\xff\xff\0\0\xff\xff\0\0"
    jpeg = file_of(drawn(9, 9))
    odd = jpeg[:2] + struct.pack(">BBH", 0xFF, 0xE1, len(exif) + 2) + exif + jpeg[2:]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert decode([transparent.getvalue(), odd], **SIZE).shape == (2, 3, 8, 6)
    assert not said
