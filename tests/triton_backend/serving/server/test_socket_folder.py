"""Folders of sockets: those of living systems stay, those of killed ones go."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flows.release.server.admin import start, stop
from flows.release.server.running import read_state
from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import model, plan, stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness.threads import is_alive
from triton_backend.serving.server.socket_folder import hold, note_environments, remove_abandoned
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

HOLDER = """
import subprocess, sys
from pathlib import Path
from triton_backend.serving.server.socket_folder import hold

fd = hold(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "600"], pass_fds=(fd,))
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_folder_is_removed_once_all_that_hold_it_were_killed(tmp_path: Path) -> None:
    """With its shared memory, and with empty folders that are named as Triton's."""
    own, other = tmp_path / "poolpipe-00000001", tmp_path / "poolpipe-00c0ffee"
    fd = hold(own)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(other)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdout is not None
        server = int(keeper.stdout.readline())
        environments = [Path(tempfile.mkdtemp(prefix="python_env_", dir="/tmp")) for _ in "ab"]
        (environments[1] / "used").touch()
        mine = tmp_path / "python_env_elsewhere"
        mine.mkdir()
        note_environments(other, [*environments, mine])
        segment = SHARED_FOLDER / f"{other.name}-g1-w1"
        segment.touch()
        remove_abandoned(own)
        assert other.is_dir()
        keeper.kill()
        keeper.wait()
        remove_abandoned(own)
        assert other.is_dir()  # its server runs
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: not is_alive(server))
        remove_abandoned(own)
    there = [path.exists() for path in (other, segment, *environments, mine, own)]
    (environments[1] / "used").unlink()
    environments[1].rmdir()
    assert there == [False, False, False, True, True, True]
    os.close(fd)


def test_folders_without_a_lock_with_other_names_and_links_stay(tmp_path: Path) -> None:
    own = tmp_path / "poolpipe-00000001"
    os.close(hold(own))
    (tmp_path / "poolpipe-0badcafe").mkdir()
    for name in ("poolpipe-attached-1", "poolpipe-0badcaf", "elsewhere"):
        os.close(hold(tmp_path / name))
    (tmp_path / "poolpipe-00000002").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    remove_abandoned(own)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_another_start_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes between its making and the lock."""
    own, late = tmp_path / "poolpipe-00000001", tmp_path / "poolpipe-00000002"
    os.close(hold(own))
    os.close(hold(late))
    opened = os.open
    times: list[int] = []

    def open_and_lose(path: Path, flags: int, mode: int = 0o777, **more: Any) -> int:
        fd = opened(path, flags, mode, **more)
        if not times:
            times.append(fd)
            remove_abandoned(own)
        return fd

    monkeypatch.setattr(os, "open", open_and_lose)
    fd = hold(late)
    monkeypatch.undo()
    remove_abandoned(own)
    assert late.is_dir()
    os.close(fd)


@pytest.mark.slow
def test_the_next_start_of_any_system_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    served = plan(model("bare", (stage((0, 10), "FAST", 0),)))
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        render_repository(folder, served, ServeOptions())
    state = start(folders[0], at())
    group = int(state.data["process_group"])
    os.killpg(group, signal.SIGKILL)
    left = Path(state.data["socket_folder"])
    assert left.is_dir()
    start(folders[1], at())
    assert not left.exists()
    assert not list(SHARED_FOLDER.glob(f"{left.name}-*"))
    assert Path(read_state(folders[1]).data["socket_folder"]).is_dir()
    stop(folders[1])
    stop(folders[0])


def at() -> Endpoints:
    http, grpc, metrics = free_ports(3)
    return Endpoints(http=http, grpc=grpc, metrics=metrics)
