"""A real system that is given up while it starts: why is said, and nothing of it is left."""

from pathlib import Path

import psutil
import pytest

from flows.release.server import admin
from flows.release.server.running import ServerError
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import wait_for
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
