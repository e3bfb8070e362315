"""`simulate --clients`: files in, clients and shares out; one line for what is wrong."""

import gzip
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.cli.conftest import PLAN, WAREHOUSE, Command
from tests.flows.planning.entries.entry_cases import cluster, entry, made, profile
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

SIMULATE = ("simulate", "--plan", "plan.json", "--clients", "clients.yaml", "--duration", "6")
LINKS = "time_s,mbit_per_s,link\n0,100,near\n0,20,far\n3,100,far\n"
CLIENT = {
    "name": "phone",
    "model": "net",
    "fps": 10,
    "slo_ms": 150,
    "heads_us": [0, 20_000, 40_000, 400_000],
    "link": "near",
    "upload_bytes": [200_000, 100_000, 9_000],
}


def write_clients(folder: Path, *changes: Mapping[str, Any]) -> None:
    (folder / "clients.yaml").write_text(yaml.safe_dump([CLIENT | dict(c) for c in changes]))


@pytest.fixture(autouse=True)
def planned(project: Path, poolpipe: Command) -> None:
    """A plan with a shadow pool, made of the warehouse's profile."""
    net = profile(7)
    workload = made(net, [entry("a", 0, 60, 20)]).workload
    (project / "cluster.yaml").write_text(yaml.safe_dump(cluster().to_dict()))
    (project / "workload.yaml").write_text(yaml.safe_dump(workload.to_dict()))
    (project / "links.csv").write_text(LINKS)
    with open_warehouse(project / WAREHOUSE) as warehouse:
        import_profile(warehouse, net, "test", datetime(2026, 11, 1, tzinfo=UTC))
    options = ("--planner", "graft", "--objective", "share", "--shadow-rps", "40")
    assert poolpipe(*PLAN, *options, "-o", "plan.json").code == 0
    write_clients(project, {}, {"name": "watch", "link": "far", "rtt_us": 2_000})


@pytest.mark.long
def test_clients_are_simulated_and_steered(poolpipe: Command) -> None:
    steered = (*SIMULATE, "--links", "links.csv", "--steer", "--plan-ms", "100", "--start-s", "0.5")
    ran = poolpipe(*steered, "--json")
    assert ran.code == 0, ran.err
    found = ran.document
    assert set(found["clients"]) == {"phone", "watch"}
    assert found["offered"] == 120
    assert found["reached"] > 80
    assert found["attainment_reached"] >= 0.99
    assert found["accepted_and_late"] == 0
    assert found["mean_percent"] > 0
    text = poolpipe(*steered).out
    assert "% of a GPU in the mean; " in text
    assert poolpipe(*SIMULATE, "--links", "links.csv", "--json").document["changes"] == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--clients", "clients.yaml"), "--clients: needs --links"),
        (("--links", "links.csv"), "--links: needs --clients"),
        (("--steer",), "--steer: needs --clients"),
        (("--plan-ms", "3"), "--plan-ms: needs --clients"),
        (("--start-s", "3"), "--start-s: needs --clients"),
        (
            ("--clients", "clients.yaml", "--links", "links.csv", "--arrivals", "gamma"),
            "--arrivals: does not go with --clients",
        ),
        (
            ("--clients", "clients.yaml", "--links", "links.csv", "--rate", "3"),
            "--rate: does not go with --clients",
        ),
        (("--clients", "clients.yaml", "--links", "none.csv"), "none.csv: cannot be read"),
        (("--clients", "clients.yaml", "--links", "clients.yaml"), "no column mbit_per_s, time_s"),
        (("--clients", "links.csv", "--links", "links.csv"), "links.csv: is not a list of clients"),
        (("--clients", "clients.yaml", "--links", "torn.csv.gz"), "torn.csv.gz: not a trace"),
        (("--clients", "clients.yaml", "--links", "wide.csv"), "wide.csv: not a trace: field larg"),
    ],
)
def test_what_does_not_go_together_is_said(
    poolpipe: Command, arguments: tuple[str, ...], reason: str
) -> None:
    Path("torn.csv.gz").write_bytes(gzip.compress(b"time_s,mbit_per_s\n0,1\n")[:-9])
    Path("wide.csv").write_text("x" * 200_000)
    ran = poolpipe("simulate", "--plan", "plan.json", *arguments)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert reason in ran.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"link": "moon"}, "clients.yaml, [0].link: 'moon' is none of far, near"),
        ({"fps": "ten"}, "clients.yaml, [0].fps: 'ten' is not a number"),
        ({"upload_bytes": None}, "upload_bytes: is needed: bytes of net's cuts are not known"),
        ({"upload_bytes": [1], "heads_us": [0, 1]}, "client 'phone': 1 cuts, net has 3 blocks"),
        ({"model": "other"}, "'other'"),
    ],
)
def test_a_wrong_client_is_named(
    project: Path, poolpipe: Command, change: Mapping[str, Any], reason: str
) -> None:
    write_clients(project, change)
    ran = poolpipe(*SIMULATE, "--links", "links.csv")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert reason in ran.err
