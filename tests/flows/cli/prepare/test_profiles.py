from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command


@pytest.mark.usefixtures("profiled")
def test_tables_survive_export_and_import(poolpipe: Command) -> None:
    assert poolpipe("profiles", "export", "first").code == 0
    assert poolpipe("profiles", "import", "first", "--warehouse", "copy.duckdb").code == 0
    poolpipe("profiles", "export", "second", "--warehouse", "copy.duckdb")
    for name in ("block_latency_us.csv", "boundary_bytes.csv"):
        assert Path("first", name).read_text() == Path("second", name).read_text()
