"""Bad input of the command: one line that names what is wrong, and exit code 2."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_backend.client import __main__ as command
from triton_backend.client.__main__ import main

CUTS: list[dict[str, Any]] = [
    {
        "model": "m",
        "block": block,
        "split": "s",
        "file": file,
        "tensors": [{"name": name, "dtype": "FP32", "shape": [-1, 3]}],
        "bytes_per_sample": 12,
        "head_us": 0,
        "tail_us": None,
    }
    for block, file, name in ((0, None, "x"), (1, "0-1.onnx", "y"))
]
RUN = ("--url", "127.0.0.1:1", "--slo-ms", "100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cuts.json").write_text(json.dumps(CUTS))
    (tmp_path / "0-1.onnx").write_text("no model")
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block": 2}, r"cuts [0, 2], not every one from 0 on"),
        ({"split": "t"}, "several models or splits: ['m', 's', 't']"),
        ({"file": "none.onnx"}, "block 1: its file"),
        ({"tensors": None}, "not written by `poolpipe heads export`"),
        ({"block": float("inf")}, "not written by `poolpipe heads export`: OverflowError"),
        ({"head_us": -5}, "block 1: head_us -5 is no time"),
        ({"tail_us": -1}, "block 1: tail_us -1 is no time"),
        (
            {"tensors": [{"name": "y", "dtype": "FP8", "shape": [-1, 3]}]},
            "not written by `poolpipe heads export`: ValueError(\"'FP8' is no datatype\")",
        ),
        ({"head_us": None}, "head_us of block 1 is not known: `poolpipe-client measure`"),
        ({}, "0-1.onnx: "),  # onnxruntime's own words
    ],
)
def test_a_folder_that_cannot_be_used_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], reason: str
) -> None:
    (folder / "cuts.json").write_text(json.dumps([CUTS[0], CUTS[1] | change]))
    assert reason in complaint(capsys, "run", folder, *RUN)


def test_cuts_nested_without_end_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cuts.json").write_text("[" * 100_000)
    assert "cuts.json: not written by" in complaint(capsys, "measure", folder)


def test_options_that_make_no_sense_are_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "x.npy", np.zeros((2, 3), np.float32))
    np.savez(folder / "x.npz", z=np.zeros(3))
    (folder / "empty.npy").touch()
    (folder / "torn.npz").write_bytes((folder / "x.npz").read_bytes()[:40])
    whole = gzip.compress(b"time_s,mbit_per_s\n0,1\n")
    (folder / "torn.csv.gz").write_bytes(whole[:-9])
    for options, reason in (
        (("--link", folder / "none.csv"), "none.csv: cannot be read"),
        (("--url", "nowhere"), "--url nowhere: not HOST:PORT"),
        (("--url", "::"), "--url ::: not HOST:PORT"),
        (("--url", "http://host:"), "--url http://host:: not HOST:PORT"),
        (("--url", "host:99999"), "--url host:99999: not HOST:PORT"),
        (("--input", folder / "none.npy"), "cannot be read"),
        (("--input", folder / "x.npy"), "x is (2, 3), not (1, 3)"),
        (("--input", folder / "x.npz"), "has z, not x"),
        (("--input", folder / "empty.npy"), "empty.npy: cannot be read"),
        (("--input", folder / "torn.npz"), "torn.npz: cannot be read"),
        (("--link", folder / "torn.csv.gz"), "torn.csv.gz: not a trace"),
        (("--input", folder / "x.png"), "x takes (3,), no picture of three channels"),
    ):
        assert reason in complaint(capsys, "run", folder, *RUN, *options)
    assert "cuts.json: cannot be read" in complaint(capsys, "measure", folder / "none")


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--rps", "0", "0 is no number above 0"),
        ("--slo-ms", "soon", "soon is no number above 0"),
        ("--duration", "inf", "inf is no number above 0 and up to 1e+09"),
        ("--duration", "1e308", "1e308 is no number above 0 and up to 1e+09"),
        ("--slo-ms", "1e308", "1e308 is no number above 0 and up to 1e+09"),
        ("--stretch", "0.5", "0.5 is no number from 1 to 1e+09"),
        ("--watts", "5", "5 is not CPU,RADIO in watts, such as 5,2"),
        ("--objective", "joy", "invalid choice: 'joy'"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, reason: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", str(folder), *RUN, option, value])
    assert stop.value.code == 2
    assert f"argument {option}: {reason}" in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure", interrupted)
    assert main(["measure", str(folder)]) == 130
    assert capsys.readouterr() == ("", "")
