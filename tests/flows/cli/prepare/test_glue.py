"""`glue crop` on the command line."""

from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command


def test_a_crop_is_written(project: Path, poolpipe: Command) -> None:
    ran = poolpipe("glue", "crop", "--image", "3x48x64", "--size", "32", "-o", "c.onnx", "--json")
    assert ran.code == 0
    assert ran.document["size"] == [32, 32]
    assert (project / "c.onnx").is_file()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (("--image", "48x64"), "--image: '48x64' is not CxHxW, as 3x480x640"),
        (("--size", "axb"), "--size: 'axb' is not HxW, as 224x224"),
        (("--boxes", "corners"), "boxes: 'corners' is none of xyxy"),
        (("-o", "none/c.onnx"), "none/c.onnx"),
    ],
)
def test_what_is_wrong_is_named_in_a_line(
    poolpipe: Command, wrong: tuple[str, str], reason: str
) -> None:
    asked = {"--image": "3x48x64", "--size": "32", "-o": "c.onnx"} | dict([wrong])
    ran = poolpipe("glue", "crop", *(word for pair in asked.items() for word in pair))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert reason in ran.err
