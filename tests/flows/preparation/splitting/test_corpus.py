"""Models as packages ship them: split and checked, or refused in one line.

Only the model files of the wheels are read.
"""

import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flows.preparation.splitting import SplitChoices, SplitModel, extract_stages, split_model
from flows.preparation.splitting.running import (
    Arrays,
    open_session,
    relative_error,
    run_session,
)
from tests.wheels import Wheel, wheel_file
from triton_backend.contract.errors import InputError

MAX_ERROR = 1e-4

pytestmark = pytest.mark.slow


RAPIDOCR = Wheel(
    package="rapidocr-onnxruntime",
    version="1.4.4",
    sha256="971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
MAGIKA = Wheel(
    package="magika",
    version="1.0.3",
    sha256="3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
)
SILERO = Wheel(
    package="silero-vad",
    version="6.2.3",
    sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
)
# Its licence is AGPL: no part of the product, its examples or its pages.
NUDENET = Wheel(
    package="nudenet",
    version="3.4.2",
    sha256="5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
)
BASIC_PITCH = Wheel(
    package="basic-pitch",
    version="0.4.0",
    sha256="738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
)
SWIFT_F0 = Wheel(
    package="swift-f0",
    version="0.3.0",
    sha256="d7240c7c94b1d3e8f0e0cd2701b79be89a0f23a19cd5f944895a6518ecad72f3",
)

# Wheel, file in it, sizes to give, least number of blocks.
SERVED: dict[str, tuple[Wheel, str, dict[str, tuple[int, ...]], int]] = {
    "detection": (RAPIDOCR, "*/ch_PP-OCRv4_det_infer.onnx", {"x": (3, 64, 96)}, 3),
    "recognition": (RAPIDOCR, "*/ch_PP-OCRv4_rec_infer.onnx", {"x": (3, 48, 64)}, 3),
    "angle": (RAPIDOCR, "*/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (3, 48, 96)}, 3),
    "file type": (MAGIKA, "*/standard_v3_3/model.onnx", {}, 3),
    "notes": (BASIC_PITCH, "*/nmp.onnx", {}, 3),
    "yolo": (NUDENET, "*/320n.onnx", {"images": (3, 64, 96)}, 3),
}
OPEN = {
    "detection": "x [batch, 3, ?, ?]; give --input-shape x=3xSIZExSIZE"
    " (height and width: multiples of 32)",
    "recognition": "x [batch, 3, ?, ?]; give --input-shape x=3xSIZExSIZE",
    "angle": "x [batch, 3, ?, ?]; give --input-shape x=3xSIZExSIZE",
    "yolo": "images [batch, 3, height, width]; give --input-shape images=3x320x320"
    " (these sizes are in the file's metadata, height and width: multiples of 32)",
}
STATEFUL = (
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_16k_sequence",
    "silero_vad_half",
    "silero_vad_op18_ifless",
    "silero_vad_openvino_16k",
)


def model_file(wheel: Wheel, pattern: str, folder: Path) -> Path:
    """One model file of a wheel, written into `folder`."""
    with zipfile.ZipFile(wheel_file(wheel)) as archive:
        (name,) = [name for name in archive.namelist() if fnmatch(name, pattern)]
        target = folder / Path(name).name
        target.write_bytes(archive.read(name))
    return target


def block_by_block(split: SplitModel, feed: Arrays) -> Arrays:
    known = dict(feed)
    for path in extract_stages(split, list(pairwise(range(split.blocks + 1)))):
        known |= run_session(open_session(path, "block"), known)
    return known


def one_by_one(path: Path, feed: Arrays) -> Iterator[Arrays]:
    session = open_session(path, "as shipped")
    for i in range(len(next(iter(feed.values())))):
        yield run_session(session, {name: array[i : i + 1] for name, array in feed.items()})


@pytest.mark.parametrize("name", SERVED)
def test_blocks_answer_as_the_file_that_the_package_ships(tmp_path: Path, name: str) -> None:
    wheel, pattern, sizes, least = SERVED[name]
    path = model_file(wheel, pattern, tmp_path)
    asked = SplitChoices(input_shapes=sizes)
    split = split_model(
        path, name="m", out=tmp_path / "models", blocks=4, max_batch=3, choices=asked
    )
    assert split.blocks >= least
    assert split.answers_vary
    feed = split.model_inputs().draw(3, np.random.default_rng(1))
    answers = block_by_block(split, feed)
    for i, expected in enumerate(one_by_one(path, feed)):
        for output, array in expected.items():
            assert relative_error(answers[output][i : i + 1], array) <= MAX_ERROR


@pytest.mark.parametrize("name", OPEN)
def test_sizes_left_open_are_listed_in_one_line(tmp_path: Path, name: str) -> None:
    path = model_file(*SERVED[name][:2], tmp_path)
    with pytest.raises(InputError) as caught:
        split_model(path, name="m", out=tmp_path / "models")
    assert str(caught.value) == f"{path}: open sizes in {OPEN[name]}"


@pytest.mark.parametrize("name", STATEFUL)
def test_models_that_carry_state_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = model_file(SILERO, f"*/{name}.onnx", tmp_path)
    with pytest.raises(InputError, match=r"input '\w+': is state .* zero at the start$") as caught:
        split_model(path, name="m", out=tmp_path / "models")
    assert "\n" not in str(caught.value)


def test_an_input_without_a_batch_is_refused_in_one_line(tmp_path: Path) -> None:
    path = model_file(SWIFT_F0, "*/model.onnx", tmp_path)
    said = r"input 'fmin': has no batch dimension .*; make .* an initializer of the model$"
    with pytest.raises(InputError, match=said) as caught:
        split_model(path, name="m", out=tmp_path / "models")
    assert "\n" not in str(caught.value)
