from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_the_warehouse_is_checked_compacted_copied_and_exported(poolpipe: Command) -> None:
    sound = poolpipe("warehouse", "check", "--json").document
    assert sound["problems"] == []
    assert sound["rows"]["plans"] == 1
    assert poolpipe("warehouse", "compact", "--json").document["bytes_after"] > 0
    assert poolpipe("warehouse", "snapshot", "copy.duckdb").code == 0
    listed = poolpipe("warehouse", "plans", "--json", "--warehouse", "copy.duckdb").document
    assert len(listed["plans"]) == 1
    assert poolpipe("warehouse", "export", "parquet").code == 0
    assert Path("parquet/plans.parquet").is_file()
    assert poolpipe("warehouse", "prune", "--days", "30").code == 0
