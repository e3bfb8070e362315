"""A kept run names nothing of the machine's folders."""

import json
from pathlib import Path

import pytest

from scripts.figures.add_run import add_run, general


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (
            (
                "python /home/me/checkout/scripts/benchmarks/planner.py --data /data/x --out "
                "/tmp/a.json"
            ),
            "python scripts/benchmarks/planner.py --data DIR",
        ),
        (
            "python scripts/faults/bench_faults.py --only 'scheduler killed' --warehouse x.duckdb",
            "python scripts/faults/bench_faults.py --only 'scheduler killed'",
        ),
        ("python scripts/x.py --volume /data/tweets.csv", "python scripts/x.py --volume FILE"),
        ("python scripts/x.py --data=/data/x --out=/tmp/f", "python scripts/x.py --data=DIR"),
    ],
)
def test_paths_of_the_machine_go(given: str, kept: str) -> None:
    assert general(given) == kept


def test_a_run_is_named_by_benchmark_and_time(tmp_path: Path) -> None:
    record = {
        "benchmark": "Fault soak",
        "at": "2026-01-02T03:04:05+00:00",
        "machine": {"command": "python scripts/faults/soak.py --out x"},
    }
    (tmp_path / "out.json").write_text(json.dumps(record))
    path = add_run(tmp_path / "out.json", tmp_path)
    assert path.name == "fault-soak-20260102030405.json"
    assert json.loads(path.read_text())["machine"]["command"] == "python scripts/faults/soak.py"
