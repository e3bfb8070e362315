"""Split models, found again from other folders."""

import shutil
from pathlib import Path

import pytest

from flows.preparation.splitting.stored_split import read_split, split_step
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.preparation.splitting.tiny_models import residual_net


@pytest.mark.long
def test_a_split_is_found_from_another_folder_and_where_its_project_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, moved, elsewhere = (tmp_path / name for name in ("project", "moved", "elsewhere"))
    project.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(project)
    work = Workspace(state=ProjectState(home=Path(".poolpipe")), warehouse=Path("w.duckdb"))
    made = split_step(work, residual_net(tmp_path / "tiny.onnx"), "tiny", blocks=2, max_batch=1)
    monkeypatch.chdir(elsewhere)
    there = Workspace(state=work.state, warehouse=project / "w.duckdb")
    assert read_split(there, "tiny").folder == project / made.folder
    shutil.move(project, moved)
    monkeypatch.chdir(moved)
    assert read_split(work, "tiny").folder == made.folder
