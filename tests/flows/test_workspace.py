"""A warehouse that another process has open."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.state import project_state
from flows.workspace import Workspace
from warehouse.db import WarehouseInUseError, open_warehouse

pytestmark = pytest.mark.slow

HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); input()"


def test_who_waits_for_a_warehouse_is_told_for_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.duckdb"
    open_warehouse(file).close()
    work = Workspace(state=project_state(), warehouse=file, patience_seconds=3.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(WarehouseInUseError), work.open():
            pass
        holder.communicate("\n")
    (line,) = capsys.readouterr().err.splitlines()
    assert str(holder.pid) in line
    assert line.endswith("waiting up to 3 s")
    with work.open():
        pass
