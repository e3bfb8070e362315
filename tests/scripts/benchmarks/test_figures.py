"""Figures of benchmarks are judged, written as JSON and stored in the warehouse."""

import argparse
import json
import re
from pathlib import Path

import pytest

from scripts.benchmarks.figures import QUIET_LOAD, Figure, add_destinations, exit_code, show, store
from warehouse.db import open_warehouse
from warehouse.details import figures as stored_figures

FIGURES = [
    Figure(name="latency p50", value=1.5, unit="ms", most=2.0),
    Figure(name="requests per second", value=90.0, unit="1/s", least=100.0, note="of wrk"),
    Figure(name="wrong answers", value=0, least=0, most=0),
    Figure(name="seconds", value=12.0, unit="s"),
    Figure(name="added latency", value=None, unit="ms", most=2.0),
]


def asked(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_destinations(parser)
    return parser.parse_args(arguments)


def test_a_figure_is_judged_by_its_bounds_and_only_where_it_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert [f.status for f in FIGURES] == ["met", "MISSED", "met", "reported", "not measured"]
    assert [f.target for f in FIGURES] == ["<= 2", ">= 100", "= 0", "", "<= 2"]
    assert exit_code(FIGURES) == 1
    assert exit_code([f for f in FIGURES if f.status != "MISSED"]) == 0
    show(FIGURES)
    assert "MISSED  of wrk" in capsys.readouterr().out


def test_figures_go_where_the_command_line_says(tmp_path: Path) -> None:
    out, warehouse = tmp_path / "new" / "figures.json", tmp_path / "figures.duckdb"
    store(asked("--output", str(out), "--warehouse", str(warehouse)), "trial", FIGURES, {"raw": 7})
    record = json.loads(out.read_text())
    assert (record["benchmark"], record["raw"], len(record["figures"])) == ("trial", 7, 5)
    assert record["machine"]["cpu_count"]
    assert record["quiet"] is (record["machine"]["load_average_before"][0] <= QUIET_LOAD)
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", record["commit"])
    assert record["versions"]["numpy"]
    with open_warehouse(warehouse) as opened:
        rows = stored_figures(opened, "trial")
    by_name = {row["name"]: (row["value"], row["unit"], row["target"]) for row in rows}
    assert by_name == {
        "latency p50": (1.5, "ms", "<= 2"),
        "requests per second": (90.0, "1/s", ">= 100"),
        "wrong answers": (0.0, "", "= 0"),
        "seconds": (12.0, "s", None),
    }
    assert rows[0]["machine"]["command"]
    assert rows[0]["versions"]["python"]


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store(asked(), "trial", FIGURES)
    assert list(tmp_path.iterdir()) == []
