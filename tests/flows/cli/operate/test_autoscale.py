"""`autoscale` and `simulate --epoch --autoscale` of a plan whose parts are shared in turns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.release.rollout.outcomes import read_outcomes
from flows.release.server.running import read_state
from tests.flows.cli.conftest import NOW, PLAN, WAREHOUSE, Command
from tests.flows.planning.small import cluster, profile
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.demand import planned_rates
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

KINDS = "models", "applications"  # of what load goes to


@pytest.fixture
def turns(project: Path, poolpipe: Command) -> Path:
    """Two models for 20 requests/s each on half of one of four GPUs."""
    rows = ["model,gpu_class,vgpu_percent,block,batch,latency_us"]
    rows += [
        f"{model},G,{percent},0,{batch},{base_us * (1 + batch) * slower}"
        for model, base_us in (("a", 6_000), ("b", 4_500))
        for percent, slower in ((50, 1.7), (100, 1.0))
        for batch in (1, 2, 3, 4)
    ]
    (project / "block_latency_us.csv").write_text("\n".join(rows) + "\n")
    (project / "cluster.yaml").write_text(
        "gpu_classes: {G: {vgpu_percents: [50, 100]}}\n"
        "nodes: [{count: 1, gpu_class: G, gpus: 4, nic_gbps: 10}]\n"
    )
    (project / "workload.yaml").write_text(
        "models: [{name: a, slo_ms: 400, rate_rps: 20}, {name: b, slo_ms: 300, rate_rps: 20}]\n"
    )
    assert poolpipe("profiles", "import", ".").code == 0
    plan = ("plan", "--cluster", "cluster.yaml", "--workload", "workload.yaml")
    answer = poolpipe(*plan, "--planner", "gpulets", "--objective", "gpus", "-o", "plan.json")
    assert answer.code == 0, answer.err
    return project / "plan.json"


@pytest.mark.long
@pytest.mark.usefixtures("turns")
def test_simulated_plans_follow_the_load(poolpipe: Command) -> None:
    asked = ("simulate", "--plan", "plan.json", "--duration", "120", "--load-factor", "4")
    alone = poolpipe(*asked, "--json").document
    found = poolpipe(*asked, "--epoch", "20", "--autoscale", "--json").document
    gpus = [epoch["gpus"] for epoch in found["epochs"]]
    assert gpus[0] == 1
    assert gpus[-1] > 1
    assert found["changes"] >= 1
    assert found["attainment"] > alone["attainment"]
    assert found["epochs"][-1]["attainment"] >= 0.99
    assert "changes" in poolpipe(*asked, "--epoch", "20", "--autoscale").out


MODULES = [
    {"name": "detect", "model": "net"},
    {"name": "cars", "model": "sub", "after": ["detect"], "rows_per_request": 0.5, "max_rows": 4},
]
APPLICATION = {
    "applications": [{"name": "traffic", "slo_ms": 1200, "rate_rps": 6, "modules": MODULES}]
}
ENTRIES = {
    "models": [
        {
            "name": "net",
            "slo_ms": 1200,
            "entries": [
                {"name": "whole", "block": 0, "budget_ms": 1200, "rate_rps": 6},
                {"name": "tails", "block": 1, "budget_ms": 900, "rate_rps": 6},
            ],
        }
    ]
}
MIXED = {
    "models": [{**ENTRIES["models"][0], "name": "tails"}],
    "applications": APPLICATION["applications"],
}
BEGIN_S, HIGH_S, END_S = 8, 24, 40  # of load: once, three times, once the planned rate
PERIOD_S = 4


def planned_for(project: Path, workload: dict[str, Any], poolpipe: Command, *how: str) -> None:
    """A plan of models that take 60 ms for a request, on any of eight GPUs."""
    with open_warehouse(project / WAREHOUSE) as warehouse:
        for name in ("net", "sub", "tails"):
            slow = profile(name, fast_us=(20_000.0, 20_000.0, 20_000.0), slowdown=1.5)
            import_profile(warehouse, slow, "by hand", NOW)
    prices = cluster(4, 4, fast_hourly_cost=2.0, slow_hourly_cost=1.5)
    (project / "cluster.yaml").write_text(yaml.safe_dump(prices.to_dict()))
    (project / "workload.yaml").write_text(yaml.safe_dump(workload))
    ran = poolpipe(*PLAN, "--planner", "pool", "--objective", "cost", *how, "-o", "plan.json")
    assert ran.code == 0, ran.err


@pytest.mark.slow
@pytest.mark.parametrize("workload", [APPLICATION, ENTRIES], ids=["application", "entries"])
def test_simulated_plans_of_applications_and_entries_follow_the_load(
    project: Path, poolpipe: Command, workload: dict[str, Any]
) -> None:
    planned_for(project, workload, poolpipe)
    first = Plan.from_dict(json.loads((project / "plan.json").read_text()))
    asked = ("simulate", "plan.json", "--duration", "120", "--load-factor", "3", "--epoch", "20")
    told = poolpipe(*asked, "--json")
    assert told.code == 0, told.err
    alone = told.document
    assert {name for epoch in alone["epochs"] for name in epoch["pools"]} == {
        pool.name for pool in first.pools
    }
    assert max(p["advice_gpus"] for p in alone["epochs"][-1]["pools"].values()) > 0
    ran = poolpipe(*asked, "--autoscale", "--json")
    assert ran.code == 0, ran.err
    found = ran.document
    assert found["changes"] >= 1
    assert found["epochs"][0]["plan_id"] == first.plan_id != found["epochs"][-1]["plan_id"]
    assert found["epochs"][0]["gpus"] < found["epochs"][-1]["gpus"]
    assert sum(e["offered"] for e in found["epochs"]) == sum(e["offered"] for e in alone["epochs"])
    assert found["attainment"] > alone["attainment"]
    assert found["epochs"][-1]["attainment"] >= 0.99
    assert set(planned_rates(first)) <= set(found["attainment_by_model"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_times_the_rate_of_all_that_clients_ask_for_is_followed_and_left(
    project: Path, poolpipe: Command
) -> None:
    planned_for(project, MIXED, poolpipe)
    first = Plan.from_dict(json.loads((project / "plan.json").read_text()))
    http, grpc, metrics = map(str, free_ports(3))
    ports = ("--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics)
    served = poolpipe("serve", "plan.json", *ports)
    assert served.code == 0, served.err
    state = read_state(project / ".poolpipe" / "serve")
    asked = planned_rates(first)
    entered = [model.name for model in first.models if model.entries]
    columns = [*entered, *(one.name for one in first.applications)]
    counts = [3 if BEGIN_S <= second < HIGH_S else 1 for second in range(END_S)]
    rows = [",".join(["second", *columns])]
    rows += [",".join(map(str, [n, *[count] * len(columns)])) for n, count in enumerate(counts)]
    (project / "counts.csv").write_text("\n".join(rows) + "\n")
    mean_rps = sum(asked.values()) * sum(counts) / END_S
    load = [sys.executable, "-c", "from flows.cli.main import main; main()", "load", "--json"]
    load += ["--plan", "plan.json", "--url", f"127.0.0.1:{grpc}", "--rate", str(mean_rps)]
    load += ["--arrivals", "counts.csv", "--trace-interval", "1", "--duration", str(END_S)]
    try:
        with subprocess.Popen(load, stdout=subprocess.PIPE) as client:
            wait_for(lambda: any(each.ended for each in read_outcomes(state.metrics_urls).values()))
            periods = str(END_S // PERIOD_S)
            told = poolpipe("autoscale", "--period", str(PERIOD_S), "--periods", periods)
            out, _ = client.communicate(timeout=300)
        assert told.code == 0, told.err
        ended = json.loads(out)
        failed = [one["failed"] for kind in KINDS for one in ended.get(kind, {}).values()]
        assert failed == [0] * len(columns)
        folders = sorted(
            (project / ".poolpipe/serve/generations").iterdir(), key=lambda p: int(p.name)
        )
        plans = [Plan.from_dict(json.loads((f / "plan.json").read_text())) for f in folders]
        assert all(plan.attained is not None for plan in plans)
        for name, rate_rps in asked.items():
            planned_rps = [planned_rates(plan)[name] for plan in plans]
            assert max(planned_rps) > 3 * rate_rps, told.out
            assert planned_rps[-1] < 0.75 * max(planned_rps), told.out
        gpus = [sum(plan.gpus_used.values()) for plan in plans]
        assert gpus[0] < max(gpus) > gpus[-1], told.out
        status = poolpipe("status", "--json").document
        assert status["plan_id"] == plans[-1].plan_id
        assert status["workers"]["up"] == status["workers"]["total"]
    finally:
        poolpipe("stop")


@pytest.mark.usefixtures("turns")
def test_without_a_running_system_it_is_refused(poolpipe: Command) -> None:
    ran = poolpipe("autoscale", "--period", "3", "--periods", "1")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "nothing is being served from here" in ran.err


@pytest.mark.slow
def test_a_running_system_is_given_what_its_load_asks_for(
    project: Path, turns: Path, poolpipe: Command
) -> None:
    http, grpc, metrics = map(str, free_ports(3))
    ports = ("--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics)
    assert poolpipe("serve", "plan.json", *ports).code == 0
    first = json.loads(turns.read_text())["plan_id"]
    load = [sys.executable, "-c", "from flows.cli.main import main; main()", "load"]
    load += ["--plan", "plan.json", "--url", f"127.0.0.1:{grpc}", "--rate", "120", "--json"]
    state = read_state(project / ".poolpipe" / "serve")
    try:
        with subprocess.Popen([*load, "--duration", "10"], stdout=subprocess.PIPE) as client:
            wait_for(lambda: any(each.ended for each in read_outcomes(state.metrics_urls).values()))
            told = poolpipe("autoscale", "--period", "2", "--periods", "4")
            out, _ = client.communicate(timeout=120)
        assert told.code == 0, told.err
        assert told.out.count("\n") >= 4
        status = poolpipe("status", "--json").document
        assert status["plan_id"] != first
        models = json.loads(out)["models"].values()
        assert [model["failed"] for model in models] == [0, 0], out.decode()
        assert all(model["served"] > 0 for model in models)
    finally:
        poolpipe("stop")
