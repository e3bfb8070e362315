"""A real system that is given up while it starts: why is said, nothing of it is left.

How long one is waited for.
"""

import fcntl
import subprocess
import sys
from itertools import count
from pathlib import Path

import psutil
import pytest

from flows.release.server import admin
from flows.release.server.running import ServerError, ServerState
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.state import STATE_NAME

pytestmark = pytest.mark.slow


def test_a_start_that_is_given_up_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    render_repository(folder, plan(two_stage()), ServeOptions())

    def give_up(_: str) -> None:
        wait_for((folder / STATE_NAME).exists)  # `stop` knows its keeper from then on
        raise ServerError("not ready")

    with pytest.raises(ServerError, match=r"^not ready \("):
        admin.start(folder, server_ports(), give_up)
    lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if any(str(folder) in part for part in line)] == []


def test_the_keeper_keeps_no_file_of_its_caller_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opens.py").write_text(
        "from pathlib import Path\n"
        "numbers = [n for n in Path('/proc/self/fd').iterdir() if n.exists() and int(n.name) > 2]\n"
        "print([str(number.readlink()) for number in numbers])\n"
    )
    monkeypatch.setattr(admin, "_KEEPER", "opens")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    with (tmp_path / "lock").open("w") as lock:  # as `flock FILE poolpipe serve` hands it down
        fcntl.fcntl(lock, fcntl.F_SETFD, 0)
        child = admin._spawn([], log)
        wait_for(lambda: child.poll() is not None)
    assert log.read_text() == "[]\n"


def test_a_start_that_compiles_is_waited_for_as_long_as_it_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, ends, said = count(1), 30, list[str]()

    def state_now(folder: Path) -> ServerState:
        look = next(looks)
        return ServerState({"ready": look == ends, "compiled_us": min(look, 20), "folder": folder})

    monkeypatch.setattr(admin, "read_state", state_now)
    monkeypatch.setattr(admin, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(admin, "START_POLLS", 12)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = admin._Child(process.pid)
        state = admin._wait_started(tmp_path, child, said.append, wait_for_workers=False)
        assert state.data["ready"]
        assert said == [admin.COMPILING]
        ends = 100  # nothing is heard of it any more
        with pytest.raises(ServerError, match="nothing new for"):
            admin._wait_started(tmp_path, child, said.append, wait_for_workers=False)


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("raise SystemExit(0)", "was stopped before it was ready"),
        ("import os; os.kill(os.getpid(), 15)", "was stopped before it was ready"),
        ("raise SystemExit(3)", "ended with 3"),
    ],
)
def test_a_start_that_another_command_stops_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, reason: str
) -> None:
    monkeypatch.setattr(admin, "POLL_SECONDS", 0.01)
    process = subprocess.Popen([sys.executable, "-c", ending])
    child = admin._Child(process.pid)
    with pytest.raises(ServerError, match=f"^the server {reason}$"):
        admin._wait_started(tmp_path, child, [].append, wait_for_workers=False)
    process.returncode = child.code  # `_Child` has waited for it


def test_a_start_of_many_models_is_waited_for_as_long_as_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count(1)

    def state_now(folder: Path) -> ServerState:
        begun = min(next(looks), 30)
        return ServerState({"ready": begun == 30, "models_begun": begun, "folder": folder})

    monkeypatch.setattr(admin, "read_state", state_now)
    monkeypatch.setattr(admin, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(admin, "START_POLLS", 12)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = admin._Child(process.pid)
        state = admin._wait_started(tmp_path, child, [].append, wait_for_workers=False)
    assert state.data["ready"]


def test_without_a_server_installed_a_start_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytriton", None)  # as it looks where the package is missing
    with pytest.raises(
        InputError, match=r"Triton: no server is installed: install poolpipe\[local\]"
    ):
        admin.check_can_start(tmp_path, Endpoints())
