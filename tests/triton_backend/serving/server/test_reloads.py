"""Models whose stubs died, loaded again by a repository API that stands for the server's."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeOptions, ServeSettings
from triton_backend.serving.server import reloads as module
from triton_backend.serving.server.reloads import ModelReloads


class Loads:
    """Stands for the server's repository API: counts what is loaded."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load(self, model: str) -> int:
        self.loaded.append(model)
        return 200

    def unload(self, model: str) -> int:
        del model
        return 200


def test_a_model_is_loaded_when_a_full_disk_is_freed_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton answers 200 to the load of an unchanged configuration, and loads nothing."""
    render_repository(tmp_path, plan(two_stage("line")), ServeOptions())
    dead, api, pauses = tmp_path / "pids" / "line", Loads(), list[float]()
    reloads = ModelReloads(ServeSettings.read(tmp_path / SETTINGS_NAME), cast("Any", api))
    monkeypatch.setattr(reloads, "_stopping", SimpleNamespace(wait=pauses.append))
    write_whole = module.write_whole

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def begin() -> None:
        reloads.begin(dead)
        wait_for(lambda: not reloads.is_loading("line"))

    monkeypatch.setattr(module, "write_whole", full)
    for _ in range(7):
        begin()
    assert (api.loaded, pauses) == ([], [1, 2, 4, 8, 16, 30, 30])
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "line is reloaded",
        "line was not loaded, tried again until it is",
    ]
    monkeypatch.setattr(module, "write_whole", write_whole)
    begin()
    begin()
    assert (api.loaded, len(pauses)) == (["line"] * 2, 7)
    assert caplog.records[-1].message == "line is reloaded"


def test_a_load_that_fails_in_an_unforeseen_way_is_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be begun five times a second, each time with a traceback."""
    render_repository(tmp_path, plan(two_stage("line")), ServeOptions())
    (tmp_path / "repository" / "line" / "config.pbtxt").write_bytes(b"\xff")  # no UTF-8
    api, pauses = Loads(), list[float]()
    reloads = ModelReloads(ServeSettings.read(tmp_path / SETTINGS_NAME), cast("Any", api))
    monkeypatch.setattr(reloads, "_stopping", SimpleNamespace(wait=pauses.append))
    for _ in range(3):
        reloads.begin(tmp_path / "pids" / "line")
        wait_for(lambda: not reloads.is_loading("line"))
    assert (api.loaded, pauses) == ([], [1, 2, 4])
    assert "UnicodeDecodeError" in caplog.records[-1].message
