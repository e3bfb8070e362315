"""`autoscale` and `simulate --epoch --autoscale` of a plan whose parts are shared in turns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.release.rollout.outcomes import read_outcomes
from flows.release.server.running import read_state
from tests.flows.cli.conftest import Command
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for


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
        assert [model["failed"] for model in models] == [0, 0]
        assert all(model["served"] > 0 for model in models)
    finally:
        poolpipe("stop")
