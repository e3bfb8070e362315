"""The picture of the README is the report's drawing of the kept plan."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scripts.figures.plan_picture import OUT, main


def test_the_kept_picture_is_that_of_the_kept_plan(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "plan.svg")]) == 0
    assert (tmp_path / "plan.svg").read_text() == OUT.read_text()
    assert ET.fromstring(OUT.read_text()).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_file_that_is_no_plan_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text("[]")
    assert main([str(tmp_path / "plan.json"), "--out", str(tmp_path / "x.svg")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
