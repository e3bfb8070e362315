"""`stop` ends and deletes only what a keeper of this folder made."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from flows.release.server.admin import stop
from tests.triton_backend.serve_folder.state_files import LEFT
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.state import STATE_NAME, boot_id, command_line, write_state_file

INSTANCE = "0123abcd"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A serve folder; temporary folders lie beside it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = tmp_path / "serve"
    made.mkdir()
    return made


def left(folder: Path, **fields: Any) -> None:
    sockets = str(folder.parent / f"poolpipe-{INSTANCE}")
    said = {"instance": INSTANCE, "folder": str(folder), "socket_folder": sockets}
    write_state_file(folder, {**LEFT, "boot_id": boot_id(), **said, **fields})


@pytest.fixture
def other() -> Generator["subprocess.Popen[bytes]"]:
    """A program of this user that has to do with Triton, in a group of its own."""
    command = [sys.executable, "-c", "input()", "triton"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        wait_for(lambda: "triton" in command_line(process.pid))
        yield process
        process.kill()


def test_the_state_file_of_a_copied_folder_ends_nothing(folder: Path) -> None:
    left(folder)
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    sockets = folder.parent / f"poolpipe-{INSTANCE}"
    sockets.mkdir(mode=0o700)
    with pytest.raises(InputError, match=f"served from {folder}, not from here"):
        stop(copy)
    assert sockets.exists()
    assert stop(folder)
    assert not sockets.exists()
    assert not (folder / STATE_NAME).exists()


@pytest.mark.parametrize("name", ["home", "poolpipe-00000000", f"else/poolpipe-{INSTANCE}"])
def test_only_a_folder_of_sockets_is_deleted(folder: Path, name: str) -> None:
    kept = folder.parent / name
    kept.mkdir(parents=True)
    left(folder, socket_folder=str(kept))
    assert stop(folder)
    assert kept.exists()


def test_a_link_in_place_of_the_folder_of_sockets_is_not_followed(folder: Path) -> None:
    kept = folder.parent / "home"
    kept.mkdir()
    (folder.parent / f"poolpipe-{INSTANCE}").symlink_to(kept)
    left(folder)
    assert stop(folder)
    assert kept.exists()


def test_an_instance_that_names_the_segments_of_others_is_refused(folder: Path) -> None:
    left(folder, instance="*")
    with pytest.raises(InputError, match="the system '\\*'"):
        stop(folder)


@pytest.mark.slow
def test_another_program_with_the_number_of_the_keeper_goes_on(
    folder: Path, other: "subprocess.Popen[bytes]"
) -> None:
    left(folder, pid=other.pid, process_group=other.pid, arguments=["triton"])
    assert stop(folder)
    assert other.poll() is None


@pytest.mark.slow
def test_groups_of_a_former_start_of_the_host_are_left_alone(folder: Path) -> None:
    """The leader of the group is gone, as that of a killed keeper."""
    script = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True)"
    member = [sys.executable, "-c", "import time; time.sleep(600)", "triton"]
    leader = subprocess.Popen(
        [sys.executable, "-c", script, *member], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    pid = int(leader.stdout.readline())
    leader.wait()
    leader.stdout.close()
    left(folder, process_group=leader.pid, boot_id="another")
    assert stop(folder)
    assert os.getpgid(pid) == leader.pid
    left(folder, process_group=leader.pid)
    assert stop(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
