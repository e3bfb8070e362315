"""Entries from the command line: profiles in, planned, verified, simulated, refused by name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.flows.cli.conftest import PLAN, Command

PERCENTS = (10, 25, 50, 100)
ENTRIES = [
    {"name": "whole", "block": 0, "budget_ms": 80, "rate_rps": 20},
    {"name": "late", "block": 1, "budget_ms": 70.5, "rate_rps": 30, "clients": 1},
    {"name": "tail", "block": 2, "budget_ms": 60, "rate_rps": 90},
]


@pytest.fixture
def ready(project: Path, poolpipe: Command) -> Path:
    """A project with measured shares of a GPU, and a model with three entries."""
    tables = project / "tables"
    tables.mkdir()
    rows = ["model,gpu_class,vgpu_percent,block,batch,latency_us"]
    rows += [
        f"net,G,{percent},{block},{batch},{(1_000 + 400 * batch) * (0.3 + 70 / percent):.0f}"
        for percent in PERCENTS
        for block in range(3)
        for batch in (1, 2, 4, 8)
    ]
    (tables / "block_latency_us.csv").write_text("\n".join(rows) + "\n")
    (tables / "boundary_bytes.csv").write_text(
        "model,after_block,bytes_per_sample\nnet,0,1000\nnet,1,2000\n"
    )
    gpu_class = {"vgpu_percents": list(PERCENTS), "max_vgpus_per_gpu": 10, "hourly_cost": 2.0}
    nodes = [{"count": 2, "gpu_class": "G", "gpus": 2, "nic_gbps": 10}]
    cluster = {"gpu_classes": {"G": gpu_class}, "nodes": nodes}
    (project / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    write_workload(project, ENTRIES)
    assert poolpipe("profiles", "import", "tables").code == 0
    return project


def write_workload(project: Path, entries: Sequence[Mapping[str, object]]) -> None:
    workload = {"models": [{"name": "net", "slo_ms": 100, "entries": entries}]}
    (project / "workload.yaml").write_text(yaml.safe_dump(workload))


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["pool", "graft", "gslice-plus"])
def test_entries_are_planned_verified_and_simulated(
    ready: Path, poolpipe: Command, planner: str
) -> None:
    asked = (*PLAN, "--planner", planner, "--objective", "share", "-o", "plan.json", "--json")
    ran = poolpipe(*asked)
    assert ran.code == 0, ran.err
    plan = ran.document
    held = sum(
        pool["vgpus"] * pool.get("vgpu_percent", 100 / pool.get("vgpu_divisor", 1))
        for pool in plan["pools"]
    )
    assert plan["objective"]["value"] == pytest.approx(held)
    assert plan["objective"]["space"] in ("groups", "pools", "its own rule")
    assert plan["options"]["slo_margin"] == 0.5
    assert [e["name"] for e in plan["models"][0]["entries"]] == ["whole", "late", "tail"]
    assert poolpipe("verify", "plan.json").code == 0
    plan["models"][0]["entries"][0]["rate_rps"] = 19.0
    (ready / "wrong.json").write_text(json.dumps(plan))
    assert poolpipe("verify", "wrong.json").code == 1
    ran = poolpipe("simulate", "--plan", "plan.json", "--duration", "5", "--json")
    assert ran.code == 0, ran.err
    entries = ran.document["entries"]["net"]
    assert {name: row["offered"] > 0 for name, row in entries.items()} == dict.fromkeys(
        ("whole", "late", "tail"), True
    )


def test_an_entry_out_of_reach_ends_with_its_name_and_the_least_latency(
    ready: Path, poolpipe: Command
) -> None:
    write_workload(ready, [*ENTRIES, {"name": "hasty", "block": 0, "budget_ms": 2, "rate_rps": 1}])
    ran = poolpipe(*PLAN, "--objective", "share")
    assert ran.code == 2
    assert "entry hasty" in ran.err
    assert "its least latency is 4.200 ms" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_rate_of_0_is_refused_with_its_field(ready: Path, poolpipe: Command) -> None:
    write_workload(ready, [{**ENTRIES[0], "rate_rps": 0}])
    ran = poolpipe(*PLAN)
    assert ran.code == 2
    assert "models[0].entries[0].rate_rps" in ran.err
