"""One holder of a limit at a time, through failures of holders and of the counting server."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deployments.orchestration import lease as prefect_lease
from flows.deployments.orchestration.limits import WAREHOUSE_WRITER, flow_workspace, holding
from tests.flows.deployments.joined import AUTH, joined

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
ENOUGH = 3
HOLD = """
import sys
from flows.deployments.orchestration import lease as prefect_lease
from flows.deployments.orchestration.limits import holding
with holding("a:1", "b:2"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def server(prefect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("POOLPIPE_HOME", str(tmp_path))
    with joined(prefect_url):
        yield prefect_url


@contextmanager
def holder(server: str, home: Path) -> Generator["subprocess.Popen[str]"]:
    """Another process that holds two limits until it is told to end."""
    environment = {
        **os.environ,
        "PREFECT_API_URL": server,
        "PREFECT_API_AUTH_STRING": AUTH,
        "PREFECT_HOME": str(home / "prefect"),
        "POOLPIPE_HOME": str(home),
    }
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=environment,
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def active(name: str) -> int:
    """Slots taken of a limit."""
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(name).active_slots


def test_a_killed_holder_loses_its_limits_at_once_and_a_living_one_never(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with holder(server, tmp_path) as process:
        assert (active("a:1"), active("b:2")) == (1, 1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (active("a:1"), active("b:2")) == (1, 1)  # the server knows nothing of it
        with caplog.at_level(logging.WARNING), holding("b:2"):
            assert (active("a:1"), active("b:2")) == (0, 1)
    assert ["its holder was killed" in record.getMessage() for record in caplog.records] == [True]


def test_nothing_is_taken_from_a_holder_that_lives(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    with holder(server, tmp_path) as process:

        def wait(_seconds: float) -> None:
            nonlocal refused
            refused += 1
            assert (active("a:1"), active("b:2")) == (1, 1)
            if refused == ENOUGH:
                process.communicate()  # its input ends, and so does it

        monkeypatch.setattr(prefect_lease.time, "sleep", wait)
        with caplog.at_level(logging.WARNING), holding("b:2"):
            assert active("b:2") == 1
    assert refused >= ENOUGH
    assert caplog.records == []
    assert (active("a:1"), active("b:2")) == (0, 0)


@pytest.mark.parametrize("times", [prefect_lease.MOST_BUSY, prefect_lease.MOST_BUSY + 1])
def test_a_server_whose_database_is_busy_is_asked_again_but_not_for_ever(
    server: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its SQLite refuses a write after a read between which another wrote."""
    ask, asked = SyncPrefectClient.increment_concurrency_slots_with_lease, 0

    def answer(*arguments: Any, **named: Any) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked > times:
            return ask(*arguments, **named)
        request = httpx.Request("POST", server)
        refused = httpx.Response(HTTPStatus.SERVICE_UNAVAILABLE, request=request)
        raise httpx.HTTPStatusError("busy", request=request, response=refused)

    monkeypatch.setattr(SyncPrefectClient, ask.__name__, answer)
    monkeypatch.setattr(prefect_lease, "POLL_SECONDS", 0.01)
    if times > prefect_lease.MOST_BUSY:
        with pytest.raises(httpx.HTTPStatusError, match="busy"), holding("b:2"):
            pass
    else:
        with holding("b:2"):
            assert active("b:2") == 1
    assert active("b:2") == 0
    assert asked == prefect_lease.MOST_BUSY + 1


def test_without_a_server_the_files_own_lock_has_to_do_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = flow_workspace(tmp_path / "w.duckdb")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with caplog.at_level(logging.WARNING), work.open() as warehouse, work.turn():
            warehouse.connection.execute("CREATE TABLE written (number INTEGER)")
        with work.open(read_only=True) as warehouse:
            assert warehouse.rows("SELECT count(*) AS n FROM written") == [{"n": 0}]
    said = [
        r.getMessage() for r in caplog.records if r.name == "flows.deployments.orchestration.limits"
    ]
    assert len(said) == 1  # nested pieces of work take their turn once; readers take none
    assert WAREHOUSE_WRITER in said[0]


def test_relative_paths_of_a_flow_count_from_the_projects_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POOLPIPE_PROJECT", raising=False)
    flow_workspace(tmp_path / "w.duckdb")
    assert Path.cwd() == tmp_path
    monkeypatch.setenv("POOLPIPE_PROJECT", str(project))
    flow_workspace(tmp_path / "w.duckdb")
    assert Path.cwd() == project
