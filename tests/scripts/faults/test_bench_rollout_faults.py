"""Cells of the table of steps and faults that need Prefect or a node: the script's own rows.

Flows killed at every step, and the gateway, are in `test_rollout_faults`; the whole table takes
`scripts/faults/bench_rollout_faults.py` half an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.served import run_to_its_end
from scripts.faults.rollout_faults import BY_PREFECT, NODE, SERVER, WORKER
from tests.flows.deployments.prefect_database import NAME, give_database
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
CELLS = [("prepare", SERVER), ("prepare", NODE), ("swap", WORKER)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("table")
    out = folder / "rows.json"
    give_database(folder)
    database = f"sqlite+aiosqlite:///{folder / NAME}"
    wanted = [f"--cell={step}:{fault}" for step, fault in CELLS]
    script = ROOT / "scripts/faults/bench_rollout_faults.py"
    command = [sys.executable, str(script), *wanted, f"--port={free_ports(20)[0]}"]
    pipe = subprocess.PIPE
    done = run_to_its_end(
        [*command, f"--out={out}"],
        env={**os.environ, "PREFECT_API_DATABASE_CONNECTION_URL": database},
        stdout=pipe,
        stderr=pipe,
    )
    assert out.exists(), done.stdout + done.stderr
    return {(row["step"], row["fault"]): row for row in json.loads(out.read_text())["rows"]}


@pytest.mark.parametrize(("step", "fault"), CELLS)
def test_one_whole_plan_serves_and_nothing_beyond_the_killed_process_is_lost(
    rows: dict[tuple[str, str], dict[str, Any]], step: str, fault: str
) -> None:
    row = rows[step, fault]
    assert "broken" not in row, row
    assert row["plan"] in {"old", "new"}
    assert row["lost"] <= (0 if fault in BY_PREFECT else row["open"])
