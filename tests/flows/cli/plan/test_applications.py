"""Applications from the command line: imported, planned, shown, verified."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.cli.conftest import NOW, PLAN, Command
from tests.flows.operations.adoption.test_applications import ENSEMBLE
from tests.flows.planning.small import cluster, profile
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

APPLICATION: dict[str, Any] = {
    "name": "traffic",
    "slo_ms": 60,
    "rate_rps": 100,
    "modules": [
        {"name": "detect", "model": "net"},
        {
            "name": "cars",
            "model": "sub",
            "after": ["detect"],
            "rows_per_request": 2.5,
            "max_rows": 8,
            "optional": True,
        },
    ],
}


@pytest.fixture
def ready(project: Path) -> Path:
    """A project with prices, two models and an application."""
    with open_warehouse(project / "poolpipe.duckdb") as warehouse:
        for name in ("net", "sub"):
            import_profile(warehouse, profile(name), "test", NOW)
    prices = cluster(4, 8, fast_hourly_cost=2.0, slow_hourly_cost=0.8)
    (project / "cluster.yaml").write_text(yaml.safe_dump(prices.to_dict()))
    (project / "workload.yaml").write_text(yaml.safe_dump({"applications": [APPLICATION]}))
    return project


@pytest.mark.long
@pytest.mark.parametrize("planner", ["pool", "piccolo"])
def test_an_application_is_planned_shown_and_verified(
    ready: Path, poolpipe: Command, planner: str
) -> None:
    ran = poolpipe(*PLAN, "--objective", "cost", "--planner", planner, "-o", "plan.json")
    assert ran.code == 0, ran.err
    for text in ("traffic", "cars (optional)", "2.5 of 8", "detect"):
        assert text in ran.out
    said = "note: --gathering tc-padded, the default here, plans whole models"
    assert (said in ran.err) == (planner == "pool")
    document = json.loads((ready / "plan.json").read_text())
    assert [m["name"] for m in document["applications"][0]["modules"]] == ["detect", "cars"]
    assert poolpipe("verify", "plan.json").code == 0
    asked = "--plan", "plan.json", "--application", "traffic", "--rows", "fixed", "--duration", "2"
    simulated = poolpipe("simulate", *asked, "--arrivals", "deterministic", "--json")
    assert simulated.code == 0, simulated.err
    jobs = json.loads(simulated.out)["applications"]["traffic"]
    assert jobs["offered"] == 200 == jobs["served"] + jobs["dropped"]
    assert list(jobs["modules"]) == ["detect", "cars"]
    assert jobs["modules"]["cars"]["rows"] == 500
    shown = poolpipe("simulate", *asked)
    assert "cars" in shown.out
    rows = [line.split()[:6] for line in shown.out.splitlines()]
    assert ["net", "0", "0", "0", "0", "–"] in rows  # no client asks for the model alone
    document["applications"][0]["slo_us"] -= 1
    (ready / "plan.json").write_text(json.dumps(document))
    assert poolpipe("verify", "plan.json").code == 1


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"rate_rps": None}, ("--objective", "cost"), "application 'traffic'.rate_rps: needed"),
        ({"slo_ms": 2}, ("--objective", "cost"), "application 'traffic': SLO less margin is 1.2"),
        ({"slo": 2}, (), "application 'traffic'.slo: is not known here"),
        ({}, ("--planner", "no-partitioning"), "no-partitioning plans models alone"),
        ({}, ("--slo-margin", "auto"), "--slo-margin auto: is for models alone"),
        ({}, ("--gathering", "now"), "--gathering: 'now' is none of"),
        ({}, ("--billing", "occupancy"), "fixed is defined for billing gpu alone"),
    ],
)
def test_what_is_wrong_is_one_line(
    ready: Path,
    poolpipe: Command,
    change: dict[str, Any],
    options: tuple[str, ...],
    message: str,
) -> None:
    asked = {key: value for key, value in (APPLICATION | change).items() if value is not None}
    (ready / "workload.yaml").write_text(yaml.safe_dump({"applications": [asked]}))
    ran = poolpipe(*PLAN, *options)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_ensemble_is_imported(project: Path, poolpipe: Command) -> None:
    (project / "config.pbtxt").write_text(ENSEMBLE)
    ran = poolpipe("applications", "import", "config.pbtxt", "--slo-ms", "400", "-o", "w.yaml")
    assert ran.code == 0, ran.err
    assert "model_version 3 is not kept" in ran.err
    written = yaml.safe_load((project / "w.yaml").read_text())
    assert written["applications"][0]["name"] == "ocr"
    ran = poolpipe("applications", "import", "config.pbtxt", "--json")
    assert ran.document["applications"][0]["slo_ms"] == 1000
    ran = poolpipe("applications", "import", "none.pbtxt")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    (project / "graph.yaml").write_text("kind: Pod\n")
    ran = poolpipe("applications", "import", "graph.yaml")
    assert ran.code == 2
    assert "graph.yaml: kind: 'Pod' is not InferenceGraph" in ran.err


@pytest.mark.long
def test_a_longer_slo_costs_no_more(ready: Path, poolpipe: Command) -> None:
    asked = ("whatif", *PLAN[1:], "--objective", "cost", "--values", "3,6,12")
    for vary in ("slo", "slo-scale"):
        ran = poolpipe(*asked, "--vary", vary, "--json")
        assert ran.code == 0, ran.err
        points = ran.document["curves"]["pool"]
        known = [point["objective"] for point in points if point["objective"] is not None]
        assert len(known) >= 2
        assert known == sorted(known, reverse=True)
    assert (ready / "poolpipe.duckdb").exists()
