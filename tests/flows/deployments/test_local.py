"""`scripts/operations` and `poolpipe` where their surroundings are not as they would like."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from flows.deployments.orchestration.background import running, start, stop

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
POOLPIPE = str(Path(sys.executable).with_name("poolpipe"))
OPERATIONS = (sys.executable, "-m", "flows.deployments.local")


def run(
    folder: Path, *command: str, stdout: int = subprocess.PIPE, **environment: str
) -> "subprocess.CompletedProcess[str]":
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    return subprocess.run(
        command,
        cwd=folder,
        env=plain | {"POOLPIPE_HOME": str(folder), "PYTHONPATH": str(ROOT)} | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", [(POOLPIPE,), (POOLPIPE, "profiles", "--help"), OPERATIONS])
def test_a_reader_that_leaves_early_breaks_nothing(tmp_path: Path, command: tuple[str]) -> None:
    words = ("down",) if command == OPERATIONS else ()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(tmp_path, *command, *words, stdout=writing)
    finally:
        os.close(writing)
    # `poolpipe` has failed to say something; `operations` has done its work all the same.
    assert (done.returncode, done.stderr) == (0 if command == OPERATIONS else 1, "")


def test_a_port_of_another_program_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(tmp_path, *OPERATIONS, "up", POOLPIPE_PREFECT_PORT=port)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"POOLPIPE_PREFECT_PORT {port}: cannot be listened on")
    assert len(done.stderr.splitlines()) == 1


def test_the_project_is_the_folder_that_it_is_called_from(tmp_path: Path) -> None:
    elsewhere, project = tmp_path / "clone", tmp_path / "project"
    elsewhere.mkdir()
    project.mkdir()
    asked = ("status", "--called-from", str(project))
    done = run(elsewhere, *OPERATIONS, *asked, POOLPIPE_HOME="", POOLPIPE_PREFECT_PORT="23999")
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / ".poolpipe" / "operations").is_dir()
    assert not list(elsewhere.iterdir())


def test_a_port_that_is_none_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, *OPERATIONS, "status", POOLPIPE_UI_PORT="http")
    assert (done.returncode, done.stderr) == (1, "POOLPIPE_UI_PORT: 'http' is no port\n")


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://host/api", "http://host:x/api"])
def test_an_address_of_a_server_that_is_none_is_named(tmp_path: Path, url: str) -> None:
    done = run(tmp_path, *OPERATIONS, "status", PREFECT_API_URL=url)
    said = f"PREFECT_API_URL: {url!r} is no URL, as http://127.0.0.1:4200/api\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, *OPERATIONS, "status", POOLPIPE_HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path}/file/operations: Not a directory\n"


def test_a_program_that_is_no_server_of_http_is_no_prefect_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            with other.accept()[0] as client:
                client.sendall(b"SSH-2.0\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        done = run(tmp_path, *OPERATIONS, "status", POOLPIPE_PREFECT_PORT=str(port))
        answering.join()
    said = f"no Prefect server answers at http://127.0.0.1:{port}/api\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_a_server_on_this_machine_is_asked_past_a_proxy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        run(tmp_path, *OPERATIONS, "status", POOLPIPE_PREFECT_PORT="23999", http_proxy=address)
        proxy.settimeout(0)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_a_process_is_started_once_and_ended_with_what_it_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bash", "-c", "sleep 600 & wait"]
    for _ in range(2):
        start(tmp_path, "sleeper", command, within=tmp_path)
    found = running(tmp_path, "sleeper")
    assert found is not None
    while not (children := found.children()):
        pass
    stop(tmp_path, "sleeper")
    assert not any(lives(process) for process in (found, *children))
    stop(tmp_path, "sleeper")
    said = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "sleeper: started",
        f"sleeper: runs already (process {found.pid})",
        "sleeper: ended",
        "sleeper: does not run",
    ]
