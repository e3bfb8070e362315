"""A file takes its place when all of it is written."""

import os
import stat
import threading
from pathlib import Path

import pytest

from warehouse.whole import unfinished


def test_a_file_keeps_its_mode_and_is_there_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")
    path.chmod(0o640)
    with unfinished(path) as place:
        place.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("before")

    def fail() -> None:
        with unfinished(path) as place:
            place.write_text("aft")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail()
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    link = tmp_path / "newest.json"
    link.symlink_to("a.json")
    with unfinished(link) as place:
        place.write_text("after")
    assert link.is_symlink()
    assert (tmp_path / "a.json").read_text() == "after"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with unfinished(pipe) as place:
        place.write_text("all of it")
    reader.join()
    assert read == ["all of it"]
    assert pipe.is_fifo()
