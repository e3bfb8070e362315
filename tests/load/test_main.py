"""Bad input on the command line: one line on stderr and exit code 2."""

from pathlib import Path

import pytest

from triton_backend.serving.load.__main__ import main
from triton_backend.serving.load.options import pairs


def test_a_missing_plan_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", str(tmp_path / "none.json")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "none.json: cannot be read as a plan" in error


@pytest.mark.parametrize("arguments", [["--duration", "0"], ["--rate", "-1"], ["--protocol", "x"]])
def test_options_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--plan", "p", *arguments])
    assert stop.value.code == 2


@pytest.mark.parametrize("texts", [["a"], ["=b"], ["a="], ["a=b", "a=c"]])
def test_pairs_must_be_pairs(texts: list[str]) -> None:
    with pytest.raises(Exception, match="NAME=VALUE"):
        pairs("--map", texts)
