"""Which tritonserver is started, and how."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.endpoints import RESTRICTED, TOKEN_HEADER, Endpoints
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.server import command as server_command
from triton_backend.serving.server import tritonserver as server


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path / "serve", plan(two_stage()), ServeOptions())


def test_the_server_is_started_closed_to_strangers(deployment: Deployment) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `local`")
    endpoints = Endpoints(http=1, grpc=2, metrics=3)
    command = server_command.server_command(deployment.settings, endpoints, None)
    closed = f"{','.join(RESTRICTED)}:{TOKEN_HEADER}={deployment.settings.token}"
    assert "model-repository" in RESTRICTED
    for option in (
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        "--grpc-address=127.0.0.1",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
    ):
        assert option in command
    backend = deployment.settings.folder / "backends" / "python"
    assert {path.name for path in backend.iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_utils.py",
        "triton_python_backend_stub",
    }
    assert all(path.exists() for path in backend.iterdir())


def test_the_command_line_of_the_server_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.main(["start", f"--folder={tmp_path}"]) == 2
    assert "not a settings file" in capsys.readouterr().err


def test_one_of_two_servers_loads_a_model_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `local`")

    def one_at_a_time(gateways: int) -> bool:
        folder = tmp_path / str(gateways)
        made = deploy(folder, plan(two_stage()), ServeOptions(gateways=gateways))
        command = server_command.server_command(made.settings, Endpoints(), None)
        return "--model-load-thread-count=1" in command

    assert (one_at_a_time(2), one_at_a_time(1)) == (True, False)


def test_what_was_opened_needs_no_token(deployment: Deployment) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `local`")
    endpoints = Endpoints(opened=("statistics", "shared-memory"))
    assert endpoints.restricted == ("model-repository", "model-config", "trace", "logging")
    command = server_command.server_command(deployment.settings, endpoints, None)
    (restricted,) = (o for o in command if o.startswith("--http-restricted-api="))
    assert restricted.startswith(
        "--http-restricted-api=model-repository,model-config,trace,logging:"
    )


TWO_AT_ONCE = """
import sysconfig, threading, time
from triton_backend.serving.server import command

read = sysconfig._init_posix
def slowly(found):
    time.sleep(0.3)
    read(found)
if sysconfig._CONFIG_VARS is None:
    sysconfig._init_posix = slowly

other = threading.Thread(target=command.wheel_folder)
other.start()
time.sleep(0.1)
print(command.server_environment()["LD_LIBRARY_PATH"].split(":")[0])
other.join()
"""


@pytest.mark.slow
def test_servers_started_at_once_find_this_interpreter() -> None:
    """Python 3.11 fills its table of paths without a lock: two threads must not meet in it."""
    program = [sys.executable, "-c", TWO_AT_ONCE]
    found = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == sysconfig.get_config_var("LIBDIR")
