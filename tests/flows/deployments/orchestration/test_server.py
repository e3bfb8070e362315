"""The Prefect server of one command; that flows run on it is seen in `test_quickstart.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys
from pathlib import Path
from flows.deployments.orchestration.home import prepare_prefect
prepare_prefect(Path(sys.argv[1]))
from flows.deployments.orchestration.server import start_prefect_server
start_prefect_server().wait()
"""
ROOT = Path(__file__).parents[4]


@pytest.mark.slow
def test_a_server_that_cannot_start_is_one_line_with_the_place_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").write_text("no database\n" * 1_000)
    done = subprocess.run(
        [sys.executable, "-c", START, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    log = tmp_path / "server.log"
    said = done.stderr.splitlines()[-1]
    assert said.endswith(f"PoolPipeError: Prefect's server did not start, see {log}")
    assert "file is not a database" in log.read_text()
