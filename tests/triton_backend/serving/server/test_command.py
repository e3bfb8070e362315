"""Which tritonserver is started, and how."""

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


def test_what_was_opened_needs_no_token(deployment: Deployment) -> None:
    pytest.importorskip("pytriton", reason="needs the extra `local`")
    endpoints = Endpoints(opened=("statistics", "shared-memory"))
    assert endpoints.restricted == ("model-repository", "model-config", "trace", "logging")
    command = server_command.server_command(deployment.settings, endpoints, None)
    (restricted,) = (o for o in command if o.startswith("--http-restricted-api="))
    assert restricted.startswith(
        "--http-restricted-api=model-repository,model-config,trace,logging:"
    )
