"""`heads export` on the command line."""

from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command
from tests.flows.preparation.splitting.tiny_models import chain


@pytest.mark.slow
def test_heads_of_a_model_that_was_split(project: Path, poolpipe: Command) -> None:
    chain(project / "m.onnx")
    assert poolpipe("split", "m.onnx", "--blocks", "3").code == 0
    shown = poolpipe("heads", "export", "m", "-o", "heads")
    assert "3 heads of m in heads" in shown.out
    assert "not measured" in shown.out
    assert {path.name for path in (project / "heads").iterdir()} == {
        "cuts.json",
        "0-1.onnx",
        "0-2.onnx",
        "0-3.onnx",
    }


@pytest.mark.usefixtures("profiled")
def test_a_model_that_is_not_there_or_was_never_split_is_named(poolpipe: Command) -> None:
    for name, reason in (("nobody", "is not in"), ("net", "has imported tables only")):
        ran = poolpipe("heads", "export", name, "-o", "heads")
        assert ran.code == 2
        assert ran.err.count("\n") == 1
        assert reason in ran.err
