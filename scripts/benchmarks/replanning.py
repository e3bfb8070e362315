"""A night's replanning from beginning to end.

`scripts/operations up`, a plan under load, a schedule.

1. One command brings up server, worker, deployments and page in an empty project.
2. A plan for the most throughput is served (emulated GPUs) and loaded at a fraction of its rate.
3. `ingest-stats` reads what was measured; `replan` is scheduled for the next minute, for least
   cost.
4. It plans, compares, and rolls the new plan out, watched, while the load goes on.

Reported: attainment over the whole window (at least 99 %), requests lost (none), GPUs before and
after.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from flows.clock import Stopwatch, now_utc
from flows.files import read_cluster, read_workload
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.release.server import admin
from flows.release.server.running import ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.benchmarks.served import FAILED, SERVED, Load, stop_when_terminated
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from warehouse.profiles import import_profile

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """
gpu_classes: {fast: {}, slow: {}}
nodes:
  - {count: 1, gpu_class: fast, gpus: 3, nic_gbps: 10}
  - {count: 1, gpu_class: slow, gpus: 4, nic_gbps: 10}
"""
WORKLOAD = "models: [{name: pair, slo_ms: 800, batch_building_rate_rps: 1000000}]\n"
LOAD_FACTOR, MEASURED_SECONDS, MINUTE = 0.2, 130, timedelta(minutes=1)


def profile() -> ModelProfile:
    """Three blocks on two classes, batches 1 and 2."""
    latency_us = {
        ("fast", 1): np.full((3, 2), (20_000.0, 24_000.0)),
        ("slow", 1): np.full((3, 2), (60_000.0, 80_000.0)),
    }
    return ModelProfile(name="pair", tables=loaded(latency_us), boundary_bytes=(40_000, 20_000))


def served(home: Path, port: int) -> tuple[Workspace, Plan, ServerState]:
    """The plan for the most throughput, served."""
    work = Workspace(state=ProjectState(home=home), warehouse=home / "w.duckdb")
    (home / "cluster.yaml").write_text(CLUSTER)
    (home / "workload.yaml").write_text(WORKLOAD)
    with work.open() as warehouse:
        import_profile(warehouse, profile(), "by hand", now_utc())
    cluster, workload = read_cluster(home / "cluster.yaml"), read_workload(home / "workload.yaml")
    plan = plan_step(work, cluster, workload, PlanOptions()).plan
    (home / "plan.json").write_text(json.dumps(plan.to_dict()))
    render_repository(work.state.serve, plan, ServeOptions())
    ports = Endpoints(http=port, grpc=port + 1, metrics=port + 2)
    return work, plan, admin.start(work.state.serve, ports)


def replan_by_schedule(home: Path) -> dict[str, Any]:
    """Measured minutes read in, then `replan` at the next full minute; its run, ended."""
    from prefect.client.orchestration import get_client  # noqa: PLC0415  # needs its environment
    from prefect.client.schemas.schedules import CronSchedule  # noqa: PLC0415  # as above
    from prefect.deployments import run_deployment  # noqa: PLC0415  # as above

    given = {"warehouse": str(home / "w.duckdb")}
    ingested: Any = run_deployment("ingest-stats/ingest-stats", parameters={"parameters": given})
    at = now_utc() + MINUTE
    files = {name: str(home / f"{name}.yaml") for name in ("cluster", "workload")}
    asked = given | files | {"objective": "cost", "bake_seconds": 20.0, "headroom": 1.3}
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("replan/replan")
        client.update_deployment(deployment.id, _with_parameters({"parameters": asked}))
        schedule = CronSchedule(cron=f"{at.minute} {at.hour} * * *", timezone="UTC")
        client.create_deployment_schedules(deployment.id, [(schedule, True)])
        run = _wait_for_run(client, deployment.id)
    return {
        "ingested": ingested.state.type.value,
        "state": run.state.type.value,
        "message": run.state.message,
        "scheduled": run.auto_scheduled,
        "late_seconds": run.start_time.timestamp() - run.expected_start_time.timestamp(),
        "seconds": run.total_run_time.total_seconds(),
    }


def _with_parameters(parameters: dict[str, Any]) -> Any:
    from prefect.client.schemas.actions import DeploymentUpdate  # noqa: PLC0415  # as above

    return DeploymentUpdate(parameters=parameters)


def _wait_for_run(client: Any, deployment_id: Any) -> Any:
    from prefect.client.schemas import filters  # noqa: PLC0415  # as above

    wanted = filters.DeploymentFilter(id=filters.DeploymentFilterId(any_=[deployment_id]))
    while True:
        for run in client.read_flow_runs(deployment_filter=wanted):
            if run.state is not None and run.state.is_final():
                return run
        time.sleep(1)


def environment(home: Path, port: int) -> None:
    """The project's folder and ports, for this process and for `scripts/operations`."""
    os.environ.update(
        POOLPIPE_HOME=str(home),
        POOLPIPE_WAREHOUSE=str(home / "w.duckdb"),
        POOLPIPE_PREFECT_PORT=str(port),
        POOLPIPE_UI_PORT=str(port + 1),
        PREFECT_HOME=str(home / "prefect"),
    )


def run(asked: argparse.Namespace, home: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Everything once."""
    stop_when_terminated()
    environment(home, asked.port + 10)
    operations, watch = str(ROOT / "scripts/operations"), Stopwatch()
    subprocess.run([operations, "up"], check=True)
    up_seconds = watch.seconds()
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{asked.port + 10}/api"
    try:
        work, plan, state = served(home, asked.port)
        options = (f"--load-factor={LOAD_FACTOR}", f"--duration={asked.seconds}")
        load = Load(state.grpc_url, home / "plan.json", *options)
        time.sleep(MEASURED_SECONDS)
        found = replan_by_schedule(home)
        after = state.control("status")["plan_id"]
        loaded = load.result()
        with work.open(read_only=True) as warehouse:
            rollouts = warehouse.rows("SELECT state, reason, outcome FROM rollouts")
            rows = warehouse.rows("SELECT document FROM plans WHERE plan_id = ?", [after])
        gpus = json.loads(rows[0]["document"])["gpus_used"]
    finally:
        admin.stop(home / "serve")
        del os.environ["PREFECT_API_URL"]
        subprocess.run([operations, "down"], check=True)
    outcomes = loaded.records["outcome"]
    before = sum(plan.gpus_used.values())
    figures = [
        Figure(name="operations up", value=up_seconds, unit="s"),
        Figure(name="replan completed by "
        "schedule", value=float(found["state"] == "COMPLETED"), least=1),
        Figure(name="another plan in force", value=float(after != plan.plan_id), least=1),
        Figure(name="requests offered", value=len(outcomes)),
        Figure(name="attainment", value=float((outcomes == SERVED).mean()), least=0.99),
        Figure(name="requests lost", value=int((outcomes == FAILED).sum()), most=0),
        Figure(name="GPUs before", value=before),
        Figure(name="GPUs after", value=sum(gpus.values())),
        Figure(name="replan, rollout included", value=found["seconds"], unit="s"),
    ]  # fmt: skip
    return figures, {"replan": found, "rollouts": rollouts}


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=330.0, help="of load, the whole window")
    parser.add_argument(
        "--port", type=int, default=23_500, help="of HTTP; the next 12 are used too"
    )
    add_destinations(parser)
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="poolpipe-replan-"))
    figures, details = run(asked, home)
    show(figures)
    print(details)
    store(asked, "replan", figures, details)
    shutil.rmtree(home)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
