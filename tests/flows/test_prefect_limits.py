"""Writing goes on where the server that keeps the limits cannot be reached."""

import logging
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.prefect_limits import WAREHOUSE_WRITER, flow_workspace


@pytest.mark.slow
def test_without_a_server_the_files_own_lock_has_to_do_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = flow_workspace(tmp_path / "w.duckdb")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with caplog.at_level(logging.WARNING), work.open() as warehouse, work.turn():
            warehouse.connection.execute("CREATE TABLE written (number INTEGER)")
        with work.open(read_only=True) as warehouse:
            assert warehouse.rows("SELECT count(*) AS n FROM written") == [{"n": 0}]
    said = [r.getMessage() for r in caplog.records if r.name == "flows.prefect_limits"]
    assert len(said) == 1  # nested pieces of work take their turn once; readers take none
    assert WAREHOUSE_WRITER in said[0]
